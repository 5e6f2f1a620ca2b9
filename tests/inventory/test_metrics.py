"""Metrics of a list: base units, and no sample of what is not known."""

from __future__ import annotations

import pytest

from gpucheck.inventory.metrics import metrics
from gpucheck.inventory.model import (
    DecidedBy,
    Gpu,
    GpuState,
    Inventory,
    MigInstance,
    MigState,
    Visibility,
)
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.formats.prometheus import Number
from tests.fakes.reports import wrap

INSTANCE = MigInstance(
    uuid="MIG-1", name="A MIG 1g.5gb", gpu_instance_id=7, memory_total_bytes=5, memory_used_bytes=1
)
SPLIT = Gpu(
    index=0,
    uuid="GPU-1",
    utilization_gpu_percent=25,
    clock_sm_mhz=1980,
    mig=MigState(True, (INSTANCE,)),
)
LOST = Gpu(index=1, state=GpuState.LOST, unavailable={"processes": "it is lost"})
VISIBILITY = Visibility(None, None, DecidedBy.RULES)


def told(*gpus: Gpu, error: Failure | None = None) -> dict[str, list[Number]]:
    report = wrap("list", Answer(result=Inventory(gpus, VISIBILITY), error=error))
    return {each.name: [value for _, value in each.samples] for each in metrics(report)}


def test_units_are_base_units_and_what_was_not_read_is_null() -> None:
    found = told(SPLIT, LOST)

    assert found["gpucheck_gpus"] == [2]
    assert found["gpucheck_gpu_info"] == [1, 1]
    assert found["gpucheck_gpu_up"] == [True, False]
    assert found["gpucheck_gpu_utilization_ratio"] == [0.25, None]
    assert found["gpucheck_gpu_clock_sm_hertz"] == [1_980_000_000, None]
    assert found["gpucheck_gpu_processes"] == [0, None]
    assert found["gpucheck_mig_memory_total_bytes"] == [5]
    assert found["gpucheck_mig_memory_used_bytes"] == [1]


def test_an_instance_has_the_labels_of_its_card_and_its_own() -> None:
    report = wrap("list", Answer(result=Inventory((SPLIT,), VISIBILITY)))
    *_, used = metrics(report)
    [(labels, _)] = used.samples

    assert (labels["GPU_I_ID"], labels["GPU_I_PROFILE"]) == ("7", "1g.5gb")
    assert labels["mig_uuid"] == "MIG-1"
    assert "GPU-1" in labels.values()


def test_no_gpu_is_none_only_where_they_could_be_listed() -> None:
    failure = Failure(code="x", message="no")

    assert told()["gpucheck_gpus"] == [0]
    assert told(error=failure)["gpucheck_gpus"] == [None]
    assert told(SPLIT, error=failure)["gpucheck_gpus"] == [1]


def test_another_result_is_refused() -> None:
    with pytest.raises(TypeError):
        list(metrics(wrap("list", Answer(result=None))))
