"""Runs a command line as the program does, in a process of its own that tests can signal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import gpucheck

#: Runs a command line the way the program does: `WAY`, then the command.
DRIVER = """
import os, sys
from gpucheck.place.exec import exec_command
from gpucheck.place.exec import supervise
from gpucheck.report.errors import LaunchError
way, *command = sys.argv[1:]
try:
    if way == "exec":
        exec_command(command, dict(os.environ))
    ticks = []
    on_tick = ticks.append if way == "supervise-ticking" else None
    sys.exit(supervise(command, dict(os.environ), on_tick=on_tick, tick_s=0.01))
except LaunchError as error:
    print(error.message, file=sys.stderr)
    sys.exit(error.exit_code)
"""

#: A child that writes one line for each signal it gets, and ends on SIGTERM with code 7. It sleeps
#: little at a time: a signal that comes just before a sleep begins is answered only after it.
COUNTING_CHILD = """
import os, signal, sys, time
def note(number, frame):
    os.write(1, (signal.Signals(number).name + "\\n").encode())
    if number == signal.SIGTERM:
        os._exit(7)
for name in "HUP INT QUIT USR1 USR2 TERM CONT WINCH".split():
    signal.signal(getattr(signal, "SIG" + name), note)
os.write(1, b"ready %d\\n" % os.getpid())
while True:
    time.sleep(0.05)
"""

WAYS = ["exec", "supervise", "supervise-ticking"]


def python(source: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(source), *arguments]


def driver(way: str, command: list[str]) -> list[str]:
    return python(DRIVER, way, *command)


def environment(**extra: str) -> dict[str, str]:
    root = str(Path(gpucheck.__file__).parents[1])
    return {"PATH": os.environ["PATH"], "PYTHONPATH": root, "LANG": "C.UTF-8", **extra}


def finish(way: str, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    defaults: dict[str, object] = {"env": environment(), "capture_output": True}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        driver(way, command),
        text=True,
        check=False,
        **{**defaults, **options},
    )


class Session:
    """A running driver whose output is read line by line."""

    def __init__(self, way: str, command: list[str], **options: object) -> None:
        self.process = subprocess.Popen(  # type: ignore[call-overload]
            driver(way, command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            text=True,
            start_new_session=True,
            **options,
        )

    def line(self) -> str:
        return str(self.process.stdout.readline()).strip()

    def rest(self) -> list[str]:
        return str(self.process.stdout.read()).split()

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait(self) -> int:
        return int(self.process.wait())


@contextlib.contextmanager
def sessions() -> Iterator[Callable[..., Session]]:
    """Yield what starts a session; all of them are ended."""
    opened: list[Session] = []

    def start(way: str, command: list[str], **options: object) -> Session:
        opened.append(Session(way, command, **options))
        return opened[-1]

    yield start
    for each in opened:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.stdout.close()
        each.process.wait()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
