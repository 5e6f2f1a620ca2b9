"""View of judged runs and of `gpucheck compare`: the verdict, the changes, what failed and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpucheck.bench import stats
from gpucheck.bench.ci.compare import SHOWN, gate_of_row
from gpucheck.bench.ci.model import ComparedRun, RunComparison
from gpucheck.bench.ci.verdicts import (
    PLAIN_UNITS,
    ROWS_DISTURBED,
    exit_status,
    made_by,
    spoken,
    value_with_unit,
)
from gpucheck.bench.model import (
    BaselineUse,
    BenchResult,
    Direction,
    Gate,
    GateStatus,
    Measurement,
    Scope,
    Severity,
)
from gpucheck.bench.rows_view import devices_text, variant_text
from gpucheck.bench.workers import WORKER_INTERRUPTED
from gpucheck.report.blocks import (
    MOST_NOTES,
    Block,
    Column,
    Gap,
    Head,
    Headline,
    Inline,
    Line,
    Row,
    Span,
    Table,
    limited,
    remedies,
    verdict,
)
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.table import MARKS
from gpucheck.report.text import View, count_of, duration, group_by, rate

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
    maker, more = made_by(more)
    variant = variant_text(kernel, variant)
    words = [
        kernel,
        dtype,
        *maker,
        *([] if maker and variant == kernel else [variant]),
    ]
    size = [shape] if len(shapes[kernel]) > 1 else []
    if kernel in ("train", "towers"):
        size = [f"batches of {count_of(int(shape), 'image')}"] * len(size)
    elif kernel == "batch":  # a sweep over sizes
        size = [count_of(int(shape), "image")]
    else:
        words, size = [*words, *size], []
    words += ["with transfers"] if Scope.END_TO_END in more else []
    others = (
        _THREADS.sub(lambda match: count_of(int(match[1]), "thread"), part)
        for part in more
        if part != Scope.END_TO_END
    )
    return ", ".join([" ".join(words), *size, *others])


def change_table(changes: Sequence[Gate]) -> Table:
    """Return a row for each change: before, now, and the change with its interval.

    A change is a gate whose expectation is the earlier run's figure. What is allowed has a column
    where it differs; else the verdict says it.
    """
    names = row_names(gate.id for gate in changes)
    alike = _tolerance(changes) is not None
    headings = ["before", "now", "change", "90 % interval", *([] if alike else ["allowed"])]
    columns = [Column("device"), Column("row"), *(Column(name, right=True) for name in headings)]
    return Table(columns, [_row(gate, names[gate.id], alike=alike) for gate in changes], 1, names=2)


def _row(gate: Gate, name: str, *, alike: bool) -> Row:
    status, style = STATUSES[gate.status]
    sign, _, color = MARKS[status]
    before = "none" if gate.expected is None else figure(gate.expected, gate.unit)
    now = "none" if gate.measured is None else figure(gate.measured, gate.unit)
    number, _, unit = before.rpartition(" ")
    # A unit that both have stands once.
    before = number if number and now.endswith(f" {unit}") else before
    change = interval = "?"
    if gate.expected and gate.measured is not None:
        change = f"{signed(100 * (gate.measured / gate.expected - 1))} %"
    if gate.expected and gate.interval is not None:
        low, high = (100 * (end / gate.expected - 1) for end in gate.interval)
        most = signed(high) if high < _WIDE_PERCENT else f"over +{_WIDE_PERCENT}"
        interval = f"{signed(low)} to {most} %"
    cells: list[Inline] = [(Span(f"{sign} ", color), Span(gate.device)), name, before, now]
    cells += [change, interval]
    if not alike:
        worse = "-" if gate.direction is Direction.HIGHER else "+"
        percent = gate.tolerance_percent
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
    """Return the verdict on the changes in one sentence."""
    where, tolerance, rows = about(against), _tolerance(changes), count_of(len(changes), "row")
    failed = sum(gate.status is GateStatus.FAIL for gate in changes)
    undecided = sum(gate.status is GateStatus.INCONCLUSIVE for gate in changes)
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
    tolerances = {gate.tolerance_percent for gate in changes}
    return next(iter(tolerances)) if len(tolerances) == 1 else None


# ------------------------------------------------------------------------------------ compare


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield both runs, the verdict, the changes, and the differences between their machines."""
    comparison = report.result
    if not isinstance(comparison, RunComparison):
        raise TypeError(type(comparison).__name__)
    if view.verbosity >= 0:
        yield Head((_run("before", comparison.first), _run("now", comparison.second)))
        yield Gap()
    gates = list(map(gate_of_row, comparison.rows))
    compared = any(row.first_count and row.second_count for row in comparison.rows)
    if compared:
        yield verdict_line(report, gates, change_verdict(gates, comparison.first))
        yield Gap()
        yield change_table(gates)
        yield Gap()
        yield from gate_blocks(gates, view, notes=False)
    else:
        failure = report.error
        yield verdict_line(report, gates, failure.message if failure else "no row in common")
        yield from remedies(failure.remedy if failure else (), indent=2)
        yield Gap()
    yield from _differences(comparison, every=view.verbosity > 0 or not compared)


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows."""
    return SHOWN


def _run(which: str, run: ComparedRun) -> str:
    more = [run.host or "unknown host", *([f"profile {run.profile}"] if run.profile else [])]
    return f"{which}: {about(run)} of {', '.join(more)}"


def _differences(comparison: RunComparison, *, every: bool) -> Iterator[Block]:
    """Yield the keys that differ; the reasons of undecided rows name those that forbid."""
    by_text: dict[str, list[str]] = {}
    for device, texts in comparison.differences.items():
        for text in texts:
            by_text.setdefault(text, []).append(device)
    for text, devices in by_text.items():
        allowed = text.partition(":")[0] in comparison.allowed
        if allowed or every:
            where = f"{devices_text(devices)} differs in {text}"
            yield Line(f"{where} (allowed)" if allowed else where, style="dim")


# ------------------------------------------------------------------------------ judged runs


#: Further lines of a gate begin below its text.
_INDENT = 4
_ORDER = (GateStatus.FAIL, GateStatus.INCONCLUSIVE, GateStatus.PASS)


def shows_rows(result: BenchResult, view: View) -> bool:
    """Return whether the rows of a judged run stand above its gates."""
    return view.verbosity > 0 or (result.profile is None and result.baseline is None)


def take_process_medians(result: BenchResult) -> BenchResult:
    """Return a result whose rows are the medians over its processes, to be shown."""
    if result.profile is not None:
        return result
    return replace(result, measurements=tuple(map(_take_row_medians, result.measurements)))


def _take_row_medians(row: Measurement) -> Measurement:
    medians = row.process_times_s
    if len(medians) < 2 or not row.time_s:
        return row
    middle_s = stats.median(medians)
    factor = row.time_s / middle_s
    speed = row.throughput
    return replace(
        row,
        time_s=middle_s,
        ci95_s=stats.interval(medians),
        repeat95_s=stats.repeat_interval(medians),
        throughput=speed and replace(speed, value=speed.value * factor),
        percent_of_peak=row.percent_of_peak and row.percent_of_peak * factor,
        percent_of_copy=row.percent_of_copy and row.percent_of_copy * factor,
    )


def run_verdict(report: Report, result: BenchResult, view: View) -> Iterator[Block]:
    """Yield the profile or the baseline of a run, and the verdict in one line."""
    if view.verbosity >= 0 and result.profile is not None:
        use = result.profile
        how = f"{count_of(use.processes, 'process')} of each device"
        text = how if use.processes else "nothing was measured"
        yield Line(f"profile {use.name} version {use.version}, {text}")
    changes = _changes(result)
    rest = [gate for gate in result.gates if gate not in changes]
    parts = []
    if report.error is not None and report.error.code == ROWS_DISTURBED:
        disturbed = [gate for gate in rest if gate.status is GateStatus.INCONCLUSIVE]
        rest = [gate for gate in rest if gate not in disturbed]
        was, them = ("was", "it") if len(disturbed) == 1 else ("were", "them")
        rows = count_of(len(disturbed), "row")
        parts.append(f"{rows} {was} disturbed: nothing can be compared with {them}")
    if changes and result.baseline is not None:
        parts.append(change_verdict(changes, result.baseline))
    if rest or not changes:
        parts.append(_counts(rest))
    yield verdict_line(report, result.gates, "; ".join(parts))


def run_blocks(report: Report, result: BenchResult, view: View) -> Iterator[Block]:
    """Yield the changes against a baseline, and what the gates found."""
    changes = _changes(result)
    if changes:
        yield change_table(changes)
        yield Gap()
    interrupted = report.exit_code is ExitCode.INTERRUPTED
    # The verdict says that it was interrupted, the table what passed.
    told = [
        gate
        for gate in result.gates
        if not (interrupted and _is_interruption(gate))
        and (view.verbosity > 0 or _is_loud(gate) or gate not in changes)
    ]
    yield from gate_blocks(told, view)


def _changes(result: BenchResult) -> list[Gate]:
    """Return the gates that are rows against a baseline; a profile has checks instead."""
    if result.baseline is None or result.profile is not None:
        return []
    return [gate for gate in result.gates if "/" in gate.id]


def gate_blocks(gates: Sequence[Gate], view: View, *, notes: bool = True) -> Iterator[Block]:
    """Yield the failed, undecided, warning and skipped gates; with -v those that passed.

    `notes`: a gate that passed and has something to say does so.
    """
    loud = [gate for gate in gates if _is_loud(gate)]
    loud.sort(key=lambda gate: (_is_warning(gate), _ORDER.index(gate.status)))
    for group in _alike(loud, lambda gate: (*_mark(gate), gate.class_, gate.next)):
        yield from _gate_details(group, view)
        yield Gap()
    if view.verbosity < 0:
        return
    quiet = [gate for gate in gates if not _is_loud(gate)]
    yield from _skipped([gate for gate in quiet if gate.status is GateStatus.SKIP], view)
    passed = [gate for gate in quiet if gate.status is GateStatus.PASS]
    if view.verbosity > 0:
        for alike in _alike(passed, _reason):
            because = f"; {alike[0].reason}" if alike[0].reason is not None else ""
            yield Line(f"{_said(alike)}{because}", CheckStatus.OK)
    elif notes:
        remarks = _alike([gate for gate in passed if gate.reason is not None], _reason)
        texts = (f"{touched(alike)}: {alike[0].reason}" for alike in remarks)
        yield from limited((Line(text, style="dim") for text in texts), view)


def _alike(gates: Sequence[Gate], key: Callable[[Gate], object]) -> list[list[Gate]]:
    """Return gates together that have the same key, in their order."""
    return list(group_by(gates, key).values())


def _reason(gate: Gate) -> str:
    """Return why a gate has its verdict, as it would be of any device; of none its own id."""
    return gate.id if gate.reason is None else gate.reason.replace(gate.device, "*")


def _is_loud(gate: Gate) -> bool:
    return gate.status in (GateStatus.FAIL, GateStatus.INCONCLUSIVE) or gate.warning


def _is_interruption(gate: Gate) -> bool:
    """Return whether a gate says only that processes were interrupted."""
    return bool(gate.evidence) and {item.source for item in gate.evidence} == {WORKER_INTERRUPTED}


def _is_warning(gate: Gate) -> bool:
    return gate.warning or gate.severity is Severity.WARN


def _mark(gate: Gate) -> tuple[CheckStatus, str]:
    """Return the mark of a gate's line, and its style."""
    if _is_warning(gate):
        return CheckStatus.WARN, "yellow"
    return STATUSES[gate.status]


