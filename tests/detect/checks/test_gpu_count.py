"""gpu-count: the usable GPUs against the expected number."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import gpu_count
from gpucheck.detect.machine import DetectRequest, Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import HealthReading
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    GpuReading,
    KernelReading,
    MigReading,
    NvmlReading,
    PciDeviceReading,
    ProbeFailure,
)
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, healthy, reading_of

LOST = ProbeFailure(code="gpu-is-lost", message="it is gone", library_code=15)
NO_DRIVER = ProbeFailure(code="library-not-found", message="no libcuda")
HUNG = ProbeFailure(code="driver-not-answering", message="no answer within 10 s")
NOT_RECORDED = ProbeFailure(code="not-recorded", message="the snapshot did not record it")
THREE = (gpu_reading(0), gpu_reading(1), gpu_reading(2))
TWO_LEFT = (*THREE[:2], gpu_reading(2, failure=LOST))
SPLIT = gpu_reading(
    0, mig_enabled=True, mig_instances=(MigReading(uuid="MIG-1"), MigReading(uuid="MIG-2"))
)


def cuda_of(*gpus: GpuReading) -> CudaReading:
    devices = tuple(
        CudaDeviceReading(ordinal=at, uuid_hex=(gpu.uuid or "")[4:].replace("-", ""))
        for at, gpu in enumerate(gpus)
    )
    return CudaReading(driver_version=13000, device_count=len(gpus), devices=devices)


def count(
    expected: int | None,
    nvml: NvmlReading,
    cuda: CudaReading,
    health: HealthReading | None = None,
    **variables: str,
) -> Finding:
    probes = FakeProbes(
        readings=nvml, cuda_reading=cuda, health_reading=health, variables=variables
    )
    return gpu_count.check(Machine(probes, DetectRequest(expect_gpus=expected)))


@pytest.mark.parametrize(
    ("expected", "nvml", "cuda", "status"),
    [
        (None, reading_of(*THREE), cuda_of(*THREE), "skip"),
        (3, reading_of(*THREE), cuda_of(*THREE), "ok"),
        (2, reading_of(*THREE), cuda_of(*THREE), "fail"),
        # CUDA leaves one out.
        (3, reading_of(*THREE), cuda_of(*THREE[:2]), "fail"),
        (2, reading_of(*THREE), cuda_of(*THREE[:2]), "ok"),
        # One is lost, which CUDA may go on counting.
        (3, reading_of(*TWO_LEFT), cuda_of(*THREE), "fail"),
        (2, reading_of(*TWO_LEFT), cuda_of(*THREE), "ok"),
        (2, reading_of(*TWO_LEFT), cuda_of(*THREE[:2]), "ok"),
        (3, reading_of(*THREE), CudaReading(failure=NO_DRIVER), "fail"),
        (3, reading_of(*THREE), CudaReading(failure=HUNG), "unknown"),
        # Instances of MIG are no GPUs.
        (1, reading_of(SPLIT), cuda_of(*THREE), "ok"),
        # An older recording has NVML's word alone, and where there is no NVML CUDA's counts.
        (3, reading_of(*THREE), CudaReading(failure=NOT_RECORDED), "ok"),
        (3, NvmlReading(failure=NO_DRIVER), cuda_of(*THREE), "ok"),
        (3, NvmlReading(failure=NO_DRIVER), CudaReading(failure=NOT_RECORDED), "unknown"),
    ],
)
def test_count(expected: int | None, nvml: NvmlReading, cuda: CudaReading, status: str) -> None:
    assert count(expected, nvml, cuda).status == status


def test_a_gpu_that_is_lost_while_its_health_is_read_is_not_counted() -> None:
    health = HealthReading(gpus=(healthy(0), healthy(1), healthy(2, failure=LOST)))

    found = count(3, reading_of(*THREE), cuda_of(*THREE), health)

    assert (found.status, found.summary) == (CheckStatus.FAIL, "3 GPUs expected, 2 can be used")


def test_the_variable_that_hides_the_others_is_named() -> None:
    cuda = cuda_of(*THREE[:1])

    found = count(3, reading_of(*THREE), cuda, CUDA_VISIBLE_DEVICES="0")

    assert found.status is CheckStatus.FAIL
    assert "Unset CUDA_VISIBLE_DEVICES, or expect as many as it names." in found.remedy


def test_who_misses_a_gpu_that_cuda_leaves_out_is_sent_to_what_shows_it() -> None:
    found = count(3, reading_of(*THREE), cuda_of(*THREE[:2]))

    assert found.remedy == ("See which ones CUDA sees: gpucheck list --ask-driver",)
    assert found.evidence[:2] == (("NVML: GPUs that answer", "3"), ("cuDeviceGetCount", "2"))


def test_what_hides_gpus_is_evidence() -> None:
    found = count(3, reading_of(*THREE), cuda_of(*THREE[:2]), CUDA_VISIBLE_DEVICES="0,1")

    assert ("CUDA_VISIBLE_DEVICES", "'0,1'") in found.evidence


def test_who_misses_a_gpu_is_shown_how_many_are_on_the_bus() -> None:
    device = PciDeviceReading(pci_bus_id="0000:10:00.0", vendor_id="0x10de")
    probes = FakeProbes(
        readings=reading_of(*THREE),
        cuda_reading=cuda_of(*THREE),
        kernel_reading=KernelReading(pci_devices=(device,) * 4),
    )

    found = gpu_count.check(Machine(probes, DetectRequest(expect_gpus=8)))

    assert ("/sys/bus/pci/devices", "4") in found.evidence
