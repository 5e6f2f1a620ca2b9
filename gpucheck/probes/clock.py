"""The host's monotonic clock, behind a Protocol so that tests can script the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that never goes back."""

    def now_s(self) -> float:
        """Return seconds since an arbitrary start."""
        ...


class MonotonicClock:
    """The finest clock of the host that is not set while it runs (CLOCK_MONOTONIC)."""

    def now_s(self) -> float:
        """Return seconds since an arbitrary start, at nanosecond resolution on Linux."""
        return time.perf_counter()
