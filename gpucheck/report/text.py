"""View: what the terminal can show, and how much the user wants to see."""

from collections.abc import Callable
from typing import NamedTuple

from gpucheck.report.envelope import Report


class View(NamedTuple):
    """Display settings of a report. Nothing here changes the results.

    `width` is in columns; `color` and `unicode` say what the terminal can show; `verbosity` is -1
    (quiet), 0 or more; `columns` chooses and orders the columns of a list, None means by width.
    """

    width: int = 80
    color: bool = False
    unicode: bool = True
    verbosity: int = 0
    columns: tuple[str, ...] | None = None
    processes: bool = False
    header: bool = True


Renderer = Callable[[Report, View], str]


def printable(text: str) -> str:
    """Return outside text with control characters visible, so that no name controls a terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
