"""Comparison of two saved runs: a ratio, its interval and a verdict for each row."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from gpucheck.bench.ci.baseline import advice_on, counterpart_of, driver_of, not_allowed, renewal
from gpucheck.bench.ci.decision import (
    FEWEST_PROCESSES,
    Decision,
    corrected,
    decide,
    decide_between,
    limit_of,
    slow_since,
    typical,
    worse_percent,
)
from gpucheck.bench.ci.diagnosis import FURTHER_SESSIONS, class_of_failure, figures_of, ruling
from gpucheck.bench.ci.model import (
    ComparedRow,
    ComparedRun,
    RunComparison,
    SavedRun,
    Series,
)
from gpucheck.bench.ci.verdicts import Wording, exit_status
from gpucheck.bench.model import Direction, Gate, GateClass, GateStatus, shared_fields
from gpucheck.drivers.python.framework_bench import BROKEN, MISSING, SILENT
from gpucheck.report.envelope import Answer, Failure, Notice
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from gpucheck.report.text import count_of

#: Failures of a framework's import.
_NOT_STARTED = (MISSING, BROKEN, SILENT)
#: Part of a row's id.
_THREADS = re.compile(r"/threads=(\d+)")


def compare_runs(
    first: SavedRun,
    second: SavedRun,
    *,
    files: tuple[Path, Path],
    tolerance_percent: float | None = None,
    allowed: Sequence[str] = (),
) -> RunComparison:
    """Return how the second run compares with the first.

    `tolerance_percent` None uses the tolerance that each row was saved with. Fingerprints that
    differ in keys other than `allowed` make the rows of their device inconclusive. The risk of a
    wrong fail covers all rows together.
    """
    rows: list[ComparedRow] = []
    # By place among the rows: what the runs' figures decide, all of them together.
    decided: dict[int, tuple[Series, Series, float | None, Decision]] = {}
    differing: dict[str, tuple[str, ...]] = {}
    matched: set[str] = set()
    for device in second.devices:
        counterpart, match, old = counterpart_of(first, device.device, device.fingerprint)
        lacking: Mapping[str, Failure] = {}
        if counterpart is not None:
            matched.add(counterpart.device)
            lacking = counterpart.failures
        if match:
            differing[device.device] = tuple(match.values())
        forbidding = not_allowed(match, allowed)
        before = {item.id: item for item in old}
        now = {item.id: item for item in second.series if item.device == device.device}
        # In the second run's order, and what it lacks last.
        for name in now | before:
            earlier, later = before.get(name), now.get(name)
            row = _row(earlier, later, tolerance_percent)
            if earlier is None:
                row = _missing(row, "first", lacking, before)
            elif later is None:
                row = _missing(row, "second", device.failures, now)
            elif (earlier.unit, earlier.direction) != (later.unit, later.direction):
                reason = f"the first run has {earlier.unit}, the second {later.unit}"
                row = replace(row, reason=reason, next=(renewal(),))
            else:
                row, factor, decision = _compare(row, earlier, later, forbidding)
                if not row.reason:
                    decided[len(rows)] = earlier, later, factor, decision
            rows.append(row)
    gone = [item for item in first.series if item.device not in matched]
    rows += [_missing(_row(item, None, tolerance_percent), "second", {}, {}) for item in gone]
    held = corrected([decision for *_, decision in decided.values()])
    for place, decision in zip(decided, held, strict=True):
        earlier, later, factor, _ = decided[place]
        rows[place] = _judged(rows[place], earlier, later, factor, decision)
    return RunComparison(
        first=_side(first, files[0]),
        second=_side(second, files[1]),
        rows=tuple(rows),
        differences=differing,
        allowed=tuple(allowed),
    )


def _side(run: SavedRun, file: Path) -> ComparedRun:
    return ComparedRun(
        **shared_fields(run, ComparedRun),
        file=str(file),
        gpucheck=run.tool.version,
        driver=driver_of(run),
    )


def _row(
    first: Series | None, second: Series | None, tolerance_percent: float | None
) -> ComparedRow:
    """Return the row of two series, of which one may be missing, before it is judged."""
    series = second or first
    assert series is not None
    row = ComparedRow(
        **shared_fields(series, ComparedRow),
        first=_middle(first),
        second=_middle(second),
        first_count=len(first.values) if first else 0,
        second_count=len(second.values) if second else 0,
        status=GateStatus.INCONCLUSIVE,
        reason="",
        class_=GateClass.CONFIG,
    )
    if tolerance_percent is None:
        return row
    return replace(row, tolerance_percent=tolerance_percent)


def _missing(
    row: ComparedRow, which: str, failures: Mapping[str, Failure], others: Collection[str]
) -> ComparedRow:
    """Return the row of a figure that one run lacks, by the failures and other rows of that run."""
    failure, threads = _failure_of(row.id, failures), _other_threads(row.id, others)
    if failure is not None:
        steps = (renewal(),) if which == "first" else failure.remedy
        reason = f"the {which} run has no figure for it: {failure.message}"
        return replace(row, reason=reason, class_=class_of_failure(failure), next=steps)
    if threads is not None:
        reason = f"the {which} run has this row with {count_of(threads, 'thread')}"
        return replace(row, reason=reason, next=(_AS_MANY,))
    return replace(row, reason=f"the {which} run does not have this row", next=(_ALIKE,))


def _failure_of(row: str, failures: Mapping[str, Failure]) -> Failure | None:
    """Return why a row has no figure; one row of a kernel stands for a framework's others.

    A framework that cannot be started has one row for each kernel, whatever its forms and sizes.
    """
    kernel, *parts = row.split("/")
    framework = next((part for part in parts if part.startswith("framework=")), None)
    others = (
        failure
        for name, failure in failures.items()
        if failure.code in _NOT_STARTED
        and name.split("/")[0] == kernel
        and framework in name.split("/")
    )
    return failures.get(row) or next(others, None)


def _other_threads(row: str, others: Collection[str]) -> int | None:
    """Return with how many threads the others have a row that they lack with as many."""
    plain = _THREADS.sub("", row)
    alike = (other for other in others if _THREADS.sub("", other) == plain)
    return max((int(match[1]) for name in alike if (match := _THREADS.search(name))), default=None)


def _compare(
    row: ComparedRow, first: Series, second: Series, forbidding: Sequence[str]
) -> tuple[ComparedRow, float | None, Decision]:
    """Return the row of two series, the factor by which two runs may differ, and the decision.

    If a side has too few processes for an interval, its rounds decide, by that factor. The row has
    a reason where the decision does not stand.
    """
    tolerance, direction = row.tolerance_percent, row.direction
    decision = decide(*(second.values, first.values, tolerance, direction), sessions=first.sessions)
    few = [item for item in (first, second) if len(item.values) < FEWEST_PROCESSES]
    factors = [item.repeat_factor for item in few if item.repeat_factor is not None]
    factor, stands = max(factors, default=None), len(factors) == len(few)
    if factor is not None:
        middles = decision.measured, decision.expected
        decision = decide_between(*middles, factor, tolerance, direction)
    row = replace(
        row,
        second=decision.measured,
        ratio=decision.ratio,
        interval=decision.interval if stands else None,
        by_repeat=stands and factor is not None,
    )
    if forbidding:
        reason = f"not comparable: {'; '.join(forbidding)}"
        row = replace(row, reason=reason, next=(advice_on(forbidding),))
    elif not stands:
        reason = f"too few processes: at least {FEWEST_PROCESSES} are needed on each side"
        row = replace(row, reason=reason, class_=GateClass.NOISE, next=(_MORE,))
    return row, factor, decision


def _judged(
    row: ComparedRow, first: Series, second: Series, factor: float | None, decision: Decision
) -> ComparedRow:
    """Return the row of two series that were compared, by the decision on it."""
    if first.disturbed is not None:
        reason = f"the first run was disturbed: {first.disturbed}"
        return replace(row, reason=reason, class_=GateClass.ENVIRONMENT, next=(renewal(),))
    reason = _reason(decision, row.tolerance_percent, row.direction, factor)
    if decision.status is GateStatus.PASS:
        return replace(row, status=GateStatus.PASS, reason=reason, class_=None)
    limit = limit_of(decision.expected, row.tolerance_percent, row.direction)
    figures = figures_of(second)
    if decision.status is GateStatus.FAIL:
        figures = figures.since(decision.since)
    said = ruling(decision.status, figures, limit)
    # A pair left open by noise says so in its reason already.
    silent = said.class_ is GateClass.NOISE
    steps = (_MORE,) if silent else said.next
    if said.status is GateStatus.FAIL and len(first.sessions) < 2:
        steps = (*steps, FURTHER_SESSIONS)
    return replace(
        row,
        status=said.status,
        reason=reason if silent else f"{reason}; {said.sentence}",
        class_=said.class_,
        next=steps,
        repeat_helps=said.repeat_helps,
    )


def gate_of_row(row: ComparedRow) -> Gate:
    """Return a row as a gate that expects the first run's figure; in another unit there is none."""
    expected = row.first if row.second is None or row.ratio is not None else None
    tolerance, interval = row.tolerance_percent, None
    if expected and row.interval is not None:
        interval = (row.interval[0] * expected, row.interval[1] * expected)
    return replace(
        Gate(**shared_fields(row, Gate)),
        measured=row.second,
        limit=None if expected is None else limit_of(expected, tolerance, row.direction),
        expected=expected,
        interval=interval,
    )


