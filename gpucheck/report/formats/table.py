"""Table format for people: blocks as lines of a terminal of any width, with or without colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import dropwhile
from typing import TYPE_CHECKING

from gpucheck.report.blocks import (
    Block,
    Column,
    Command,
    Fitting,
    Gap,
    Head,
    Heading,
    Headline,
    Inline,
    Line,
    Span,
    Table,
    block_for_recording,
    plain,
)
from gpucheck.report.documents import open_view
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.text import ABSENT, View, origin, printable, protect_blanks, restore_blanks

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

#: How a status is marked: with Unicode, without, and its style.
MARKS = {
    CheckStatus.OK: ("✓", "ok", "green"),
    CheckStatus.WARN: ("!", "!", "yellow"),
    CheckStatus.FAIL: ("✗", "FAIL", "red"),
    CheckStatus.SKIP: ("–", "-", "dim"),
    CheckStatus.UNKNOWN: ("?", "?", "yellow"),
}
#: Prose never gets narrower than this, however far it is indented.
LEAST_PROSE = 10
SEPARATOR = " · "


def render(report: Report, view: View) -> str:
    """Return the report as terminal text; a failure without a result gives no text of its own."""
    mark = None if report.result is None and view.saved is None else origin(view)
    first = "" if mark is None else as_text(draw([Line(mark)], view), view)
    if report.result is None:
        return first
    return first + as_text(draw(open_view(report.command).blocks(report, view), view), view)


def as_text(lines: Iterable[RenderableType], view: View) -> str:
    """Return drawn lines as text, with the escape sequences of their colours if there are any."""
    from rich.console import Group

    console = _console(view)
    with console.capture() as captured:
        # Text to copy may be wider than the terminal, which then wraps it itself.
        console.print(Group(*lines), crop=False)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _console(view: View) -> Console:
    from rich.console import Console

    return Console(
        # Not stdout, which rich would flush at the end and which may be full: we only make text.
        file=StringIO(),
        width=view.width,
        color_system="standard" if view.color else None,
        force_terminal=view.color,
        no_color=not view.color,
        markup=False,
        highlight=False,
        emoji=False,
        # Not the process's environment: NO_COLOR, COLUMNS and TERM are in `view` already.
        _environ={},
    )


def draw(blocks: Iterable[Block], view: View) -> list[Text]:
    """Return the lines of a report; only commands may be wider than the view."""
    lines = list(_without_double_gaps(_drawn(blocks, view)))
    for line in lines:
        # They are wrapped already, and the terminal wraps what is to be copied.
        line.no_wrap, line.overflow = True, "ignore"
    return lines


def _drawn(blocks: Iterable[Block], view: View) -> Iterator[Text]:
    from rich.text import Text

    for block in blocks:
        match block_for_recording(block, view):
            case Head(facts):
                yield from _joined(facts, view, style="bold")
            case Heading(words):
                bold = "bold" if isinstance(words, str) else ""
                yield from _line(Line(words, style=bold), view)
            case Line() as line:
                yield from _line(line, view)
            case Headline() as headline:
                yield from _line(_headline(headline), view)
            case Command(text, indent):
                yield Text(" " * indent) + _text(text, view, style="bold")
            case Gap():
                yield Text("")
            case Table() as table:
                yield from _table(table, view) or _records(table, view)
            case Fitting(tables):
                fitting = (lines for table in tables if (lines := _table(table, view)))
                yield from next(fitting, None) or _records(tables[-1], view)


def _without_double_gaps(lines: Iterator[Text]) -> Iterator[Text]:
    """Yield the lines without empty ones at the start, at the end, or after one another."""
    waiting: Text | None = None
    begun = False
    for line in lines:
        if not line.plain.strip():
            waiting = line if begun else None
            continue
        if waiting is not None:
            yield waiting
        yield line
        waiting, begun = None, True


def _text(text: Inline, view: View, *, style: str = "") -> Text:
    """Return a text that controls no terminal, in ASCII where there is nothing else."""
    from rich.text import Text

    drawn = Text(style=style)
    for words, own in (Span(text),) if isinstance(text, str) else text:
        drawn.append(printable(words, unicode=view.unicode), own)
    return drawn


# ------------------------------------------------------------------------------------ prose


def _line(line: Line, view: View) -> Iterator[Text]:
    from rich.text import Text

    lead = _text(line.lead, view)
    if line.mark is not None:
        symbol, word, style = MARKS[line.mark]
        lead = Text(symbol if view.unicode else word, style)
    if lead:
        lead.append(" ")
    indent = min(line.indent, max(0, view.width - LEAST_PROSE - lead.cell_len))
    first = Text(" " * indent) + lead
    text = _text(line.text, view, style=line.style)
    yield from _hanging(first, _wrapped(text, view.width - first.cell_len))


def _headline(headline: Headline) -> Line:
    if not headline.word:
        return Line(headline.text, headline.status, style=headline.style)
    return Line((Span(headline.word, headline.style), Span(f"  {headline.text}")))


def _wrapped(text: Text, width: int) -> list[Text]:
    """Wrap a text at its words; a word wider than the line is cut."""
    from rich.console import Console

    whole = text.copy()
    whole.plain = protect_blanks(text.plain, width)
    lines = whole.wrap(Console(width=max(1, width)), max(1, width), overflow="fold")
    for line in lines:
        line.rstrip()
        line.plain = restore_blanks(line.plain)
    return list(lines)


def _hanging(first: Text, lines: Sequence[Text]) -> Iterator[Text]:
    """Yield lines behind a beginning; all but the first begin below the text of the first."""
    from rich.text import Text

    for number, line in enumerate(lines):
        yield (first if number == 0 else Text(" " * first.cell_len)) + line


def _joined(
    facts: Sequence[Inline], view: View, *, style: str = "", indent: int = 0
) -> Iterator[Text]:
    """Yield facts with a separator, broken between facts while they fit."""
    from rich.text import Text

    separator = _text(SEPARATOR, view, style=style)
    lines: list[Text] = []
    for fact in facts:
        text = _text(fact, view, style=style)
        if lines and lines[-1].cell_len + separator.cell_len + text.cell_len <= view.width - indent:
            lines[-1] = lines[-1] + separator + text
        else:
            lines += _wrapped(text, view.width - indent)
    yield from (Text(" " * indent) + line for line in lines)


# ----------------------------------------------------------------------------------- tables


def widths(table: Table, view: View) -> list[int]:
    """Return how wide each column is if nothing is cut."""
    return [
        max(
            _text(column.text, view).cell_len if table.header else 0,
            *(_text(row.cells[place], view).cell_len for row in table.rows),
            1,
        )
        for place, column in enumerate(table.columns)
    ]


def _table(table: Table, view: View) -> list[Text] | None:
    """Return the lines of a table, or None if it does not fit the width."""

    wide = widths(table, view)
    missing = max(0, sum(wide) + table.gap * (len(wide) - 1) - view.width)
    for place, column in enumerate(table.columns):
        if column.least is not None and missing:
            cut = min(missing, max(0, wide[place] - column.least))
            wide[place] -= cut
            missing -= cut
    if missing:
        return None
    lines = []
    if table.header:
        headings = [_text(column.text, view, style="dim") for column in table.columns]
        lines.append(_row(headings, table, wide, view))
    for row in table.rows:
        cells = [_text(cell, view, style=row.style) for cell in row.cells]
        lines.append(_row(cells, table, wide, view))
        for below in row.below:
            lines += _line(below, view)
    return lines


def _row(cells: Sequence[Text], table: Table, wide: Sequence[int], view: View) -> Text:
    from rich.text import Text

    line = Text()
    for place, (cell, column, width) in enumerate(zip(cells, table.columns, wide, strict=True)):
        if cell.cell_len > width:
            cell.truncate(width - 1)
            cell.append("…" if view.unicode else "~")
        padding = Text(" " * (width - cell.cell_len))
        line = line + Text(" " * (table.gap if place else 0))
        line = line + (padding + cell if column.right else cell + padding)
    line.rstrip()
    return line


def _records(table: Table, view: View) -> Iterator[Text]:
    """Yield the rows of a table that does not fit: names, and below them what is in each column."""
    for row in table.rows:
        names, facts = [], []
        for place, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
            text, headed = plain(cell).strip(), table.header and column.text
            if not text or (headed and text == ABSENT):
                continue
            if place >= table.names:
                facts.append(_labelled(column, cell, "dim") if headed else _labelled(None, cell))
            else:
                # A number alone names nothing.
                names.append(_labelled(column if headed and column.right else None, cell))
        yield from _joined(names, view, style=row.style or "bold")
        yield from _joined(facts, view, indent=2)
        for below in row.below:
            yield from _line(below, view)


def _labelled(column: Column | None, cell: Inline, style: str = "") -> Inline:
    """Return a cell behind its column's name, without what lines it up with others."""
    spans = (Span(cell),) if isinstance(cell, str) else cell
    first, *others = dropwhile(lambda span: not span.text.strip(), spans)
    spans = (first._replace(text=first.text.lstrip()), *others)
    return spans if column is None else (Span(f"{column.text} ", style), *spans)
