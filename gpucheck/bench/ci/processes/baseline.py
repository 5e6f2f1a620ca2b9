"""Saved runs: made from the rows of processes, and prepared for the gates of the next run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpucheck import __version__
from gpucheck.bench.ci.gate_model import Direction
from gpucheck.bench.ci.gates.figures import doubts_of
from gpucheck.bench.ci.processes.fingerprint import differences, fingerprints_of, not_allowed
from gpucheck.bench.ci.run_model import Baseline, CarriedDoubt, ProcessRun, Series
from gpucheck.bench.ci.saved_run_model import (
    BASELINE_SCHEMA,
    Fingerprint,
    SavedDevice,
    SavedRun,
    SavedTool,
)
from gpucheck.bench.model import Measurement, Scope
from gpucheck.bench.peaks import format_of
from gpucheck.report.codec import to_plain
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import WrongUseError

#: What a row may lose where no profile says otherwise.
TOLERANCE_PERCENT = 5.0


def row_id(row: Measurement) -> str:
    """Return a row's name, the same in every run: kernel, variant, format, shape and the rest."""
    shape = "x".join(str(edge) for edge in row.shape)
    parts = [row.kernel, row.variant, format_of(row.dtype), shape]
    if row.scope is not Scope.RESIDENT:
        parts.append(row.scope.value)
    if row.threads is not None:
        parts.append(f"threads={row.threads}")
    parts.extend(f"{key}={value}" for key, value in sorted(row.parameters.items()))
    return "/".join(parts)


def row_series(runs: Sequence[ProcessRun]) -> tuple[Series, ...]:
    """Return each row of each device over the processes, preferring those measured all at once.

    Rows without a figure, or with a wrong result, are left out.
    """
    chosen = [run for run in runs if run.together] or list(runs)
    uuids = {run.device: run.gpu_uuid for run in reversed(chosen)}
    found: dict[tuple[str, str], list[Measurement]] = {}
    for run in chosen:
        for row in run.result.measurements if run.result is not None else ():
            if row.device == run.device and _is_right(row):
                found.setdefault((run.device, row_id(row)), []).append(row)
    return tuple(_series(name, uuids[device], rows) for (device, name), rows in found.items())


def _is_right(row: Measurement) -> bool:
    wrong = row.verified is not None and not row.verified.ok
    return row.error is None and not wrong and _figure(row) is not None


def _series(name: str, uuid: str | None, rows: Sequence[Measurement]) -> Series:
    """Return one row's figures in the processes that have it."""
    figures = [figure for row in rows if (figure := _figure(row)) is not None]
    factors = [row.repeat95_s[1] / row.median_s for row in rows if row.repeat95_s and row.median_s]
    _, unit, direction = figures[0]
    return Series(
        id=name,
        device=rows[0].device,
        gpu_uuid=uuid,
        unit=unit,
        direction=direction,
        values=tuple(value for value, _, _ in figures),
        tolerance_percent=TOLERANCE_PERCENT,
        repeat_factor=max(factors, default=None),
        doubts=doubts_of(rows),
    )


def _figure(row: Measurement) -> tuple[float, str, Direction] | None:
    if row.throughput is not None and row.throughput.value > 0:
        return row.throughput.value, row.throughput.unit, Direction.HIGHER
    if row.median_s:
        return row.median_s, "s", Direction.LOWER
    return None


def saved_run(
    runs: Sequence[ProcessRun], series: Sequence[Series], *, time: str, profile: str | None
) -> SavedRun:
    """Return a run as it is saved.

    Raises:
        WrongUseError: nothing was measured, so there is nothing to keep.
    """
    if not any(one.values for one in series):
        raise WrongUseError(
            code="nothing-to-save",
            message="No figure was measured, so there is nothing to save.",
            remedy=("See the report for the reason, then repeat the run.",),
        )
    uuids = {run.device: run.gpu_uuid for run in runs if run.result is not None}
    host = next((run.host.name for run in runs if run.host.name is not None), None)
    devices = tuple(
        SavedDevice(
            device=device,
            gpu_uuid=uuids.get(device),
            fingerprint=found,
            doubts=_doubts(device, runs),
            failures=_failures(device, runs, {one.id for one in series}),
        )
        for device, found in fingerprints_of(runs, profile).items()
    )
    return SavedRun(
        schema=BASELINE_SCHEMA,
        tool=SavedTool(name="gpucheck", version=__version__),
        time=time,
        host=host,
        profile=profile,
        devices=devices,
        series=tuple(series),
    )


def _doubts(device: str, runs: Sequence[ProcessRun]) -> tuple[str, ...]:
    rows = [
        row
        for run in runs
        if run.device == device and run.result is not None
        for row in run.result.measurements
    ]
    return tuple(sorted({doubt.code for row in rows for doubt in row.doubts}))


