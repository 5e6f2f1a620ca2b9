"""CPU facts from the kernel: model, usable cores, caches, load, memory.

Every reader takes the root of the file system, so that tests can show it another machine.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpucheck.drivers.host.cgroups import MOUNT, group_paths
from gpucheck.drivers.host.sysfs import value_of

_CPU_NUMBER = re.compile(r"\s*[0-9]{1,5}\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """The CPU as this process may use it; absent readings are None.

    `usable_cores` is the size of the affinity mask; `quota_cores` the cgroup's limit, where one
    is set. `l2_bytes` is one core's, `last_level_bytes` the largest single cache.
    `instruction_sets` are the flags of /proc/cpuinfo, empty if it lists none (ARM, masked).
    """

    model: str | None
    logical_cores: int | None
    usable_cores: int
    quota_cores: float | None
    l2_bytes: int | None
    last_level_bytes: int | None
    memory_available_bytes: int | None
    instruction_sets: frozenset[str] = frozenset()

    @property
    def threads(self) -> int:
        """Return how many threads can really run at once: affinity, bounded by the quota.

        Rounded down: one thread more than the quota allows keeps stalling all of them.
        """
        if self.quota_cores is None:
            return self.usable_cores
        return max(1, min(self.usable_cores, int(self.quota_cores)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLoad:
    """CPU time used so far, in seconds over all cores; None where unreadable.

    `quota_periods` counts the periods of the cgroup's quota in which it ran, `quota_reached` those
    in which it used up the quota and had to wait; None where there is no quota.
    """

    load_average_1m: float | None
    busy_s: float | None
    steal_s: float | None
    own_s: float
    quota_periods: int | None = None
    quota_reached: int | None = None


@contextmanager
def running_on(cpus: frozenset[int] | None) -> Iterator[None]:
    """Pin this thread to these CPUs within the block; None changes nothing.

    Memory that it touches first, page-locked buffers included, is then on their NUMA node, and
    processes that it starts inherit the pinning. If a sandbox forbids it, the thread runs unpinned.
    """
    before = os.sched_getaffinity(0)
    if cpus is None or not cpus & before or not keep_on(cpus & before):
        yield
        return
    try:
        yield
    finally:
        keep_on(before)


def keep_on(cpus: Iterable[int]) -> bool:
    """Pin this thread to these CPUs from now on; return whether that is allowed."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        return False
    return True


def parse_cpu_list(text: str | None) -> frozenset[int]:
    """Return the CPUs of a list in the kernel's form ("0-3,8"); none if it is malformed."""
    cpus: set[int] = set()
    for part in (text or "").split(","):
        low, dash, high = part.strip().partition("-")
        if not _CPU_NUMBER.fullmatch(low) or (dash and not _CPU_NUMBER.fullmatch(high)):
            return frozenset()
        cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


def cpu_shares(count: int) -> list[frozenset[int]]:
    """Return disjoint sets of our usable CPUs for `count` threads, dealt round robin.

    The two hardware threads of a core often are n and n + half, so with one thread per core they
    go to the same thread. With more threads than CPUs, every thread may use all of them.
    """
    cpus = sorted(os.sched_getaffinity(0))
    if count > len(cpus):
        return [frozenset(cpus)] * count
    return [frozenset(cpus[number::count]) for number in range(count)]


