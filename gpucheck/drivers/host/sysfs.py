"""Kernel view of the GPUs, from sysfs and procfs below a root; no driver is woken."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from gpucheck.drivers.host.files import MIB, read_file
from gpucheck.drivers.readings import KernelReading, PciDeviceReading

NVIDIA_VENDOR_ID = "0x10de"
#: PCI class codes of display controllers: VGA 0300, 3D controller 0302.
DISPLAY_CLASSES = ("0x0300", "0x0302")
OTHER_VENDOR_IDS = {"AMD": "0x1002", "Intel": "0x8086"}
#: Display controllers of every kind, and processing accelerators (AMD Instinct, Intel Max).
ANY_DISPLAY = ("0x03", "0x12")
#: The longest files of this kind, lists of modules and of users, have some hundred kilobytes.
_MOST_BYTES = 8 * MIB
_MINOR = r"^Device Minor:\s*([0-9]+)\s*$"
_NUMBER = re.compile(r"[0-9]{1,9}")


def read_text(path: Path) -> str | None:
    """Return a small file's text without its line end, or None if it cannot be read."""
    try:
        # Not read_text: it would turn a carriage return in a process's name into a line end.
        return read_file(path, _MOST_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return None


def value_of(text: str | None, *keys: str) -> str | None:
    """Return what the first line of `key: value` with one of these keys has, in lower case."""
    for line in (text or "").splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip().lower() in keys:
            return value.strip()
    return None


def read_minors(root: Path) -> Mapping[str, int]:
    """Return the number of each GPU's device file by PCI bus id, from the driver's own files."""
    minors = {}
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(_MINOR, read_text(path) or "", re.MULTILINE)
        if match is not None:
            minors[path.parent.name.lower()] = int(match[1])
    return minors


def read_uptime_s(root: Path) -> float | None:
    """Return the seconds since the boot, sleep included, as the starts of processes count."""
    if root == Path("/"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        return float((read_text(root / "proc/uptime") or "").split()[0])
    except (ValueError, IndexError):
        return None


def nvidia_devices(root: Path) -> list[tuple[Path, str]]:
    """Return the folder and the class of each NVIDIA device in bus order; raises OSError."""
    return [
        (entry, read_text(entry / "class") or "")
        for entry in sorted((root / "sys/bus/pci/devices").iterdir())
        if read_text(entry / "vendor") == NVIDIA_VENDOR_ID
    ]


def other_vendors(root: Path) -> tuple[str, ...]:
    """Return the other makers of GPUs for computing that have a graphics card here."""
    try:
        vendor_ids = {
            read_text(entry / "vendor")
            for entry in (root / "sys/bus/pci/devices").iterdir()
            if (read_text(entry / "class") or "").startswith(ANY_DISPLAY)
        }
    except OSError:
        return ()
    return tuple(name for name, known in OTHER_VENDOR_IDS.items() if known in vendor_ids)


def _gpu_folders(root: Path) -> list[Path]:
    """Return the folders of NVIDIA display controllers in bus order; raises OSError."""
    return [path for path, kind in nvidia_devices(root) if kind.startswith(DISPLAY_CLASSES)]


def count_gpus(root: Path) -> int:
    """Return the number of NVIDIA GPUs, at least 1, to scale a deadline.

    A sandbox may show their device files without the PCI bus.
    """
    files = sum(1 for _ in (root / "dev").glob("nvidia[0-9]*"))
    try:
        return max(1, files, len(_gpu_folders(root)))
    except OSError:
        return max(1, files)


def _read_pci_device(entry: Path) -> PciDeviceReading:
    node = read_text(entry / "numa_node")
    driver = entry / "driver"
    return PciDeviceReading(
        pci_bus_id=entry.name.lower(),
        vendor_id=NVIDIA_VENDOR_ID,
        device_id=read_text(entry / "device"),
        class_id=read_text(entry / "class"),
        driver=driver.readlink().name if driver.is_symlink() else None,
        # The kernel writes -1 if the firmware gives no node.
        numa_node=int(node) if node is not None and _NUMBER.fullmatch(node) else None,
        cpu_affinity=read_text(entry / "local_cpulist") or None,
    )


def read_kernel(root: Path) -> KernelReading:
    """Read PCI devices and the state of the nvidia modules."""
    modules = root / "sys/module"
    can_tell = modules.is_dir()
    loaded = (modules / "nvidia").is_dir() if can_tell else None
    try:
        devices = tuple(_read_pci_device(entry) for entry in _gpu_folders(root))
        unavailable = None
    except OSError as error:
        devices = None
        unavailable = f"{error.filename}: {error.strerror}"
    return KernelReading(
        pci_devices=devices,
        pci_unavailable=unavailable,
        module_loaded=loaded,
        module_version=read_text(modules / "nvidia/version"),
        uvm_loaded=(modules / "nvidia_uvm").is_dir() if can_tell else None,
        **_read_memory(root),
    )


#: The first driver that can limit the GPU memory of a cgroup. Source: NVML's change log, v615.
FIRST_DRIVER_WITH_LIMITS = 615


def driver_can_limit(root: Path) -> bool:
    """Return whether the loaded driver can limit the GPU memory of a cgroup."""
    version = (read_text(root / "sys/module/nvidia/version") or "").partition(".")[0]
    return bool(_NUMBER.fullmatch(version)) and int(version) >= FIRST_DRIVER_WITH_LIMITS


def _read_memory(root: Path) -> dict[str, int]:
    """Read the system's memory; proc(5): in units of 1024 bytes."""
    names = {"MemTotal:": "memory_total_bytes", "MemAvailable:": "memory_available_bytes"}
    sizes = {}
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in names and words[1].isdecimal() and len(words[1]) < 16:
            sizes[names[words[0]]] = int(words[1]) << 10
    return sizes
