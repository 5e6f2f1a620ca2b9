"""Progress bar of a long command on stderr, only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucheck.bench.scheduler import Progress


#: Largest width of the bar, smallest label before the bar shrinks, and width of the time left.
_BAR_WIDTH, _LABEL_WIDTH, _LEFT_WIDTH = 20, 20, 21


def _time_left(seconds: float) -> str:
    """Return the time left in words; every row is measured, even after the time is up."""
    if seconds < 0.5:
        return "time is up, finishing"
    if seconds < 100:
        return f"at most {seconds:.0f} s left"
    return f"at most {seconds / 60:.0f} min left"


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Progress]:
    """Show a bar while the block runs, or nothing if stderr is not a terminal."""
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        from gpucheck.bench.session import ignore_progress

        yield ignore_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, highlight=False)
    # On a narrow terminal the bar shrinks first, then the label: always one line.
    bar_width = min(_BAR_WIDTH, max(1, console.width - _LABEL_WIDTH - _LEFT_WIDTH - 2))
    label_width = max(1, console.width - bar_width - _LEFT_WIDTH - 2)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=bar_width),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("preparing"[:label_width], total=1.0, left="")

        def report(label: str, fraction: float, seconds_left: float) -> None:
            left, shown = _time_left(seconds_left), label[:label_width]
            bar.update(task, description=shown, completed=fraction, left=left, refresh=True)

        yield report
