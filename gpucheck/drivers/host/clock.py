"""Monotonic clock of the host, behind a Protocol so that tests can script the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that never goes backwards."""

    def now_s(self) -> float:
        """Return seconds since an arbitrary start."""
        ...


class MonotonicClock:
    """The host's finest clock that is never adjusted by hand (CLOCK_MONOTONIC)."""

    def now_s(self) -> float:
        """Return seconds since an arbitrary start, at nanosecond resolution on Linux."""
        return time.perf_counter()
