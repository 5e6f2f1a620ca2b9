"""Answers where NVML lists no GPU: those that CUDA alone enumerates, or that there is none.

CUDA alone knows on a Jetson whose system has no NVML, and in a container without the `utility`
capability.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpucheck.data import read_table
from gpucheck.drivers.evidence import PlatformReading
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.readings import HUNG, CudaDeviceReading, GpuReading, NvmlReading, ProbeFailure
from gpucheck.inventory.gpu_row import SHARED_MEMORY, UNANSWERED
from gpucheck.inventory.visibility import bus_place, gpu_uuid
from gpucheck.report.envelope import DRIVER_LIBRARY, Failure, Notice

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: CUDA names an instance by its card and its profile: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
_MIG = " MIG "


def ask_cuda_alone(missing: ProbeFailure, probes: Probes) -> NvmlReading:
    """Return a row for each GPU that CUDA enumerates, hidden ones too.

    Without any GPU the reading is `missing`, NVML's own failure. A CUDA driver that does not answer
    leaves open whether there are any.
    """
    nothing = NvmlReading(failure=missing)
    seen = probes.cuda()
    if seen.failure is not None and seen.failure.code == HUNG:
        both = f"{missing.message}, and {seen.failure.message}"
        return nothing._replace(failure=seen.failure._replace(message=both))
    every = seen
    if VISIBLE in probes.environment():
        unrestricted = probes.cuda(unrestricted=True)
        every = unrestricted if unrestricted.devices else seen
    if not every.devices:
        return nothing
    ordered = sorted(
        every.devices, key=lambda device: (bus_place(device.pci_bus_id), device.ordinal)
    )
    return NvmlReading(
        cuda_driver_version=every.driver_version,
        gpu_count=len(ordered),
        gpus=tuple(_row(index, device, missing.message) for index, device in enumerate(ordered)),
    )


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


# ------------------------------------------------------------------------------- no NVIDIA GPU

#: Errors of a driver's library on a machine without a GPU: it is not installed, or finds none.
_WITHOUT_GPU = frozenset({"library-not-found", "driver-not-loaded", "no-device"})
#: Made by the driver, or by a container runtime: a sign of a GPU that the bus does not show.
CONTROL_NODE = "/dev/nvidiactl"
#: Values of a laptop's graphics switch that turn the NVIDIA GPU off.
SWITCHED_OFF = ("intel", "off")
#: Steps that begin so are for real hardware.
OWN_COMPUTER = "On your own computer"


def explain_absence(failure: ProbeFailure, probes: Probes) -> tuple[str, tuple[str, ...]] | None:
    """Return a clause and the steps if a driver fails for want of a GPU; None if one may be here.

    The GPU of WSL2 and of a Jetson is on no PCI bus, and a sandbox may hide the bus.
    """
    if failure.code not in _WITHOUT_GPU or probes.host().is_wsl:
        return None
    if probes.kernel().pci_devices != ():
        return None
    system = probes.system()
    platform = system.platform
    if system.unavailable is not None or platform.dxg or platform.tegra is not None:
        return None
    if any(node.path == CONTROL_NODE for node in system.nodes.nodes):
        return None
    causes = read_table("causes")["pci-device"]
    if platform.prime_profile in SWITCHED_OFF:
        texts = causes["gpu-switched-off"]
        return texts["sentence"], tuple(texts["remedy"])
    texts = causes["no-gpu-on-the-bus"]
    steps = fitting_steps(texts["remedy"], platform.hypervisor)
    return f"there is no NVIDIA GPU in this machine{describe_others(platform)}", steps


def explain_failure(
    failure: Failure, reading: NvmlReading, probes: Probes
) -> tuple[Failure, tuple[Notice, ...]]:
    """Return NVML's failure as every command gives it, and its own words as what `-v` adds."""
    absence = reading.failure and not reading.gpus and explain_absence(reading.failure, probes)
    if not absence:
        return failure, ()
    clause, steps = absence
    message = f"{clause[0].upper()}{clause[1:]}."
    words = Notice(code=DRIVER_LIBRARY, message=failure.message)
    return failure._replace(message=message, remedy=steps), (words,)


def describe_others(platform: PlatformReading) -> str:
    """Return whose graphics cards there are instead, in brackets; nothing if there is none."""
    others = " and ".join(platform.other_vendors)
    return f" (its graphics card is from {others})" if others else ""


def fitting_steps(steps: Iterable[str], virtual: bool | None) -> tuple[str, ...]:
    """Return the steps for a virtual machine or for real hardware; all if that is unknown."""
    if virtual is None:
        return tuple(steps)
    return tuple(step for step in steps if step.startswith(OWN_COMPUTER) is not virtual)
