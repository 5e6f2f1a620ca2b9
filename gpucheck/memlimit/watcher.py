"""Watcher of a running command's GPU memory; it warns about an excess or stops the command."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from gpucheck.drivers.host.process_tree import ProcessTree, Stat
from gpucheck.drivers.host.processes import identify, is_in_initial_namespace, memory_by_process
from gpucheck.drivers.live import DEADLINE_BASE_S, DEADLINE_PER_GPU_S
from gpucheck.drivers.nvml.client import NvmlSession
from gpucheck.drivers.readings import NvmlReading, NvmlRequest, ProcessIdentity
from gpucheck.memlimit.mechanisms.setting import MIB
from gpucheck.memlimit.model import (
    Culprit,
    GpuMemoryLimit,
    LimitedRun,
    MemoryLimit,
    Overhead,
    RunGpu,
    WatchAction,
    estimate_overhead,
)
from gpucheck.report.text import format_gib

#: Time between two readings.
INTERVAL_S = 1.0
#: A driver that has answered once answers in milliseconds. Signals wait at most this long.
READING_DEADLINE_S = 2.0
#: Time between SIGTERM and SIGKILL.
GRACE_S = 10.0
#: Drivers allocate in blocks of 2 MiB and frameworks round up; that is no excess yet.
SLACK_BYTES = 64 * MIB

_FOREIGN = (
    "NVML lists process ids of another PID namespace,"
    " so the command's processes cannot be recognised"
)
_CONTAINED = (
    "NVML listed no process of the command, but in a separate PID namespace (a container)"
    " that does not prove there was none"
)
_UNREPORTED = "the driver does not report the memory of each process"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineAccess:
    """Access to the machine for the watcher; tests replace all of it."""

    read: Callable[[], NvmlReading]
    identify: Callable[[Iterable[int]], Mapping[int, ProcessIdentity]]
    open_tree: Callable[[int], ProcessTree]
    report: Callable[[str], None]
    contained: bool
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Watcher:
    """Watcher of one command: it reads at every tick, and warns or stops."""

    def __init__(
        self,
        limits: Sequence[GpuMemoryLimit],
        overhead: Overhead,
        action: WatchAction,
        machine: MachineAccess,
    ) -> None:
        self._overhead = overhead
        #: What has been read of each GPU so far, and the number that `list` shows for it.
        self._gpus = {
            gpu.uuid: RunGpu(
                uuid=gpu.uuid,
                index=gpu.index,
                limit_bytes=gpu.limit_bytes,
                allowance_bytes=self._allowance(1),
                peak_bytes=0,
                exceeded=False,
                cuda_index=gpu.cuda_index,
            )
            for gpu in limits
        }
        self._numbers = {gpu.uuid: gpu.number for gpu in limits}
        self._culprits: dict[str | None, list[Culprit]] = {}
        self._action = action
        self._machine = machine
        self._tree: ProcessTree | None = None
        self._readings = 0
        self._foreign = False
        self._unreported = False
        self._failure: str | None = None
        self._stopped_at: float | None = None
        self._killed = False

    def tick(self, pid: int) -> None:
        """Read once, and act on the reading."""
        if self._tree is None:
            self._tree = self._machine.open_tree(pid)
        if self._stopped_at is not None:
            self._kill_after_grace(self._tree, self._stopped_at)
        if self._failure is None:
            self._check_memory(self._tree)

    def finish(self, exit_code: int) -> LimitedRun:
        """Return the readings of the run, once the command has ended."""
        if self._stopped_at is not None and self._tree is not None:
            self._wait_for_descendants(self._tree, self._stopped_at)
        unknown = self._unknown_reason()
        gpus = tuple(self._gpus.values())
        exceeded = any(gpu.exceeded for gpu in gpus)
        if unknown is not None:
            gpus = tuple(replace(gpu, peak_bytes=None, exceeded=None) for gpu in gpus)
        peaks = [gpu.peak_bytes for gpu in gpus if gpu.peak_bytes is not None]
        unavailable = {}
        if unknown is not None:
            unavailable = dict.fromkeys(("peak_bytes", "exceeded"), unknown)
        elif self._failure is not None:
            unavailable["later_readings"] = self._failure
        return LimitedRun(
            exit_code=exit_code,
            peak_bytes=max(peaks, default=None),
            exceeded=exceeded if unknown is None else None,
            action=self._action_taken(exceeded=exceeded),
            interval_s=INTERVAL_S,
            readings=self._readings,
            gpus=gpus,
            culprits=tuple(item for uuid in self._gpus for item in self._culprits.get(uuid, ())),
            unavailable=unavailable,
        )

    def _action_taken(self, *, exceeded: bool) -> str | None:
        if self._stopped_at is not None:
            return "killed" if self._killed else "terminated"
        return "warned" if exceeded else None

    def _unknown_reason(self) -> str | None:
        """Return why the command's memory is unknown, or None."""
        if any(gpu.peak_bytes for gpu in self._gpus.values()):
            return None
        if self._unreported:
            return _UNREPORTED
        if self._foreign:
            return _FOREIGN
        if self._readings == 0:
            return self._failure or f"the command ended before the first reading ({INTERVAL_S:g} s)"
        return _CONTAINED if self._machine.contained else None

    def _allowance(self, processes: int) -> int:
        """Return the allowance above the limit: the contexts that it does not count, and slack."""
        contexts = processes - 1 if self._overhead.included else processes
        return SLACK_BYTES + contexts * self._overhead.total_bytes

    def _check_memory(self, tree: ProcessTree) -> None:
        reading = self._machine.read()
        if reading.failure is not None:
            self._failure = f"memory is no longer watched: {reading.failure.message}"
            return
        self._readings += 1
        listed = memory_by_process(reading.gpus)
        own = self._trusted({pid for sizes in listed.values() for pid in sizes})
        members = tree.refresh(own)
        used = self._memory_of(listed, own & members.keys())
        for uuid, gpu in self._gpus.items():
            by_pid = used.get(uuid, {})
            total = sum(by_pid.values())
            most = max(gpu.processes, len(by_pid))
            limit = gpu.limit_bytes
            over = limit is not None and total > limit + self._allowance(len(by_pid))
            self._gpus[uuid] = replace(
                gpu,
                allowance_bytes=self._allowance(max(1, most)),
                peak_bytes=max(gpu.peak_bytes or 0, total),
                exceeded=gpu.exceeded or over,
                processes=most,
            )
            if over:
                self._act(tree, gpu, by_pid, members)

    def _trusted(self, listed: set[int]) -> set[int]:
        """Return the ids if they belong to this PID namespace.

        One foreign id shows that NVML uses another namespace: the others only look like ours.
        """
        who = self._machine.identify(listed)
        foreign = any(who[pid].namespace != "own" for pid in listed)
        self._foreign = self._foreign or foreign
        return set() if foreign else listed

    def _memory_of(
        self, listed: Mapping[str | None, Mapping[int, int | None]], ours: Set[int]
    ) -> dict[str | None, dict[int, int]]:
        """Return the memory of our processes, as far as the driver reports it."""
        used: dict[str | None, dict[int, int]] = {}
        for uuid, sizes in listed.items():
            for pid, size in sizes.items():
                if pid not in ours:
                    continue
                if size is None:
                    self._unreported = True
                else:
                    used.setdefault(uuid, {})[pid] = size
        return used

    def _act(
        self,
        tree: ProcessTree,
        gpu: RunGpu,
        by_pid: Mapping[int, int],
        members: Mapping[int, Stat],
    ) -> None:
        """Name the culprits of a GPU's first excess, and stop the command if that is wanted."""
        if not gpu.exceeded:
            self._culprits[gpu.uuid] = [
                Culprit(pid=pid, name=members[pid].name, uuid=gpu.uuid, memory_used_bytes=size)
                for pid, size in sorted(by_pid.items(), key=lambda item: -item[1])
            ]
            self._report_excess(gpu, by_pid)
        if self._action is WatchAction.STOP and self._stopped_at is None:
            self._stopped_at = self._machine.now()
            self._machine.report(f"stopping the command: SIGTERM now, SIGKILL after {GRACE_S:g} s")
            self._send(tree, signal.SIGTERM)

    def _report_excess(self, gpu: RunGpu, by_pid: Mapping[int, int]) -> None:
        most = self._culprits[gpu.uuid][0]
        others = f" and {len(by_pid) - 1} more" if len(by_pid) > 1 else ""
        self._machine.report(
            f"the command takes {format_gib(sum(by_pid.values()))} of GPU"
            f" {self._numbers[gpu.uuid]}, above the limit of {format_gib(gpu.limit_bytes or 0)}"
            f" plus {format_gib(self._allowance(len(by_pid)))} allowance:"
            f" {most.name or 'process'} ({most.pid}){others}"
        )

    def _kill_after_grace(self, tree: ProcessTree, stopped_at: float) -> None:
        if self._machine.now() - stopped_at >= GRACE_S and tree.refresh():
            self._killed = True
            self._send(tree, signal.SIGKILL)

    def _wait_for_descendants(self, tree: ProcessTree, stopped_at: float) -> None:
        """Give processes that outlived the command the same grace, then kill them."""
        while tree.refresh() and not self._killed:
            self._kill_after_grace(tree, stopped_at)
            if not self._killed:
                self._machine.sleep(0.1)

    def _send(self, tree: ProcessTree, number: signal.Signals) -> None:
        _, refused = tree.send(number)
        if refused:
            listed = ", ".join(map(str, refused))
            self._machine.report(
                f"{number.name} could not be sent to processes of another user: {listed}"
            )


