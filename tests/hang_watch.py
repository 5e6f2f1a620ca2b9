"""The watch over tests that hang: a process beside each that runs tests, which looks at its tree.

Nothing of the tests fails by the clock, since a busy machine stretches every wait. A test that
computes, or waits for its turn on a processor, goes on; it has hung when for minutes none of its
processes wanted one, or when they have taken minutes of all of them.

A process that hangs is aborted: faulthandler, which pytest enables, shows where. What it started is
killed with it, as is what is left over of any process that ran tests and ended.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

#: A test that has waited, or computed on every processor, for so long has hung.
HANGS_S = 300.0
HANGS_VARIABLE = "GPUCHECK_TEST_HANGS_S"

_LOOK_S = 1.0
_BEGUN, _ENDED = b"t", b"-"


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until something holds; what never does is a hang."""
    while not condition():
        time.sleep(0.01)


class HangWatch:
    """The watch over the tests of this process."""

    def __init__(self, stderr: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # so that no Ctrl-C ends it before the tests
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()

    def begin(self) -> None:
        """Watch a test."""
        os.write(self._pipe, _BEGUN)

    def end(self) -> None:
        """Watch nothing: no test runs, or somebody debugs one."""
        os.write(self._pipe, _ENDED)

    def close(self) -> None:
        """End the watch, and what the tests have left running."""
        self._process.communicate()


class Task(NamedTuple):
    """A process, as the kernel shows it."""

    state: str
    #: With that of its children that have ended.
    cpu_s: float
    #: Tells it from a later process of the same number.
    started: str


def read_task(pid: int) -> Task | None:
    """Return what a process does, None once it has ended."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        words = stat.rpartition(")")[2].split()
        ticks = sum(int(word) for word in words[11:15])
        return Task(words[0], ticks / os.sysconf("SC_CLK_TCK"), words[19])
    return None


def is_running(pid: int) -> bool:
    """Return whether a process is neither gone nor only waiting for whoever collects it."""
    task = read_task(pid)
    return task is not None and task.state != "Z"


def wants_processor(pid: int) -> bool:
    """Return whether a thread of a process computes, waits for its turn, or for a disk."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                stat = (thread / "stat").read_text("utf-8", "replace")
                if stat.rpartition(")")[2].split()[0] in "RD":
                    return True
    return False


class Family:
    """The processes that a process has started, and they in turn, also if one between has ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: dict[int, str] = {}

    def look(self) -> list[int]:
        """Return its members that live, itself first."""
        found: dict[int, None] = {}
        left = [self._pid, *self._known]
        while left:
            pid = left.pop(0)
            task = read_task(pid)
            if pid in found or pid == os.getpid() or task is None:
                continue
            if task.state != "Z" and self._known.setdefault(pid, task.started) == task.started:
                found[pid] = None
                with contextlib.suppress(OSError):
                    for thread in Path(f"/proc/{pid}/task").iterdir():
                        left += map(int, (thread / "children").read_text("ascii").split())
        self._known = {pid: self._known[pid] for pid in found}
        return list(found)

    def kill_others(self) -> None:
        """Kill all but the process itself."""
        for pid in self.look():
            if pid != self._pid:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def watch(
    pid: int, messages: int, *, hangs_s: float = HANGS_S, look_s: float = _LOOK_S
) -> str | None:
    """Wait until a process ends or closes its pipe, and return how it hung if it did.

    It is aborted then. In each case its children are killed.
    """
    os.set_blocking(messages, False)
    ended, family = os.pidfd_open(pid), Family(pid)
    waited_s = begun_cpu_s = 0.0
    is_testing, hung = False, None
    while hung is None and not select.select([ended], [], [], look_s)[0]:
        members = family.look()
        try:
            news = os.read(messages, 1 << 16)
        except BlockingIOError:
            news = None
        if news == b"":
            break
        cpu_s = sum(task.cpu_s for task in map(read_task, members) if task is not None)
        if news is not None:
            is_testing, waited_s, begun_cpu_s = news.endswith(_BEGUN), 0.0, cpu_s
        # Who is stopped, as by Ctrl-Z, has not hung.
        elif is_testing and (own := read_task(pid)) is not None and own.state not in "Tt":
            # A look that comes late counts once, whatever the clock says.
            waited_s += 0.0 if any(map(wants_processor, members)) else look_s
            if waited_s >= hangs_s:
                hung = f"nothing has wanted a processor for {hangs_s:.0f} s"
            elif cpu_s - begun_cpu_s >= hangs_s * (os.cpu_count() or 1):
                hung = f"it has taken {cpu_s - begun_cpu_s:.0f} s of a processor"
    if hung is not None:
        sys.stderr.write(f"\nA test has hung: {hung}. Its processes:\n{commands(members)}\n")
        sys.stderr.flush()
        abort(pid, ended)
    family.kill_others()
    os.close(ended)
    return hung


def commands(pids: list[int]) -> str:
    """Return the command line of each process, in lines."""
    lines = []
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            lines.append(f"  {pid} {b' '.join(words).decode('utf-8', 'replace')[:300]}")
    return "\n".join(lines)


def abort(pid: int, ended: int) -> None:
    """End a process by the signal at which faulthandler writes its stacks, without a core file."""
    with contextlib.suppress(OSError):
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        os.kill(pid, signal.SIGABRT)
        if not select.select([ended], [], [], 60)[0]:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]), 0, hangs_s=float(os.environ.get(HANGS_VARIABLE, HANGS_S)))
