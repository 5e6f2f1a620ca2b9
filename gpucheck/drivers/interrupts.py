"""Stop requests (Ctrl-C, SIGTERM, SIGHUP) as KeyboardInterrupt, deferred where they would do harm.

A signal mask defers nothing in a process with a second thread: the kernel delivers the signal to
any thread that accepts it, such as one of BLAS, and Python still runs the handler in the main
thread. So the handler itself waits.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    Handler = Callable[[int, FrameType | None], object]

#: Signals that ask us to stop. If one is ignored (nohup, a shell's `&`), it stays ignored.
#: Windows, where every command only says that this is not Linux, has no hangup.
STOPPING = (getattr(signal, "SIGHUP", signal.SIGTERM), signal.SIGINT, signal.SIGTERM)


class DeferredStops:
    """A block in which no handler of such a signal runs; pending ones run right after it.

    Handlers that are not Python's own need no deferral: the process ends at once, and its children
    with it. Outside the main thread no handler ever runs.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._came: list[int] = []
        self._holds = False

    def __enter__(self) -> None:
        """Replace each handler by one that only takes note."""
        self._holds = True
        try:
            for number in STOPPING:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except ValueError:  # not the main thread
            self._handlers.clear()
        except BaseException:  # one came before its handler was replaced
            self._restore()
            raise

    def __exit__(self, *_: object) -> None:
        """Restore the handlers, and pass them the pending signals."""
        self._restore()
        for number in dict.fromkeys(self._came):
            self._handlers[number](number, None)

    def _restore(self) -> None:
        self._holds = False
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._holds:
            self._came.append(number)
        else:  # the others are being restored
            self._handlers[number](number, frame)


class StopRequests:
    """The stop requests that reach a command between its start and its answer."""

    def __init__(self) -> None:
        self._heard = self._lost = self._settled = False

    def listen(self) -> None:
        """Raise KeyboardInterrupt for each from now on, except for ignored signals."""
        self._heard = self._lost = self._settled = False
        ours = (signal.SIG_DFL, signal.default_int_handler)
        for number in STOPPING:
            if signal.getsignal(number) in ours:
                signal.signal(number, self._stop)
        show = sys.unraisablehook

        def note_lost(unraisable: sys.UnraisableHookArgs) -> None:
            if unraisable.exc_type is KeyboardInterrupt:
                self._heard, self._lost = False, True
            else:
                show(unraisable)

        sys.unraisablehook = note_lost

    def raise_lost(self) -> None:
        """Raise a request that came where Python swallows exceptions, as in a finalizer."""
        if self._lost:
            self._lost = False
            raise KeyboardInterrupt

    def settle(self) -> None:
        """Let a finished answer be written whole: from now on the first request is ignored.

        A second one ends the program at once, since the output may be stuck.
        """
        if not self._settled:
            self._heard, self._settled = False, True

    def release(self) -> None:
        """Restore the default actions: unloading CUDA may hang where no handler ever runs."""
        if "cupy" in sys.modules:
            for number in STOPPING:
                if signal.getsignal(number) == self._stop:
                    signal.signal(number, signal.SIG_DFL)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        again, self._heard = self._heard, True
        if self._settled:
            if again:
                os._exit(130)
        elif number == signal.SIGINT or not again:
            # Only a person asks twice; a closing terminal sends one of each at once.
            raise KeyboardInterrupt


#: The requests to this process; only the command line activates them.
REQUESTS = StopRequests()
