"""GPUs of a machine without NVML's library: what CUDA enumerates exists, for every command."""

from __future__ import annotations

import pytest

from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    KernelReading,
    NvmlReading,
    ProbeFailure,
)
from gpucheck.drivers.recorded import RecordedProbes
from gpucheck.inventory.inventory import take_inventory
from gpucheck.inventory.model import DecidedBy, Inventory
from gpucheck.inventory.snapshot import record
from gpucheck.report.errors import ExitCode
from tests.fakes.probes import FakeProbes

WHY = "libnvidia-ml.so.1 was not found"
MISSING = NvmlReading(failure=ProbeFailure("library-not-found", WHY, "nvmlInit", 12))
NO_LIBCUDA = CudaReading(failure=ProbeFailure("library-not-found", "libcuda.so.1 is missing"))
HUNG = CudaReading(failure=ProbeFailure("driver-not-answering", "CUDA did not answer within 9 s"))


def device(ordinal: int, bus: str | None, name: str = "Tesla T4", **more: object) -> object:
    return CudaDeviceReading(
        ordinal=ordinal,
        uuid_hex=f"{ordinal:032x}",
        name=name,
        pci_bus_id=bus,
        compute_capability="7.5",
        memory_total_bytes=1 << 34,
    )._replace(**more)  # type: ignore[arg-type]


def cuda(*devices: object) -> CudaReading:
    return CudaReading(driver_version=12040, device_count=len(devices), devices=devices)  # type: ignore[arg-type]


def inventory_of(probes: FakeProbes | RecordedProbes) -> Inventory:
    answer = take_inventory(probes)
    assert isinstance(answer.result, Inventory)
    assert (answer.exit_code, answer.error) == (ExitCode.OK, None)
    assert answer.warnings[0].code == "nvml-missing"
    assert answer.warnings[0].message.startswith(f"{WHY}: these are the GPUs that CUDA enumerates")
    assert answer.host.cuda_driver_version == "12.4"
    return answer.result


def test_every_row_is_what_cuda_enumerates() -> None:
    """CUDA's order is its own; the index counts by bus, as NVML's would."""
    found = cuda(device(0, "0000:41:00.0", "NVIDIA A100"), device(1, "0000:1a:00.0"))
    first, second = inventory_of(FakeProbes(readings=MISSING, cuda_reading=found)).gpus
    assert (first.index, first.cuda_index, first.name) == (0, 1, "Tesla T4")
    assert (second.index, second.cuda_index, second.name) == (1, 0, "NVIDIA A100")
    assert first.uuid == "GPU-00000000-0000-0000-0000-000000000001"
    assert (first.memory_total_bytes, first.memory_used_bytes) == (1 << 34, None)
    assert first.unavailable["memory_used_bytes"] == first.unavailable["processes"] == WHY
    assert {"uuid", "name", "memory_total_bytes"}.isdisjoint(first.unavailable)


def test_what_the_variable_hides_is_a_row_too_and_a_recording_has_it() -> None:
    both = cuda(device(0, "0000:1a:00.0"), device(1, "0000:41:00.0"))
    one = cuda(device(1, "0000:41:00.0")._replace(ordinal=0))  # type: ignore[attr-defined]
    probes = FakeProbes(
        readings=MISSING,
        cuda_reading=one,
        cuda_unrestricted_reading=both,
        variables={"CUDA_VISIBLE_DEVICES": "1"},
    )
    live, recorded = inventory_of(probes), inventory_of(RecordedProbes(record(probes)))
    assert [gpu.cuda_index for gpu in live.gpus] == [None, 0]
    assert live.gpus[0].hidden_reason == "not named in CUDA_VISIBLE_DEVICES='1'"
    assert live.visibility.decided_by is DecidedBy.DRIVER
    assert recorded == live


def test_what_the_variable_hides_may_stay_unknown() -> None:
    probes = FakeProbes(
        readings=MISSING,
        cuda_reading=cuda(device(0, "0000:41:00.0")),
        cuda_unrestricted_reading=HUNG,
        variables={"CUDA_VISIBLE_DEVICES": "1"},
    )

    (gpu,) = inventory_of(probes).gpus

    assert (gpu.pci_bus_id, gpu.cuda_index) == ("0000:41:00.0", 0)


def test_a_mig_instance_keeps_the_kind_of_name_by_which_a_program_gets_it() -> None:
    found = cuda(device(0, "0000:1a:00.0", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"))
    (gpu,) = inventory_of(FakeProbes(readings=MISSING, cuda_reading=found)).gpus
    assert gpu.uuid == "MIG-00000000-0000-0000-0000-000000000000"
    assert (gpu.cuda_index, gpu.visible) == (0, True)


def test_the_memory_of_a_board_that_shares_it_is_the_systems() -> None:
    found = cuda(device(0, None, "Orin", integrated=True))
    memory = KernelReading(memory_total_bytes=1 << 36, memory_available_bytes=1 << 35)
    probes = FakeProbes(readings=MISSING, cuda_reading=found, kernel_reading=memory)
    (gpu,) = inventory_of(probes).gpus
    assert (gpu.memory_source, gpu.memory_total_bytes) == ("system", 1 << 36)


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        (NO_LIBCUDA, ExitCode.MISSING, f"{WHY} (NVML error 12)."),
        (cuda(), ExitCode.MISSING, f"{WHY} (NVML error 12)."),
        (HUNG, ExitCode.INCONCLUSIVE, f"{WHY}, and CUDA did not answer within 9 s."),
    ],
    ids=["no-cuda", "no-device", "hung"],
)
def test_without_any_device_it_stays_the_failure_of_nvml(
    answer: CudaReading, code: ExitCode, says: str
) -> None:
    found = take_inventory(FakeProbes(readings=MISSING, cuda_reading=answer))
    assert found.exit_code is code
    assert found.error is not None
    assert found.error.message == f"The GPUs cannot be listed: {says}"


def test_cuda_is_not_asked_in_place_of_a_driver_that_refuses() -> None:
    refused = NvmlReading(failure=ProbeFailure("driver-not-loaded", "no module", "nvmlInit", 9))
    probes = FakeProbes(readings=refused, cuda_reading=cuda(device(0, "0000:1a:00.0")))
    assert take_inventory(probes).exit_code is ExitCode.MISSING
    assert "cuda" not in probes.asked