@contextlib.contextmanager
def open_watch(
    plan: MemoryLimit,
    action: WatchAction,
    report: Callable[[str], None],
    *,
    mark: str | None = None,
    deadline_s: float | None = None,
) -> Iterator[Watcher | None]:
    """Start NVML before the command and yield a watcher, or None if NVML does not answer."""
    if action is WatchAction.OFF:
        yield None
        return
    indices = [gpu.index for gpu in plan.gpus if gpu.index is not None]
    # A GPU without an index can be any: then all are read.
    named = tuple(sorted(set(indices))) if len(indices) == len(plan.gpus) else None
    question = NvmlRequest(processes_of=named)
    with contextlib.closing(NvmlSession()) as session:
        first = deadline_s or DEADLINE_BASE_S + DEADLINE_PER_GPU_S * len(plan.gpus)
        reading = session.read(question, deadline_s=first)
        if reading.failure is not None:
            report(f"memory is not watched: {reading.failure.message}")
            yield None
            return

        def read() -> NvmlReading:
            return session.read(question, deadline_s=READING_DEADLINE_S)

        machine = MachineAccess(
            read=read,
            identify=lambda pids: identify(pids, Path("/"), {}),
            open_tree=lambda pid: ProcessTree(pid, mark=mark),
            report=report,
            contained=is_in_initial_namespace(Path("/")) is False,
        )
        yield Watcher(plan.gpus, plan.overhead or estimate_overhead(None), action, machine)
