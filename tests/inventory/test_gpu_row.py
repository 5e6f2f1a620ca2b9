"""Row of a GPU that never answered; other rows are tested with the list (test_inventory.py)."""

from __future__ import annotations

from gpucheck.drivers.readings import HUNG, NvmlReading, ProbeFailure
from gpucheck.inventory.gpu_row import rows_of


def test_reasons_of_a_silent_gpu_have_the_same_order_in_every_run() -> None:
    silent = NvmlReading(failure=ProbeFailure(code=HUNG, message="no answer"), gpu_count=1)

    (row,) = rows_of(silent)

    assert len(row.unavailable) > 20
    assert [*row.unavailable] == sorted(row.unavailable)
