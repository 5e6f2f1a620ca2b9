"""View of a judged run: the verdict, then what failed or is undecided, with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpucheck.bench import stats
from gpucheck.bench.ci.change_view import STATUSES, change_table, change_verdict, figure, row_names
from gpucheck.bench.model import (
    BenchResult,
    Direction,
    Gate,
    GateStatus,
    Measurement,
    Severity,
)
from gpucheck.bench.rows_view import devices_text
from gpucheck.bench.workers import WORKER_INTERRUPTED
from gpucheck.report.blocks import (
    MOST_NOTES,
    Block,
    Gap,
    Headline,
    Line,
    limited,
    remedies,
    verdict,
)
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import View, count_of

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
    """Yield what a run is judged by, and the verdict in one line."""
    from gpucheck.bench.ci.gates import DISTURBED

    if view.verbosity >= 0 and result.profile is not None:
        use = result.profile
        how = f"{count_of(use.processes, 'process')} of each device"
        text = how if use.processes else "nothing was measured"
        yield Line(f"profile {use.name} version {use.version}, {text}")
    changes = _changes(result)
    rest = [gate for gate in result.gates if gate not in changes]
    parts = []
    if report.error is not None and report.error.code == DISTURBED.undecided_code:
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


def blocks(report: Report, result: BenchResult, view: View) -> Iterator[Block]:
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
    """Yield what failed, what is undecided, warnings, and what was skipped; with -v what passed.

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
    groups: dict[object, list[Gate]] = {}
    for gate in gates:
        groups.setdefault(key(gate), []).append(gate)
    return list(groups.values())


def _reason(gate: Gate) -> str:
    """Return why a gate has its verdict, as it would be of any device; of none its own id."""
    return gate.id if gate.reason is None else gate.reason.replace(gate.device, "*")


def _is_loud(gate: Gate) -> bool:
    return gate.status in (GateStatus.FAIL, GateStatus.INCONCLUSIVE) or gate.warning


def _is_interruption(gate: Gate) -> bool:
    """Return whether a gate says only that processes were interrupted."""
    return bool(gate.evidence) and {one.source for one in gate.evidence} == {WORKER_INTERRUPTED}


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
        seen = ", ".join(f"{one.source} {one.value}" for one in first.evidence)
        yield Line(seen, lead="seen", indent=_INDENT, style="dim")
    for gate in gates if view.verbosity > 0 else ():
        if gate.values:
            values = ", ".join(figure(value, gate.unit) for value in gate.values)
            yield Line(f"processes on {gate.device}: {values}", indent=_INDENT, style="dim")
    yield from remedies(_steps(gates), indent=_INDENT)


def _steps(gates: Sequence[Gate]) -> tuple[str, ...]:
    """Return what to do, one thing a step, and each once."""
    steps = (one for gate in gates for step in gate.next for one in step.split("; "))
    return tuple(dict.fromkeys(steps))


def touched(gates: Sequence[Gate]) -> str:
    """Return the checks and devices of gates: "copy, matmul on gpu:0-7"."""
    names = row_names(gate.id for gate in gates)
    devices = [(names[found[0].id], found) for found in _alike(gates, lambda gate: gate.id)]
    where: dict[str, list[str]] = {}
    for name, found in devices:
        where.setdefault(devices_text(gate.device for gate in found), []).append(name)
    return "; ".join(
        f"{('; ' if any(', ' in name for name in found) else ', ').join(found)} on {text}"
        for text, found in where.items()
    )


def _said(gates: Sequence[Gate]) -> str:
    """Return the checks and devices of gates with their figures."""
    figures = _figures(gates)
    return f"{touched(gates)}: {figures}" if figures else touched(gates)


def _skipped(gates: Sequence[Gate], view: View) -> Iterator[Block]:
    """Yield what was skipped, by the reason, and each step that would help once."""
    texts = (f"{_said(alike)}: {alike[0].reason}" for alike in _alike(gates, _reason))
    yield from limited((Line(text, CheckStatus.SKIP, style="dim") for text in texts), view)
    yield from remedies(_steps(gates))


def verdict_line(report: Report, gates: Sequence[Gate], text: str) -> Headline:
    """Return the verdict in one line, by the word that the exit code stands for."""
    from gpucheck.bench.ci.gates import exit_status

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
    """Return what was measured against the limit, of several gates the lowest and highest."""
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
