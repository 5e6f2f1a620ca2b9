"""Enough time for a real measurement: how much that is depends on what else the machine does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gpucheck.bench.model import NO_TIME

Found = TypeVar("Found")

#: What is not whole after so long is the program's fault, not the machine's.
_MOST_S = 200.0


def with_enough_time(
    run: Callable[[float], Found], seconds: float, *, is_whole: Callable[[Found], bool]
) -> Found:
    """Return what a run of so many seconds finds, or one of twice as much, until it is whole.

    A quiet machine needs the first. Where other programs use the processor, less happens in a
    second, and rows of several threads come last: a short run of bench has no time for them.
    """
    while not is_whole(found := run(seconds)) and seconds < _MOST_S:
        seconds *= 2
    return found


def has_every_row(document: Any) -> bool:
    """Return whether a document of bench has no row that was left out for lack of time."""
    rows = document["result"]["measurements"]
    return not any(row["error"] and row["error"]["code"] == NO_TIME for row in rows)
