"""Markdown format: what one pastes into a ticket, as GitHub and GitLab draw it.

The verdict is the heading, the rest is what the table format shows. Names in a report come from
outside: none may leave its cell, begin a list, or act as HTML or as a link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gpucheck.report.blocks import (
    Block,
    Command,
    Fitting,
    Gap,
    Head,
    Heading,
    Inline,
    Line,
    Table,
    block_for_recording,
    plain,
    remedies,
)
from gpucheck.report.documents import open_view
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.formats import headline_of
from gpucheck.report.formats.table import MARKS
from gpucheck.report.text import View, as_markdown, origin, printable
from gpucheck.version import __version__

#: Columns of the tables that are drawn: the widest form of each.
_WIDTH = 160
#: No text is longer.
MOST_CHARACTERS = 1000
_NUMBERED = re.compile(r"\d+\.")
_BACKTICKS = re.compile("`+")
_SIGNS = {CheckStatus.OK: "✅", CheckStatus.WARN: "⚠️", CheckStatus.FAIL: "❌"}


def render(report: Report, view: View) -> str:
    """Return the text; a failure without a result has its sentence and what to do."""
    view = view._replace(width=_WIDTH, unicode=True, color=False, header=True)
    drawn = () if report.result is None else open_view(report.command).blocks(report, view)
    blocks = [block_for_recording(block, view) for block in drawn]
    lines = [*_top(report, view, blocks), *_drawn(blocks)]
    if report.result is None and report.error is not None:
        lines += _drawn(remedies(report.error.remedy, indent=0))
    body = "\n".join(lines)
    for notice in report.warnings:
        # The table of some commands has its warnings already.
        if _text(notice.message.rstrip(".")) not in body:
            lines += ["", f"> ⚠️ {_text(notice.message)}"]
    origin = f"gpucheck {__version__}, {report.time}, exit code {int(report.exit_code)}"
    return "\n".join([*_without_double_gaps(lines), "", f"<sub>{origin}</sub>", ""])


def _top(report: Report, view: View, blocks: Sequence[Block]) -> Iterator[str]:
    headline = headline_of(report, blocks)
    host = _text(report.host.name or "this machine")
    sign = _SIGNS.get(headline.status, "❓")
    word = as_markdown(headline.word)
    yield f"## {sign} {word}: gpucheck {report.command} on {host}"
    yield ""
    if headline.text:
        yield f"**{_text(headline.text)}**"
        yield ""
    mark = origin(view)
    if mark is not None:
        yield f"_{_text(mark)}_"
        yield ""


def _drawn(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield lines; a list's items are nested as their lines are indented."""
    # The indent of each open list item, and the column where its content begins.
    items: list[tuple[int, int]] = []
    for block in blocks:
        if not isinstance(block, Line | Command):
            items = []
        match block:
            case Head(facts):
                yield from (" · ".join(_text(fact) for fact in facts), "")
            case Heading(text):
                yield from ("", f"### {_text(plain(text))}", "")
            case Gap():
                yield ""
            case Line() as line:
                yield _line(line, items)
            case Command(text, indent):
                yield from _command(text, indent, items)
            case Table() as table:
                yield from ("", *_table(table), "")
            case Fitting(tables):
                table = max(reversed(tables), key=lambda form: len(form.columns))
                yield from ("", *_table(table), "")


def _line(line: Line, items: list[tuple[int, int]]) -> str:
    """Return a line as a list item below the one that it belongs to."""
    while items and items[-1][0] >= line.indent:
        items.pop()
    column = items[-1][1] if items else 0
    lead = line.lead.strip()
    bullet = lead if _NUMBERED.fullmatch(lead) else "-"
    items.append((line.indent, column + len(bullet) + 1))
    before = f"{MARKS[line.mark][0]} " if line.mark is not None else ""
    if lead and bullet == "-" and lead != "→":
        before += f"_{_text(lead)}_ "
    return f"{'':{column}}{bullet} {before}{_styled(line.text, line.style)}"


def _command(text: str, indent: int, items: list[tuple[int, int]]) -> Iterator[str]:
    """Yield a command as code to copy, within the item that it belongs to."""
    while items and items[-1][0] >= indent:
        items.pop()
    margin = " " * (items[-1][1] if items else 0)
    shown = printable(text, MOST_CHARACTERS)
    longest = max((len(ticks) for ticks in _BACKTICKS.findall(shown)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{margin}{fence}sh", f"{margin}{shown}", f"{margin}{fence}")


def _table(table: Table) -> Iterator[str]:
    used = [
        place
        for place in range(len(table.columns))
        if any(_cell(row.cells[place]) for row in table.rows)
    ]
    columns = [table.columns[place] for place in used]
    if not columns:
        return
    yield f"| {' | '.join(_text(column.text) for column in columns)} |"
    yield f"|{'|'.join('--:' if column.right else '--' for column in columns)}|"
    for row in table.rows:
        cells = [_cell(row.cells[place]) for place in used]
        below = "".join(f"<br>{_text(plain(line.text))}" for line in row.below)
        yield f"| {' | '.join((f'{cells[0]}{below}', *cells[1:]))} |"


def _cell(text: Inline) -> str:
    return _text(plain(text).strip())


def _styled(text: Inline, style: str) -> str:
    shown = _text(plain(text).strip())
    return f"**{shown}**" if "bold" in style and shown else shown


def _text(text: str) -> str:
    """Return a text of any origin as Markdown that shows exactly this text, in one line."""
    return as_markdown(text, MOST_CHARACTERS)


def _without_double_gaps(lines: Iterable[str]) -> Iterator[str]:
    before = ""
    for line in lines:
        if line or before:
            yield line
        before = line
