"""Absence of any NVIDIA GPU: what commands say then in place of a library's error."""

from __future__ import annotations

from collections.abc import Iterable

from gpucheck.data import read_table
from gpucheck.drivers.evidence import PlatformReading
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.report.envelope import DRIVER_LIBRARY, Failure, Notice

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
    if failure.code not in _WITHOUT_GPU or (probes.host().os or "").endswith("(WSL2)"):
        return None
    system = probes.system()
    if probes.kernel().pci_devices != () or system.unavailable is not None:
        return None
    platform = system.platform
    if platform.dxg or platform.tegra is not None:
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
