"""Monotonic clock of the host."""

from __future__ import annotations

import time
from collections.abc import Callable

#: A clock that never goes backwards: returns seconds since an arbitrary start.
Clock = Callable[[], float]


def monotonic_s() -> float:
    """Return the host's finest clock that is never adjusted by hand (CLOCK_MONOTONIC)."""
    return time.perf_counter()
