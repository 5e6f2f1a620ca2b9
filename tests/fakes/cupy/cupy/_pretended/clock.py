"""Clock of the pretended GPU: the duration of its work and calls, on any machine.

`virtual` (the default of FAKE_GPU_TIME): the host's clock, time.perf_counter, is replaced. It
stands still while we compute, and moves on by what a call costs on a real machine and by what the
program waits for the GPU. Everything else the program does takes its real time.
`modelled`: the same, but whatever else the program does takes no time at all. Figures are then the
same on every machine and in every run; what is timed on the processor cannot be measured.
`real`: the clock is the host's, and waiting for the GPU is sleeping.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_real_s = time.perf_counter
#: What a reading of the modelled clock takes, so that no loop waits for ever.
_READING_S = 50e-9


class HostClock:
    """The host's time as the program sees it, and the axis on which the GPU's work lies."""

    def __init__(self, mode: str) -> None:
        self.virtual = mode != "real"
        self._modelled = mode == "modelled"
        # Who has read the real clock before must not see it jump.
        self._start_s = _real_s()
        self._modelled_s = 0.0
        self._hidden_s = 0.0
        self._entered_s = 0.0
        self._depth = 0

    def now_s(self) -> float:
        """Return what time.perf_counter is to the program."""
        if self._modelled:
            self._modelled_s += _READING_S
            return self._start_s + self._modelled_s
        now_s = _real_s()
        inside_s = now_s - self._entered_s if self._depth else 0.0
        return now_s - inside_s - self._hidden_s + self._modelled_s

    def gpu_s(self) -> float:
        """Return the moment at which a call made now reaches the GPU.

        In virtual time it counts what calls cost and waiting, not the program's own work: so what
        the events measure is the same on every machine.
        """
        return self._modelled_s if self.virtual else _real_s()

    def spend(self, seconds: float) -> None:
        """Let a call take its time."""
        if self.virtual:
            self._modelled_s += seconds

    def wait_until(self, moment_s: float) -> None:
        """Wait until the GPU has come so far."""
        if self.virtual:
            self._modelled_s = max(self._modelled_s, moment_s)
            return
        left_s = moment_s - _real_s()
        if left_s > 0:
            time.sleep(left_s)

    def enter(self) -> None:
        """Begin to hide what we compute."""
        if self._depth == 0:
            self._entered_s = _real_s()
        self._depth += 1

    def leave(self) -> None:
        """End it."""
        self._depth -= 1
        if self._depth == 0:
            self._hidden_s += _real_s() - self._entered_s


CLOCK = HostClock(os.environ.get("FAKE_GPU_TIME", "virtual"))


def driver_call(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Hide the time that our own work on a call takes."""
    if not CLOCK.virtual:
        return function

    @functools.wraps(function)
    def timed(*args: _P.args, **keywords: _P.kwargs) -> _R:
        CLOCK.enter()
        try:
            return function(*args, **keywords)
        finally:
            CLOCK.leave()

    return timed


def install() -> None:
    """Give the program the pretended clock."""
    if CLOCK.virtual:
        setattr(time, "perf_counter", CLOCK.now_s)  # noqa: B010 - mypy
        setattr(time, "perf_counter_ns", lambda: int(CLOCK.now_s() * 1e9))  # noqa: B010 - mypy
