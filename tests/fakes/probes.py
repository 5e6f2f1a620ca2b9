"""A machine made of values: satisfies the Probes Protocol without touching anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpucheck.models.report import Host
from gpucheck.models.snapshot import (
    CudaReading,
    GpuReading,
    KernelReading,
    NvmlReading,
    ProbeFailure,
    ProcessIdentity,
)
from gpucheck.probes.interface import NvmlQuestion


@dataclass
class FakeProbes:
    """Answers with what it was given and remembers what it was asked."""

    readings: NvmlReading = NvmlReading()
    cuda_reading: CudaReading = CudaReading(
        failure=ProbeFailure(code="library-not-found", message="no libcuda in this fake")
    )
    kernel_reading: KernelReading = KernelReading(pci_devices=())
    variables: Mapping[str, str] = field(default_factory=dict)
    people: Mapping[int, ProcessIdentity] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def time(self) -> str:
        """Return a fixed moment."""
        return "2026-01-02T03:04:05Z"

    def host(self) -> Host:
        """Return a fixed host."""
        return Host(name="node1", os="Debian GNU/Linux 12", kernel="6.1.0", python="3.11.9")

    def environment(self) -> Mapping[str, str]:
        """Return the given variables."""
        return self.variables

    def kernel(self) -> KernelReading:
        """Return the given kernel reading."""
        self.asked.append("kernel")
        return self.kernel_reading

    def nvml(self, question: NvmlQuestion) -> NvmlReading:
        """Return the given NVML reading."""
        self.asked.append("nvml")
        return self.readings

    def cuda(self) -> CudaReading:
        """Return the given CUDA reading."""
        self.asked.append("cuda")
        return self.cuda_reading

    def identify(self, pids: Iterable[int]) -> Mapping[int, ProcessIdentity]:
        """Return the given people; others are unknown."""
        unknown = {pid: ProcessIdentity(pid=pid, namespace="unknown") for pid in pids}
        return {pid: self.people.get(pid, who) for pid, who in unknown.items()}

    def close(self) -> None:
        """Note that it was closed."""
        self.asked.append("close")


def gpu_reading(index: int, **changes: object) -> GpuReading:
    """Return one healthy H100 with a UUID, bus id and serial of its own."""
    values: dict[str, object] = {
        "index": index,
        "uuid": f"GPU-{index:08x}-1111-2222-3333-444444444444",
        "name": "NVIDIA H100 80GB HBM3",
        "serial": f"16500000000{index}",
        "pci_bus_id": f"0000:{index + 16:02x}:00.0",
        "pci_device_id": "233010de",
        "architecture": "Hopper",
        "compute_capability": "9.0",
        "memory_total_bytes": 85899345920,
        "memory_used_bytes": 1073741824,
        "memory_free_bytes": 84825604096,
        "utilization_gpu_percent": 7,
        "utilization_memory_percent": 3,
        "temperature_c": 41,
        "power_w": 120.5,
        "power_limit_w": 700.0,
        "clock_sm_mhz": 1980,
        "clock_sm_max_mhz": 1980,
        "performance_state": 0,
        "persistence_mode": True,
        "compute_mode": "default",
        "ecc_mode": True,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "mig_enabled": False,
        "unavailable": {"fan_percent": "not supported by this GPU (NVML 3)"},
    }
    return GpuReading(**(values | changes))  # type: ignore[arg-type]


def reading_of(*gpus: GpuReading, **changes: object) -> NvmlReading:
    """Return a complete NVML reading with these GPUs."""
    values: dict[str, object] = {
        "driver_version": "580.95.05",
        "nvml_version": "13.580.95.05",
        "cuda_driver_version": 13000,
        "gpu_count": len(gpus),
        "gpus": gpus,
    }
    return NvmlReading(**(values | changes))  # type: ignore[arg-type]
