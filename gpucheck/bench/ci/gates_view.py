"""View of a judged run: each cause once with the rows it touches, and the verdict last."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpucheck.bench import stats
from gpucheck.bench.ci.change_view import (
    change_table,
    change_verdict,
    figure,
    row_names,
)
from gpucheck.bench.ci.verdicts import PLAIN_UNITS, in_own_unit
from gpucheck.bench.model import (
    BenchResult,
    Direction,
    Gate,
    GateClass,
    GateStatus,
    Measurement,
    Severity,
)
from gpucheck.bench.rows_view import devices_text
from gpucheck.bench.workers import WORKER_INTERRUPTED
from gpucheck.report.blocks import Block, Gap, Headline, Line, limited, remedies
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import View, count_of

#: Further lines of a cause begin below its text.
_INDENT = 4
#: So many gates, with figures of their own, stand below a cause; `-v` shows all.
_MOST_GATES = 3
#: So many names of checks stand in one line; `-v` shows all.
_MOST_NAMES = 6
#: What a figure lacks, before the sentence that says why.
_SHORTFALL = re.compile(r"(?P<shortfall>\d[\d.]* %.*?)(?:[:;] (?P<cause>.+))?")


class Cause(NamedTuple):
    """Gates that have the same cause; `alike`: they say it in the same words."""

    text: str
    gates: list[Gate]
    alike: bool

    @property
    def first(self) -> Gate:
        """Return the first of its gates, which speaks for all."""
        return self.gates[0]


def shows_rows(result: BenchResult, view: View) -> bool:
    """Return whether the rows of a judged run stand above its gates."""
    return view.verbosity > 0 or (result.profile is None and result.baseline is None)


def over_processes(result: BenchResult) -> BenchResult:
    """Return a result whose rows are the medians over its processes, to be shown."""
    if result.profile is not None:
        return result
    return replace(result, measurements=tuple(map(_over_processes, result.measurements)))


def _over_processes(row: Measurement) -> Measurement:
    medians = row.process_medians_s
    if len(medians) < 2 or not row.median_s:
        return row
    middle_s = stats.median(medians)
    factor = row.median_s / middle_s
    speed = row.throughput
    return replace(
        row,
        median_s=middle_s,
        ci95_s=stats.interval(medians),
        repeat95_s=stats.repeat_interval(medians),
        throughput=speed and replace(speed, value=speed.value * factor),
        percent_of_peak=row.percent_of_peak and row.percent_of_peak * factor,
        percent_of_copy=row.percent_of_copy and row.percent_of_copy * factor,
    )


def blocks(report: Report, result: BenchResult, view: View) -> Iterator[Block]:
    """Yield what a run is judged by, below its head or its rows."""
    if view.verbosity >= 0 and result.profile is not None:
        use = result.profile
        count = count_of(use.processes, "process")
        how = f"{count} of each device" if use.processes else "nothing was measured"
        yield Line(f"profile {use.name} version {use.version}, {how}")
        yield Gap()
    changes = _changes(result)
    if changes:
        yield from change_table(changes, view)
        yield Gap()
    interrupted = report.exit_code is ExitCode.INTERRUPTED
    # The verdict says so already.
    told = [gate for gate in result.gates if not (interrupted and _is_interruption(gate))]
    yield from gate_blocks(told, view, in_table=changes)
    yield Gap()
    yield _verdict(report, result, changes)


def _changes(result: BenchResult) -> list[Gate]:
    """Return the gates that are rows against a baseline; a profile has checks instead."""
    if result.baseline is None or result.profile is not None:
        return []
    return [gate for gate in result.gates if "/" in gate.id]


def gate_blocks(
    gates: Sequence[Gate],
    view: View,
    *,
    in_table: Sequence[Gate] = (),
    notes: bool = True,
) -> Iterator[Block]:
    """Yield what failed, what is undecided, warnings, what was skipped, and how much passed.

    `notes`: a gate that passed and has something to say does so.
    """
    tabled = {id(gate) for gate in in_table}
    loud = [gate for gate in gates if _is_loud(gate)]
    order = (GateStatus.FAIL, GateStatus.INCONCLUSIVE, GateStatus.PASS)
    loud.sort(key=lambda gate: (_is_warning(gate), order.index(gate.status)))
    found = causes(loud)
    for cause in found:
        alone = sum(cause.first.status is one.first.status for one in found) == 1
        yield from _in_full(cause, view, tabled, alone=alone)
        yield Gap()
    if view.verbosity < 0:
        return
    quiet = [gate for gate in gates if not _is_loud(gate)]
    yield from _skipped([gate for gate in quiet if gate.status is GateStatus.SKIP], view)
    passed = [gate for gate in quiet if gate.status is GateStatus.PASS and id(gate) not in tabled]
    # Without a table the verdict counts them.
    yield from _passed(passed, view, counted=bool(in_table))
    if notes or view.verbosity > 0:
        yield from _remarks(passed, view)


def causes(gates: Sequence[Gate]) -> list[Cause]:
    """Return gates by their cause: eight GPUs, or all checks of one, may lack the same thing."""
    groups: dict[object, list[Gate]] = {}
    for at, gate in enumerate(gates):
        text = _general(_split(gate)[1], gate.device)
        steps = tuple(_general(step, gate.device) for step in gate.next)
        same = (gate.status, gate.warning, gate.severity, gate.class_, text, steps)
        groups.setdefault(same if gate.reason is not None else at, []).append(gate)
    found = []
    for group in groups.values():
        texts = {_split(gate)[1].replace(gate.device, "") for gate in group}
        found.append(Cause(_split(group[0])[1], group, alike=len(texts) == 1))
    return found


def _split(gate: Gate) -> tuple[str, str]:
    """Return a gate's shortfall and its cause; either may be empty."""
    reason = gate.reason or ""
    found = _SHORTFALL.fullmatch(reason)
    return (found["shortfall"], found["cause"] or "") if found else ("", reason)


