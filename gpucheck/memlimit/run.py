"""Run of a limited command: its environment and its watcher."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpucheck.drivers.host.process_tree import ProcessTree, is_contained
from gpucheck.drivers.host.processes import identify
from gpucheck.drivers.interface import NvmlQuestion
from gpucheck.drivers.live import DEADLINE_BASE_S, DEADLINE_PER_GPU_S
from gpucheck.drivers.nvml.client import NvmlSession
from gpucheck.drivers.readings import NvmlReading
from gpucheck.memlimit.hooking import hook_environment
from gpucheck.memlimit.model import MemoryLimit, WatchAction
from gpucheck.memlimit.overhead import estimate_overhead
from gpucheck.memlimit.watcher import Surroundings, Watcher

#: A driver that has answered once answers in milliseconds. Signals wait at most this long.
READING_DEADLINE_S = 2.0


#: Marks of the runs around a command, by which a watcher recognises its descendants.
RUNS_VARIABLE = "GPUCHECK_LIMIT_RUNS"


def limited_environment(
    plan: MemoryLimit, environment: Mapping[str, str], *, hook: bool, mark: str | None = None
) -> dict[str, str]:
    """Return the whole environment of the command."""
    limited = {**environment, **plan.environment}
    if mark is not None:
        around = environment.get(RUNS_VARIABLE)
        limited[RUNS_VARIABLE] = f"{around},{mark}" if around else mark
    return {**limited, **hook_environment(plan, environment)} if hook else limited


def new_mark() -> str:
    """Return a mark that no other run has."""
    return os.urandom(16).hex()


@contextlib.contextmanager
def open_watch(
    plan: MemoryLimit,
    action: WatchAction,
    say: Callable[[str], None],
    *,
    mark: str | None = None,
    deadline_s: float | None = None,
) -> Iterator[Watcher | None]:
    """Start NVML before the command and yield a watcher, or None if NVML does not answer."""
    if action is WatchAction.OFF:
        yield None
        return
    session = NvmlSession()
    question = NvmlQuestion(processes_of=_indices(plan))
    try:
        first = deadline_s or DEADLINE_BASE_S + DEADLINE_PER_GPU_S * len(plan.gpus)
        reading = session.read(question, deadline_s=first)
        if reading.failure is not None:
            say(f"memory is not watched: {reading.failure.message}")
            yield None
            return

        def read() -> NvmlReading:
            return session.read(question, deadline_s=READING_DEADLINE_S)

        around = Surroundings(
            read=read,
            identify=lambda pids: identify(pids, Path("/")),
            open_tree=lambda pid: ProcessTree(pid, mark=mark),
            say=say,
            contained=is_contained(),
        )
        yield Watcher(plan.gpus, plan.overhead or estimate_overhead(None), action, around)
    finally:
        session.close()


def _indices(plan: MemoryLimit) -> tuple[int, ...] | None:
    """Return the indices of the GPUs to read; None, meaning all, if one has no index."""
    known = {gpu.index for gpu in plan.gpus if gpu.index is not None}
    return tuple(sorted(known)) if all(gpu.index is not None for gpu in plan.gpus) else None
