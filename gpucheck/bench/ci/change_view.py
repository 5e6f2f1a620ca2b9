"""Table of changes between two runs, the same for `--baseline` and `compare`, and its verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpucheck.bench.ci.model import ComparedRun
from gpucheck.bench.ci.verdicts import PLAIN_UNITS, in_own_unit, made_by, spoken
from gpucheck.bench.model import BaselineUse, Direction, Gate, GateStatus, Scope
from gpucheck.bench.rows_view import devices_text, variant_text
from gpucheck.report.blocks import Block, Column, Fitting, Inline, Row, Span, Table, plain
from gpucheck.report.text import View, duration, rate

#: Sign of each verdict, its plain form, and the style of its row.
_SIGNS = {
    GateStatus.PASS: ("✓", "ok", "green"),
    GateStatus.FAIL: ("✗", "FAIL", "bold red"),
    GateStatus.INCONCLUSIVE: ("?", "?", "yellow"),
    GateStatus.SKIP: ("–", "-", "dim"),
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


def change_table(changes: Sequence[Gate], view: View) -> Iterator[Block]:
    """Yield the table: before, now, change and what is allowed, with the interval if it fits.

    A change is a gate whose expectation is the earlier run's figure.

    Rows that pass on several devices are one; with `-v` each has its own.
    """
    if not changes:
        return
    names = row_names(one.id for one in changes)
    several = len({one.device for one in changes}) > 1
    marked = "device" if several else "row"
    rows = [_cells(group, names, view, marked) for group in _folded(changes, view)]

    def table(*, interval: bool, allowed: bool = True) -> Table:
        columns = [
            *([Column("device")] if several else []),
            Column("row"),
            Column("before", right=True),
            Column("now", right=True),
            Column("change", right=True),
            *([Column("90 % interval", right=True)] if interval else []),
            *([Column("allowed", right=True)] if allowed else []),
        ]
        shows = {"device": several, "interval": interval, "allowed": allowed}
        left_out = {key for key, shown in shows.items() if not shown}
        shown = [
            Row([cell for key, cell in cells.items() if key not in left_out], style=style)
            for cells, style in rows
        ]
        return Table(columns, shown, gap=2 if allowed else 1, names=1 + several)

    whole = table(interval=False)
    # Where all rows may lose the same, the verdict says how much.
    short = [] if _tolerance(changes) is None else [table(interval=False, allowed=False)]
    yield Fitting((table(interval=True), whole, *short))


def _folded(changes: Sequence[Gate], view: View) -> list[list[Gate]]:
    """Return the changes, those of a row that passes on every device together."""
    by_id: dict[str, list[Gate]] = {}
    for one in changes:
        by_id.setdefault(one.id, []).append(one)
    groups: list[list[Gate]] = []
    for found in by_id.values():
        good = [one for one in found if one.status is GateStatus.PASS]
        if len(good) < 2 or view.verbosity > 0:
            groups.extend([one] for one in found)
        else:
            groups.extend([one] for one in found if one.status is not GateStatus.PASS)
            groups.append(good)
    return groups


def _cells(
    group: Sequence[Gate], names: Mapping[str, str], view: View, marked: str
) -> tuple[dict[str, Inline], str]:
    """Return the cells of a row by their column, the mark before the `marked` one, and a style."""
    first = group[0]
    sign, word, style = _SIGNS[first.status]
    micro = "µ" if view.unicode else "u"
    before = _span([one.expected for one in group], first.unit, micro)
    now = _span([one.measured for one in group], first.unit, micro)
    cells: dict[str, Inline] = {
        "device": devices_text(one.device for one in group),
        "row": names[first.id],
        "before": _without_unit(before, now),
        "now": now,
        "change": _changes(group),
        "interval": _interval(first) if len(group) == 1 else "",
        "allowed": _allowed(first),
    }
    mark = Span(f"{sign if view.unicode else word} ", style)
    cells[marked] = (mark, Span(plain(cells[marked])))
    return cells, "" if first.status in (GateStatus.PASS, GateStatus.SKIP) else style


def _span(values: Sequence[float | None], unit: str, micro: str) -> str:
    """Return a figure with its unit, of several devices the lowest and the highest."""
    known = [value for value in values if value is not None]
    if not known:
        return "none"
    low, high = (figure(value, unit, micro) for value in (min(known), max(known)))
    return low if low == high else f"{_without_unit(low, high)} to {high}"


def figure(value: float, unit: str, micro: str = "µ") -> str:
    """Return a figure with a unit of fitting size; a profile's unit stays as it is."""
    if unit == "s":
        return duration(value, micro)
    return rate(value, unit) if unit in PLAIN_UNITS else in_own_unit(value, unit)