class LinuxCpu:
    """The CPU as /proc, /sys and the cgroup below `root` describe it.

    `children` returns the ids of running child processes whose work counts as this process's own;
    that of ended ones always does.
    """

    def __init__(
        self, root: Path = Path("/"), children: Callable[[], Iterable[int]] = tuple
    ) -> None:
        self._root = root
        self._children = children

    def facts(self) -> CpuFacts:
        """Return the constant facts, and the memory that is free now."""
        l2_bytes, last_level_bytes = self._caches()
        return CpuFacts(
            model=self._model(),
            logical_cores=os.cpu_count(),
            usable_cores=len(os.sched_getaffinity(0)),
            quota_cores=self._quota_cores(),
            l2_bytes=l2_bytes,
            last_level_bytes=last_level_bytes,
            memory_available_bytes=self._memory_available_bytes(),
            instruction_sets=self._instruction_sets(),
        )

    def load(self) -> CpuLoad:
        """Return the current load and the CPU time used so far."""
        ticks = os.sysconf("SC_CLK_TCK")
        times = self._cpu_times()
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        own = [resource.getrusage(kind) for kind in kinds]
        average = (self._text("proc/loadavg") or "").split()
        periods, reached = self._quota_counts()
        return CpuLoad(
            load_average_1m=_number(average[0]) if average else None,
            # user, nice, system, irq, softirq: the kernel's order in /proc/stat
            busy_s=sum(times[i] for i in (0, 1, 2, 5, 6)) / ticks if times else None,
            steal_s=times[7] / ticks if times else None,
            own_s=sum(usage.ru_utime + usage.ru_stime for usage in own)
            + sum(map(self._process_ticks, self._children())) / ticks,
            quota_periods=periods,
            quota_reached=reached,
        )

    def peak_memory_bytes(self) -> int | None:
        """Return the most memory that this process has held (getrusage counts in KiB)."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _text(self, path: str) -> str | None:
        try:
            return (self._root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def _model(self) -> str | None:
        return value_of(self._text("proc/cpuinfo"), "model name", "cpu model")

    def _instruction_sets(self) -> frozenset[str]:
        return frozenset((value_of(self._text("proc/cpuinfo"), "flags") or "").split())

    def _process_ticks(self, pid: int) -> int:
        """Return the CPU time of a process and of its ended children; 0 if it has ended."""
        # The name in parentheses may hold anything. After it, 14 to 17 of proc(5) are 11 to 14.
        words = (self._text(f"proc/{pid}/stat") or "").rpartition(")")[2].split()
        return sum(_whole(word) or 0 for word in words[11:15])

    def _cpu_times(self) -> list[int] | None:
        lines = (self._text("proc/stat") or "").splitlines()
        numbers = [_whole(word) for word in lines[0].split()[1:]] if lines else []
        known = [number for number in numbers if number is not None]
        return known if len(known) == len(numbers) >= 8 else None

    def _cgroup_folders(self) -> list[str]:
        """Return this process's cgroup v2 folder and its parents: each may set a limit."""
        path = group_paths(self._root / "proc/self/cgroup").get("", "/")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        return ["/".join((MOUNT, *parts[:count])) for count in range(len(parts), -1, -1)]

    def _quota_cores(self) -> float | None:
        pairs = [
            (self._text(f"{folder}/cpu.max") or "").split() for folder in self._cgroup_folders()
        ]
        version_1 = "sys/fs/cgroup/cpu/cpu.cfs"
        pairs.append([self._text(f"{version_1}_{name}_us") or "" for name in ("quota", "period")])
        quotas = []
        for pair in pairs:
            numbers = [_whole(word) for word in pair]  # "max" and -1 mean no limit
            if len(numbers) == 2 and numbers[0] and numbers[1]:
                quotas.append(numbers[0] / numbers[1])
        return min(quotas, default=None)

    def _quota_counts(self) -> tuple[int | None, int | None]:
        """Return the periods of the innermost quota so far, and how many used it up."""
        folders = [*self._cgroup_folders(), "sys/fs/cgroup/cpu"]
        for folder in folders:
            lines = (self._text(f"{folder}/cpu.stat") or "").splitlines()
            counts = dict(line.split(maxsplit=1) for line in lines if len(line.split()) == 2)
            periods = _whole(counts.get("nr_periods"))
            if periods:  # 0 without a quota
                return periods, _whole(counts.get("nr_throttled"))
        return None, None

    def _memory_available_bytes(self) -> int | None:
        lines = (self._text("proc/meminfo") or "").splitlines()
        sizes = [
            _whole(line[13:].removesuffix("kB")) for line in lines if line[:13] == "MemAvailable:"
        ]
        limits = [kibibytes * 1024 for kibibytes in sizes if kibibytes is not None]
        for folder in self._cgroup_folders():
            most = _whole(self._text(f"{folder}/memory.max"))
            used = _whole(self._text(f"{folder}/memory.current"))
            if most is not None and used is not None:
                limits.append(max(0, most - used))
        return min(limits, default=None)

    def _caches(self) -> tuple[int | None, int | None]:
        """Return the size of one core's L2 and of the largest cache."""
        sizes: dict[int, int] = {}
        for index in range(8):
            folder = f"sys/devices/system/cpu/cpu0/cache/index{index}"
            level = _whole(self._text(f"{folder}/level"))
            size = (self._text(f"{folder}/size") or "").strip()
            amount, scale = _whole(size[:-1]), {"K": 1024, "M": 1024**2}.get(size[-1:])
            if level is not None and amount is not None and scale is not None:
                sizes[level] = amount * scale
        return sizes.get(2), max(sizes.values(), default=None)


def _whole(text: str | None) -> int | None:
    """Return a non-negative integer, None for any other text."""
    word = (text or "").strip()
    return int(word) if word.isascii() and word.isdecimal() else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
