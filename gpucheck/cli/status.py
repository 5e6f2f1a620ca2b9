"""Status line on stderr, only on a terminal: what the command is waiting for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def _say_nothing(text: str) -> None:
    """Ignore the progress where stderr is not a terminal."""


@contextmanager
def status_line(*, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show a line that changes while the block runs; nothing if stderr is not a terminal."""
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        yield _say_nothing
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    with console.status("looking") as status:
        yield lambda text: status.update(text)
