"""The clock of a command on a pretended machine: its deadline comes with a hang, not before.

A deadline that a test can wait for would be too short for the rest of the work on a busy machine,
as is one second for a search. So a pretended library marks a thread that hangs, or that wakes a
GPU, and without a mark no time passes for our workers; at a hang the whole wait passes at once.
Programs in another Python keep the real clock.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from gpucheck.drivers import child
from gpucheck.drivers.host import device_holders
from gpucheck.drivers.nvml import client

#: The names that machine.c gives to threads.
_HANGS, _WAKES = "hangs", "wakes"
_LOOK_S = 0.01

_read_chunk = child.Child._read_chunk


class HangClock:
    """Time that stands still, but for sleeps, for GPUs that wake, and for what hangs."""

    def __init__(self) -> None:
        self._now_s = time.monotonic()

    def monotonic(self) -> float:
        """Return it in seconds."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)
        self._now_s += seconds

    def read(self, waiting: child.Child, wait_s: float) -> bytes | None:
        """Return what a child writes next, None if it hangs or its time is over."""
        if waiting._foreign:
            return _read_chunk(waiting, wait_s)
        begun_s, end_s = time.monotonic(), self._now_s + wait_s
        while (chunk := _read_chunk(waiting, _LOOK_S)) is None:
            looked_s, marks = time.monotonic(), thread_names(waiting.pid)
            if _HANGS in marks:
                # What it wrote just before.
                chunk = _read_chunk(waiting, 0)
                self._now_s = self._now_s if chunk else max(self._now_s, end_s)
                break
            if _WAKES in marks:
                self._now_s += looked_s - begun_s
                if self._now_s >= end_s:
                    break
            begun_s = looked_s
        return chunk


def thread_names(pid: int | None) -> set[str]:
    """Return the names of a process's threads."""
    found = set()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found.add((thread / "comm").read_text().strip())
    return found


def install(put: Callable[[object, str, object], None] = setattr) -> None:
    """Use this clock from now on, in this process."""
    if "FAKE_MACHINE_FILE" not in os.environ:
        return
    clock = HangClock()
    put(child.Child, "_read_chunk", lambda *words: clock.read(*words))
    for module in (child, client, device_holders):
        put(module, "time", clock)
