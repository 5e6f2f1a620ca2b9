"""Requests to stop (Ctrl-C, SIGTERM, SIGHUP): each a KeyboardInterrupt, held back where that harms.

A signal mask holds nothing back in a process with a second thread: the kernel gives the signal to
any thread that takes it, BLAS' for example, and Python runs its handler in the main one all the
same. So it is the handler that waits.
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

#: Signals that ask us to stop. What ignores one of them (nohup, a shell's `&`) is heeded.
STOPPING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class HeldBack:
    """A block in which no handler of such a signal runs; those that came run right behind it.

    Handlers that are not Python's own have nothing to hold back: the process ends at once, and its
    children with it. In another thread than the main one no handler ever runs.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._came: list[int] = []
        self._holds = False

    def __enter__(self) -> None:
        """Put a handler that only notes in the place of each."""
        self._holds = True
        try:
            for number in STOPPING:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except ValueError:  # not the main thread
            self._handlers.clear()
        except BaseException:  # one came before its handler was exchanged
            self._put_back()
            raise

    def __exit__(self, *_: object) -> None:
        """Put the handlers back, and let them see what came."""
        self._put_back()
        for number in dict.fromkeys(self._came):
            self._handlers[number](number, None)

    def _put_back(self) -> None:
        self._holds = False
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._holds:
            self._came.append(number)
        else:  # the others are being put back
            self._handlers[number](number, frame)


class Requests:
    """The requests to stop that come to a whole command, from its start to its answer."""

    def __init__(self) -> None:
        self._heard = self._lost = self._settled = False

    def heed(self) -> None:
        """Raise KeyboardInterrupt for each from now on, but where somebody chose to ignore it."""
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
        """Raise the request that came where Python swallows exceptions, as in a finalizer."""
        if self._lost:
            self._lost = False
            raise KeyboardInterrupt

    def settle(self) -> None:
        """Let the answer that is there be given whole: from now on the first one is too late.

        A second one ends the program at once: what the answer is written to may be stuck.
        """
        if not self._settled:
            self._heard, self._settled = False, True

    def let_go(self) -> None:
        """Leave the rest to the kernel: unloading CUDA may hang where no handler ever runs."""
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
            # Only a person asks twice; a closed terminal and its session send one of each at once.
            raise KeyboardInterrupt


#: Those that come to this process; nothing heeds them unless the command line runs here.
REQUESTS = Requests()