def _gate_details(gates: Sequence[Gate], view: View) -> Iterator[Block]:
    """Yield gates of one class that ask for the same steps: each reason, what was seen, the steps.

    Many reasons are cut; with -v all are shown, and the figure of each process.
    """
    first = gates[0]
    mark, style = _mark(first)
    class_ = f" ({first.class_})" if first.class_ is not None else ""
    reasons = _alike(gates, _reason)
    most = len(reasons) if view.verbosity > 0 else MOST_NOTES
    for alike in reasons[:most]:
        yield Line(f"{_said(alike)}{class_}", mark, style=style)
        if alike[0].reason is not None:
            yield Line(alike[0].reason, indent=_INDENT)
    if len(reasons) > most:
        more = [gate for alike in reasons[most:] for gate in alike]
        yield Line(f"{len(more)} more: add -v", indent=2, style="dim")
    if view.verbosity >= 0 and first.evidence:
        seen = ", ".join(f"{item.source} {item.value}" for item in first.evidence)
        yield Line(seen, lead="seen", indent=_INDENT, style="dim")
    for gate in gates if view.verbosity > 0 else ():
        if gate.values:
            values = ", ".join(figure(value, gate.unit) for value in gate.values)
            yield Line(f"processes on {gate.device}: {values}", indent=_INDENT, style="dim")
    yield from remedies(_steps(gates), indent=_INDENT)


