"""Reading of everything in files about the driver, made before any of its libraries is called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpucheck.drivers.evidence import PciDetailReading, SystemReading
from gpucheck.drivers.host.devices import read_nodes
from gpucheck.drivers.host.kernel_log import read_kernel_log
from gpucheck.drivers.host.libraries import read_libraries
from gpucheck.drivers.host.modules import read_module
from gpucheck.drivers.host.platform import read_platform
from gpucheck.drivers.host.sysfs import NVIDIA_VENDOR_ID, read_text

#: The PCI class of unusual bridges: NVIDIA's are NVSwitches.
_OTHER_BRIDGE = "0x0680"
_DISPLAY = ("0x0300", "0x0302")


def read_system(root: Path, environment: Mapping[str, str]) -> SystemReading:
    """Read everything below the root; missing parts are null."""
    release = read_text(root / "proc/sys/kernel/osrelease") or os.uname().release
    devices = _nvidia_devices(root)
    gpus = [path for path, kind in devices if kind.startswith(_DISPLAY)]
    return SystemReading(
        platform=read_platform(root),
        pci=tuple(_pci_detail(path) for path in gpus),
        nvswitches=sum(kind.startswith(_OTHER_BRIDGE) for _, kind in devices),
        module=read_module(root, release),
        nodes=read_nodes(root),
        libraries=read_libraries(root, environment),
        log=read_kernel_log(root),
    )


def _nvidia_devices(root: Path) -> list[tuple[Path, str]]:
    try:
        entries = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return []
    return [
        (entry, read_text(entry / "class") or "")
        for entry in entries
        if read_text(entry / "vendor") == NVIDIA_VENDOR_ID
    ]


def _pci_detail(path: Path) -> PciDetailReading:
    return PciDetailReading(
        pci_bus_id=path.name.lower(),
        answers=_answers(path / "config"),
        runtime_status=read_text(path / "power/runtime_status"),
    )


def _answers(config: Path) -> bool | None:
    """Return whether the device's registers can be read: a lost device reads as all ones."""
    try:
        with config.open("rb") as file:
            head = file.read(4)
    except OSError:
        return None
    return head != b"\xff\xff\xff\xff" if len(head) == 4 else None
