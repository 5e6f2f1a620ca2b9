"""gpu-lost: a GPU that drops out at any moment is named, and the remaining ones are counted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gpucheck.detect.checks import gpu_lost
from gpucheck.detect.machine import DetectRequest, Machine
from gpucheck.detect.model import Detection, Verdict
from gpucheck.detect.run import detect
from gpucheck.drivers.evidence import HealthReading, PciDetailReading, SystemReading
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    KernelReading,
    NvmlReading,
    NvmlRequest,
    PciDeviceReading,
    ProbeFailure,
)
from gpucheck.report.envelope import CheckStatus
from gpucheck.report.errors import ExitCode
from tests.fakes.probes import IN_DOCKER, FakeProbes, gpu_reading, healthy, reading_of

LOST = ProbeFailure(code="gpu-is-lost", message="it is gone", library_code=15)
RESET = ProbeFailure(code="reset-required", message="it needs a reset", library_code=16)
DENIED = ProbeFailure(code="no-permission", message="no permission to read it", library_code=4)
HUNG = ProbeFailure(code="driver-not-answering", message="no answer within 10 s")
ROWS = (gpu_reading(0), gpu_reading(1), gpu_reading(2))
CUDA = CudaReading(
    driver_version=13000,
    device_count=3,
    devices=tuple(
        CudaDeviceReading(ordinal=gpu.index, uuid_hex=(gpu.uuid or "")[4:].replace("-", ""))
        for gpu in ROWS
    ),
)


@dataclass
class Fading(FakeProbes):
    """A machine that says something else of its GPUs after a kernel has run."""

    after: NvmlReading = NvmlReading()

    def nvml(self, question: NvmlRequest) -> NvmlReading:
        """Return the first reading, and to the later, short question the second one."""
        first = super().nvml(question)
        return first if question.processes_of is None else self.after


def kernel(*bus_ids: str) -> KernelReading:
    devices = tuple(
        PciDeviceReading(pci_bus_id=bus_id, vendor_id="0x10de", driver="nvidia")
        for bus_id in bus_ids
    )
    return KernelReading(pci_devices=devices, module_loaded=True, uvm_loaded=True)


BUS = kernel(*(gpu.pci_bus_id or "" for gpu in ROWS))


def health_of(*failures: ProbeFailure | None) -> HealthReading:
    rows = (healthy(index, failure=failure) for index, failure in enumerate(failures))
    return HealthReading(gpus=tuple(rows))


def machine(nvml: NvmlReading, health: HealthReading, after: NvmlReading) -> Fading:
    return Fading(
        readings=nvml, health_reading=health, after=after, cuda_reading=CUDA, kernel_reading=BUS
    )


WELL = health_of(None, None, None)
LISTED = reading_of(*ROWS)
STILL_THERE = NvmlReading(gpus=ROWS)


@pytest.mark.parametrize("fault", [LOST, RESET], ids=["15", "16"])
@pytest.mark.parametrize("moment", ["listing", "health", "kernel"])
@pytest.mark.parametrize("request_", [DetectRequest(), DetectRequest(expect_gpus=3)])
def test_a_gpu_that_is_lost_at_any_moment_fails(
    fault: ProbeFailure, moment: str, request_: DetectRequest
) -> None:
    rows = (ROWS[0], ROWS[1], ROWS[2]._replace(failure=fault))
    probes = machine(
        reading_of(*rows) if moment == "listing" else LISTED,
        health_of(None, None, fault) if moment == "health" else WELL,
        NvmlReading(gpus=rows) if moment == "kernel" else STILL_THERE,
    )

    answer = detect(probes, request_)

    result = answer.result
    assert isinstance(result, Detection)
    assert (answer.exit_code, result.verdict) == (ExitCode.BAD, Verdict.DEGRADED)
    assert (result.usable, result.first_failure, result.cause) == (True, "gpu-lost", fault.code)
    assert result.conclusion.startswith("2 of 3 GPUs usable: GPU 2 (0000:12:00.0) ")
    assert result.remedy
    (found,) = [each for each in result.checks if each.id == "gpu-lost"]
    sign = f"{fault.message} (NVML error {fault.library_code})"
    assert [item.value for item in found.evidence if item.source == "NVML, GPU 2"] == [sign]


def test_what_was_not_read_of_a_lost_gpu_is_told_once() -> None:
    gone = dict.fromkeys(("recovery_action", "pcie_replays_grown"), "lost (NVML error 15)")
    lost = healthy(2, failure=LOST, unavailable=gone, **dict.fromkeys(gone))
    health = HealthReading(gpus=(healthy(0), healthy(1), lost))

    result = detect(machine(LISTED, health, STILL_THERE)).result

    assert isinstance(result, Detection)
    of_health = {f.id: f for f in result.checks if f.layer == "health"}
    assert of_health["recovery-action"].summary == "the driver asks for no recovery (2 GPUs)"
    assert of_health["pcie-replays"].status is CheckStatus.OK


def test_what_was_found_of_a_gpu_before_it_was_lost_counts() -> None:
    lost = healthy(2, failure=LOST, remapped_rows_failed=True)
    health = HealthReading(gpus=(healthy(0), healthy(1), lost))

    result = detect(machine(LISTED, health, STILL_THERE)).result

    assert isinstance(result, Detection)
    said = [f.summary for f in result.checks if f.id == "row-remapping"]
    assert said == ["GPU 2: a bad row of memory could not be replaced"]


def test_the_signs_of_a_lost_gpu_send_to_where_its_steps_are() -> None:
    rows = (*ROWS[:2], gpu_reading(2, failure=LOST, pci_bus_id=None))
    probes = machine(reading_of(*rows), WELL, STILL_THERE)
    detail = PciDetailReading(pci_bus_id="0000:12:00.0", answers=False)
    probes.system_reading = probes.system_reading._replace(pci=(detail,))

    result = detect(probes).result

    assert isinstance(result, Detection)
    # The only one on the bus that NVML names no GPU for.
    assert "GPU 2 (0000:12:00.0) fell off the bus" in result.conclusion
    found = {f.id: f for f in result.checks}
    assert found["pci-device"].remedy == found["nvml"].remedy == ("See gpu-lost.",)


def test_a_gpu_that_nvml_no_longer_lists_is_counted() -> None:
    probes = machine(reading_of(*ROWS[:2]), health_of(None, None), STILL_THERE)
    detail = PciDetailReading(pci_bus_id="0000:12:00.0", answers=False)
    probes.system_reading = probes.system_reading._replace(pci=(detail,))

    result = detect(probes).result

    assert isinstance(result, Detection)
    assert result.conclusion == "2 of 3 GPUs usable: 0000:12:00.0 fell off the bus"


def test_when_all_are_lost_none_is_usable_whatever_ran_before() -> None:
    result = detect(machine(LISTED, health_of(LOST, LOST, LOST), STILL_THERE)).result

    assert isinstance(result, Detection)
    assert (result.verdict, result.usable) == (Verdict.UNUSABLE, False)
    assert result.first_failure == "gpu-lost"


@pytest.mark.parametrize(
    ("nvml", "health", "after", "status"),
    [
        (LISTED, WELL, STILL_THERE, CheckStatus.OK),
        (reading_of(), HealthReading(), STILL_THERE, CheckStatus.SKIP),
        (LISTED, HealthReading(failure=HUNG), STILL_THERE, CheckStatus.UNKNOWN),
        # Another refusal is no loss.
        (LISTED, health_of(None, None, DENIED), STILL_THERE, CheckStatus.OK),
    ],
)
def test_statuses(
    nvml: NvmlReading, health: HealthReading, after: NvmlReading, status: CheckStatus
) -> None:
    assert gpu_lost.check(Machine(machine(nvml, health, after))).status is status


def test_a_driver_that_hangs_after_the_kernel_is_not_well() -> None:
    result = detect(machine(LISTED, WELL, NvmlReading(failure=HUNG))).result

    assert isinstance(result, Detection)
    (found,) = [f for f in result.checks if f.id == "gpu-lost"]
    assert (found.status, found.cause) == (CheckStatus.WARN, "driver-not-answering")
    assert result.verdict is Verdict.DEGRADED


def test_without_a_kernel_nvml_is_asked_once() -> None:
    probes = machine(LISTED, WELL, STILL_THERE)

    detect(probes, DetectRequest(only=("gpu-lost",)))

    assert probes.asked.count("nvml") == 1
    assert "launch" not in probes.asked


def test_a_container_sees_gpus_of_its_host_that_are_not_its_own() -> None:
    probes = Fading(
        machine=IN_DOCKER, readings=reading_of(*ROWS[:2]), cuda_reading=CUDA, kernel_reading=BUS
    )
    probes.system_reading = SystemReading(
        pci=(PciDetailReading(pci_bus_id="0000:12:00.0", answers=False),)
    )

    assert gpu_lost.check(Machine(probes)).status is CheckStatus.OK
