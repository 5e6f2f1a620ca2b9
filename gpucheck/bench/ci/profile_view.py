"""`gpucheck profile` on a terminal: mistakes by line with their fix, and limits written out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from gpucheck.bench.ci.gate_model import Severity
from gpucheck.bench.ci.profile_model import (
    Limit,
    Problem,
    ProfileAction,
    ProfileFile,
    ProfileResult,
)
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable

if TYPE_CHECKING:
    from rich.console import RenderableType


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable."""
    if not isinstance(report.result, ProfileResult):
        raise TypeError(type(report.result).__name__)
    return render_profile(report.result, width=view.width, ascii_only=not view.unicode)


def render_profile(result: ProfileResult, *, width: int, ascii_only: bool) -> RenderableType:
    """Return the files with their mistakes, then the limits."""
    from rich.console import Group

    lines: list[RenderableType] = []
    for file in result.files:
        lines.extend(_file(file, result.action))
    lines.extend(_limits(result.limits, width))
    if result.saved is not None:
        lines.append(_unbroken(f"gpucheck bench --profile {result.saved}", "use it: "))
    return Group(*lines)


def _file(file: ProfileFile, action: ProfileAction) -> Iterator[RenderableType]:
    from rich.text import Text

    if action is ProfileAction.LINT:
        for problem in file.problems:
            yield from _problem(file.path, problem)
        errors = sum(one.severity is Severity.ERROR for one in file.problems)
        cautions = len(file.problems) - errors
        if not errors:
            name = f"{file.name} version {file.version}"
            more = f", {cautions} to look at" if cautions else ""
            yield _unbroken(f"{file.path}: {name} can be used{more}", "")
        return
    head = f"{file.name or '?'} version {file.version or '?'}"
    yield Text.assemble((printable(head), "bold"), f": {printable(file.description or '')}")
    if action is ProfileAction.LIST:
        yield _unbroken(file.path, "    ")


def _problem(path: str, problem: Problem) -> Iterator[RenderableType]:
    """Yield a mistake as compilers do: the place on a line of its own, to be clicked or copied."""
    from rich.padding import Padding
    from rich.text import Text

    place = path if problem.line is None else f"{path}:{problem.line}"
    caution = problem.severity is Severity.WARN
    word, style = ("caution", "yellow") if caution else ("mistake", "red")
    code = Text.assemble((f" {word}", style), f" {problem.code}")
    yield Text.assemble((printable(place), "bold"), code, no_wrap=True, overflow="ignore")
    where = f"{problem.where}: " if problem.where else ""
    yield Padding(Text(printable(f"{where}{problem.message}")), (0, 0, 0, 4))
    yield Padding(Text(printable(f"fix: {problem.mend}"), style="green"), (0, 0, 0, 4))


def _limits(limits: tuple[Limit, ...], width: int) -> Iterator[RenderableType]:
    """Yield the limits by demand; one line where there is one, else one for each board."""
    from rich.text import Text

    for name, group in groupby(limits, key=lambda limit: limit.id):
        found = list(group)
        if len(found) == 1:
            yield from _one(found[0], width)
            continue
        yield Text(printable(name), style="bold")
        room = max(len(limit.board or "") for limit in found)
        for limit in found:
            yield _unbroken(f"{limit.board or '':<{room}}  {limit.sentence}", "  ")


def _one(limit: Limit, width: int) -> Iterator[RenderableType]:
    from rich.text import Text

    board = f" on {limit.board}" if limit.board is not None else ""
    head, text = printable(f"{limit.id}{board}: "), printable(limit.sentence)
    if len(head) + len(text) <= width:
        yield Text.assemble((head, "bold"), text)
        return
    yield Text(head.rstrip(), style="bold")
    yield _unbroken(text, "  ")


def _unbroken(text: str, before: str) -> RenderableType:
    from rich.text import Text

    return Text(f"{before}{printable(text)}", no_wrap=True, overflow="ignore")
