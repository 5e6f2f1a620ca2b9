"""How far a long command is, on stderr, and only where a person is watching."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucheck.core.bench.rounds import Progress


def _say_nothing(label: str, fraction: float, seconds_left: float) -> None:
    """Take the progress where nobody is watching."""


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Progress]:
    """Show a bar while the block runs; nothing at all if stderr is not a terminal."""
    if not (shown and sys.stderr.isatty()):
        yield _say_nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[left]}", markup=False),
    )
    console = Console(stderr=True, highlight=False)
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=1.0, left="")

        def report(label: str, fraction: float, seconds_left: float) -> None:
            left = f"at most {seconds_left:.0f} s left"
            bar.update(task, description=label, completed=fraction, left=left, refresh=True)

        yield report
