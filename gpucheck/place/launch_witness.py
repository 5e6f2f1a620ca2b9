"""Group signal probe: tells whether a signal was sent to our whole process group or to us alone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import warnings
from typing import NoReturn

from gpucheck.place.launch_descriptors import open_descriptors

#: How long a signal that reached us may take to reach the rest of our process group.
_GROUP_DELIVERY_S = 0.02


class GroupWitness:
    """Process in our group that tells whether a signal was sent to all of the group or to us alone.

    Signal information names the sender, not the target: `kill(-group)`, as a shell's `kill %1`,
    a CI runner or Jupyter's interrupt sends it, looks like `kill(us)`. The probe blocks every
    signal and reports whether it received the same one. It ends with us, however we end. Without
    it, only the kernel's own signals (a terminal's) count as sent to the group.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        #: Descriptors for the questions and the answers, while the answers can be trusted.
        self._line: tuple[int, int] | None = None

    def __enter__(self) -> GroupWitness:
        """Start the probe, which lives as long as our pipe to it."""
        with contextlib.suppress(OSError):
            questions, ask = os.pipe()
            answer, answers = os.pipe()
            self._line = (ask, answer)
            with warnings.catch_warnings():
                # Python warns of fork with threads running; the probe takes none of their locks.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid = os.fork()
            if self._pid == 0:
                _witness(questions, answers)
            os.close(questions)
            os.close(answers)
        return self

    def __exit__(self, *exception: object) -> None:
        """End the probe and wait for it, so that it leaves no zombie."""
        self._hang_up()
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def saw(self, received: signal.struct_siginfo) -> bool:
        """Return whether the signal that we received was sent to our whole process group."""
        # Ask even if the answer is known, so that the probe consumes the signal too.
        answer = self._ask(received.si_signo)
        if answer is None:
            self._hang_up()
        from_terminal = received.si_code > 0
        return from_terminal or bool(answer)

    def _ask(self, number: int) -> bool | None:
        if self._line is None:
            return None
        ask, answer = self._line
        with contextlib.suppress(OSError):
            os.write(ask, bytes([number]))
            # Much longer than the probe itself waits: without an answer it has been stopped.
            if select.select([answer], [], [], 10 * _GROUP_DELIVERY_S)[0]:
                said = os.read(answer, 1)
                return said == b"1" if said else None
        return None

    def _hang_up(self) -> None:
        """Close the pipes for good: a late answer would be taken for that to a later question."""
        if self._line is not None:
            for fd in self._line:
                os.close(fd)
            self._line = None


def _witness(questions: int, answers: int) -> NoReturn:
    """Run the probe: for each signal number read, answer whether that signal arrived here too."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for other in open_descriptors() - {questions, answers}:
            with contextlib.suppress(OSError):
                os.close(other)
        while number := os.read(questions, 1):
            seen = signal.sigtimedwait({number[0]}, _GROUP_DELIVERY_S)
            os.write(answers, b"0" if seen is None else b"1")
    finally:
        os._exit(0)
