"""A terminal of its own for a command, below a small shell with job control."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping

#: A job-control shell in small: runs a command in a foreground group of its own on the terminal
#: (its standard input) and reports what happens to the job on standard error.
SMALL_SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
def say(text):
    os.write(2, (text + "\\n").encode())
terminal = os.open(sys.argv[1], os.O_RDWR)
say("open")
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(terminal, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    for fd in (0, 1):
        os.dup2(terminal, fd)
    os.execv(sys.argv[2], sys.argv[2:])
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        say("ended %d" % os.waitstatus_to_exitcode(status))
        break
    say("stopped " + signal.Signals(os.WSTOPSIG(status)).name)
    os.tcsetpgrp(terminal, os.getpgrp())
    sys.stdin.readline()
    os.tcsetpgrp(terminal, job)
    os.killpg(job, signal.SIGCONT)
"""


class Terminal:
    """A command on a terminal of its own, below a small shell with job control."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(24, 80)
        name = os.ttyname(theirs)
        self.shell = subprocess.Popen(
            [sys.executable, "-c", SMALL_SHELL, name, *command],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            text=True,
            start_new_session=True,
        )
        self.seen = ""
        assert self.job_event() == "open"
        os.close(theirs)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window, of which the foreground is told."""
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, size)

    def type(self, key: bytes) -> None:
        """Press a key."""
        os.write(self.ours, key)

    def until(self, text: str, *, times: int = 1) -> None:
        """Read what is shown until a text has been there."""
        while self.seen.count(text) < times:
            self.seen += os.read(self.ours, 4096).decode("utf-8", "replace")

    def rest(self) -> str:
        """Return all that was shown, once nobody is left to show more."""
        while self._read():
            continue
        return self.seen

    def job_event(self) -> str:
        """Return what the shell says next of its job."""
        assert self.shell.stderr is not None
        return self.shell.stderr.readline().strip()

    def has_news(self, wait_s: float) -> bool:
        """Return whether the shell has something to say of its job; what is shown is read on."""
        assert self.shell.stderr is not None
        end = time.monotonic() + wait_s
        while (left := end - time.monotonic()) > 0:
            ready = select.select([self.shell.stderr, self.ours], [], [], left)[0]
            if self.shell.stderr in ready:
                return True
            if ready and not self._read():
                time.sleep(0.01)
        return False

    def _read(self) -> str:
        """Return what is shown next; a terminal that nobody has open any more shows nothing."""
        try:
            part = os.read(self.ours, 4096).decode("utf-8", "replace")
        except OSError:
            return ""
        self.seen += part
        return part

    def foreground(self) -> None:
        """Continue the job, as `fg` does."""
        assert self.shell.stdin is not None
        self.shell.stdin.write("\n")
        self.shell.stdin.flush()

    def close(self) -> None:
        """End all of it."""
        os.close(self.ours)
        if self.shell.poll() is None:
            self.shell.kill()
        self.shell.communicate()
