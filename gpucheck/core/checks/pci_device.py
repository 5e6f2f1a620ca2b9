"""Is an NVIDIA GPU on the PCI bus, seen by the kernel without any driver's help?"""

from __future__ import annotations

from gpucheck.core.checks.machine import Machine
from gpucheck.models.finding import CheckStatus, Evidence, Finding, Layer

ID = "pci-device"
LAYER = Layer.PCI
REQUIRES: tuple[str, ...] = ()

SOURCE = "/sys/bus/pci/devices/*/vendor"


def check(machine: Machine) -> Finding:
    """Look for display controllers of vendor 0x10de."""
    devices = machine.kernel.pci_devices
    if machine.is_wsl:
        summary = "WSL2: the GPU belongs to Windows and is not on this PCI bus"
        return Finding(id=ID, layer=LAYER, status=CheckStatus.SKIP, summary=summary)
    if devices is None:
        reason = machine.kernel.pci_unavailable or "unreadable"
        return Finding(
            id=ID,
            layer=LAYER,
            status=CheckStatus.UNKNOWN,
            summary="the PCI bus could not be read",
            evidence=(Evidence(source=SOURCE, value=reason),),
            remedy=("Run gpucheck where /sys can be read: a sandbox may hide it.",),
        )
    if not devices:
        return Finding(
            id=ID,
            layer=LAYER,
            status=CheckStatus.FAIL,
            summary="no NVIDIA GPU is on the PCI bus",
            evidence=(Evidence(source=SOURCE, value="no 0x10de display controller"),),
            remedy=(
                "In the cloud: choose an instance type with a GPU.",
                "In a virtual machine: pass the GPU through to it.",
                "On your own hardware: check seating, power cables and the slot in the BIOS.",
            ),
        )
    count = len(devices)
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.OK,
        summary=f"{count} NVIDIA GPU{'s' if count != 1 else ''} on the PCI bus",
        evidence=tuple(
            Evidence(
                source=f"/sys/bus/pci/devices/{device.pci_bus_id}",
                value=f"device {device.device_id or 'of unknown id'}",
            )
            for device in devices
        ),
    )