#: A change that is shown as 0.0 % has no direction.
_NOTHING_PERCENT = 0.05
#: Remedies for noise, and for runs with other rows.
_MORE = "repeat it with more processes (--processes 10, or processes in a profile)"
_ALIKE = "measure both with the same kernels, --dtype and --size, and for as long"
_AS_MANY = "measure both on as many CPUs: taskset -c 0-3 gpucheck bench ..."


def _reason(
    decision: Decision, tolerance: float, direction: Direction, factor: float | None
) -> str:
    worse = worse_percent(decision.ratio, direction)
    text = f"{abs(worse):.1f} %"
    if abs(worse) >= _NOTHING_PERCENT:
        text += " worse" if worse > 0 else " better"
    open_ = decision.status is GateStatus.INCONCLUSIVE
    if decision.since is not None:
        text += f": {slow_since(decision)}"
    if factor is None and decision.one_of is not None:
        return f"{text}, but one of {decision.one_of} rows may miss its limit by chance"
    if factor is None and not open_:
        return f"{text}, {tolerance:g} % is allowed"
    if factor is None:
        return (
            text if decision.since else f"{text}, but the noise spans the limit of {tolerance:g} %"
        )
    # A large distance in percent is hard to read.
    far = f"{100 * (factor - 1):.1f} %" if factor < 2 else f"a factor of {factor:.3g}"
    apart = f"two identical runs may be {far} apart"
    low, high = decision.interval
    if low <= 1 <= high:
        return f"no difference shown: {text}, and {apart}"
    return f"{text}, and {apart}" + (f": more than {tolerance:g} % is not shown" if open_ else "")


