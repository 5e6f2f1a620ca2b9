"""Processes that hold a GPU's device file open, found in /proc within a bounded time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from gpucheck.drivers.evidence import HolderReading, HoldersReading
from gpucheck.drivers.host.cgroups import group_paths
from gpucheck.drivers.host.process_tree import read_stat
from gpucheck.drivers.host.sysfs import read_minors, read_text
from gpucheck.drivers.readings import ProcessIdentity

#: A node with thousands of processes is searched in a tenth of this.
DEADLINE_S = 1.0
MOST_LINKS = 200_000
#: Of a process whose first thread has ended so many others are looked at.
MOST_THREADS = 64

_GPU_FILE = re.compile(r"/dev/nvidia([0-9]+)")
#: They hold every GPU open and use no memory of it. The kernel cuts names to 15 characters.
MONITORS = frozenset(
    ("nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-smi", "nvtop", "nvitop")
)

#: From process ids to what they are; it may ask a child, as the search itself does not.
Identify = Callable[[Iterable[int]], Mapping[int, ProcessIdentity]]


def read_holders(
    root: Path, identify: Identify, *, deadline_s: float = DEADLINE_S
) -> HoldersReading:
    """Search the open files of all processes for GPUs; our own and monitors are left out."""
    proc = root / "proc"
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdecimal())  # noqa: PTH208
    except OSError as error:
        return HoldersReading(unavailable=f"/proc: {error.strerror}")
    end, links, hidden = time.monotonic() + deadline_s, 0, 0
    minors_by_pid: dict[int, tuple[int, ...]] = {}
    complete = True
    for pid in pids:
        if time.monotonic() > end or links > MOST_LINKS:
            complete = False
            break
        files = _open_files(proc / str(pid))
        if files is None:
            stat = read_stat(proc / str(pid))
            hidden += stat is not None and not stat.kernel_thread
            continue
        links += len(files)
        minors = {int(match[1]) for file in files if (match := _GPU_FILE.fullmatch(file))}
        if minors and not _is_ours(pid, proc, root):
            minors_by_pid[pid] = tuple(sorted(minors))
    return HoldersReading(
        holders=tuple(_describe(minors_by_pid, root, identify)),
        minors=read_minors(root),
        hidden=hidden,
        complete=complete,
    )


def _open_files(process: Path) -> list[str] | None:
    """Return the targets of a process' open files, None if they may not be read."""
    files = _links(process / "fd")
    if files:
        return files
    stat = read_stat(process)
    if stat is None or not stat.zombie:
        return files
    # Its first thread has ended; what others of it hold stays open.
    try:
        threads = sorted(os.listdir(process / "task"))[:MOST_THREADS]  # noqa: PTH208
    except OSError:
        return []
    return [file for thread in threads for file in _links(process / "task" / thread / "fd") or ()]


def _links(folder: Path) -> list[str] | None:
    """Return the targets of the links in a folder; one that has just gone holds nothing."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - many folders, and Path objects cost time
    except PermissionError:
        return None
    except OSError:
        return []
    targets = []
    for name in names:
        try:
            targets.append(os.readlink(f"{folder}/{name}"))  # noqa: PTH115
        except OSError:
            continue
    return targets


def _is_ours(pid: int, proc: Path, root: Path) -> bool:
    """Return whether a process is this one or a child of it, which asks NVML."""
    if root != Path("/"):
        return False
    stat = read_stat(proc / str(pid))
    return os.getpid() in (pid, stat and stat.parent)


def _describe(
    minors_by_pid: Mapping[int, tuple[int, ...]], root: Path, identify: Identify
) -> Iterator[HolderReading]:
    identities = identify(minors_by_pid)
    for pid, minors in minors_by_pid.items():
        process = root / "proc" / str(pid)
        name = read_text(process / "comm")
        if name in MONITORS:
            continue
        who = identities[pid]
        yield HolderReading(
            pid=pid,
            minors=minors,
            state=_state_of(process),
            name=name,
            user=who.user,
            command=who.command,
            mine=_uid(process) == os.geteuid(),
        )


def _state_of(process: Path) -> str:
    stat = read_stat(process)
    if stat is None:
        return "running"
    if stat.state in ("T", "t"):
        return "stopped"
    if stat.zombie:
        return "zombie"
    return "orphaned" if stat.parent == 1 and not _is_service(process) else "running"


def _is_service(process: Path) -> bool:
    """Return whether the init system has started it, or that is not known."""
    paths = group_paths(process / "cgroup").values()
    return not paths or any(path.rstrip("/").endswith(".service") for path in paths)


def _uid(process: Path) -> int | None:
    try:
        return process.stat().st_uid
    except OSError:
        return None
