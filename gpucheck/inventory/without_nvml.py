"""GPUs of a machine without NVML's library, as CUDA enumerates them.

So it is on a Jetson whose system has no NVML, and in a container without the `utility` capability.
"""

from __future__ import annotations

from gpucheck.drivers.interface import Probes
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    GpuReading,
    NvmlReading,
    ProbeFailure,
)
from gpucheck.inventory.inventory import HUNG, SHARED_MEMORY, UNANSWERED
from gpucheck.inventory.visibility import bus_place, gpu_uuid

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: CUDA names an instance by its card and its profile: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
_MIG = " MIG "


def ask_cuda_alone(missing: ProbeFailure, probes: Probes) -> tuple[NvmlReading, CudaReading | None]:
    """Return a row for each GPU that CUDA enumerates, hidden ones too, and what a program sees.

    Without any GPU the reading is `missing`, NVML's own failure, and the other is None. A CUDA
    driver that does not answer leaves open whether there are any.
    """
    nothing = NvmlReading(failure=missing)
    seen = probes.cuda()
    if seen.failure is not None and seen.failure.code == HUNG:
        both = f"{missing.message}, and {seen.failure.message}"
        return nothing._replace(failure=seen.failure._replace(message=both)), None
    every = seen
    if VISIBLE in probes.environment():
        unrestricted = probes.cuda(unrestricted=True)
        every = unrestricted if unrestricted.devices else seen
    if not every.devices:
        return nothing, None
    ordered = sorted(every.devices, key=lambda one: (bus_place(one.pci_bus_id), one.ordinal))
    reading = NvmlReading(
        cuda_driver_version=every.driver_version,
        gpu_count=len(ordered),
        gpus=tuple(_row(index, one, missing.message) for index, one in enumerate(ordered)),
    )
    return reading, seen


def _row(index: int, device: CudaDeviceReading, reason: str) -> GpuReading:
    """Return the row of a device; `index` counts by bus id, as NVML does."""
    kind = "MIG-" if _MIG in (device.name or "") else "GPU-"
    row = GpuReading(
        index=index,
        uuid=device.uuid_hex and kind + gpu_uuid(device.uuid_hex).removeprefix("GPU-"),
        name=device.name,
        pci_bus_id=device.pci_bus_id,
        compute_capability=device.compute_capability,
        # Memory that is the system's has no figure of its own in CUDA either.
        memory_total_bytes=None if device.integrated else device.memory_total_bytes,
    )
    reasons = dict.fromkeys(UNANSWERED, reason)
    reasons |= {name: why for name, why in device.unavailable.items() if name in reasons}
    if "uuid_hex" in device.unavailable:
        reasons["uuid"] = device.unavailable["uuid_hex"]
    if device.integrated:
        reasons["memory_total_bytes"] = SHARED_MEMORY
    absent = {name: why for name, why in reasons.items() if getattr(row, name) in (None, ())}
    return row._replace(unavailable=absent)
