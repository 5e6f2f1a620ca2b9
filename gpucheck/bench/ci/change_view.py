"""Table of changes between two runs, the same for `--baseline` and `compare`, and its verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from gpucheck.bench.ci.model import ComparedRun
from gpucheck.bench.ci.verdicts import PLAIN_UNITS, made_by, spoken, value_with_unit
from gpucheck.bench.model import BaselineUse, Direction, Gate, GateStatus, Scope
from gpucheck.bench.rows_view import variant_text
from gpucheck.report.blocks import Column, Inline, Row, Span, Table
from gpucheck.report.envelope import CheckStatus
from gpucheck.report.formats.table import MARKS
from gpucheck.report.text import count_of, duration, rate

#: Mark of each verdict, and the style of its row.
STATUSES = {
    GateStatus.PASS: (CheckStatus.OK, ""),
    GateStatus.FAIL: (CheckStatus.FAIL, "bold red"),
    GateStatus.INCONCLUSIVE: (CheckStatus.UNKNOWN, "yellow"),
    GateStatus.SKIP: (CheckStatus.SKIP, ""),
}
#: Beyond this, the end of an interval means nothing.
_WIDE_PERCENT = 1000
_SHAPE = re.compile(r"\d+(x\d+)*")
_THREADS = re.compile(r"threads=(\d+)")
#: A row of a table names these first: kernel, variant, format, shape.
_NAMED = 4


def row_names(ids: Iterable[str]) -> dict[str, str]:
    """Return readable names of rows; a shape stands only where a kernel has several."""
    parts = {name: name.split("/") for name in dict.fromkeys(ids)}
    rows = {name: of for name, of in parts.items() if len(of) >= _NAMED and _SHAPE.fullmatch(of[3])}
    shapes: dict[str, set[str]] = {}
    for kernel, _, _, shape, *_ in rows.values():
        shapes.setdefault(kernel, set()).add(shape)
    return {name: _name(rows[name], shapes) if name in rows else spoken(name) for name in parts}


def _name(parts: Sequence[str], shapes: Mapping[str, set[str]]) -> str:
    kernel, variant, dtype, shape, *more = parts
    what, more = made_by(more)
    variant = variant_text(kernel, variant)
    words = [
        kernel,
        dtype,
        *what,
        *([] if what and variant == kernel else [variant]),
    ]
    size = [shape] if len(shapes[kernel]) > 1 else []
    images = "1 image" if shape == "1" else f"{shape} images"
    if kernel in ("train", "towers"):
        size = [f"batches of {images}"] * len(size)
    elif kernel == "batch":  # a sweep over sizes
        size = [images]
    else:
        words, size = [*words, *size], []
    words += ["with transfers"] if Scope.END_TO_END in more else []
    others = (_THREADS.sub(_threads, one) for one in more if one != Scope.END_TO_END)
    return ", ".join([" ".join(words), *size, *others])


def _threads(found: re.Match[str]) -> str:
    return "1 thread" if found[1] == "1" else f"{found[1]} threads"


def change_table(changes: Sequence[Gate]) -> Table:
    """Return a row for each change: before, now, and the change with its interval.

    A change is a gate whose expectation is the earlier run's figure. What is allowed has a column
    where it differs; else the verdict says it.
    """
    names = row_names(one.id for one in changes)
    alike = _tolerance(changes) is not None
    headings = ["before", "now", "change", "90 % interval", *([] if alike else ["allowed"])]
    columns = [Column("device"), Column("row"), *(Column(name, right=True) for name in headings)]
    return Table(columns, [_row(one, names[one.id], alike=alike) for one in changes], 1, names=2)


def _row(one: Gate, name: str, *, alike: bool) -> Row:
    status, style = STATUSES[one.status]
    sign, _, color = MARKS[status]
    before = "none" if one.expected is None else figure(one.expected, one.unit)
    now = "none" if one.measured is None else figure(one.measured, one.unit)
    number, _, unit = before.rpartition(" ")
    # A unit that both have stands once.
    before = number if number and now.endswith(f" {unit}") else before
    change = interval = "?"
    if one.expected and one.measured is not None:
        change = f"{signed(100 * (one.measured / one.expected - 1))} %"
    if one.expected and one.interval is not None:
        low, high = (100 * (end / one.expected - 1) for end in one.interval)
        most = signed(high) if high < _WIDE_PERCENT else f"over +{_WIDE_PERCENT}"
        interval = f"{signed(low)} to {most} %"
    cells: list[Inline] = [(Span(f"{sign} ", color), Span(one.device)), name, before, now]
    cells += [change, interval]
    if not alike:
        worse = "-" if one.direction is Direction.HIGHER else "+"
        percent = one.tolerance_percent
        cells.append("" if percent is None else f"{worse}{percent:g} %")
    return Row(cells, style=style)


def figure(value: float, unit: str) -> str:
    """Return a figure with a unit of fitting size; a profile's unit stays as it is."""
    if unit == "s" and 0 < value < 1:
        return duration(value)
    return rate(value, unit) if unit in PLAIN_UNITS else value_with_unit(value, unit)


def signed(percent: float) -> str:
    """Return a change with its sign, with +0.0 for zero."""
    return f"{round(percent, 1) + 0.0:+.1f}"


# ------------------------------------------------------------------------------------ verdict


def about(run: BaselineUse | ComparedRun) -> str:
    """Return a saved run in short: "before.json (2026-11-22, driver 575.64.05)"."""
    driver = run.driver and f"driver {run.driver}"
    facts = [run.time.partition("T")[0], *([driver] if driver else [])]
    return f"{run.file.rpartition('/')[2]} ({', '.join(facts)})"


def change_verdict(changes: Sequence[Gate], against: BaselineUse | ComparedRun) -> str:
    """Return what the changes amount to, in one sentence."""
    where, tolerance, rows = about(against), _tolerance(changes), count_of(len(changes), "row")
    failed = sum(one.status is GateStatus.FAIL for one in changes)
    undecided = sum(one.status is GateStatus.INCONCLUSIVE for one in changes)
    if failed:
        by = (
            "slower by more than is allowed"
            if tolerance is None
            else f"over {tolerance:g} % slower"
        )
        return f"{failed} of {rows} {by} than {where}"
    if undecided:
        allowed = "" if tolerance is None else f", {tolerance:g} % is allowed"
        return f"{undecided} of {rows} undecided against {where}{allowed}"
    verb = "keeps" if len(changes) == 1 else "keep"
    share = "enough" if tolerance is None else f"{100 - tolerance:g} %"
    return f"{len(changes)} of {rows} {verb} {share} of {where}: nothing got slower"


def _tolerance(changes: Sequence[Gate]) -> float | None:
    """Return how many percent every row may lose, None if they differ in that."""
    found = {one.tolerance_percent for one in changes}
    return next(iter(found)) if len(found) == 1 else None
