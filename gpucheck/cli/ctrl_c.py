"""Early end of a benchmark: Ctrl-C, a request to end, or a second Ctrl-C if the GPU hangs.

Python runs a signal's handler only between two of its own steps, so that a first Ctrl-C waits for
the call. The signal itself arrives all the same, and another thread sees it, as long as the call
lets go of the interpreter's lock (CuPy does so around CUDA).

SIGTERM and SIGHUP (a scheduler's limit, `timeout`, a closed terminal) count as a Ctrl-C, as in
every command. Nobody sends them twice, so one is enough.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpucheck.bench.model import BenchResult
from gpucheck.cli.terminal import write_stderr
from gpucheck.report.errors import ExitCode

#: Seconds after the first Ctrl-C until the second one is offered, and those that the program gets
#: to end by itself after the second.
_PATIENCE_S, _GRACE_S = 2.0, 1.0
_HINT = "gpucheck: finishing the running measurement{}; Ctrl-C again ends at once"
_OR_GPU = ", or waiting for the GPU"
_SHOW_CURSOR = "\x1b[?25h"
_REQUESTS = (signal.SIGTERM, signal.SIGHUP)

SoFar = Callable[[], BenchResult]


@contextmanager
def end_on_second_ctrl_c(
    report: Callable[[BenchResult], None], *, on_gpu: bool
) -> Iterator[Callable[[SoFar], None]]:
    """Watch for Ctrl-C while the block runs; yield what takes the result so far.

    On the second one, or a request to end, if the block does not end soon, `report` receives that
    result and the process ends with 130, whatever its main thread is waiting for. `on_gpu` says
    whether that may be a GPU.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda so_far: None
        return
    try:
        watch = _Watch(report, _HINT.format(_OR_GPU if on_gpu else ""))
    except RuntimeError:  # no thread can be started: the first Ctrl-C is answered all the same
        yield lambda so_far: None
        return
    before = signal.set_wakeup_fd(watch.write_end, warn_on_full_buffer=False)
    try:
        yield watch.offer
    finally:
        signal.set_wakeup_fd(before)
        watch.close()


class _Watch:
    """The thread that counts the signals, and the pipe they come through."""

    def __init__(self, report: Callable[[BenchResult], None], hint: str) -> None:
        self._report, self._hint = report, hint
        self._so_far: SoFar | None = None
        self._over = threading.Event()
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def offer(self, so_far: SoFar) -> None:
        """Take what returns the result so far."""
        self._so_far = so_far

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        os.close(self.write_end)
        self._thread.join()
        os.close(self._read_end)

    def _run(self) -> None:
        count, hinted = 0, False
        while True:
            patience_s = _PATIENCE_S if count == 1 and not hinted else None
            if not select.select([self._read_end], [], [], patience_s)[0]:
                write_stderr(self._hint)
                hinted = True
                continue
            signals = os.read(self._read_end, 64)
            if not signals:
                return
            if any(number in signals for number in _REQUESTS) and not self._over.wait(_PATIENCE_S):
                self._end()
            count += signals.count(signal.SIGINT)
            if count > 1 and not self._over.wait(_GRACE_S):
                self._end()

    def _end(self) -> None:
        """Report, and end at once: the main thread may be stuck."""
        try:
            if sys.stderr is not None and sys.stderr.isatty():
                # A progress bar hides it.
                write_stderr(_SHOW_CURSOR)
            if self._so_far is not None:
                self._report(self._so_far())
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(ExitCode.INTERRUPTED)