def _general(text: str, device: str) -> str:
    """Return a sentence as it would be about any device and with any number."""
    return re.sub(r"\d+(\.\d+)?", "#", text.replace(device, "*"))


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
    if gate.status is GateStatus.FAIL:
        return CheckStatus.FAIL, "bold red"
    return CheckStatus.UNKNOWN, "yellow"


def _in_full(cause: Cause, view: View, tabled: set[int], *, alone: bool) -> Iterator[Block]:
    """Yield a cause with the gates it touches, what was seen, and what to do, each once.

    `alone`: no other cause has its status, so that the marks of a table say what it touches.
    """
    first, gates = cause.first, cause.gates
    mark, style = _mark(first)
    class_ = f" ({first.class_})" if first.class_ is not None else ""
    all_tabled = all(id(gate) in tabled for gate in gates)
    if len(gates) == 1 and not all_tabled:
        figures = _figures(gates)
        yield Line(f"{touched(gates, view)}{figures and f': {figures}'}{class_}", mark, style=style)
        if first.reason is not None:
            yield Line(first.reason, indent=_INDENT)
    else:
        what = "row" if all_tabled else "check"
        yield Line(f"{_spoken(cause, what)}{class_}", mark, style=style)
        shortfalls = {_split(gate)[0] for gate in gates} - {""}
        missing = all(gate.measured is None for gate in gates)
        if all_tabled and alone and view.verbosity <= 0:
            pass
        elif all_tabled or missing or not shortfalls:
            figures = "" if all_tabled else _figures(gates)
            yield Line(f"{touched(gates, view)}{figures and f': {figures}'}", indent=_INDENT)
        else:
            yield from _each(gates, view)
    if view.verbosity >= 0 and first.evidence:
        seen = ", ".join(f"{one.source} {one.value}" for one in first.evidence)
        yield Line(seen, lead="seen", indent=_INDENT, style="dim")
    if view.verbosity > 0:
        for gate in gates:
            if gate.values:
                text = f"processes on {gate.device}: {_values(gate)}"
                yield Line(text, indent=_INDENT, style="dim")
    yield from remedies(_steps(first), indent=_INDENT)


