"""Arrays of the tests are small: threads of the BLAS would only wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import threadpoolctl


@pytest.fixture(autouse=True, scope="module")
def _one_blas_thread() -> Iterator[None]:
    with threadpoolctl.threadpool_limits(1, "blas"):
        yield
