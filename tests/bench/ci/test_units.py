"""What a check's figure is counted in."""

from __future__ import annotations

import pytest

from gpucheck.bench.ci.limits import base_unit
from gpucheck.bench.ci.profile_model import Metric


@pytest.mark.parametrize(
    ("metric", "kernel", "unit"),
    [
        (Metric.TIME, "matmul", "s"),
        (Metric.TIME, "no-such-kernel", "s"),
        (Metric.FACT, "matmul", None),
        (Metric.THROUGHPUT, "matmul", "FLOP/s"),
        (Metric.THROUGHPUT, "copy", "B/s"),
        (Metric.THROUGHPUT, "no-such-kernel", None),
    ],
)
def test_base_unit(metric: Metric, kernel: str, unit: str | None) -> None:
    assert base_unit(metric, kernel, "float32") == unit
