"""NVIDIA kernel module on disk and in the kernel, from files below a root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpucheck.drivers.evidence import ModuleReading
from gpucheck.drivers.host.sysfs import read_text

#: Debian adds the branch to the name: nvidia-current.ko.
_MODULE_FILE = re.compile(r"(?:^|/)nvidia(?:-current)?\.ko(?:\.(?:gz|xz|zst))?$")
_BLOCKING = re.compile(
    r"\s*(?:blacklist\s+nvidia|alias\s+nvidia\s+off|install\s+nvidia\s+/\S*(?:false|true))\s*$"
)
_EXCLUDED = re.compile(r"^GPU Excluded:\s*Yes\s*$", re.MULTILINE)
MODPROBE_FOLDERS = ("etc/modprobe.d", "run/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d")


def read_module(root: Path, release: str) -> ModuleReading:
    """Read where the module is, what keeps it from loading, and its own files.

    `release` is the running kernel's (`uname -r`).
    """
    modules = root / "lib/modules"
    gpus = _driver_gpus(root)
    return ModuleReading(
        installed=_module_files(modules / release),
        other_kernels=tuple(_other_kernels(modules, release)),
        dkms_versions=tuple(_dkms_versions(root)),
        blocked_by=tuple(_blocking_lines(root)),
        flavour=_flavour(root),
        driver_gpus=gpus,
        excluded_gpus=tuple(gpu for gpu in gpus or () if _is_excluded(root, gpu)),
        hmm_disabled=_switch(root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm"),
    )


def _module_files(folder: Path) -> tuple[str, ...] | None:
    """Return the module's files for one kernel, or None if that kernel has no folder."""
    listed = read_text(folder / "modules.dep")
    if listed is None:
        return None
    names = (line.partition(":")[0] for line in listed.splitlines())
    return tuple(name for name in names if _MODULE_FILE.search(name))


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_dir())
    except OSError:
        return []


def _other_kernels(modules: Path, release: str) -> Iterator[str]:
    for folder in _folders(modules):
        if folder.name != release and _module_files(folder):
            yield folder.name


def _dkms_versions(root: Path) -> Iterator[str]:
    for package in _folders(root / "var/lib/dkms"):
        if package.name.startswith("nvidia"):
            yield from (
                f"{package.name}/{v.name}" for v in _folders(package) if v.name[0].isdigit()
            )


def _blocking_lines(root: Path) -> Iterator[str]:
    for name in MODPROBE_FOLDERS:
        for path in sorted((root / name).glob("*.conf")):
            for line in (read_text(path) or "").splitlines():
                if _BLOCKING.match(line):
                    yield f"/{name}/{path.name}: {line.strip()}"


def _flavour(root: Path) -> str | None:
    text = read_text(root / "proc/driver/nvidia/version")
    if text is None:
        return None
    return "open" if "Open Kernel Module" in text else "proprietary"


def _driver_gpus(root: Path) -> tuple[str, ...] | None:
    folder = root / "proc/driver/nvidia/gpus"
    if not (root / "proc/driver/nvidia").is_dir():
        return None
    return tuple(entry.name.lower() for entry in _folders(folder))


def _is_excluded(root: Path, gpu: str) -> bool:
    text = read_text(root / "proc/driver/nvidia/gpus" / gpu / "information") or ""
    return _EXCLUDED.search(text) is not None


def _switch(path: Path) -> bool | None:
    text = read_text(path)
    return None if text is None else text in ("Y", "1")