#: Between the steps of a text, outside parentheses: "(--size; size in a profile)" is one.
_NEXT_STEP = re.compile(r"; (?![^()]*\))")


def _steps(gates: Sequence[Gate]) -> tuple[str, ...]:
    """Return the next steps of gates, each once."""
    steps = (part for gate in gates for step in gate.next for part in _NEXT_STEP.split(step))
    return tuple(dict.fromkeys(steps))


def touched(gates: Sequence[Gate]) -> str:
    """Return the checks and devices of gates: "copy, matmul on gpu:0-7"."""
    names = row_names(gate.id for gate in gates)
    devices = [(names[group[0].id], group) for group in _alike(gates, lambda gate: gate.id)]
    where: dict[str, list[str]] = {}
    for name, group in devices:
        where.setdefault(devices_text(gate.device for gate in group), []).append(name)
    return "; ".join(
        f"{('; ' if any(', ' in name for name in group) else ', ').join(group)} on {text}"
        for text, group in where.items()
    )


def _said(gates: Sequence[Gate]) -> str:
    """Return the checks and devices of gates with their figures."""
    figures = _figures(gates)
    return f"{touched(gates)}: {figures}" if figures else touched(gates)


def _skipped(gates: Sequence[Gate], view: View) -> Iterator[Block]:
    """Yield the skipped gates by reason, and each step that would help once."""
    texts = (f"{_said(alike)}: {alike[0].reason}" for alike in _alike(gates, _reason))
    yield from limited((Line(text, CheckStatus.SKIP, style="dim") for text in texts), view)
    yield from remedies(_steps(gates))


