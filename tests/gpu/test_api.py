"""Public functions on a real card: the same card by every name."""

from __future__ import annotations

import pytest

import gpucheck

pytestmark = pytest.mark.gpu


def test_bench_measures_the_card_that_devices_names() -> None:
    pytest.importorskip("cupy")
    known = {gpu.cuda_index: gpu.uuid for gpu in gpucheck.devices()}

    result = gpucheck.bench("copy", device="gpu:0", mode="quick", budget_s=10.0, corruption_s=1.0)

    # A busy machine has no time for every row.
    rows = [row for row in result.measurements if row.error is None or row.error.code != "no-time"]
    assert rows
    assert {row.gpu_uuid for row in rows} == {known[0]}
    assert all(row.verified is not None and row.verified.ok for row in rows)
    assert all((row.time_s or 0) > 0 for row in rows)
    (check,) = result.corruption
    assert check.products > 0
    assert (check.mismatches, check.reference_ok, check.failure) == (0, True, None)


def test_a_card_that_this_program_holds_is_its_own_to_measure() -> None:
    pytest.importorskip("cupy")
    with gpucheck.place("/gpu:0") as (gpu,):
        result = gpucheck.bench("copy", device=f"gpu:{gpu.cuda_index}", mode="quick", budget_s=2.0)

    assert not [
        doubt for row in result.measurements for doubt in row.doubts if doubt.code == "gpu-claimed"
    ]