def _without_unit(one: str, other: str) -> str:
    """Return a figure without its unit if the other one has the same."""
    unit = one.rpartition(" ")[2]
    same = other.endswith(f" {unit}") and one != unit
    return one.replace(f" {unit}", "") if same else one


def _changes(group: Sequence[Gate]) -> str:
    ratios = [
        one.measured / one.expected for one in group if one.expected and one.measured is not None
    ]
    if not ratios:
        return "?"
    low, high = signed(100 * (min(ratios) - 1)), signed(100 * (max(ratios) - 1))
    return f"{low} %" if low == high else f"{low} to {high} %"


def signed(percent: float) -> str:
    """Return a change with its sign, with +0.0 for zero."""
    return f"{round(percent, 1) + 0.0:+.1f}"


def _interval(change: Gate) -> str:
    if change.interval is None or not change.expected:
        return "?"
    low, high = (100 * (end / change.expected - 1) for end in change.interval)
    most = signed(high) if high < _WIDE_PERCENT else f"over +{_WIDE_PERCENT}"
    return f"{signed(low)} to {most} %"


def _allowed(change: Gate) -> str:
    if change.tolerance_percent is None:
        return ""
    sign = "-" if change.direction is Direction.HIGHER else "+"
    return f"{sign}{change.tolerance_percent:g} %"


# ------------------------------------------------------------------------------------ verdict


def about(run: BaselineUse | ComparedRun) -> str:
    """Return a saved run in short: "before.json (2026-11-22, driver 575.64.05)"."""
    driver = run.driver and f"driver {run.driver}"
    facts = [run.time.partition("T")[0], *([driver] if driver else [])]
    return f"{run.file.rpartition('/')[2]} ({', '.join(facts)})"


def change_verdict(changes: Sequence[Gate], against: BaselineUse | ComparedRun) -> str:
    """Return what the changes amount to, in one sentence."""
    count, where, tolerance = len(changes), about(against), _tolerance(changes)
    failed = [one for one in changes if one.status is GateStatus.FAIL]
    undecided = [one for one in changes if one.status is GateStatus.INCONCLUSIVE]
    if failed:
        by = (
            "slower by more than is allowed"
            if tolerance is None
            else f"over {tolerance:g} % slower"
        )
        return f"{len(failed)} of {_rows(count)} {by} than {where}"
    if undecided:
        allowed = "" if tolerance is None else f", {tolerance:g} % is allowed"
        return f"{len(undecided)} of {_rows(count)} undecided against {where}{allowed}"
    return f"{count} of {_rows(count)} {_kept(changes)} of {where}: nothing got slower"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _kept(changes: Sequence[Gate]) -> str:
    verb = "keeps" if len(changes) == 1 else "keep"
    tolerance = _tolerance(changes)
    return f"{verb} {'enough' if tolerance is None else f'{100 - tolerance:g} %'}"


def _tolerance(changes: Sequence[Gate]) -> float | None:
    """Return how many percent every row may lose, None if they differ in that."""
    found = {one.tolerance_percent for one in changes}
    return next(iter(found)) if len(found) == 1 else None
