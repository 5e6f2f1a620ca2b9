"""Requests to stop (Ctrl-C, SIGTERM, SIGHUP), held back where an exception would do harm.

A signal mask holds nothing back in a process with a second thread: the kernel gives the signal to
any thread that takes it, BLAS' for example, and Python runs its handler in the main one all the
same. So it is the handler that waits.
"""

from __future__ import annotations

import signal

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
