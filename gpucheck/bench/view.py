"""Console report of `gpucheck bench`: doubts, rows with bars by kernel, and the speed-up last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gpucheck.bench.corruption_model import Corruption
from gpucheck.bench.doubts_view import legend, said_of_all
from gpucheck.bench.machine_view import machine_lines
from gpucheck.bench.model import BenchResult, Comparison, Conclusion, Measurement
from gpucheck.bench.rows_view import ASCII, UNICODE, Drawing, Signs, hanging, namer
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable

if TYPE_CHECKING:
    from rich.console import RenderableType


#: Most conclusions of one kind shown without -v.
_MOST_CONCLUSIONS = 3


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable."""
    if not isinstance(report.result, BenchResult):
        raise TypeError(type(report.result).__name__)
    result = report.result
    rows = render_bench(
        result, width=view.width, ascii_only=not view.unicode, verbosity=view.verbosity
    )
    if not result.gates:
        return rows
    from rich.console import Group
    from rich.text import Text

    from gpucheck.bench.ci.gates_view import render_gates

    # The user waits for the gates; the rows behind them come with -v.
    verdict = render_gates(
        result.gates, result.profile, ascii_only=not view.unicode, verbosity=view.verbosity
    )
    return Group(verdict, Text(), rows) if view.verbosity > 0 else verdict


def render_bench(
    result: BenchResult, *, width: int, ascii_only: bool, verbosity: int = 0
) -> RenderableType:
    """Return the result for a terminal of `width` columns.

    `verbosity` -1 leaves out doubts and the environment, 1 adds the details of each row and the
    whole text of each doubt.
    """
    from rich.console import Group
    from rich.text import Text

    signs = ASCII if ascii_only else UNICODE
    drawing = Drawing(width, signs, verbosity, said_of_all(result.measurements))
    lines: list[RenderableType] = []
    names: dict[int, str] = {}
    for name, kernel_rows in groupby(result.measurements, key=lambda row: row.kernel):
        for _, group in groupby(kernel_rows, key=_problem):
            rows = list(group)
            names |= {id(row): namer(rows, signs.times)(row) for row in rows}
            lines.extend(drawing.group(rows, _belonging(result.comparisons, rows)))
            lines.append(Text())
        said = [one for one in result.conclusions if one.kernel == name]
        if said:
            lines.pop()
            lines.extend(drawing.sentence(text, "") for text in _concluded(said, verbosity))
            lines.append(Text())
    lines.extend(_repeated(check) for check in result.corruption if not result.gates)
    lines.extend(hanging(Text(f"note: {printable(note)}")) for note in result.notes)
    if verbosity == 0:
        lines.extend(_legend(result.measurements, names, signs))
    if any(row.repeat95_s is not None for row in result.measurements) and verbosity >= 0:
        meaning = "19 of 20 further runs should lie within it if the machine stays unchanged"
        lines.append(hanging(Text(f"{signs.plus_minus}: {meaning}", style="dim")))
    if verbosity >= 0:
        lines.extend(machine_lines(result.environment, result.telemetry, verbosity=verbosity))
    lines.extend(_last_words(result))
    return Group(*lines)


def _repeated(check: Corruption) -> RenderableType:
    """Return the result of repeated products on one device; a profile has a gate for it."""
    from rich.text import Text

    where = f"{check.device}: {check.products} identical products in {check.dtype}"
    if check.mismatches:
        numbers = "1 number" if check.mismatches == 1 else f"{check.mismatches} numbers"
        text = f"{where}: {numbers} CHANGED, the first at {check.first_index}"
        return hanging(Text(text, style="bold red"))
    if check.reference_ok is False:
        return hanging(Text(f"{where}: WRONG against float64", style="bold red"))
    if check.failure is not None:
        return hanging(Text(f"{where}: {printable(check.failure.message)}", style="red"))
    return hanging(Text(f"{where}: every bit the same", style="green"))


def _last_words(result: BenchResult) -> Iterator[RenderableType]:
    """Yield the last lines: an interruption, missing GPUs, the overall speed-up."""
    from rich.text import Text

    if result.interrupted:
        yield Text("interrupted: the results so far are above", style="yellow")
    if result.environment.gpu_unavailable is not None:
        reason = printable(result.environment.gpu_unavailable)
        some = bool(result.environment.gpus)
        said = "not every GPU was measured" if some else "no GPU figures"
        text = f"{said}: {reason.rstrip('.')} (for details: gpucheck detect)"
        yield Text(text, style="yellow")
    if result.headline is not None:
        yield Text(printable(result.headline), style="bold")


def _concluded(conclusions: Sequence[Conclusion], verbosity: int) -> Iterator[str]:
    """Yield the sentences; without -v only the first of a kind that many devices share."""
    counts = Counter(one.code for one in conclusions)
    for code in counts:
        said = [one.sentence for one in conclusions if one.code == code]
        if verbosity > 0 or len(said) <= _MOST_CONCLUSIONS:
            yield from said
        else:
            yield f"{said[0]} (-v: {len(said) - 1} more devices)"


def _problem(row: Measurement) -> tuple[object, ...]:
    """Return the key that rows under one heading share: input format and arithmetic."""
    return (row.dtype.input, row.dtype.math_mode)


def _belonging(
    comparisons: Sequence[Comparison], rows: Sequence[Measurement]
) -> Sequence[Comparison]:
    """Return the comparisons whose GPU row is among these."""
    here = {(row.kernel, row.shape, row.device, row.dtype) for row in rows}
    return [
        one for one in comparisons if (one.kernel, one.shape, one.gpu.device, one.gpu.dtype) in here
    ]


def _legend(
    rows: Sequence[Measurement], names: Mapping[int, str], signs: Signs
) -> Iterator[RenderableType]:
    """Yield each doubt once, with its rows and its remedy."""
    from rich.table import Table
    from rich.text import Text

    for head, words, step in legend(rows, lambda row: names[id(row)], signs.plus_minus):
        said = Text.assemble((printable(head), "yellow"), f": {printable(words)}")
        if step:
            said.append(f"\nto do: {printable(step)}")
        # A grid indents further lines to the first line's text.
        entry = Table.grid(padding=(0, 1, 0, 0))
        entry.add_row(Text(signs.doubt, style="yellow"), said)
        yield entry
