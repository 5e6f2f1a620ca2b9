"""HTML format: one page that needs nothing else, for a ticket, a phone or paper.

The verdict comes first, then the machine, the charts, and every row with its doubts. The page has
no script, loads nothing, and its Content-Security-Policy forbids both; the only style that the
policy allows is the page's own. Whatever the report says is escaped, and cut where it is endless.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import chain, takewhile
from pathlib import Path
from typing import TypeGuard

from gpucheck.report.blocks import (
    Block,
    Command,
    Fitting,
    Gap,
    Head,
    Heading,
    Headline,
    Inline,
    Line,
    Row,
    Span,
    Table,
    block_for_recording,
    plain,
    remedies,
)
from gpucheck.report.documents import open_view
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.formats import charts_of, headline_of
from gpucheck.report.formats.table import MARKS
from gpucheck.report.text import View, origin, printable
from gpucheck.version import __version__

#: Columns of the tables that are drawn: the widest form of each.
_WIDTH = 160
#: No text is longer; a name of a megabyte is cut.
MOST_CHARACTERS = 2000
#: No name is longer: of a machine, a card, a cell of a table.
MOST_OF_A_NAME = 240
#: Cells up to so many characters stay on one line where there is room.
_SHORT = 28
#: Styles of spans that the page has a class for.
_STYLES = frozenset({"bold", "dim", "green", "yellow", "red", "cyan"})
_INDENT = 4
#: Documents about other machines than the one that wrote them.
_OF_MANY = frozenset({"fleet", "compare"})
#: The order of checks: what is wrong comes first, and all else keeps its place.
_RANKS = {CheckStatus.FAIL: 0, CheckStatus.WARN: 1, CheckStatus.UNKNOWN: 2}
#: The document whose passed checks are folded: hundreds of lines of a machine that is well.
_FOLDED = "gpucheck/detect/1"


#: Checks that passed, behind a line that opens them: by the pointer or the keyboard.
_Fold = list[list[Line | Command]]


def render(report: Report, view: View) -> str:
    """Return the page; a failure without a result has its verdict and what to do."""
    view = view._replace(width=_WIDTH, unicode=True, color=False, header=True)
    view = view._replace(verbosity=max(1, view.verbosity))
    drawn = () if report.result is None else open_view(report.command).blocks(report, view)
    blocks = [block_for_recording(block, view) for block in drawn]
    main = (
        *_steps(report, blocks),
        *_machine(report, blocks),
        *_charts(report, view),
        *_details(report, blocks),
    )
    body = [*_header(report, view, blocks), "<main>", *main]
    return _page(report, [*body, *_warnings(report), "</main>"])


def _page(report: Report, body: Sequence[str]) -> str:
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = " · ".join(_shown(part, MOST_OF_A_NAME) for part in _about(report))
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en" dir="ltr">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{title}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            *body,
            *_footer(report),
            "</body>",
            "</html>",
            "",
        )
    )


def _about(report: Report) -> tuple[str, ...]:
    when = report.time.replace("T", " ").replace("Z", " UTC")
    return (f"gpucheck {report.command}", report.host.name or "this machine", when)


def _header(report: Report, view: View, blocks: Sequence[Block]) -> Iterator[str]:
    name, *facts = _about(report)
    headline = headline_of(report, blocks)
    yield "<header>"
    about = "".join(f"<span>{_shown(fact, MOST_OF_A_NAME)}</span>" for fact in facts)
    yield f'<p class="about"><b>{_shown(name)}</b>{about}</p>'
    yield f'<div class="verdict {headline.status.value}">'
    yield f"<h1>{_shown(headline.word)}</h1>"
    if headline.text:
        yield f"<p>{_shown(headline.text, 2 * MOST_OF_A_NAME)}</p>"
    yield "</div>"
    mark = origin(view)
    if mark is not None:
        yield f'<p class="recorded">{_shown(mark)}</p>'
    elif report.host.recorded:
        yield '<p class="recorded">answered from a recording, not from the machine itself</p>'
    yield "</header>"


def _machine(report: Report, blocks: Sequence[Block]) -> Iterator[str]:
    host = report.host
    known = {
        "Host": host.name,
        "NVIDIA driver": host.driver_version,
        "CUDA of the driver": host.cuda_driver_version,
        "Operating system": host.os,
        "Kernel": host.kernel,
        "Container": host.container,
        "Python": host.python,
    }
    of_host = {host.name, f"driver {host.driver_version}", f"CUDA {host.cuda_driver_version}"}
    headline = headline_of(report, blocks)
    above = f"{headline.word}\n{headline.text}".lower()
    heads = [
        fact
        for block in blocks
        if isinstance(block, Head)
        for fact in block.facts
        if fact.lower() not in above
    ]
    title = "Written on" if report.command in _OF_MANY else "Machine"
    yield f'<section aria-labelledby="machine"><h2 id="machine">{title}</h2>'
    cards = [f"<li>{_shown(fact, MOST_OF_A_NAME)}</li>" for fact in heads if fact not in of_host]
    if cards:
        yield f'<ul class="cards">{"".join(cards)}</ul>'
    yield "<dl>"
    for name, value in known.items():
        if value:
            yield f"<div><dt>{name}</dt><dd>{_shown(value, MOST_OF_A_NAME)}</dd></div>"
    yield "</dl></section>"


# ----------------------------------------------------------------------------------- charts


def _charts(report: Report, view: View) -> Iterator[str]:
    charts = () if view.chart_remedy else charts_of(report, view)
    if not charts:
        return
    from gpucheck.report.charts import inline_svg

    yield '<section aria-labelledby="charts"><h2 id="charts">Charts</h2><div class="charts">'
    for number, chart in enumerate(charts):
        title = f"<b>{_shown(chart.title)}</b><span>{_shown(chart.says)}</span>"
        svg = inline_svg(chart, f"chart{number}")
        yield f"<figure><figcaption>{title}</figcaption>{svg}</figure>"
    yield "</div></section>"


# ----------------------------------------------------------------------------------- blocks


def _blocks_after_headline(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks directly below the verdict: the steps, and the evidence."""
    places = [place for place, block in enumerate(blocks) if isinstance(block, Headline)]
    below = blocks[places[-1] + 1 :] if places else []
    return list(takewhile(lambda block: not isinstance(block, Gap), below))


