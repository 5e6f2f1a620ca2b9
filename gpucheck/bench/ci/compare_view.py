"""`gpucheck compare` on a terminal: a row for each figure with ratio, interval and verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpucheck.bench.ci.gate_model import GateStatus
from gpucheck.bench.ci.model import ComparedRow, ComparedRun, RunComparison
from gpucheck.bench.ci.verdicts import PLAIN_UNITS, in_own_unit
from gpucheck.report.envelope import Report
from gpucheck.report.grid import Heading, Row, grid
from gpucheck.report.text import View, duration, printable, rate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_STYLES = {
    GateStatus.PASS: "green",
    GateStatus.FAIL: "bold red",
    GateStatus.INCONCLUSIVE: "yellow",
    GateStatus.SKIP: "dim",
}
#: Beyond this, the end of an interval means nothing.
_WIDE_PERCENT = 1000
_HEADINGS = (
    Heading("DEVICE"),
    Heading("ROW"),
    Heading("FIRST", right=True),
    Heading("SECOND", right=True),
    Heading("CHANGE", right=True),
    Heading("INTERVAL", right=True),
    Heading("VERDICT"),
)


def build(report: Report, view: View) -> RenderableType:
    """Return both files, the table, the reasons, and how the two runs differ."""
    from rich.console import Group
    from rich.text import Text

    found = report.result
    if not isinstance(found, RunComparison):
        raise TypeError(type(found).__name__)
    micro = "µ" if view.unicode else "u"
    parts: list[RenderableType] = []
    if view.verbosity >= 0:
        parts += [_run("first ", found.first), _run("second", found.second), Text()]
    parts.extend(_rows(found, view, micro))
    for device, texts in found.differences.items():
        parts.append(Text(f"{device} differs:"))
        for text in texts:
            key = text.partition(":")[0]
            allowed = " (allowed)" if key in found.allowed else ""
            parts.append(Text(f"  {printable(text)}{allowed}", overflow="fold"))
    if view.verbosity >= 0:
        parts.append(Text(_total(found)))
    return Group(*parts)


def _run(which: str, run: ComparedRun) -> RenderableType:
    from rich.text import Text

    said = [run.host or "unknown host", run.time, f"gpucheck {run.gpucheck}"]
    said += [f"profile {run.profile}"] if run.profile else []
    text = f"{which} {printable(run.file)}  ({printable(', '.join(said))})"
    return Text(text, style="dim", overflow="fold")


def _rows(found: RunComparison, view: View, micro: str) -> Iterator[RenderableType]:
    """Yield the table, or where it does not fit a paragraph for each row."""
    from rich.text import Text

    rows = [Row(_cells(row, micro)) for row in found.rows]
    table = grid(_HEADINGS, rows, width=view.width, gap=2) if rows else None
    if table is not None:
        yield table
    for row in found.rows:
        verdict = Text(row.status.value, style=_STYLES[row.status])
        if table is None:
            yield Text.assemble((f"{row.device} {printable(row.id)}: ", "bold"), verdict)
            yield Text(f"  {_figures(row, micro)}")
        if row.status is not GateStatus.PASS or view.verbosity > 0:
            cause = f" ({row.class_.value})" if row.class_ else ""
            where = "" if table is None else f"{row.device} {printable(row.id)}: "
            yield Text(f"  {where}{printable(row.reason)}{cause}", style=_STYLES[row.status])


def _cells(row: ComparedRow, micro: str) -> list[Text]:
    from rich.text import Text

    texts = (
        *(row.device, printable(row.id), _value(row.first, row.unit, micro)),
        *(_value(row.second, row.unit, micro), _change(row.ratio), _interval(row)),
    )
    return [
        *(Text(text) for text in texts),
        Text(row.status.value, style=_STYLES[row.status]),
    ]


def _figures(row: ComparedRow, micro: str) -> str:
    first, second = (_value(value, row.unit, micro) for value in (row.first, row.second))
    return f"{first} -> {second}, {_change(row.ratio)} ({_interval(row)})"


def _value(value: float | None, unit: str, micro: str) -> str:
    if value is None:
        return "none"
    if unit == "s":
        return duration(value, micro)
    return rate(value, unit) if unit in PLAIN_UNITS else in_own_unit(value, printable(unit))


def _change(ratio: float | None) -> str:
    return "?" if ratio is None else f"{_signed(100 * (ratio - 1))} %"


def _signed(percent: float) -> str:
    """Return a change with its sign, with +0.0 for zero."""
    return f"{round(percent, 1) + 0.0:+.1f}"


def _interval(row: ComparedRow) -> str:
    if row.interval is None:
        return "?"
    low, high = (100 * (end - 1) for end in row.interval)
    most = _signed(high) if high < _WIDE_PERCENT else f"over +{_WIDE_PERCENT}"
    return f"{_signed(low)} to {most} %"


def _total(found: RunComparison) -> str:
    counts = [
        (sum(row.status is status for row in found.rows), status.value) for status in GateStatus
    ]
    said = ", ".join(f"{count} {word}" for count, word in counts if count)
    return said or "The two runs have no row in common."