def verdict_line(report: Report, gates: Sequence[Gate], text: str) -> Headline:
    """Return the verdict in one line, by the word that the exit code stands for."""
    told = (ExitCode.BAD, ExitCode.INTERRUPTED)
    code = report.exit_code if report.exit_code in told else exit_status(gates)[0]
    words = {
        ExitCode.OK: (CheckStatus.OK, "PASS"),
        ExitCode.BAD: (CheckStatus.FAIL, "FAIL"),
        ExitCode.INTERRUPTED: (CheckStatus.UNKNOWN, "INTERRUPTED"),
    }
    return verdict(text, *words.get(code, (CheckStatus.UNKNOWN, "INCONCLUSIVE")))


def _counts(gates: Sequence[Gate]) -> str:
    words = (
        (GateStatus.FAIL, "failed"),
        (GateStatus.INCONCLUSIVE, "undecided"),
        (GateStatus.PASS, "passed"),
        (GateStatus.SKIP, "skipped"),
    )
    counts = [(sum(gate.status is status for gate in gates), word) for status, word in words]
    counts.append((sum(gate.warning for gate in gates), "with a warning"))
    counted = [f"{count} {word}" for count, word in counts if count]
    checks = count_of(len(gates), "check")
    if len(counted) == 1:
        return f"{checks} {counted[0].partition(' ')[2]}"
    return f"{checks}: {', '.join(counted)}" if counted else "no check"


def _figures(gates: Sequence[Gate]) -> str:
    """Return the measured values against the limit, of several gates the lowest and highest."""
    first = gates[0]
    if first.unit in ("match", "on") or len({gate.unit for gate in gates}) > 1:
        return ""  # the reason says it in words
    known = [gate.measured for gate in gates if gate.measured is not None]
    if not known:
        return "not measured" if _is_loud(first) else ""
    ends = dict.fromkeys(figure(value, first.unit) for value in (min(known), max(known)))
    text = " to ".join(ends)
    limits = {gate.limit for gate in gates}
    if len(limits) > 1 or None in limits:
        return text
    if first.direction is Direction.LOWER and not first.limit:
        return f"{text}, none allowed"
    side = "at least" if first.direction is Direction.HIGHER else "at most"
    return f"{text}, {side} {figure(first.limit or 0.0, first.unit)}"
