"""gpu-count: only what a person expects is judged."""

from __future__ import annotations

import pytest

from gpucheck.core.checks import gpu_count
from gpucheck.core.checks.machine import Machine, Wish
from gpucheck.models.finding import CheckStatus
from gpucheck.models.snapshot import ProbeFailure
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

LOST = ProbeFailure(code="gpu-is-lost", message="it is gone", library_code=15)


@pytest.mark.parametrize(
    ("expected", "status"),
    [(None, CheckStatus.SKIP), (2, CheckStatus.OK), (1, CheckStatus.FAIL), (3, CheckStatus.FAIL)],
)
def test_count(expected: int | None, status: CheckStatus) -> None:
    rows = reading_of(gpu_reading(0), gpu_reading(1), gpu_reading(2, failure=LOST))

    found = gpu_count.check(Machine(FakeProbes(readings=rows), Wish(expect_gpus=expected)))

    assert found.status is status
