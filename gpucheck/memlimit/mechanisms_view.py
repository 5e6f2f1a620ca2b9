"""Terminal view of every mechanism of a limit with its reason, then the lines to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.memlimit.holders import is_set
from gpucheck.memlimit.model import Mechanism, MemoryLimit, Strength, Way
from gpucheck.report.text import View, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: On terminals narrower than this, a mechanism has a line of its own.
NARROW = 64
STRENGTH_STYLES = {
    Strength.HARD: "green",
    Strength.ALLOCATOR: "green",
    Strength.SOFT: "yellow",
    Strength.NONE: "red",
}


def show_mechanisms(limit: MemoryLimit, view: View) -> Iterator[RenderableType]:
    """Yield the table with the reasons, the settings and the lines of code."""
    rows = limit.mechanisms
    yield from _table(rows, limit, view)
    if limit.environment:
        yield _note("\nThe settings (--format shell prints only these lines):")
        for name, value in limit.environment.items():
            yield _to_copy(printable(f"export {name}={shlex.quote(value)}"))
    lines = [row for row in rows if row.by is Way.CODE and row.setting and not row.applies]
    if lines:
        yield _note("\nIn a program that is not run with -- CMD:")
        for row in lines:
            yield _to_copy(printable(row.setting or ""))


def _table(rows: Sequence[Mechanism], limit: MemoryLimit, view: View) -> Iterator[RenderableType]:
    """Yield a line for each mechanism, and its reason where it is not the expected one."""
    from rich.text import Text

    first = max((len(printable(row.framework)) for row in rows), default=0)
    second = max((len(row.strength.value) for row in rows), default=0)
    wide = view.width >= NARROW
    heads = f"\n  {'Framework':<{first}}  {'Strength':<{second}}  Applies "
    yield Text(f"{heads}  By" if wide else heads, style="dim", overflow="fold")
    for row in rows:
        mark, style = _mark(row, view)
        by = row.reason if row.by is Way.NOBODY else row.mechanism
        yield Text.assemble(
            (f"{mark} {printable(row.framework):<{first}}  ", style),
            (f"{row.strength.value:<{second}}", STRENGTH_STYLES[row.strength]),
            (f"  {_applies(row, limit):<8}", style),
            f"  {printable(by)}" if wide else "",
            overflow="fold",
        )
        if not wide:
            yield _indented(printable(by), "")
        if row.by is not Way.NOBODY:
            yield _indented(printable(row.reason), "dim")


def _applies(row: Mechanism, limit: MemoryLimit) -> str:
    """Return yes, no, or `not here` if it is set but this Python lacks the framework."""
    if row.applies:
        return "yes"
    return "not here" if row.installed is False and is_set(row, limit) else "no"


def _mark(row: Mechanism, view: View) -> tuple[str, str]:
    if row.applies:
        return ("✓" if view.unicode else "+"), "green"
    if row.installed is True and row.by is not Way.CODE:
        return ("✗" if view.unicode else "x"), "red"
    return "-", "dim"


def _indented(text: str, style: str) -> RenderableType:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, style=style, overflow="fold"), (0, 0, 0, 4))


def _note(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="dim", overflow="fold")


def _to_copy(text: str) -> Text:
    """Return a line that stays one line, however narrow the terminal is."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ignore")
