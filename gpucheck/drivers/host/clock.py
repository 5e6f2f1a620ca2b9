"""Clocks of the host: the monotonic one, and the CPU time of this process's threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

#: A clock that never goes backwards: returns seconds since an arbitrary start.
Clock = Callable[[], float]
#: CPU seconds of the calling thread, or of all threads of this process, by the thread's id.
ThreadClock = Callable[[bool], Mapping[int, float]]


def monotonic_s() -> float:
    """Return the host's finest clock that is never adjusted by hand (CLOCK_MONOTONIC)."""
    return time.perf_counter()


def thread_times(every: bool) -> Mapping[int, float]:
    """Return the CPU seconds of the calling thread, or of all threads; empty if unreadable.

    Linux gives each thread a clock, whose number follows from the thread's id (the kernel's
    posix-timers.h). A thread that ends meanwhile is left out.
    """
    if not every:
        return {threading.get_native_id(): time.thread_time()}
    try:
        with os.scandir("/proc/self/task") as tasks:
            ids = [int(task.name) for task in tasks]
    except OSError:
        return {}
    times = {}
    for thread in ids:
        try:
            times[thread] = time.clock_gettime((~thread << 3) | 6)
        except OSError:
            continue
    return times
