"""Memory of each process on each GPU or MIG instance, from NVML's lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpucheck.drivers.readings import GpuReading, ProcessReading


def memory_by_process(
    gpus: Iterable[GpuReading],
) -> Mapping[str | None, Mapping[int, int | None]]:
    """Return bytes by device (UUID) and process id; None where the driver does not report them."""
    found: dict[str | None, dict[int, int | None]] = {}
    for gpu in gpus:
        for process in gpu.processes:
            sizes = found.setdefault(_device_of(gpu, process), {})
            told = [sizes.get(process.pid), process.memory_used_bytes]
            # A process in two of NVML's lists has its total in both.
            sizes[process.pid] = max((size for size in told if size is not None), default=None)
    return found


def _device_of(gpu: GpuReading, process: ProcessReading) -> str | None:
    """Return the UUID of the GPU, or of the MIG instance that the process uses."""
    place = (process.gpu_instance_id, process.compute_instance_id)
    for mig in gpu.mig_instances:
        if process.gpu_instance_id is not None and place == (
            mig.gpu_instance_id,
            mig.compute_instance_id,
        ):
            return mig.uuid
    return gpu.uuid
