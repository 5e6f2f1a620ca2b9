"""Metrics of `gpucheck list`: what each GPU reports, in base units."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpucheck.inventory.model import Gpu, GpuState, Inventory, MigInstance
from gpucheck.report.envelope import Report
from gpucheck.report.formats.prometheus import Metric, Number, gauge, gpu_labels, ratio

Labels = dict[str, str | None]

#: Metric -> its help text and the reading; one that is null has no sample.
_READINGS: dict[str, tuple[str, Callable[[Gpu], Number]]] = {
    "gpucheck_gpu_up":
        ("1 if the GPU answers, 0 if it is lost or cannot be read.",
         lambda gpu: gpu.state is GpuState.OK),
    "gpucheck_gpu_visible":
        ("1 if a CUDA program started here sees the GPU, 0 if it is hidden; absent if not known.",
         lambda gpu: gpu.visible),
    "gpucheck_gpu_memory_total_bytes": ("Memory of the card.", lambda gpu: gpu.memory_total_bytes),
    "gpucheck_gpu_memory_used_bytes":
        ("Memory in use, without what the driver reserves.", lambda gpu: gpu.memory_used_bytes),
    "gpucheck_gpu_memory_limit_bytes":
        ("Memory that this cgroup may use, where the driver caps it.",
         lambda gpu: gpu.memory_limit_bytes),
    "gpucheck_gpu_utilization_ratio":
        ("Share of the time in which a kernel ran.",
         lambda gpu: ratio(gpu.utilization_gpu_percent)),
    "gpucheck_gpu_temperature_celsius": ("Temperature of the GPU.", lambda gpu: gpu.temperature_c),
    "gpucheck_gpu_fan_ratio": ("Speed of the fan.", lambda gpu: ratio(gpu.fan_percent)),
    "gpucheck_gpu_power_watts": ("Power draw.", lambda gpu: gpu.power_w),
    "gpucheck_gpu_power_limit_watts": ("Power limit in force.", lambda gpu: gpu.power_limit_w),
    "gpucheck_gpu_clock_sm_hertz":
        ("Clock of the multiprocessors.", lambda gpu: _hertz(gpu.clock_sm_mhz)),
    "gpucheck_gpu_pcie_generation":
        ("Generation of the PCIe link now; it falls when the GPU is idle.",
         lambda gpu: gpu.pcie.generation),
    "gpucheck_gpu_pcie_lanes": ("Lanes of the PCIe link now.", lambda gpu: gpu.pcie.width),
    "gpucheck_gpu_pcie_lanes_max":
        ("Lanes that this system allows.", lambda gpu: gpu.pcie.width_max),
    "gpucheck_gpu_processes":
        ("Number of processes on the GPU; absent if the driver does not tell.",
         lambda gpu: None if "processes" in gpu.unavailable else len(gpu.processes)),
}  # fmt: skip


def metrics(report: Report) -> Iterator[Metric]:
    """Yield the metrics of a list; absent readings have no samples."""
    inventory = report.result_as(Inventory)
    labelled = [
        (gpu_labels(index=gpu.index, uuid=gpu.uuid, pci_bus_id=gpu.pci_bus_id, name=gpu.name), gpu)
        for gpu in inventory.gpus
    ]
    known = bool(labelled) or report.error is None
    yield gauge(
        "gpucheck_gpus",
        "Number of GPUs listed; absent if they could not be listed.",
        [({}, len(labelled) if known else None)],
    )
    yield gauge(
        "gpucheck_gpu_info",
        "What the GPU is.",
        [
            (
                {
                    **labels,
                    "architecture": gpu.architecture,
                    "compute_capability": gpu.compute_capability,
                    "state": gpu.state.value,
                },
                1,
            )
            for labels, gpu in labelled
        ],
    )
    for name, (text, reading) in _READINGS.items():
        yield gauge(name, text, [(labels, reading(gpu)) for labels, gpu in labelled])
    yield from _instance_metrics(
        [(labels, instance) for labels, gpu in labelled for instance in gpu.mig.instances]
    )


def _instance_metrics(instances: list[tuple[Labels, MigInstance]]) -> Iterator[Metric]:
    """Yield the memory of MIG instances, whose labels too are DCGM-exporter's."""
    labelled = [
        (
            {
                **labels,
                "GPU_I_ID": None
                if instance.gpu_instance_id is None
                else str(instance.gpu_instance_id),
                "GPU_I_PROFILE": (instance.name or "").rpartition("MIG ")[2],
                "mig_uuid": instance.uuid,
            },
            instance,
        )
        for labels, instance in instances
    ]
    yield gauge(
        "gpucheck_mig_memory_total_bytes",
        "Memory of the MIG instance.",
        [(labels, instance.memory_total_bytes) for labels, instance in labelled],
    )
    yield gauge(
        "gpucheck_mig_memory_used_bytes",
        "Memory in use in the MIG instance.",
        [(labels, instance.memory_used_bytes) for labels, instance in labelled],
    )


def _hertz(megahertz: int | None) -> int | None:
    return None if megahertz is None else megahertz * 1_000_000
