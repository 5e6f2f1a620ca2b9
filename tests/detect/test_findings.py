"""Findings over all GPUs: one line if all are healthy, one finding for each other GPU."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.gpu_health import CARD, GpuCheck
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import GpuHealthReading, HealthReading
from gpucheck.drivers.native import BINDING_TOO_OLD
from gpucheck.drivers.native import NOT_SUPPORTED as NOT_OFFERED_HERE
from gpucheck.drivers.nvml.binding import error_of
from gpucheck.drivers.readings import GpuReading, ProbeFailure
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, healthy, reading_of

NOT_SUPPORTED = {"remapped_rows_failed": "not supported by this GPU (NVML error 3)"}
DENIED = {"remapped_rows_failed": "no permission to read it (NVML error 4)"}
CHECKS = {check.ID: check for check in CARD}
PCIE_WIDTH, ROW_REMAPPING = CHECKS["pcie-width"], CHECKS["row-remapping"]


def pairs_of(*pairs: tuple[GpuReading, GpuHealthReading], check: GpuCheck) -> list[Finding]:
    """Return what a check says of these GPUs."""
    probes = FakeProbes(
        readings=reading_of(*(gpu for gpu, _ in pairs)),
        health_reading=HealthReading(gpus=tuple(health for _, health in pairs)),
    )
    return check.check(Machine(probes))


def test_many_healthy_gpus_are_one_finding() -> None:
    (found,) = pairs_of(*((gpu_reading(n), healthy(n)) for n in range(8)), check=PCIE_WIDTH)

    assert found.summary == "PCIe links have their full width (8 GPUs)"
    assert found.gpu is None


def test_each_bad_gpu_has_a_finding_with_its_uuid() -> None:
    bad = [gpu_reading(n, pcie_width=8) for n in (1, 3)]
    pairs = [(gpu_reading(0), healthy(0)), *((gpu, healthy(gpu.index)) for gpu in bad)]

    found = pairs_of(*pairs, check=PCIE_WIDTH)

    assert [item.gpu for item in found] == [gpu.uuid for gpu in bad]
    assert [item.summary for item in found] == ["GPU 1: PCIe x8 of x16", "GPU 3: PCIe x8 of x16"]


@pytest.mark.parametrize(
    ("reasons", "status"),
    [
        (NOT_SUPPORTED, CheckStatus.SKIP),
        ({"remapped_rows_failed": error_of("f", 13).reason()}, CheckStatus.SKIP),
        ({"remapped_rows_failed": error_of("f", 26).reason()}, CheckStatus.SKIP),
        ({"remapped_rows_failed": BINDING_TOO_OLD}, CheckStatus.SKIP),
        ({"remapped_rows_failed": NOT_OFFERED_HERE}, CheckStatus.SKIP),
        (DENIED, CheckStatus.UNKNOWN),
    ],
)
def test_what_cannot_be_read_is_never_ok(reasons: dict[str, str], status: CheckStatus) -> None:
    gap = healthy(0, remapped_rows_failed=None, unavailable=reasons)

    (found,) = pairs_of((gpu_reading(0), gap), check=ROW_REMAPPING)

    assert found.status is status
    assert reasons["remapped_rows_failed"] in found.summary


def test_a_gap_on_one_gpu_does_not_hide_the_others() -> None:
    gap = healthy(0, remapped_rows_failed=None, unavailable=NOT_SUPPORTED)

    (found,) = pairs_of((gpu_reading(0), gap), (gpu_reading(1), healthy(1)), check=ROW_REMAPPING)

    assert found.summary == "no memory row is waiting to be replaced (1 GPU)"


def test_a_reading_that_failed_as_a_whole_is_not_checked() -> None:
    failure = ProbeFailure(code="driver-not-answering", message="no answer within 10 s")
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0)), health_reading=HealthReading(failure=failure)
    )

    (found,) = PCIE_WIDTH.check(Machine(probes))

    assert found.status is CheckStatus.UNKNOWN
    assert found.summary == "not checked: no answer within 10 s"


def test_without_a_gpu_that_answers_nothing_is_judged() -> None:
    (found,) = PCIE_WIDTH.check(Machine(FakeProbes(readings=reading_of())))

    assert found.status is CheckStatus.SKIP


def test_a_gpu_that_could_not_be_read_is_named() -> None:
    gap = healthy(1, remapped_rows_failed=None, unavailable=DENIED)

    (found,) = pairs_of((gpu_reading(0), healthy(0)), (gpu_reading(1), gap), check=ROW_REMAPPING)

    assert found.status is CheckStatus.UNKNOWN
    assert found.summary == "not checked on GPU 1: no permission to read it (NVML error 4)"


def test_what_came_before_the_driver_stopped_is_no_clean_bill() -> None:
    failure = ProbeFailure(code="driver-not-answering", message="no answer within 10 s")
    partial = HealthReading(gpus=(healthy(0),), failure=failure)
    probes = FakeProbes(readings=reading_of(gpu_reading(0), gpu_reading(1)), health_reading=partial)

    (found,) = ROW_REMAPPING.check(Machine(probes))

    assert (found.status, found.cause) == (CheckStatus.UNKNOWN, "driver-not-answering")
