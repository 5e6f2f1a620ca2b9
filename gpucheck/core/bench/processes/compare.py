"""Two saved runs held against each other: for each row a ratio, its interval, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpucheck.core.bench.gates.decision import FEWEST_PROCESSES, decide
from gpucheck.core.bench.processes.baseline import TOLERANCE_PERCENT, renamed, twin_of
from gpucheck.core.bench.processes.fingerprint import differences, not_allowed
from gpucheck.models.bench_run import Series
from gpucheck.models.errors import ExitCode
from gpucheck.models.gate import Direction, GateClass, GateStatus
from gpucheck.models.report import Answer, Failure, Host
from gpucheck.models.saved_run import ComparedRow, ComparedRun, RunComparison, SavedRun

#: Doubts of the later run that explain why it is slower.
_CLASSES = {
    "host-busy": GateClass.ENVIRONMENT,
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
    ratio = interval = class_ = None
    status = GateStatus.INCONCLUSIVE
    if first is None or second is None:
        which = "first" if first is None else "second"
        reason, class_ = f"the {which} run has no such row", GateClass.CONFIG
    elif first.unit != second.unit or first.direction is not second.direction:
        reason, class_ = f"measured in {first.unit} and in {second.unit}", GateClass.CONFIG
    else:
        found = decide(second.values, first.values, tolerance, first.direction)
        ratio, interval = found.ratio, found.interval
        if forbidding:
            reason, class_ = f"not comparable: {'; '.join(forbidding)}", GateClass.CONFIG
        elif min(len(first.values), len(second.values)) < FEWEST_PROCESSES:
            reason = f"too few processes: at least {FEWEST_PROCESSES} are needed on each side"
            class_, interval = GateClass.NOISE, None
        else:
            status = found.status
            reason = _reason(status, ratio, tolerance, first.direction)
            class_ = _class(status, doubts)
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
        status=status,
        reason=reason,
        ratio=ratio,
        interval=interval,
        class_=class_,
    )


def _reason(status: GateStatus, ratio: float, tolerance: float, direction: Direction) -> str:
    change = 100 * (ratio - 1)
    worse = change < 0 if direction is Direction.HIGHER else change > 0
    text = f"{abs(change):.1f} % {'worse' if worse else 'better'}"
    if status is GateStatus.INCONCLUSIVE:
        return f"{text}, and the noise reaches over the limit of {tolerance:g} %"
    return f"{text}, {tolerance:g} % are allowed"


def _class(status: GateStatus, doubts: Sequence[str]) -> GateClass | None:
    """Return where to look: what the second run itself said against its figures comes first."""
    if status is GateStatus.PASS:
        return None
    for doubt, found in _CLASSES.items():
        if doubt in doubts:
            return found
    return GateClass.HARDWARE if status is GateStatus.FAIL else GateClass.NOISE


def _middle(series: Series | None) -> float | None:
    """Return the geometric mean, which the ratio is of."""
    return None if series is None else decide(series.values, (1.0,), TOLERANCE_PERCENT).measured


def conclude_comparison(comparison: RunComparison, host: Host) -> Answer:
    """Wrap a comparison: 1 if a row fails, 3 if one cannot be decided or there is none, else 0."""
    failing = [row for row in comparison.rows if row.status is GateStatus.FAIL]
    open_rows = [row for row in comparison.rows if row.status is GateStatus.INCONCLUSIVE]
    code, failure = ExitCode.OK, None
    if failing:
        code = ExitCode.BAD
        failure = Failure(code="slower", message=_sentence(failing, "worse than allowed"))
    elif open_rows:
        code = ExitCode.INCONCLUSIVE
        message = _sentence(open_rows, "not decided")
        failure = Failure(code="undecided", message=message, remedy=_remedy(comparison))
    elif not comparison.rows:
        code = ExitCode.INCONCLUSIVE
        failure = Failure(code="nothing-to-compare", message="The two runs have no row in common.")
    return Answer(result=comparison, exit_code=code, host=host, error=failure)


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
        return ("Save runs of more processes: gpucheck bench --save FILE --processes 10",)
    options = " ".join(f"--allow-difference {key}" for key in keys)
    return (f"If the difference does not matter: {options}",)
