"""View of `gpucheck profile`: profiles, their mistakes, and their limits, one statement a row."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from pathlib import PurePath

from gpucheck.bench.ci.limits import number
from gpucheck.bench.ci.profile_model import (
    Limit,
    Problem,
    ProfileAction,
    ProfileFile,
    ProfileResult,
)
from gpucheck.bench.model import Direction
from gpucheck.report.blocks import Block, Column, Command, Gap, Line, Row, Span, Table, verdict
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.text import View, count_of

#: How long it takes, at the beginning of a description; the table has a column for it.
_TAKES = re.compile(r"(?:seconds|minutes): ")


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the answer of `gpucheck profile`."""
    result = report.result
    if not isinstance(result, ProfileResult):
        raise TypeError(type(result).__name__)
    if result.action is ProfileAction.LIST:
        yield from _list(result.files)
        return
    if result.action is ProfileAction.LINT:
        yield from _lint(result.files, view)
        return
    for file in result.files:
        head = f"{file.name or '?'} version {file.version or '?'}"
        yield Line((Span(head, "bold"), Span(f": {file.description or ''}")))
    yield Gap()
    yield from _limits(result.limits, view)
    if result.boards_left_out:
        yield Gap()
        count = result.boards_left_out
        boards = "1 board that is" if count == 1 else f"{count} boards that are"
        yield Line(f"{boards} not here: add --all-boards", style="dim")


def _list(files: Sequence[ProfileFile]) -> Iterator[Block]:
    """Yield a table whose last column is wrapped."""
    longest = max((len(file.name or "?") for file in files), default=0)
    # The time that a profile measures one device for; the start comes on top.
    times = ["?" if item.seconds is None else f"from {item.seconds:.0f} s" for item in files]
    wide = max(map(len, [*times, "takes"]))
    yield Line("for", lead=f"{'name':<{longest}}  {'takes':<{wide}} ", style="dim")
    for file, time in zip(files, times, strict=True):
        text = _TAKES.sub("", file.description or "", count=1)
        yield Line(text, lead=f"{file.name or '?':<{longest}}  {time:<{wide}} ")
    yield Gap()
    yield Line("What a profile requires, and how to use it:")
    yield Command("gpucheck profile explain NAME", 2)
    yield Command("gpucheck bench --profile NAME", 2)
    folders = dict.fromkeys(str(PurePath(file.path).parent) for file in files)
    yield Line("To write your own, copy from:", style="dim")
    for folder in folders:
        yield Command(f"{folder}/", 2)


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows."""
    return ("bad-profile",)


def _lint(files: Sequence[ProfileFile], view: View) -> Iterator[Block]:
    """Yield the verdict, and every mistake, file by file."""
    profiles, bad = count_of(len(files), "profile"), sum(bool(file.problems) for file in files)
    if bad:
        mistakes = count_of(sum(len(file.problems) for file in files), "mistake")
        text = f"{mistakes} in {bad} of {profiles}"
        yield verdict(text, CheckStatus.FAIL, "FAIL")
    else:
        yield verdict(f"{profiles} without a mistake", CheckStatus.OK, "PASS")
    yield Gap()
    for file in files:
        for problem in file.problems:
            yield from _problem(file.path, problem)
        if not file.problems and view.verbosity >= 0:
            yield Line(f"{file.name} version {file.version} can be used", CheckStatus.OK)
            yield Command(file.path, 2)


def _problem(path: str, problem: Problem) -> Iterator[Block]:
    """Yield a mistake as compilers do: the place on a line of its own, to be clicked or copied."""
    place = path if problem.line is None else f"{path}:{problem.line}"
    yield Command(f"{place} mistake {problem.code}", 0)
    where = f"{problem.where}: " if problem.where else ""
    yield Line(f"{where}{problem.message}", indent=4, style="red")
    yield Line(f"fix: {problem.mend}", indent=4, style="green")


def _limits(limits: Sequence[Limit], view: View) -> Iterator[Block]:
    """Yield the demands on each board, by check, and then on any machine."""
    of_boards = [limit for limit in limits if limit.board is not None]
    boards = dict.fromkeys(limit.board for limit in of_boards)
    if len(boards) == 1:
        yield Line((Span(f"on {next(iter(boards))}", "bold"),))
        yield _rows(of_boards, view, names=[limit.id for limit in of_boards])
    else:
        for name, group in groupby(of_boards, key=lambda limit: limit.id):
            same = list(group)
            yield Line(name, style="bold")
            yield _rows(same, view, names=[f"  {limit.board}" for limit in same])
    rest = [limit for limit in limits if limit.board is None]
    if rest:
        yield Gap()
        longest = max(len(limit.id) for limit in rest)
        for limit in rest:
            text, why = _statement(limit)
            yield Line(f"{text} {why}".rstrip(), lead=f"{limit.id:<{longest}} ")


def _rows(limits: Sequence[Limit], view: View, *, names: Sequence[str]) -> Table:
    rows = []
    for name, limit in zip(names, limits, strict=True):
        text, why = _statement(limit)
        below = (Line(limit.sentence, indent=4, style="dim"),)
        rows.append(Row([name, text, why], below=below if view.verbosity > 0 and why else ()))
    return Table([Column("")] * 3, rows, header=False)


def _statement(limit: Limit) -> tuple[str, str]:
    """Return a limit as text, and the source that it follows from."""
    if limit.limit is None or limit.expected is None:
        return limit.sentence, ""
    side = "at least" if limit.direction is Direction.HIGHER else "at most"
    text = f"{side} {number(limit.limit)} {limit.unit}"
    less = "less" if limit.direction is Direction.HIGHER else "more"
    margin = f"{less} {limit.tolerance_percent:g} %"
    if limit.peak is None or limit.percent_of_peak is None:
        return text, f"({number(limit.expected)} {limit.unit} {margin})"
    share = 100 * limit.expected / limit.peak
    of_peak = f"{limit.percent_of_peak:.0f} % of {number(limit.peak)}"
    return text, f"{of_peak} (good boards reach {share:.0f} %, {margin})"
