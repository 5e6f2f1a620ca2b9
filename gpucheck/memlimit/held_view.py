"""Terminal view of what limits each framework in a run, and of the next commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpucheck.memlimit.holders import Holder, holders, together
from gpucheck.memlimit.model import MemoryLimit, Software, Way
from gpucheck.place.operations_view import indented
from gpucheck.report.text import View, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Terminals narrower than this get one column instead of two.
NARROW = 64
TRAP = (
    "TensorFlow's memory_limit counts MiB: 0.3 there means 0 bytes, not 30 %."
    " --code tensorflow prints the right lines."
)
_NEXT = (
    "-- COMMAND at the end runs it limited and watched; --verify proves the limit.",
    "--format shell prints the variables, --code FRAMEWORK the code for a program.",
    "-v shows how each framework is limited, how strictly, and why.",
)


def show_holders(limit: MemoryLimit, view: View, *, hints: bool) -> Iterator[RenderableType]:
    """Yield a line for each installed framework, or for all if none is, and the hints."""
    from rich.text import Text

    found = holders(limit)
    if not found:
        return
    yield Text(_heading(limit.software, found), overflow="fold")
    rows = _rows(found, view)
    yield _table(rows) if view.width >= NARROW else _lines(rows)
    if hints:
        trap = [TRAP] if _is_trapped(limit, found) else []
        yield Text("\n".join((*trap, *_NEXT)), style="dim", overflow="fold")


class _Row(NamedTuple):
    mark: str
    style: str
    name: str
    what: str
    remark: str = ""


def _rows(found: Sequence[Holder], view: View) -> list[_Row]:
    """Return limited frameworks first; if none is installed, grouped by what would limit them."""
    held, missing = ("✓", "✗") if view.unicode else ("+", "x")
    if any(each.installed for each in found):
        rows = [
            _Row(*(("~", "yellow") if each.soft else (held, "green")), each.framework,
                 f"by {each.by}", each.remark)
            for each in found
            if each.by is not None
        ]  # fmt: skip
    else:
        rows = [_Row(held, "green", names, f"by {by}") for names, by in together(found)]
    rows += [
        _Row(missing, "" if each.way is Way.NOBODY else "red", each.framework, each.remark)
        for each in found
        if each.by is None
    ]
    return rows


def _table(rows: Sequence[_Row]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        what = Text(printable(row.what), overflow="fold")
        if row.remark:
            what.append(f"\n{printable(row.remark)}", style="yellow")
        table.add_row(Text(f"  {row.mark} {printable(row.name)}", style=row.style), what)
    return table


def _lines(rows: Sequence[_Row]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for row in rows:
        parts.append(Text(f"{row.mark} {printable(row.name)}", style=row.style, overflow="fold"))
        texts = filter(None, (row.what, row.remark))
        parts.extend(indented(Text(printable(text), overflow="fold")) for text in texts)
    return Group(*parts)


def _heading(software: Software | None, found: Sequence[Holder]) -> str:
    where = printable(software_name(software)) if software else ""
    if software is None or software.frameworks is None:
        reason = printable((software.reason if software else None) or "not checked")
        return f"In a run ({reason}):"
    if any(each.installed for each in found):
        return f"In a run of {where}:"
    return f"In a run, but {where} has none of these (--python names another Python):"


def software_name(software: Software) -> str:
    """Return the Python of a plan, and why it was chosen."""
    named = {None: "", "gpucheck": " (gpucheck's own)"}
    by = named.get(software.named_by, f" (by {software.named_by})")
    return f"{software.interpreter or 'an unknown Python'}{by}"


def _is_trapped(limit: MemoryLimit, found: Sequence[Holder]) -> bool:
    return limit.request.fraction is not None and any(
        each.installed and each.framework.startswith("tensorflow") for each in found
    )
