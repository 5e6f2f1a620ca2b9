"""Blocks of a report: what a view shows of its document, for each format to draw in its own way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.text import View, count_of, step_on_recording


class Span(NamedTuple):
    """Piece of a line in one style: "bold", "dim", "green", "yellow", "red", "cyan", or two."""

    text: str
    style: str = ""


#: Text of a block; whatever it holds is escaped where it is drawn.
Inline = str | tuple[Span, ...]


class Head(NamedTuple):
    """First line of a report: machine, card, driver; broken between facts only."""

    facts: tuple[str, ...]


class Line(NamedTuple):
    """Prose, wrapped at words; further lines begin below its text.

    `mark` or `lead` ("1.") stand before the text, `indent` is in columns.
    """

    text: Inline
    mark: CheckStatus | None = None
    lead: str = ""
    indent: int = 0
    style: str = ""


class Command(NamedTuple):
    """Command or text to copy, alone on its line and never broken."""

    text: str
    indent: int = 4


class Gap(NamedTuple):
    """Empty line, at most one between two blocks."""


class Column(NamedTuple):
    """Column of a table; its cells may be cut to `least` columns, or never if it is None."""

    text: str
    right: bool = False
    least: int | None = None


class Row(NamedTuple):
    """Cells of a row, its style, and lines directly below it."""

    cells: Sequence[Inline]
    style: str = ""
    below: tuple[Line, ...] = ()


class Table(NamedTuple):
    """Table; where it does not fit, each row becomes lines under its first `names` cells."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    gap: int = 2
    names: int = 1
    header: bool = True


class Fitting(NamedTuple):
    """The first of several tables that fits the width; the last is drawn as lines if none does."""

    tables: tuple[Table, ...]


class Heading(NamedTuple):
    """Line that heads the blocks up to the next one; a plain text is bold."""

    text: Inline


class Headline(NamedTuple):
    """The answer in one sentence, behind a word such as "PASS" or the mark of its status.

    HTML and Markdown begin with the last one of a report, wherever it stands there.
    """

    text: str
    status: CheckStatus
    word: str = ""
    style: str = ""


Block = Head | Heading | Line | Headline | Command | Gap | Table | Fitting

#: A command at the end of a step, by its first word; a note on it, and a reboot after it.
_COMMAND = re.compile(
    r": ((?:[A-Z_]+=\S+ )*(?:sudo|gpucheck|(?:\S*/)?(?:pipx?|python)[\d.]*|nvidia-smi|docker"
    r"|printf|echo|export|unset|systemctl|conda|uv|wsl|kill|ls"
    r"|--allow-difference) [^.]*?(?:\.\S[^.]*?)*)"
    r"(?P<note> \([^()]*\))?(?:; (?:then )?(?P<after>reboot[^.;:]*\.))?$"
)
#: A GPU whose name cannot be read.
UNNAMED = "GPU of unknown name"
#: So many notes stand in a report; `-v` shows the others.
MOST_NOTES = 3


def plain(text: Inline) -> str:
    """Return a text without its styles."""
    return text if isinstance(text, str) else "".join(span.text for span in text)


def head(report: Report, *facts: str | None) -> Head:
    """Return the head line: the machine, its driver and CUDA, then what the command adds."""
    host = report.host
    driver = host.driver_version and f"driver {host.driver_version}"
    cuda = host.cuda_driver_version and f"CUDA {host.cuda_driver_version}"
    return Head(tuple(fact for fact in (host.name, driver, cuda, *facts) if fact))


def opening(report: Report, view: View, *facts: str | None) -> Iterator[Block]:
    """Yield the head line and a gap, unless the view is quiet."""
    if view.verbosity >= 0:
        yield head(report, *facts)
        yield Gap()


def verdict(text: str, status: CheckStatus, word: str = "") -> Headline:
    """Return the answer, or its word, in the colour of its status."""
    colors = {CheckStatus.OK: " green", CheckStatus.FAIL: " red", CheckStatus.SKIP: ""}
    return Headline(text, status, word, f"bold{colors.get(status, ' yellow')}")


def counted(names: Iterable[str | None]) -> str | None:
    """Return the GPUs of the head line: "8 × NVIDIA H100 80GB HBM3"; None without any."""
    counts: dict[str | None, int] = {}
    for name in names:
        counts[name or None] = counts.get(name or None, 0) + 1
    silent = counts.pop(None, 0)
    shown = [name or "" if count == 1 else f"{count} × {name}" for name, count in counts.items()]
    # A lost card does not even tell its name.
    shown += [f"{count_of(silent, 'unreadable GPU')}"] if silent else []
    return ", ".join(shown) or None


def command_of(step: str) -> str | None:
    """Return the command that ends a step, or None."""
    match = _COMMAND.search(step)
    return None if match is None else match[1]


def remedies(steps: Sequence[str], *, indent: int = 4) -> Iterator[Block]:
    """Yield steps to take, numbered if there are several; commands stand on lines of their own.

    A step says what to do; if a command does it, the command ends the step, after a colon.
    """
    for number, step in enumerate(steps, start=1):
        yield from with_command(step, f"{number}." if len(steps) > 1 else "→", indent=indent)


def with_command(text: str, lead: str = "", *, indent: int = 4) -> Iterator[Line | Command]:
    """Yield a sentence, and the command at its end on a line of its own."""
    match = _COMMAND.search(text)
    if match is None:
        yield Line(text, lead=lead, indent=indent)
        return
    yield Line(f"{text[: match.start()]}{match['note'] or ''}:", lead=lead, indent=indent)
    behind = indent + (len(lead) + 1 if lead else 2)
    yield Command(match[1], behind)
    if match["after"]:
        yield Line(f"Then {match['after']}", indent=behind)


def block_for_recording(block: Block, view: View) -> Block:
    """Return a command, or a line that ends with one, as it is for the report's recording."""
    if isinstance(block, (Line, Command)) and isinstance(block.text, str):
        return block._replace(text=step_on_recording(block.text, view.source))
    return block


def limited(notes: Iterable[Line], view: View, *, most: int = MOST_NOTES) -> Iterator[Block]:
    """Yield the first notes, and how many more there are; with `-v` all of them."""
    every = list(notes)
    shown = every if view.verbosity > 0 else every[:most]
    yield from shown
    yield from left_out(len(every) - len(shown), indent=shown[-1].indent if shown else 0)


def limited_rows(table: Table | Fitting, view: View, *, most: int) -> Iterator[Block]:
    """Yield a table with its first rows, and how many more there are; with `-v` all of them."""
    tables = table.tables if isinstance(table, Fitting) else (table,)
    rows = len(tables[0].rows)
    if view.verbosity > 0 or rows <= most:
        yield table
        return
    yield Fitting(tuple(form._replace(rows=form.rows[:most]) for form in tables))
    yield from left_out(rows - most)


def left_out(number: int, *, indent: int = 0) -> Iterator[Line]:
    """Yield how many of a kind are not shown, if any is not."""
    if number > 0:
        yield Line(f"{number} more: add -v", indent=indent, style="dim")
