"""Process tree: the descendants of one process, found in /proc and signalled safely.

Process ids are reused, so a process is identified by its id and its start time together. One that
left the tree between two readings (a daemon's double fork) is identified by a mark in its
environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

#: Source: linux/sched.h.
PF_KTHREAD = 0x00200000


class Stat(NamedTuple):
    """One process: its parent, start (clock ticks since boot), name, state (a letter) and flags."""

    parent: int
    started: int
    name: str
    state: str
    flags: int = 0

    @property
    def zombie(self) -> bool:
        """Whether it has ended and only its parent has not noticed yet."""
        return self.state in ("Z", "X")

    @property
    def kernel_thread(self) -> bool:
        """Whether it is the kernel's own, which has no files and no command line."""
        return bool(self.flags & PF_KTHREAD)


class ProcessTree:
    """Process and all its descendants, including those that have lost their parent since.

    `mark` is a text that only its environment and its descendants' contain.
    """

    def __init__(self, pid: int, root: Path = Path("/"), *, mark: str | None = None) -> None:
        self._pid = pid
        self._proc = root / "proc"
        self._mark = None if mark is None else mark.encode()
        self._known: dict[int, Stat] = {}

    def refresh(self, suspects: Iterable[int] = ()) -> Mapping[int, Stat]:
        """Read /proc and return the living members by process id.

        A descendant stays one: a daemon is reparented to init when its parent ends. `suspects`
        are processes whose environment is searched for the mark.
        """
        table = self._read_all()
        marked = {pid for pid in suspects if pid in table and self._has_mark(pid)}
        members = {
            pid: stat
            for pid, stat in table.items()
            if pid == self._pid or pid in marked or _is_same(self._known.get(pid), stat)
        }
        grown = True
        while grown:
            children = {
                pid: stat
                for pid, stat in table.items()
                if stat.parent in members and pid not in members
            }
            members |= children
            grown = bool(children)
        self._known = {pid: stat for pid, stat in members.items() if not stat.zombie}
        return dict(self._known)

    def send(self, number: signal.Signals) -> tuple[list[int], list[int]]:
        """Send a signal to every living member; return whom it reached and who refused it."""
        reached, refused = [], []
        for pid, stat in self.refresh().items():
            try:
                if self._send(pid, stat, number):
                    reached.append(pid)
            except PermissionError:
                refused.append(pid)
        return reached, refused

    def _send(self, pid: int, stat: Stat, number: signal.Signals) -> bool:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:  # a kernel before 5.3, or a container that forbids the call
            return self._is_still(pid, stat) and _deliver(number, lambda n: os.kill(pid, n))
        try:
            # The descriptor pins the process: if it is still ours now, it stays ours.
            return self._is_still(pid, stat) and _deliver(
                number, lambda n: signal.pidfd_send_signal(descriptor, n)
            )
        finally:
            os.close(descriptor)

    def _has_mark(self, pid: int) -> bool:
        """Return whether a process inherited our mark; False if its environment cannot be read."""
        if self._mark is None or pid in self._known:
            return False
        try:
            return self._mark in (self._proc / str(pid) / "environ").read_bytes()
        except OSError:
            return False

    def _is_still(self, pid: int, stat: Stat) -> bool:
        return _is_same(read_stat(self._proc / str(pid)), stat)

    def _read_all(self) -> dict[int, Stat]:
        stats = {}
        for entry in self._proc.iterdir():
            if entry.name.isdigit():
                stat = read_stat(entry)
                if stat is not None:
                    stats[int(entry.name)] = stat
        return stats


def _deliver(number: signal.Signals, send: Callable[[int], None]) -> bool:
    """Send a signal, and wake a stopped process to take it; return whether it existed."""
    try:
        send(number)
        if number != signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                send(signal.SIGCONT)
    except ProcessLookupError:
        return False
    return True


def _is_same(before: Stat | None, other: Stat | None) -> bool:
    return before is not None and other is not None and before.started == other.started


def read_stat(directory: Path) -> Stat | None:
    """Read the `stat` of a folder of /proc; None if it is gone, hidden or not in that form.

    The name in it may contain blanks and brackets (man 5 proc).
    """
    try:
        text = (directory / "stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 20 or not (fields[1].isdecimal() and fields[19].isdecimal()):
        return None
    flags = int(fields[6]) if fields[6].isdecimal() else 0
    return Stat(int(fields[1]), int(fields[19]), head.partition("(")[2], fields[0], flags)
