"""Two saved runs held against each other: for each row a ratio, its interval, and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpucheck.core.bench.gates.decision import (
    FEWEST_PROCESSES,
    Decision,
    decide,
    decide_between,
)
from gpucheck.core.bench.processes.baseline import TOLERANCE_PERCENT, renamed, twin_of
from gpucheck.core.bench.processes.fingerprint import differences, not_allowed
from gpucheck.models.bench_run import Series
from gpucheck.models.errors import ExitCode
from gpucheck.models.gate import Direction, GateClass, GateStatus
from gpucheck.models.report import Answer, Failure, Host, Notice
from gpucheck.models.saved_run import ComparedRow, ComparedRun, RunComparison, SavedRun

#: Doubts of the later run that explain why it is slower.
_CLASSES = {
    "host-busy": GateClass.ENVIRONMENT,
    "quota-reached": GateClass.ENVIRONMENT,
    "gpu-shared": GateClass.ENVIRONMENT,
    "gpu-claimed": GateClass.ENVIRONMENT,
    "throttled": GateClass.THERMAL,
    "pcie-narrow": GateClass.CONFIG,
    "clocks-locked": GateClass.CONFIG,
}


def compare_runs(
    first: SavedRun,
    second: SavedRun,
    *,
    files: tuple[Path, Path],
    tolerance_percent: float | None = None,
    allowed: Sequence[str] = (),
) -> RunComparison:
    """Return how the second run stands against the first.

    `tolerance_percent` None leaves each row the tolerance that it was saved with. Fingerprints that
    differ in other keys than `allowed` make the rows of their device inconclusive.
    """
    before = {device.device: device.fingerprint for device in first.devices}
    rows: list[ComparedRow] = []
    told: dict[str, tuple[str, ...]] = {}
    held_against: set[str | None] = set()
    for device in second.devices:
        twin = twin_of(device.device, device.fingerprint, before)
        held_against.add(twin)
        found = differences(before[twin], device.fingerprint) if twin is not None else {}
        if found:
            told[device.device] = tuple(found.values())
        old = renamed(first.series, twin, device.device) if twin is not None else []
        new = [one for one in second.series if one.device == device.device]
        forbidding = not_allowed(found, allowed)
        pairs = _pairs(old, new)
        rows.extend(_row(pair, tolerance_percent, forbidding, device.doubts) for pair in pairs)
    gone = [one for one in first.series if one.device not in held_against]
    rows.extend(_row((one, None), tolerance_percent, ()) for one in gone)
    return RunComparison(
        first=_side(first, files[0]),
        second=_side(second, files[1]),
        rows=tuple(rows),
        differences=told,
        allowed=tuple(allowed),
    )


def _side(run: SavedRun, file: Path) -> ComparedRun:
    return ComparedRun(
        file=str(file),
        time=run.time,
        host=run.host,
        gpucheck=run.tool.version,
        profile=run.profile,
        exit_code=run.exit_code,
    )


_Pair = tuple[Series | None, Series | None]


def _pairs(old: Sequence[Series], new: Sequence[Series]) -> list[_Pair]:
    """Return the series of both sides by id, second first; what it lacks last."""
    known: Mapping[str, Series] = {one.id: one for one in old}
    pairs: list[_Pair] = [(known.get(one.id), one) for one in new]
    there = {one.id for one in new}
    return [*pairs, *((one, None) for one in old if one.id not in there)]


def _row(
    pair: _Pair,
    tolerance_percent: float | None,
    forbidding: Sequence[str],
    doubts: Sequence[str] = (),
) -> ComparedRow:
    first, second = pair
    some = second or first
    assert some is not None
    tolerance = some.tolerance_percent if tolerance_percent is None else tolerance_percent
    found = _verdict(first, second, tolerance, forbidding, doubts)
    return ComparedRow(
        device=some.device,
        id=some.id,
        unit=some.unit,
        direction=some.direction,
        first=_middle(first),
        second=_middle(second),
        first_count=len(first.values) if first else 0,
        second_count=len(second.values) if second else 0,
        tolerance_percent=tolerance,
        status=found.status,
        reason=found.reason,
        ratio=found.ratio,
        interval=found.interval,
        by_repeat=found.by_repeat,
        class_=found.class_,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """What a row says of two series; undecided for its configuration unless more is known."""

    reason: str
    status: GateStatus = GateStatus.INCONCLUSIVE
    class_: GateClass | None = GateClass.CONFIG
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    by_repeat: bool = False


def _verdict(
    first: Series | None,
    second: Series | None,
    tolerance: float,
    forbidding: Sequence[str],
    doubts: Sequence[str],
) -> _Verdict:
    if first is None or second is None:
        which = "first" if first is None else "second"
        return _Verdict(reason=f"the {which} run has no such row")
    if first.unit != second.unit or first.direction is not second.direction:
        return _Verdict(reason=f"measured in {first.unit} and in {second.unit}")
    found, factor, stands = _decided(first, second, tolerance)
    verdict = _Verdict(
        reason=f"not comparable: {'; '.join(forbidding)}",
        ratio=found.ratio,
        interval=found.interval if stands else None,
        by_repeat=stands and factor is not None,
    )
    if forbidding:
        return verdict
    if not stands:
        reason = f"too few processes: at least {FEWEST_PROCESSES} are needed on each side"
        return replace(verdict, reason=reason, class_=GateClass.NOISE)
    return replace(
        verdict,
        reason=_reason(found, tolerance, first.direction, factor),
        status=found.status,
        class_=_class(found.status, second.device, doubts),
    )


def _decided(
    first: Series, second: Series, tolerance: float
) -> tuple[Decision, float | None, bool]:
    """Return the decision, by how much two runs may differ if it stands on that, and if it stands.

    Where a side has too few processes for an interval, its rounds must tell.
    """
    few = [one for one in (first, second) if len(one.values) < FEWEST_PROCESSES]
    factors = [one.repeat_factor for one in few if one.repeat_factor is not None]
    found = decide(second.values, first.values, tolerance, first.direction)
    if not factors:
        return found, None, not few
    factor = max(factors)
    middles = found.measured, found.expected
    between = decide_between(*middles, factor, tolerance, first.direction)
    return between, factor, len(factors) == len(few)


def _reason(found: Decision, tolerance: float, direction: Direction, factor: float | None) -> str:
    change = 100 * (found.ratio - 1)
    worse = change < 0 if direction is Direction.HIGHER else change > 0
    text = f"{abs(change):.1f} % {'worse' if worse else 'better'}"
    open_ = found.status is GateStatus.INCONCLUSIVE
    if factor is None:
        noise = f", and the noise reaches over the limit of {tolerance:g} %"
        return text + (noise if open_ else f", {tolerance:g} % are allowed")
    # As a share of what is small, a large distance says nothing.
    far = f"{100 * (factor - 1):.1f} %" if factor < 2 else f"a factor of {factor:.3g}"
    apart = f"two runs of the same may be {far} apart"
    low, high = found.interval
    if low <= 1 <= high:
        return f"no difference shown: {text}, and {apart}"
    return f"{text}, and {apart}" + (f": more than {tolerance:g} % is not shown" if open_ else "")


def _class(status: GateStatus, device: str, doubts: Sequence[str]) -> GateClass | None:
    """Return where to look: what the second run itself said against its figures comes first.

    A processor is not called defective for being slow: what shares it is out of sight.
    """
    if status is GateStatus.PASS:
        return None
    for doubt, found in _CLASSES.items():
        if doubt in doubts:
            return found
    if status is GateStatus.INCONCLUSIVE:
        return GateClass.NOISE
    return GateClass.ENVIRONMENT if device == "cpu" else GateClass.HARDWARE


def _middle(series: Series | None) -> float | None:
    """Return the geometric mean, which the ratio is of."""
    return None if series is None else decide(series.values, (1.0,), TOLERANCE_PERCENT).measured


def conclude_comparison(comparison: RunComparison, host: Host) -> Answer:
    """Wrap a comparison: 1 if a row fails, 3 if one cannot be decided or there is none, else 0."""
    failing = [row for row in comparison.rows if row.status is GateStatus.FAIL]
    open_rows = [row for row in comparison.rows if row.status is GateStatus.INCONCLUSIVE]
    code, failure = ExitCode.OK, None
    if not any(row.first_count and row.second_count for row in comparison.rows):
        code, failure = ExitCode.INCONCLUSIVE, _nothing_in_common(comparison)
    elif failing:
        code = ExitCode.BAD
        failure = Failure(code="slower", message=_sentence(failing, "worse than allowed"))
    elif open_rows:
        code = ExitCode.INCONCLUSIVE
        message = _sentence(open_rows, "not decided")
        failure = Failure(code="undecided", message=message, remedy=_remedy(comparison))
    warnings = tuple(_failed_sides(comparison))
    return Answer(result=comparison, exit_code=code, host=host, error=failure, warnings=warnings)


def _nothing_in_common(comparison: RunComparison) -> Failure:
    message = "The two runs have no row in common."
    profiles = comparison.first.profile, comparison.second.profile
    if profiles[0] != profiles[1]:
        said = (f"with the profile {one}" if one else "without a profile" for one in profiles)
        message = "The two runs have no row in common: the first was measured {}, the second {}."
        message = message.format(*said)
    return Failure(
        code="nothing-to-compare",
        message=message,
        remedy=("Measure both with the same profile, or the same kernels, --dtype and --size.",),
    )


def _failed_sides(comparison: RunComparison) -> Iterator[Notice]:
    """Yield which run had failed: it is no measure for the other."""
    for name, side in (("first", comparison.first), ("second", comparison.second)):
        if side.exit_code == ExitCode.BAD:
            message = f"the {name} run, {side.file!r}, is one that failed."
            yield Notice("run-failed", message)


def _sentence(rows: Sequence[ComparedRow], what: str) -> str:
    first = rows[0]
    many = f"{len(rows)} rows are" if len(rows) > 1 else "One row is"
    return f"{many} {what}, the first {first.id} on {first.device}: {first.reason}."


def _remedy(comparison: RunComparison) -> tuple[str, ...]:
    keys = dict.fromkeys(
        text.partition(":")[0]
        for texts in comparison.differences.values()
        for text in texts
        if text.partition(":")[0] not in comparison.allowed
    )
    if not keys:
        few = any(
            min(row.first_count, row.second_count) < FEWEST_PROCESSES for row in comparison.rows
        )
        count = "" if few else " --processes 10"
        return (f"Save runs of more processes: gpucheck bench --save FILE{count}",)
    options = " ".join(f"--allow-difference {key}" for key in keys)
    return (f"If the difference does not matter: {options}",)
