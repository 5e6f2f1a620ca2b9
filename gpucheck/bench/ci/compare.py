"""Comparison of two saved runs: a ratio, its interval and a verdict for each row."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    SavedDevice,
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
    pairs: list[_Pair] = []
    differing: dict[str, tuple[str, ...]] = {}
    matched: set[str] = set()
    for device in second.devices:
        counterpart, match, old = counterpart_of(first, device.device, device.fingerprint)
        missing: Mapping[str, Failure] = {}
        if counterpart is not None:
            matched.add(counterpart.device)
            missing = counterpart.failures
        if match:
            differing[device.device] = tuple(match.values())
        new = [item for item in second.series if item.device == device.device]
        pairs.extend(_pairs(old, new, device, missing, not_allowed(match, allowed)))
    gone = [item for item in first.series if item.device not in matched]
    pairs.extend(_Pair(first=item, second=None) for item in gone)
    return RunComparison(
        first=_side(first, files[0]),
        second=_side(second, files[1]),
        rows=tuple(_rows(pairs, tolerance_percent)),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Series of one row on both sides, and what forbids a comparison.

    `failure` says why one side has none, `other_threads` with how many it has the row instead.
    `decision` is None if the two cannot be compared. `factor` is by how much two runs may differ,
    if the decision rests on that. With too few processes on a side, the decision does not stand.
    """

    first: Series | None
    second: Series | None
    failure: Failure | None = None
    other_threads: int | None = None
    forbidding: Sequence[str] = ()
    decision: Decision | None = None
    factor: float | None = None
    stands: bool = False

    @property
    def some(self) -> Series:
        """Return the side that exists, the second if both do."""
        series = self.second or self.first
        assert series is not None
        return series


def _pairs(
    old: Sequence[Series],
    new: Sequence[Series],
    device: SavedDevice,
    missing: Mapping[str, Failure],
    forbidding: Sequence[str],
) -> Iterator[_Pair]:
    """Yield the series of both sides by id, in the second's order; what it lacks last.

    `missing` says why rows of the first side have no figure.
    """
    before, now = {item.id: item for item in old}, {item.id: item for item in new}
    for name in now | before:
        pair = _Pair(first=before.get(name), second=now.get(name), forbidding=forbidding)
        if pair.first is None or pair.second is None:
            others, failures = (old, missing) if pair.first is None else (new, device.failures)
            pair = replace(
                pair,
                failure=_failure_of(name, failures),
                other_threads=_other_threads(name, others),
            )
        yield pair


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


def _other_threads(row: str, others: Sequence[Series]) -> int | None:
    """Return with how many threads the others have a row that they lack with as many."""
    plain = _THREADS.sub("", row)
    alike = (other.id for other in others if _THREADS.sub("", other.id) == plain)
    return max((int(match[1]) for name in alike if (match := _THREADS.search(name))), default=None)


def _rows(pairs: Sequence[_Pair], tolerance_percent: float | None) -> Iterator[ComparedRow]:
    """Yield each row's verdict."""
    tolerances = [
        pair.some.tolerance_percent if tolerance_percent is None else tolerance_percent
        for pair in pairs
    ]
    decided = [_decided(pair, tolerance) for pair, tolerance in zip(pairs, tolerances, strict=True)]
    family = {
        at: other.decision
        for at, other in enumerate(decided)
        if other.decision is not None and other.stands and not other.forbidding
    }
    held = dict(zip(family, corrected(list(family.values())), strict=True))
    for at, (pair, tolerance) in enumerate(zip(decided, tolerances, strict=True)):
        decision, some = held.get(at, pair.decision), pair.some
        row = ComparedRow(
            device=some.device,
            id=some.id,
            unit=some.unit,
            direction=some.direction,
            first=_middle(pair.first),
            second=_middle(pair.second),
            first_count=len(pair.first.values) if pair.first else 0,
            second_count=len(pair.second.values) if pair.second else 0,
            tolerance_percent=tolerance,
            status=GateStatus.INCONCLUSIVE,
            reason="",
            class_=GateClass.CONFIG,
        )
        yield _without_ratio(row, pair) if decision is None else _judged(row, pair, decision)


def _decided(pair: _Pair, tolerance: float) -> _Pair:
    """Return a pair with the decision on its two series, if they can be compared.

    If a side has too few processes for an interval, its rounds decide.
    """
    first, second = pair.first, pair.second
    if first is None or second is None:
        return pair
    if first.unit != second.unit or first.direction is not second.direction:
        return pair
    few = [item for item in (first, second) if len(item.values) < FEWEST_PROCESSES]
    factors = [item.repeat_factor for item in few if item.repeat_factor is not None]
    decision = decide(
        *(second.values, first.values, tolerance, first.direction), sessions=first.sessions
    )
    factor, stands = None, not few
    if factors:
        factor, stands = max(factors), len(factors) == len(few)
        middles = decision.measured, decision.expected
        decision = decide_between(*middles, factor, tolerance, first.direction)
    return replace(pair, decision=decision, factor=factor, stands=stands)


def _without_ratio(row: ComparedRow, pair: _Pair) -> ComparedRow:
    """Return the row of a figure that one side lacks, or has in another unit."""
    first, second, failure = pair.first, pair.second, pair.failure
    if first is not None and second is not None:
        reason = f"the first run has {first.unit}, the second {second.unit}"
        return replace(row, reason=reason, next=(renewal(),))
    which = "first" if first is None else "second"
    if failure is None and pair.other_threads is not None:
        reason = f"the {which} run has this row with {count_of(pair.other_threads, 'thread')}"
        return replace(row, reason=reason, next=(_AS_MANY,))
    if failure is None:
        return replace(row, reason=f"the {which} run does not have this row", next=(_ALIKE,))
    steps = (renewal(),) if first is None else failure.remedy
    reason = f"the {which} run has no figure for it: {failure.message}"
    return replace(row, reason=reason, class_=class_of_failure(failure), next=steps)


def _judged(row: ComparedRow, pair: _Pair, decision: Decision) -> ComparedRow:
    """Return the row of two series that were compared."""
    row = replace(
        row,
        second=decision.measured,
        ratio=decision.ratio,
        interval=decision.interval if pair.stands else None,
        by_repeat=pair.stands and pair.factor is not None,
    )
    if pair.forbidding:
        reason = f"not comparable: {'; '.join(pair.forbidding)}"
        return replace(row, reason=reason, next=(advice_on(pair.forbidding),))
    if not pair.stands:
        reason = f"too few processes: at least {FEWEST_PROCESSES} are needed on each side"
        return replace(row, reason=reason, class_=GateClass.NOISE, next=(_MORE,))
    if pair.first is not None and pair.first.disturbed is not None:
        reason = f"the first run was disturbed: {pair.first.disturbed}"
        return replace(row, reason=reason, class_=GateClass.ENVIRONMENT, next=(renewal(),))
    reason = _reason(decision, row.tolerance_percent, row.direction, pair.factor)
    if decision.status is GateStatus.PASS:
        return replace(row, status=GateStatus.PASS, reason=reason, class_=None)
    limit = limit_of(decision.expected, row.tolerance_percent, row.direction)
    figures = figures_of(pair.some)
    if decision.status is GateStatus.FAIL:
        figures = figures.since(decision.since)
    said = ruling(decision.status, figures, limit)
    # A pair left open by noise says so in its reason already.
    silent = said.class_ is GateClass.NOISE
    steps = (_MORE,) if silent else said.next
    if said.status is GateStatus.FAIL and pair.first is not None and len(pair.first.sessions) < 2:
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