def _steps(gate: Gate) -> tuple[str, ...]:
    """Return what to do, one thing a step."""
    return tuple(one for step in gate.next for one in step.split("; "))


def _spoken(cause: Cause, what: str) -> str:
    """Return the cause of several gates in one sentence."""
    word = {GateStatus.FAIL: "failed", GateStatus.INCONCLUSIVE: "undecided"}.get(cause.first.status)
    text = cause.text
    if not text and cause.first.class_ is GateClass.NOISE:
        text = "the processes vary too much"
    if not cause.alike:
        text = f"for example, {text}"
    count = len(cause.gates)
    counted = f"1 {what}" if count == 1 else f"{count} {what}s"
    return f"{counted} {word or 'with a warning'}{text and f': {text}'}"


def _each(gates: Sequence[Gate], view: View) -> Iterator[Block]:
    """Yield the gates of a cause, each with its own figure."""
    lines = []
    for gate in gates:
        parts = [text for text in (_figures([gate]), _split(gate)[0]) if text]
        lines.append(Line(f"{touched([gate], view)}: {'; '.join(parts)}", indent=_INDENT))
    shown = lines if view.verbosity > 0 else lines[:_MOST_GATES]
    yield from shown
    if len(shown) < len(lines):
        rest = [*gates[len(shown) :]]
        yield Line(f"and {touched(rest, view)}", indent=_INDENT)


def touched(gates: Sequence[Gate], view: View) -> str:
    """Return the checks and devices of gates: "copy, matmul on gpu:0-7"."""
    names = row_names(gate.id for gate in gates)
    by_devices: dict[tuple[str, ...], list[str]] = {}
    by_id: dict[str, list[str]] = {}
    for gate in gates:
        by_id.setdefault(names[gate.id], []).append(gate.device)
    for name, where in by_id.items():
        by_devices.setdefault(tuple(where), []).append(name)
    parts = []
    for devices, found in by_devices.items():
        whole = view.verbosity > 0 or len(found) <= _MOST_NAMES
        shown = found if whole else found[:_MOST_NAMES]
        more = f" and {len(found) - len(shown)} more" if len(shown) < len(found) else ""
        joint = "; " if any(", " in name for name in shown) else ", "
        parts.append(f"{joint.join(shown)}{more} on {devices_text(devices)}")
    return "; ".join(parts)


def _skipped(gates: Sequence[Gate], view: View) -> Iterator[Block]:
    """Yield what was skipped, by the reason, and each step that would help once."""
    lines = []
    for cause in causes(gates):
        text = touched(cause.gates, view)
        figures = _figures(cause.gates)
        known = f" ({figures})" if figures and figures != "not measured" else ""
        reason = f": {cause.first.reason}" if cause.first.reason else ""
        lines.append(Line(f"{text}{known}{reason}", CheckStatus.SKIP, style="dim"))
    yield from limited(lines, view)
    yield from remedies(tuple(dict.fromkeys(step for gate in gates for step in _steps(gate))))


def _passed(gates: Sequence[Gate], view: View, *, counted: bool) -> Iterator[Block]:
    """Yield how many gates passed; with `-v` each of them."""
    if view.verbosity > 0:
        groups: dict[str, list[Gate]] = {}
        for gate in gates:
            groups.setdefault(gate.id, []).append(gate)
        for found in groups.values():
            figures = _figures(found)
            yield Line(f"{touched(found, view)}{figures and f': {figures}'}", CheckStatus.OK)
    elif gates and counted:
        names = list(dict.fromkeys(gate.id for gate in gates))
        some = f": {', '.join(names)}" if len(names) <= _MOST_NAMES else ""
        checks = "1 check" if len(gates) == 1 else f"{len(gates)} checks"
        yield Line(f"{checks} passed{some}", CheckStatus.OK)