def _steps(report: Report, blocks: Sequence[Block]) -> Iterator[str]:
    """Yield the steps, if the report has them beside its verdict."""
    steps = _blocks_after_headline(blocks)
    if report.result is None and report.error is not None:
        steps = list(remedies(report.error.remedy, indent=0))
    if steps:
        yield '<section aria-labelledby="steps"><h2 id="steps">What to do</h2>'
        yield from _drawn(steps)
        yield "</section>"


def _details(report: Report, blocks: Sequence[Block]) -> Iterator[str]:
    steps = _blocks_after_headline(blocks)
    shown = [
        block
        for block in blocks
        if not isinstance(block, Head | Headline) and all(block is not step for step in steps)
    ]
    if all(isinstance(block, Gap) for block in shown):
        return
    yield '<section aria-labelledby="details"><h2 id="details">Details</h2>'
    yield from _drawn(_worst_first(shown, fold=report.schema == _FOLDED))
    yield "</section>"


def _worst_first(blocks: Sequence[Block], *, fold: bool) -> Iterator[Block | _Fold]:
    """Yield the blocks with the checks of each list in the order of their worst mark.

    A check is a line with a mark and what stands below it, where checks of its own are ordered too.
    Several that passed end their list, folded if `fold` says so.
    """
    checks: _Fold = []
    level = next((block.indent for block in blocks if _is_check(block)), 0)

    def ordered() -> Iterator[Block | _Fold]:
        passed = [check for check in checks if fold and _has_passed(check)]
        for check in sorted(checks, key=_rank):
            if len(passed) < 2 or check not in passed:
                yield check[0]
                yield from _worst_first(check[1:], fold=fold)
        if len(passed) > 1:
            yield passed
        checks.clear()

    for block in blocks:
        if _is_check(block) and block.indent <= level:
            checks.append([block])
        elif checks and isinstance(block, Line | Command):
            checks[-1].append(block)
        else:
            yield from ordered()
            yield block
    yield from ordered()


def _has_passed(check: Sequence[Block]) -> bool:
    return _is_check(check[0]) and check[0].mark is CheckStatus.OK and _rank(check) == len(_RANKS)


def _count(checks: Iterable[Sequence[Block]]) -> str:
    """Return how many checks passed: a layer's line is none, where its checks stand below it."""
    marks = [
        line.mark or CheckStatus.OK  # "check: NAME", whose sentence is the layer's
        for first, *below in checks
        for line in below or [first]
        if isinstance(line, Line) and not line.lead
    ]
    skipped = marks.count(CheckStatus.SKIP)
    more = f", {skipped} skipped" if skipped else ""
    return f"{marks.count(CheckStatus.OK)} checks passed{more}"


def _is_check(block: Block) -> TypeGuard[Line]:
    return isinstance(block, Line) and block.mark is not None


def _rank(blocks: Sequence[Block]) -> int:
    marks = [block.mark for block in blocks if _is_check(block)]
    return min((_RANKS[mark] for mark in marks if mark in _RANKS), default=len(_RANKS))


