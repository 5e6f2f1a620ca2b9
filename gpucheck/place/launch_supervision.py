"""Supervision of a command: signals are forwarded, stops and continuations shared."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpucheck.place.launch_witness import GroupWitness

#: Signals that may be sent to us instead of to the command.
FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGWINCH,
)
#: Signals that the terminal sends to a whole group; we take them off the queue, the child reacts.
_JOB_CONTROL = (signal.SIGTTIN, signal.SIGTTOU)
#: Stops that we share with the child, so that the shell that started us sees the job stopped.
#: SIGSTOP is not among them: whoever sent it to the child alone will continue the child alone.
_MIRRORED_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
#: SIGPIPE is blocked so that a probe or a reader that has ended is an error and does not end us.
_TAKEN = frozenset({*FORWARDED, *_JOB_CONTROL, signal.SIGCHLD, signal.SIGPIPE})


class Supervision:
    """Supervision of one child: signals in, signals out, until the child has ended."""

    def __init__(
        self,
        pid: int,
        witness: GroupWitness,
        on_tick: Callable[[int], None] | None,
        tick_s: float,
    ) -> None:
        self._pid = pid
        self._witness = witness
        self._on_tick = on_tick
        self._tick_s = tick_s
        self._next_tick = time.monotonic() + tick_s
        self._exit_code: int | None = None
        self._tick_failure: Exception | None = None

    def run(self) -> int:
        """Return the child's exit code once it has ended, or raise what a tick raised."""
        while self._exit_code is None:
            received = self._next_signal()
            self._look_after_child()
            if self._exit_code is None:
                if received is not None:
                    self._handle(received)
                self._tick()
        if self._tick_failure is not None:
            raise self._tick_failure
        return self._exit_code

    def _next_signal(self) -> signal.struct_siginfo | None:
        if self._on_tick is None:
            return signal.sigwaitinfo(_TAKEN)
        return signal.sigtimedwait(_TAKEN, max(0.0, self._next_tick - time.monotonic()))

    def _tick(self) -> None:
        if self._on_tick is None or time.monotonic() < self._next_tick:
            return
        self._next_tick = time.monotonic() + self._tick_s
        try:
            self._on_tick(self._pid)
        except Exception as failure:  # the child must not be left without a parent that waits
            self._tick_failure, self._on_tick = failure, None

    def _look_after_child(self) -> None:
        """Handle every pending change of the child's state."""
        while self._exit_code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._stop_with_child(os.WSTOPSIG(status))
            elif os.WIFSIGNALED(status):
                self._exit_code = 128 + os.WTERMSIG(status)
            else:
                self._exit_code = os.WEXITSTATUS(status)

    def _handle(self, received: signal.struct_siginfo) -> None:
        number = received.si_signo
        if number not in FORWARDED:
            return
        if not self._witness.saw(received):
            if not _is_overtaken(number):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self._pid, number)
            return
        # A second signal that came meanwhile merged with the first one in the probe: signals do
        # not count. Left in the queue it would look as if it had been sent to us alone.
        signal.sigtimedwait({number}, 0)
        self._stop_with_child(number)

    def _stop_with_child(self, number: int) -> None:
        """Stop too if job control has stopped the child, unless it is already running again."""
        if number in _MIRRORED_STOPS and _is_stopped(self._pid):
            _stop_ourselves(signal.Signals(number))


def _is_overtaken(number: int) -> bool:
    """Return whether the queue holds the opposite: a stop and a continuation cancel each other.

    The later one also removes the earlier one from the probe, which then did not see it.
    """
    opposite = {signal.SIGCONT: set(_MIRRORED_STOPS), signal.SIGTSTP: {signal.SIGCONT}}
    return bool(opposite.get(signal.Signals(number), set()) & signal.sigpending())


def _is_stopped(pid: int) -> bool:
    """Return whether the process is stopped right now; reports of it come late."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "T"


@contextlib.contextmanager
def taking_signals() -> Iterator[set[signal.Signals | int]]:
    """Block our signals so that they can be waited for; yield the previous mask."""
    # If SIGCHLD were ignored (as in some daemons), the kernel would discard the exit code.
    children_before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    original = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    try:
        yield set(original)
    finally:
        # What is still queued, a second Ctrl-C for example, was meant for the command that ended.
        while signal.sigtimedwait(_TAKEN, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, original)
        signal.signal(signal.SIGCHLD, children_before)


def _stop_ourselves(number: signal.Signals) -> None:
    """Stop ourselves by the signal that stopped the child; return once continued."""
    handler = signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    signal.signal(number, handler)
