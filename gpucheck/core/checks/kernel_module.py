"""Is NVIDIA's kernel module loaded, and does it own the GPUs?"""

from __future__ import annotations

from gpucheck.core.checks.machine import Machine
from gpucheck.models.finding import CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import KernelReading

ID = "kernel-module"
LAYER = Layer.KERNEL
REQUIRES: tuple[str, ...] = ("pci-device",)

SOURCE = "/sys/module/nvidia"
#: Who may hold a GPU instead, and what to do about it.
OTHER_DRIVERS = {
    "nouveau": "Blacklist nouveau (modprobe.d), rebuild the initramfs and reboot.",
    "nova_core": "Blacklist nova, nova_core and nova_drm (modprobe.d) and reboot.",
    "vfio-pci": "It is reserved for a virtual machine; if not intended, bind it to nvidia again.",
    "pci-stub": "It is reserved for a virtual machine; if not intended, bind it to nvidia again.",
}


def check(machine: Machine) -> Finding:
    """Look at the module and at the drivers bound to the PCI devices."""
    kernel = machine.kernel
    if machine.is_wsl:
        summary = "WSL2: the Windows driver is used, Linux needs no module"
        return Finding(id=ID, layer=LAYER, status=CheckStatus.SKIP, summary=summary)
    for device in kernel.pci_devices or ():
        if device.driver in OTHER_DRIVERS:
            return _held(device.pci_bus_id, device.driver)
    if kernel.module_loaded is None:
        return Finding(
            id=ID,
            layer=LAYER,
            status=CheckStatus.UNKNOWN,
            summary="the list of kernel modules could not be read",
            evidence=(
                Evidence(source="/sys/module", value=kernel.pci_unavailable or "unreadable"),
            ),
            remedy=("Run gpucheck where /sys can be read: a sandbox may hide it.",),
        )
    return _loaded(kernel) if kernel.module_loaded else _absent()


def _held(pci_bus_id: str, driver: str) -> Finding:
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.FAIL,
        summary=f"{pci_bus_id} is held by {driver}, not by nvidia",
        evidence=(Evidence(source=f"/sys/bus/pci/devices/{pci_bus_id}/driver", value=driver),),
        remedy=(OTHER_DRIVERS[driver],),
    )


def _absent() -> Finding:
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.FAIL,
        summary="the nvidia kernel module is not loaded",
        evidence=(Evidence(source=SOURCE, value="absent"),),
        remedy=(
            "Load it: sudo modprobe nvidia",
            "If that fails: install the driver for this kernel, and reboot.",
        ),
    )


def _loaded(kernel: KernelReading) -> Finding:
    version = kernel.module_version or "unknown version"
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.OK,
        summary=f"the nvidia module is loaded ({version})",
        evidence=(Evidence(source=f"{SOURCE}/version", value=version),),
    )
