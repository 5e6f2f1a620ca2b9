"""What a limited command is run with: its environment, and the watcher beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpucheck.core.memlimit.hooking import hook_environment
from gpucheck.core.memlimit.overhead import estimate_overhead
from gpucheck.core.memlimit.watcher import Surroundings, Watcher
from gpucheck.models.memory import MemoryLimit, WatchAction
from gpucheck.models.snapshot import NvmlReading
from gpucheck.probes.interface import NvmlQuestion
from gpucheck.probes.live import DEADLINE_BASE_S, DEADLINE_PER_GPU_S
from gpucheck.probes.nvml import NvmlSession
from gpucheck.probes.process_tree import ProcessTree
from gpucheck.probes.processes import identify

#: A driver that has answered once answers in milliseconds; signals wait for as long at most.
READING_DEADLINE_S = 2.0


def limited_environment(
    plan: MemoryLimit, environment: Mapping[str, str], *, hook: bool
) -> dict[str, str]:
    """Return the whole environment of the command."""
    limited = {**environment, **plan.environment}
    return {**limited, **hook_environment(plan, environment)} if hook else limited


@contextlib.contextmanager
def open_watch(
    plan: MemoryLimit,
    action: WatchAction,
    say: Callable[[str], None],
    *,
    deadline_s: float | None = None,
) -> Iterator[Watcher | None]:
    """Start NVML before the command and yield a watcher, or None if there is none to be had."""
    if action is WatchAction.OFF:
        yield None
        return
    session = NvmlSession()
    try:
        first = deadline_s or DEADLINE_BASE_S + DEADLINE_PER_GPU_S * len(plan.gpus)
        reading = session.read(NvmlQuestion(), deadline_s=first)
        if reading.failure is not None:
            say(f"the memory is not watched: {reading.failure.message}")
            yield None
            return

        def read() -> NvmlReading:
            return session.read(NvmlQuestion(), deadline_s=READING_DEADLINE_S)

        around = Surroundings(
            read=read,
            identify=lambda pids: identify(pids, Path("/")),
            open_tree=ProcessTree,
            say=say,
        )
        yield Watcher(plan.gpus, plan.overhead or estimate_overhead(None), action, around)
    finally:
        session.close()
