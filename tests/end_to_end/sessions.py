"""Processes of a session that a program began: which of them live, and whether all of them wait."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.hang_watch import wait_until

#: How long nothing may happen until a process is taken to wait.
_QUIET_S = 0.3


def living(leader: int) -> list[int]:
    """Return the living processes of the session that `leader` began, but for itself."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[3]) == leader and words[0] not in "ZX" and int(entry.name) != leader:
                found.append(int(entry.name))
    return found


def until_nobody_lives(leader: int) -> None:
    """Wait until all processes of a session have ended: one that was killed takes a moment."""
    wait_until(lambda: not living(leader))


def until_it_waits(pid: int, *, cpu_s: float = 0.0) -> None:
    """Wait until a process has computed so much, and then sleeps in each of its threads.

    One that only does not get a processor is not asleep.
    """
    ticks, since_s = -1, 0.0

    def has_waited() -> bool:
        nonlocal ticks, since_s
        now, is_asleep = _look(pid)
        if not is_asleep or now != ticks or now < cpu_s * os.sysconf("SC_CLK_TCK"):
            ticks, since_s = now, time.monotonic()
        return time.monotonic() - since_s >= _QUIET_S

    wait_until(has_waited)


def _look(pid: int) -> tuple[int, bool]:
    """Return the ticks that a process has taken, and whether all its threads are asleep."""
    states = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            words = (task / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except OSError:  # a thread that has just ended
            return 0, False
        states.append(words[0])
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(stat[11]) + int(stat[12]), {*states} == {"S"}
