"""Tables that fit the width or are not drawn: one column may be cut, but never a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


class Heading(NamedTuple):
    """Heading of a column; its cells may be cut to `least` columns, or never if it is None."""

    text: str
    right: bool = False
    least: int | None = None


class Row(NamedTuple):
    """Cells of a row, and its style."""

    cells: Sequence[Text]
    style: str = ""


def natural_widths(headings: Sequence[Heading], rows: Sequence[Row]) -> list[int]:
    """Return how wide each column is if nothing is cut."""
    return [
        max(len(heading.text), *(row.cells[place].cell_len for row in rows), 1)
        for place, heading in enumerate(headings)
    ]


def excess(headings: Sequence[Heading], rows: Sequence[Row], *, width: int, gap: int) -> int:
    """Return by how many columns the uncut table is too wide for `width`."""
    return sum(natural_widths(headings, rows)) + gap * (len(headings) - 1) - width


def grid(
    headings: Sequence[Heading], rows: Sequence[Row], *, width: int, gap: int = 1
) -> Table | None:
    """Return the table, or None if it does not fit into `width` columns."""
    from rich.table import Table

    widths = natural_widths(headings, rows)
    missing = max(0, excess(headings, rows, width=width, gap=gap))
    for place, heading in enumerate(headings):
        if heading.least is not None and missing:
            cut = min(missing, max(0, widths[place] - heading.least))
            widths[place] -= cut
            missing -= cut
    if missing:
        return None
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for heading, column_width in zip(headings, widths, strict=True):
        table.add_column(
            heading.text,
            justify="right" if heading.right else "left",
            overflow="ellipsis",
            no_wrap=True,
            width=column_width,
        )
    for row in rows:
        table.add_row(*row.cells, style=row.style)
    return table


def said_once(reasons: Sequence[tuple[str, int]]) -> list[tuple[str, str]]:
    """Return each reason once, with the GPUs that it concerns: "GPU 1" or "GPUs 1, 2"."""
    found: dict[str, list[str]] = {}
    for reason, index in reasons:
        found.setdefault(reason, []).append(str(index))
    return [
        (reason, f"GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)}")
        for reason, indices in found.items()
    ]
