"""What every format is given besides the report: where it will be seen, and what to show."""

from collections.abc import Callable
from typing import NamedTuple

from gpucheck.models.report import Report


class View(NamedTuple):
    """How a report is shown. Nothing here changes what was found.

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
    """Make control characters of outside text visible, so that a name cannot steer a terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