def _remarks(gates: Sequence[Gate], view: View) -> Iterator[Block]:
    """Yield what gates that passed have to say."""
    found = causes([gate for gate in gates if gate.reason is not None])
    lines = (f"{touched(one.gates, view)}: {one.first.reason}" for one in found)
    yield from limited((Line(text, style="dim") for text in lines), view)


def _verdict(report: Report, result: BenchResult, changes: Sequence[Gate]) -> Headline:
    """Return the verdict in one line."""
    word, style = verdict_word(report, result.gates)
    rest = [gate for gate in result.gates if all(gate is not other for other in changes)]
    parts = []
    if changes and result.baseline is not None:
        parts.append(change_verdict(changes, result.baseline))
    if not changes or any(_decides(gate) for gate in rest):
        parts.append(_counts(rest))
    return verdict_line(word, style, "; ".join(parts))


def verdict_line(word: str, style: str, text: str) -> Headline:
    """Return the last line of a judged report."""
    statuses = {"PASS": CheckStatus.OK, "FAIL": CheckStatus.FAIL}
    return Headline(text, statuses.get(word, CheckStatus.UNKNOWN), word, style)


def _decides(gate: Gate) -> bool:
    bad = gate.status in (GateStatus.FAIL, GateStatus.INCONCLUSIVE)
    return bad and gate.severity is Severity.ERROR


def _counts(gates: Sequence[Gate]) -> str:
    words = (
        (GateStatus.FAIL, "failed"),
        (GateStatus.INCONCLUSIVE, "undecided"),
        (GateStatus.PASS, "passed"),
        (GateStatus.SKIP, "skipped"),
    )
    counts = [(sum(gate.status is status for gate in gates), word) for status, word in words]
    counted = [f"{count} {word}" for count, word in counts if count]
    warned = sum(gate.warning for gate in gates)
    counted.extend([f"{warned} with a warning"] if warned else [])
    checks = "1 check" if len(gates) == 1 else f"{len(gates)} checks"
    if len(counted) == 1:
        return f"{checks} {counted[0].partition(' ')[2]}"
    return f"{checks}: {', '.join(counted)}" if counted else "no check"


def verdict_word(report: Report, gates: Sequence[Gate]) -> tuple[str, str]:
    """Return the word of the verdict as the exit code says it, and its style."""
    from gpucheck.bench.ci.gates import exit_status

    words = {
        ExitCode.BAD: ("FAIL", "bold red"),
        ExitCode.OK: ("PASS", "bold green"),
        ExitCode.INTERRUPTED: ("INTERRUPTED", "bold yellow"),
    }
    told = (ExitCode.BAD, ExitCode.INTERRUPTED)
    code = report.exit_code if report.exit_code in told else exit_status(gates)[0]
    return words.get(code, ("INCONCLUSIVE", "bold yellow"))


# ------------------------------------------------------------------------------------ figures


def _figures(gates: Sequence[Gate]) -> str:
    """Return what was measured against the limit, of several gates the lowest and highest."""
    first = gates[0]
    if first.unit in ("match", "on") or len({gate.unit for gate in gates}) > 1:
        return ""  # the reason says it in words
    known = [gate.measured for gate in gates if gate.measured is not None]
    if not known:
        return "not measured" if _is_loud(first) else ""
    text = _span(min(known), max(known), first.unit)
    limits = {gate.limit for gate in gates if gate.limit is not None}
    if len(limits) != 1:
        return text
    limit = limits.pop()
    if first.direction is Direction.LOWER and not limit:
        return f"{text}, none allowed"
    side = "at least" if first.direction is Direction.HIGHER else "at most"
    return f"{text}, {side} {_figure(limit, first.unit)}"


def _span(low: float, high: float, unit: str) -> str:
    one, other = _figure(low, unit), _figure(high, unit)
    return one if one == other else f"{one} to {other}"


def _figure(value: float, unit: str) -> str:
    if unit in PLAIN_UNITS or (unit == "s" and 0 < value < 1):
        return figure(value, unit)
    return in_own_unit(value, unit)


def _values(gate: Gate) -> str:
    return ", ".join(_figure(value, gate.unit) for value in gate.values)
