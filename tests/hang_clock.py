"""The clock of a command whose driver hangs: its deadline comes with the hang, not before.

A deadline that a test can wait for would be too short for the rest of the work on a busy machine.
So a pretended library marks the thread that hangs, and until one is marked no time passes for the
children of the command; then the whole wait passes at once. Frameworks keep the real clock.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from types import SimpleNamespace

from gpucheck.drivers import child
from gpucheck.drivers.nvml import client

#: The name of a thread that hangs, which machine.c gives it.
_MARK = "hangs"
_LOOK_S = 0.01

_read_chunk = child.Child._read_chunk


class HangClock:
    """Time that stands still, but for sleeps and for waits that end with a hang."""

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
        """Return what a child writes next, None once it hangs."""
        if waiting._foreign:
            return _read_chunk(waiting, wait_s)
        while (chunk := _read_chunk(waiting, _LOOK_S)) is None:
            if hangs(waiting.pid):
                # What it wrote just before.
                chunk = _read_chunk(waiting, 0)
                self._now_s += 0.0 if chunk else max(0.0, wait_s)
                break
        return chunk


def hangs(pid: int | None) -> bool:
    """Return whether a thread of a process hangs in a pretended library."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                if (thread / "comm").read_text().strip() == _MARK:
                    return True
    return False


def install() -> None:
    """Use this clock from now on, in this process, if something hangs on its machine."""
    file = os.environ.get("FAKE_MACHINE_FILE")
    lines = Path(file).read_text("utf-8", "replace").splitlines() if file else []
    if any(line.startswith("fault.") and line.split()[-2] == "-1" for line in lines):
        clock = HangClock()
        child.Child._read_chunk = lambda *words: clock.read(*words)  # type: ignore[method-assign]
        child.time = client.time = SimpleNamespace(  # type: ignore[attr-defined]
            monotonic=clock.monotonic, sleep=clock.sleep
        )
