"""Fake probes: a machine made of values, with the methods of the live and recorded ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpucheck.drivers.evidence import (
    BuildsReading,
    GpuHealthReading,
    HealthReading,
    HoldersReading,
    LaunchedReading,
    LaunchReading,
    NodeReading,
    NodesReading,
    ProcessFilesReading,
    SystemReading,
    TrialReading,
)
from gpucheck.drivers.readings import (
    CudaReading,
    GpuReading,
    KernelReading,
    NvmlReading,
    NvmlRequest,
    ProbeFailure,
    ProcessIdentity,
)
from gpucheck.report.host import Host

HERE = Host(name="node1", os="Debian GNU/Linux 12", kernel="6.1.0", python="3.11.9")
IN_DOCKER = HERE._replace(container="docker")
ON_WSL2 = HERE._replace(os="Ubuntu 24.04 (WSL2)")


@dataclass
class FakeProbes:
    """Probes that return the given readings and record their calls."""

    readings: NvmlReading = NvmlReading()
    cuda_reading: CudaReading = CudaReading(
        failure=ProbeFailure(code="library-not-found", message="no libcuda in this fake")
    )
    kernel_reading: KernelReading = KernelReading(pci_devices=())
    variables: Mapping[str, str] = field(default_factory=dict)
    people: Mapping[int, ProcessIdentity] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    system_reading: SystemReading = SystemReading(
        nodes=NodesReading(
            nodes=tuple(
                NodeReading(path=f"/dev/nvidia{name}", mode="0666", accessible=True)
                for name in ("0", "ctl", "-uvm")
            ),
            expected=("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"),
        )
    )
    openings: Mapping[str, str | None] = field(default_factory=dict)
    cuda_unrestricted_reading: CudaReading | None = None
    health_reading: HealthReading | None = None
    builds_reading: BuildsReading = BuildsReading(python="/usr/bin/python3", builds=())
    trials: Mapping[str, TrialReading] = field(default_factory=dict)
    launch_reading: LaunchReading | None = None
    machine: Host = HERE
    holders_reading: HoldersReading | None = None
    process_reading: ProcessFilesReading | None = None

    def time(self) -> str:
        """Return a fixed moment."""
        return "2026-01-02T03:04:05Z"

    def host(self) -> Host:
        """Return the given host."""
        return self.machine

    def environment(self) -> Mapping[str, str]:
        """Return the given variables."""
        return self.variables

    def kernel(self) -> KernelReading:
        """Return the given kernel reading."""
        self.asked.append("kernel")
        return self.kernel_reading

    def nvml(self, request: NvmlRequest) -> NvmlReading:
        """Return the given NVML reading."""
        self.asked.append("nvml")
        return self.readings

    def start_cuda(self) -> None:
        """Note that it was started."""
        self.asked.append("start_cuda")

    def cuda(self, *, unrestricted: bool = False) -> CudaReading:
        """Return the given CUDA reading; without the variable the other one, if given."""
        self.asked.append("cuda_unrestricted" if unrestricted else "cuda")
        other = self.cuda_unrestricted_reading if unrestricted else None
        return other or self.cuda_reading

    def system(self) -> SystemReading:
        """Return the given files."""
        self.asked.append("system")
        return self.system_reading

    def open_nodes(self, paths: Sequence[str]) -> Mapping[str, str | None]:
        """Return the given results."""
        self.asked.append("open_nodes")
        return self.openings

    def health(self, gpus: Sequence[int] | None = None) -> HealthReading:
        """Return the given health, or a clean bill for every GPU or for these."""
        self.asked.append("health" if gpus is None else "condition")
        if self.health_reading is not None:
            return self.health_reading
        indices = [gpu.index for gpu in self.readings.gpus] if gpus is None else gpus
        return HealthReading(gpus=tuple(map(healthy, indices)))

    def builds(self, python: str | None) -> BuildsReading:
        """Return the given builds."""
        self.asked.append("builds")
        return self.builds_reading

    def try_frameworks(
        self, names: Sequence[str], python: str | None, report_progress: Callable[[str], None]
    ) -> tuple[TrialReading, ...]:
        """Return the given trials."""
        self.asked.append("trials")
        return tuple(self.trials.get(name, TrialReading(name=name)) for name in names)

    def launch(
        self,
        python: str | None,
        *,
        through_cupy: bool,
        every_gpu: bool,
        report_progress: Callable[[str], None],
    ) -> LaunchReading:
        """Return the given launch, or one that fails or succeeds as CUDA does."""
        self.asked.append("launch")
        if self.launch_reading is not None:
            return self.launch_reading
        if self.cuda_reading.failure is not None:
            return LaunchReading(failure=self.cuda_reading.failure)
        first = LaunchedReading(ordinal=0, right=True, first_launch_s=0.02, second_launch_s=1e-5)
        count = self.cuda_reading.device_count or 0
        return LaunchReading(through="libcuda", launches=(first,) if count else ())

    def identify(self, pids: Iterable[int]) -> Mapping[int, ProcessIdentity]:
        """Return the given processes; others are unknown."""
        unknown = {pid: ProcessIdentity(pid=pid, namespace="unknown") for pid in pids}
        return {pid: self.people.get(pid, who) for pid, who in unknown.items()}

    def device_holders(self) -> HoldersReading:
        """Return the given holders."""
        self.asked.append("device_holders")
        return self.holders_reading or HoldersReading()

    def process(self, pid: int) -> ProcessFilesReading:
        """Return the given process."""
        self.asked.append("process")
        return self.process_reading or ProcessFilesReading(pid=pid, exists=False)

    def close(self) -> None:
        """Note that it was closed."""
        self.asked.append("close")


def healthy(index: int, **changes: object) -> GpuHealthReading:
    """Return the health of a sound GPU."""
    values: dict[str, object] = {
        "index": index,
        "clock_event_reasons": 0,
        "throttled_ns": {"power cap": 0, "software thermal": 0},
        "sample_s": 0.1,
        "temperature_slowdown_c": 89,
        "temperature_gpu_max_c": 87,
        "fan_count": 0,
        "pcie_generation_gpu_max": 5,
        "pcie_replays": 0,
        "pcie_replays_grown": 0,
        "nvlink_errors_grown": {"CRC": 0, "replay": 0, "recovery": 0},
        "ecc_mode_pending": True,
        "ecc_uncorrected_volatile": 0,
        "ecc_corrected_volatile": 0,
        "ecc_sram_threshold_exceeded": False,
        "remapped_rows_uncorrected": 0,
        "remapped_rows_pending": False,
        "remapped_rows_failed": False,
        "memory_unrepairable": False,
        "repair_pending": False,
        "recovery_action": 0,
        "nvlinks": 18,
        "nvlinks_active": 18,
        "fabric_state": 3,
        "fabric_status": 0,
        "fabric_health": 1,
        "power_limit_default_w": 700.0,
        "power_source": 0,
        "inforom_valid": True,
        "vbios_version": "96.00.89.00.01",
        "mig_mode_pending": False,
        "display_active": False,
        "unavailable": dict.fromkeys(
            ("temperature_memory_max_c", "retired_pages_single_bit", "retired_pages_double_bit"),
            "not supported by this GPU (NVML error 3)",
        ),
    }
    return GpuHealthReading(**(values | changes))  # type: ignore[arg-type]


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
        "unavailable": {"fan_percent": "not supported by this GPU (NVML error 3)"},
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