def _drawn(blocks: Iterable[Block | _Fold]) -> Iterator[str]:
    gap = False
    for block in blocks:
        if isinstance(block, Gap):
            gap = True
            continue
        if gap and not isinstance(block, Heading):
            yield '<div class="gap"></div>'
        gap = False
        match block:
            case Heading(text):
                spans = (Span(text, "bold"),) if isinstance(text, str) else text
                yield f"<h3>{_inline(spans)}</h3>"
            case Line() as line:
                yield _line(line)
            case list() as checks:
                indent = _indent(checks[0][0].indent)
                yield f"<details{_class(indent)}><summary>{_count(checks)}</summary>"
                yield from _drawn(chain.from_iterable(checks))
                yield "</details>"
            case Command(text, indent):
                yield f"<pre{_class(_indent(indent))}><code>{_shown(text)}</code></pre>"
            case Table() as table:
                yield from _table(table)
            case Fitting(tables):
                # The most columns; of several, the one that is aligned with no other table.
                yield from _table(max(reversed(tables), key=lambda form: len(form.columns)))


def _line(line: Line) -> str:
    lead = f'<span class="lead">{_shown(line.lead.strip())}</span>' if line.lead.strip() else ""
    if line.mark is not None:
        sign, _, _ = MARKS[line.mark]
        name = line.mark.value
        lead = f'<span class="mark {name}" role="img" aria-label="{name}">{sign}</span>'
    text = _inline(line.text)
    style = _styles(line.style)
    if not lead:
        return f"<p{_class(_indent(line.indent), style)}>{text}</p>"
    return f"<p{_class('hang', _indent(line.indent))}>{lead}<span{_class(style)}>{text}</span></p>"


def _indent(columns: int) -> str:
    return f"i{min(3, (columns + 2) // _INDENT)}" if columns >= 2 else ""


def _class(*names: str) -> str:
    known = " ".join(name for name in names if name)
    return f' class="{known}"' if known else ""


def _styles(style: str) -> str:
    return " ".join(word for word in style.split() if word in _STYLES)


def _inline(text: Inline, most: int = MOST_CHARACTERS) -> str:
    if isinstance(text, str):
        return _shown(text, most)
    parts = []
    for words, style in text:
        known = _styles(style)
        if known == "bold":
            parts.append(f"<b>{_shown(words, most)}</b>")
        else:
            words = _shown(words, most)
            parts.append(f'<span class="{known}">{words}</span>' if known else words)
    return "".join(parts).strip()


def _shown(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text of any origin as HTML that shows exactly this text, cut where it is endless."""
    more = f" … ({len(text) - most} more characters)" if len(text) > most else ""
    return escape(printable(text[:most]) + more)


def _table(table: Table) -> Iterator[str]:
    """Yield a table: its first column names the rows; on a phone each cell names its column."""
    used = [
        place
        for place in range(len(table.columns))
        if any(plain(row.cells[place]).strip() for row in table.rows)
    ]
    if not used:
        return
    columns = [table.columns[place] for place in used]
    # A box that scrolls can be reached by the keyboard.
    yield '<div class="rows" tabindex="0" role="group" aria-label="table"><table>'
    if any(column.text for column in columns):
        cells = (
            f'<th scope="col"{_class("num" if column.right and place else "")}>'
            f"{_shown(column.text)}</th>"
            for place, column in enumerate(columns)
        )
        yield f"<thead><tr>{''.join(cells)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        yield from _row(table, row, used)
    yield "</tbody></table></div>"


def _row(table: Table, row: Row, used: Sequence[int]) -> Iterator[str]:
    cells = []
    for number, place in enumerate(used):
        column, text = table.columns[place], _inline(row.cells[place], MOST_OF_A_NAME)
        short = "one" if len(printable(plain(row.cells[place]))) <= _SHORT else ""
        words = plain(row.cells[place]).strip()
        # A number alone names nothing on a phone; a sign that the cell has is not said twice.
        named = words.isdecimal() if number == 0 else words and not words.startswith(column.text)
        name = f' data-name="{_shown(column.text)}"' if column.text and named else ""
        if number == 0:
            cells.append(f'<th scope="row"{_class(short)}{name}>{text}</th>')
            continue
        kind = _class("num" if column.right else "", short)
        cells.append(f"<td{kind}{name}>{text}</td>")
    yield f"<tr{_class(_styles(row.style))}>{''.join(cells)}</tr>"
    if row.below:
        lines = "".join(_line(line._replace(indent=0)) for line in row.below)
        yield f'<tr class="below"><td colspan="{len(used)}">{lines}</td></tr>'


def _warnings(report: Report) -> Iterator[str]:
    if not report.warnings:
        return
    yield '<section aria-labelledby="warnings"><h2 id="warnings">Warnings</h2>'
    for notice in report.warnings:
        yield _line(Line(notice.message, CheckStatus.WARN))
    yield "</section>"


def _footer(report: Report) -> Iterator[str]:
    origin = (
        f"Made by gpucheck {__version__}",
        f"document {report.schema}",
        f"exit code {int(report.exit_code)}",
    )
    yield f"<footer><p>{_shown(' · '.join(origin))}</p></footer>"