def _failures(device: str, runs: Sequence[ProcessRun], measured: set[str]) -> dict[str, Failure]:
    """Return why requested rows have no figure in any process, by their id."""
    return {
        row_id(row): row.error
        for run in runs
        if run.device == device and run.result is not None
        for row in run.result.measurements
        if row.error is not None and row.device == device and row_id(row) not in measured
    }


def with_session(saved: SavedRun, run: SavedRun) -> SavedRun:
    """Return a saved run with another one added as a session of the same machine.

    Raises:
        WrongUseError: a device of it is not in the saved run, or has another fingerprint.
    """
    before = {device.device: device.fingerprint for device in saved.devices}
    for device in run.devices:
        if device.device not in before:
            why = f"{device.device} is not in it"
            raise _other_machine(why)
        found = differences(before[device.device], device.fingerprint)
        if found:
            why = f"{device.device} differs in {'; '.join(found.values())}"
            raise _other_machine(why)
    added = {(one.id, one.device): one for one in run.series}
    known = {(one.id, one.device): one for one in saved.series}
    series = [_joined(one, added[key]) if key in added else one for key, one in known.items()] + [
        one for key, one in added.items() if key not in known
    ]
    return replace(
        saved,
        series=tuple(series),
        further_times=(*saved.further_times, run.time),
        exit_code=saved.exit_code or run.exit_code,
    )


def _joined(first: Series, second: Series) -> Series:
    """Return one row's series with the session of a later run."""
    if (first.unit, first.direction) != (second.unit, second.direction):
        why = f"{first.id} was in {first.unit} and is now in {second.unit}"
        raise _other_machine(why)
    factors = [one.repeat_factor for one in (first, second) if one.repeat_factor is not None]
    return replace(
        first,
        values=(*first.values, *second.values),
        sessions=(*(first.sessions or (len(first.values),)), len(second.values)),
        repeat_factor=max(factors, default=None),
        doubts=_all_doubts(first.doubts, second.doubts),
    )


def _all_doubts(
    first: Sequence[CarriedDoubt] | None, second: Sequence[CarriedDoubt] | None
) -> tuple[CarriedDoubt, ...] | None:
    if first is None or second is None:
        return None
    found: dict[str, CarriedDoubt] = {}
    for one in (*first, *second):
        known = found.get(one.doubt.code)
        count = one.processes + (known.processes if known is not None else 0)
        found[one.doubt.code] = CarriedDoubt(
            doubt=known.doubt if known is not None else one.doubt, processes=count
        )
    return tuple(sorted(found.values(), key=lambda one: -one.processes))


def _other_machine(why: str) -> WrongUseError:
    message = f"The run cannot be added to the saved one, which is unchanged: {why}."
    remedy = "Save it to another file: --save FILE without --append."
    return WrongUseError(code="other-machine", message=message, remedy=(remedy,))


def to_text(run: SavedRun) -> str:
    """Return a saved run as the file's text, a series a line so that a diff can be read."""
    plain = to_plain(run)
    series = ",\n".join(f"    {json.dumps(one)}" for one in plain.pop("series"))
    head = json.dumps(plain, indent=1, allow_nan=False).removesuffix("\n}")
    return f'{head},\n "series": [\n{series}\n ]\n}}\n'


def baseline_against(
    saved: SavedRun, path: Path, now: Mapping[str, Fingerprint], allowed: Sequence[str] = ()
) -> Baseline:
    """Return a saved run prepared for the gates of a run with these fingerprints.

    A device is compared with the one of its name, else with the first of its board: a baseline of
    one GPU serves a node of eight.
    """
    before = {device.device: device.fingerprint for device in saved.devices}
    found: dict[str, tuple[str, ...]] = {}
    series: list[Series] = []
    for device, fingerprint in now.items():
        twin = twin_of(device, fingerprint, before)
        if twin is None:
            found[device] = (f"{device} is not in it",)
            continue
        forbidding = not_allowed(differences(before[twin], fingerprint), allowed)
        if forbidding:
            found[device] = forbidding
        series.extend(renamed(saved.series, twin, device))
    return Baseline(path=str(path), time=saved.time, series=tuple(series), differences=found)


def twin_of(device: str, fingerprint: Fingerprint, saved: Mapping[str, Fingerprint]) -> str | None:
    """Return the saved device that this one is compared with."""
    if device in saved:
        return device
    same = [
        name
        for name, other in saved.items()
        if fingerprint.board is not None and other.board == fingerprint.board
    ]
    return same[0] if same else None


def renamed(series: Sequence[Series], twin: str, device: str) -> list[Series]:
    """Return the twin's series under this device's name."""
    return [replace(one, device=device) for one in series if one.device == twin]
