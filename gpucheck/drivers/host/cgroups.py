"""Own cgroup, and the limits on GPU memory that the kernel or the driver sets for it.

From driver 615 on a cgroup of version 2 can have a limit for each GPU. Where the kernel has the
dmem controller, the limits are in files; elsewhere the driver keeps them, and only NVML tells them.
Source: NVIDIA, "MPS v3 Memory Partitioning" (R615, 2026-09-09).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.drivers.host.sysfs import read_text
from gpucheck.report.envelope import NOTHING

#: The driver looks for groups nowhere else.
MOUNT = "sys/fs/cgroup"
#: As `nvidia/00000000:02:00.0/vidmem 102641958912`.
_REGION = re.compile(
    r"nvidia/([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])/vidmem +(max|[0-9]{1,19})", re.I
)


class OwnCgroup(NamedTuple):
    """Our cgroup: the version that is mounted (null: none), its folder, and its limits.

    `has_dmem` tells whether a group that we can see has the files of the dmem controller. `limits`
    are by the GPU's bus id, in the kernel's form: of each the lowest, as fields of `GpuReading`. A
    group above ours may set it, while ours has a wider one or none. CUDA then reports the memory of
    the whole GPU, and the limit is in force all the same.
    """

    version: int | None = None
    folder: Path | None = None
    has_dmem: bool = False
    limits: Mapping[str, Mapping[str, Any]] = NOTHING  # type: ignore[assignment]


def group_paths(file: Path) -> Mapping[str, str]:
    """Return a process's groups by controller, from its /proc/PID/cgroup; version 2 is under "".

    A path begins with `/` and is seen from our cgroup namespace (man 7 cgroups).
    """
    paths: dict[str, str] = {}
    for line in (read_text(file) or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if path.startswith("/"):
            paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def read_cgroup(root: Path) -> OwnCgroup:
    """Read our group below the root."""
    mount = root / MOUNT
    if not (mount / "cgroup.controllers").exists():
        return OwnCgroup(version=1 if (mount / "memory").is_dir() else None)
    folder = _own_folder(root, mount)
    if folder is None:
        return OwnCgroup(version=2)
    levels = [folder]
    while levels[-1] != mount:
        levels.append(levels[-1].parent)
    limited = [(level, _regions(level / "dmem.max")) for level in levels]
    files = [(level, text) for level, text in limited if text is not None]
    return OwnCgroup(
        version=2, folder=folder, has_dmem=bool(files), limits=_lowest(files) if files else {}
    )


def count_oom_kills(root: Path) -> int | None:
    """Return how many processes of our group the kernel has killed for memory; None: not told."""
    mount = root / MOUNT
    folder = _own_folder(root, mount)
    if folder is not None:
        text = read_text(folder / "memory.events")
    else:
        text = read_text(mount / "memory" / _memory_group(root) / "memory.oom_control")
    match = re.search(r"^oom_kill ([0-9]{1,18})$", text or "", re.MULTILINE)
    return None if match is None else int(match[1])


def _memory_group(root: Path) -> str:
    """Return our group in the memory hierarchy of version 1, from its mount."""
    path = group_paths(root / "proc/self/cgroup").get("memory", "")
    return "" if ".." in path.split("/") else path.strip("/")


def _own_folder(root: Path, mount: Path) -> Path | None:
    """Return our group's folder; None if it lies outside of what is mounted here."""
    path = group_paths(root / "proc/self/cgroup").get("")
    if path is None:
        return None
    parts = [part for part in path.split("/") if part]
    # From inside a cgroup namespace, groups beside it are shown as `/../other`.
    return None if ".." in parts else mount.joinpath(*parts)


def _regions(path: Path) -> dict[str, int | None] | None:
    """Return the amounts of one dmem file by bus id (null: max); None if there is no such file."""
    text = read_text(path)
    if text is None:
        return None
    regions: dict[str, int | None] = {}
    for line in text.splitlines():
        match = _REGION.fullmatch(line.strip())
        if match:
            domain, rest, amount = match.groups()
            bus_id = f"{int(domain, 16):04x}:{rest.lower()}"
            regions[bus_id] = None if amount.lower() == "max" else int(amount)
    return regions


def _lowest(files: list[tuple[Path, dict[str, int | None]]]) -> dict[str, dict[str, Any]]:
    """Return the lowest limit for each GPU; `files` begin with the group nearest to us."""
    lowest: dict[str, dict[str, Any]] = {}
    for bus_id in {bus_id for _, amounts in files for bus_id in amounts}:
        set_ = [
            (amount, place, level)
            for place, (level, amounts) in enumerate(files)
            if (amount := amounts.get(bus_id)) is not None
        ]
        if set_:
            amount, place, level = min(set_)
            used = (_regions(level / "dmem.current") or {}).get(bus_id)
            lowest[bus_id] = {
                "memory_limit_bytes": amount,
                "memory_limit_used_bytes": used,
                "memory_limit_source": "dmem.max of a parent" if place else "dmem.max",
            }
    return lowest