def _middle(series: Series | None) -> float | None:
    """Return the geometric mean, from which the ratio is computed."""
    return None if series is None else math.exp(typical(series.values))


#: Codes of errors that the table of rows says itself.
SHOWN = frozenset({"slower", "undecided", "nothing-to-compare"})
_ROWS: Wording = MappingProxyType(
    {
        GateStatus.FAIL: ("slower", "is worse than allowed", "rows are worse than allowed"),
        GateStatus.INCONCLUSIVE: ("undecided", "is undecided", "rows are undecided"),
    }
)


def conclude_comparison(comparison: RunComparison, host: Host) -> Answer:
    """Return the answer: 1 if a row fails, 3 if one is undecided or there is none, else 0."""
    code, failure = exit_status(list(map(gate_of_row, comparison.rows)), _ROWS)
    if not any(row.first_count and row.second_count for row in comparison.rows):
        code, failure = ExitCode.INCONCLUSIVE, _nothing_in_common(comparison)
    warnings = tuple(
        Notice("run-failed", f"the {name} run, {side.file!r}, failed.")
        for name, side in (("first", comparison.first), ("second", comparison.second))
        if side.exit_code == ExitCode.BAD
    )
    return Answer(result=comparison, exit_code=code, host=host, error=failure, warnings=warnings)


def _nothing_in_common(comparison: RunComparison) -> Failure:
    message = "The two runs have no row in common."
    profiles = comparison.first.profile, comparison.second.profile
    if profiles[0] != profiles[1]:
        said = (
            f"with the profile {profile}" if profile else "without a profile"
            for profile in profiles
        )
        message = "The two runs have no row in common: the first was measured {}, the second {}."
        message = message.format(*said)
    return Failure(
        code="nothing-to-compare",
        message=message,
        remedy=("Measure both with the same profile, or the same kernels, --dtype and --size.",),
    )
