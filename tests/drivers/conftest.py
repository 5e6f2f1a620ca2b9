"""Fixture that finds child processes left over by a test."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def children() -> Callable[[], set[str]]:
    """Return a function that lists the living child processes started during the test.

    Those that were killed get a moment to die.
    """
    before = _living()

    def left_over() -> set[str]:
        end = time.monotonic() + 10
        while (found := _living() - before) and time.monotonic() < end:
            time.sleep(0.02)
        return found

    return left_over


def _living() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
            # A zombie is dead; only its exit status has not been collected.
            found |= {pid} - ({pid} if state == "Z" else set())
    return found
