"""Saved runs and their files, and the fingerprint that makes two runs comparable."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gpucheck.bench.ci.diagnosis import marked
from gpucheck.bench.ci.model import (
    BASELINE_SCHEMA,
    CarriedDoubt,
    Fingerprint,
    ProcessRun,
    SavedDevice,
    SavedRun,
    Series,
)
from gpucheck.bench.ci.processes import BENCH_SCHEMA, read_document
from gpucheck.bench.ci.profile_model import Profile
from gpucheck.bench.ci.run_data import doubts_of, row_id
from gpucheck.bench.model import (
    BenchEnvironment,
    Direction,
    FrameworkFacts,
    GpuTelemetry,
    Measurement,
    ProfileUse,
    is_wrong,
)
from gpucheck.bench.request_model import BenchRequest
from gpucheck.drivers.host.files import MOST_JSON_BYTES, read_file
from gpucheck.report.codec import DecodeError, from_plain, to_plain
from gpucheck.report.envelope import TOOL
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.host import Host
from gpucheck.report.saved import NEWER
from gpucheck.report.text import count_of, did_you_mean
from gpucheck.version import __version__

KEYS = tuple(field.name for field in fields(Fingerprint))
#: NVML's throttle reason for manually set clocks.
_LOCKED = "application-clocks"


def profile_key(profile: Profile | ProfileUse) -> str:
    """Return the identity of a profile: name, version and digest."""
    return f"{profile.name}/{profile.version}/{profile.digest[:12]}"


def fingerprints_of(runs: Sequence[ProcessRun], profile: str | None) -> dict[str, Fingerprint]:
    """Return the fingerprint of each device, from its first process that gave a document."""
    fingerprints: dict[str, Fingerprint] = {}
    for run in runs:
        if run.result is not None and run.device not in fingerprints:
            sensors = run.result.telemetry.gpus if run.result.telemetry is not None else ()
            known = next((gpu for gpu in sensors if gpu.uuid == run.gpu_uuid), None)
            environment = run.result.environment
            fingerprints[run.device] = fingerprint(
                run.device, environment, run.host, known, profile
            )
    return fingerprints


def fingerprint(
    device: str,
    environment: BenchEnvironment,
    host: Host,
    sensors: GpuTelemetry | None,
    profile: str | None,
) -> Fingerprint:
    """Return one device's fingerprint; a GPU's includes what the driver and CuPy report."""
    gpu = next((gpu for gpu in environment.gpus if gpu.device == device), None)
    blas = f"{environment.blas_name or 'unknown'} {environment.blas_version or ''}".strip()
    count = environment.blas_threads
    threads = f", {count_of(count, 'thread')}" if count else ""
    locked = sensors is not None and sensors.reasons.get(_LOCKED)
    policy = "set by somebody" if locked else "default"
    return Fingerprint(
        board=gpu.name if gpu else None,
        pci_device_id=gpu.pci_device_id if gpu else None,
        vbios=sensors.vbios_version if sensors else None,
        driver=host.driver_version if gpu else None,
        cuda=host.cuda_driver_version if gpu else None,
        cupy=environment.cupy_version if gpu else None,
        cublas=environment.cublas_version if gpu else None,
        power_limit_w=sensors.power_limit_w if sensors else None,
        ecc=sensors.ecc_mode if sensors else None,
        clock_policy=policy if sensors else None,
        cpu=environment.cpu_model,
        cores=environment.usable_cores,
        blas=f"{blas}{threads}",
        blas_architecture=environment.blas_architecture,
        variables=environment.variables,
        frameworks={
            item.name: framework_text(item)
            for item in environment.frameworks
            if item.failure is None
        }
        or None,
        profile=profile,
        gpucheck=__version__,
    )


def framework_text(facts: FrameworkFacts) -> str:
    """Return a framework's part of the fingerprint."""
    parts = [facts.version or "unknown version"]
    parts += [facts.blas] if facts.blas else []
    parts += [count_of(facts.threads_intra, "thread")] if facts.threads_intra else []
    parts += [f"{name} {value}" for name, value in sorted(facts.math_settings.items())]
    return ", ".join(parts)


def differences(first: Fingerprint, other: Fingerprint) -> dict[str, str]:
    """Return the keys that differ, each with both values; unknown on both sides is no difference.

    A value known on one side only counts as a difference; but a framework that only one of them
    measured changes nothing for the rows that both have.
    """
    differing = {}
    for key in KEYS:
        before, after = getattr(first, key), getattr(other, key)
        if key == "frameworks":
            changed = _changed_frameworks(before or {}, after or {})
            if changed:
                differing[key] = f"{key}: {changed}"
        elif before != after:
            differing[key] = f"{key}: {_shown(before)} -> {_shown(after)}"
    return differing


def _changed_frameworks(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the differences between the texts of the frameworks that both sides have."""
    changes = []
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name].split(", "), after[name].split(", ")
        gone = ", ".join(part for part in old if part not in new)
        come = ", ".join(part for part in new if part not in old)
        if gone or come:
            changes.append(f"{name} {gone or 'without'} -> {come or 'without'}")
    return " and ".join(changes)


def _shown(value: object) -> str:
    """Return a fingerprint's value in words."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={text}" for name, text in sorted(value.items())) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def allowed_keys(words: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that may differ, by their names in the file.

    Raises:
        WrongUseError: there is no such key.
    """
    keys = [word.replace("-", "_").lower() for word in words]
    for word, key in zip(words, keys, strict=True):
        if key not in KEYS:
            suggestion = did_you_mean(word, KEYS)
            raise WrongUseError(
                code="unknown-difference",
                message=f"--allow-difference has no key {word!r}. {suggestion}".strip(),
                remedy=(f"Choose from: {', '.join(KEYS)}.",),
            )
    return tuple(dict.fromkeys(keys))


def not_allowed(differing: Mapping[str, str], allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the differences that forbid a comparison."""
    return tuple(text for key, text in differing.items() if key not in allowed)


def renewal(profile: str | None = None) -> str:
    """Return how to save a new baseline; `profile` is the one to measure with, as it is named."""
    if profile is None:
        return "save a new baseline with --save FILE"
    return f"save a new baseline: gpucheck bench --profile {shlex.quote(profile)} --save FILE"


def advice_on(differing: Sequence[str], profile: str | None = None) -> str:
    """Return the advice on differences that forbid a comparison, each with its key in front."""
    renew = renewal(profile)
    # A device that is not in it cannot be allowed.
    keys = dict.fromkeys(text.partition(":")[0] for text in differing if ": " in text)
    options = " ".join(f"--allow-difference {key}" for key in keys)
    return f"{renew}, or allow it: {options}" if options else renew


#: What a row may lose where no profile says otherwise.
TOLERANCE_PERCENT = 5.0


def row_series(runs: Sequence[ProcessRun]) -> tuple[Series, ...]:
    """Return each row of each device over the processes, preferring those measured all at once.

    Rows without a figure, or with a wrong result, are left out.
    """
    chosen = [run for run in runs if run.together] or list(runs)
    uuids = {run.device: run.gpu_uuid for run in reversed(chosen)}
    by_row: dict[tuple[str, str], list[Measurement]] = {}
    for run in chosen:
        for row in run.rows:
            right = (
                row.error is None
                and not is_wrong(row.verified)
                and _compared_value(row) is not None
            )
            if row.device == run.device and right:
                by_row.setdefault((run.device, row_id(row)), []).append(row)
    return tuple(_series(name, uuids[device], rows) for (device, name), rows in by_row.items())


def _series(name: str, uuid: str | None, rows: Sequence[Measurement]) -> Series:
    """Return the series of a row: its value in each process that has it."""
    figures = [compared for row in rows if (compared := _compared_value(row)) is not None]
    factors = [row.repeat95_s[1] / row.time_s for row in rows if row.repeat95_s and row.time_s]
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


def _compared_value(row: Measurement) -> tuple[float, str, Direction] | None:
    if row.throughput is not None and row.throughput.value > 0:
        return row.throughput.value, row.throughput.unit, Direction.HIGHER
    if row.time_s:
        return row.time_s, "s", Direction.LOWER
    return None


def saved_run(
    runs: Sequence[ProcessRun], series: Sequence[Series], *, time: str, profile: str | None
) -> SavedRun:
    """Return a run as it is saved.

    Raises:
        WrongUseError: nothing was measured, so there is nothing to keep.
    """
    if not any(item.values for item in series):
        raise WrongUseError(
            code="nothing-to-save",
            message="No figure was measured, so there is nothing to save.",
            remedy=("See the report for the reason, then repeat the run.",),
        )
    uuids = {run.device: run.gpu_uuid for run in runs if run.result is not None}
    host = next((run.host.name for run in runs if run.host.name is not None), None)
    measured = {item.id for item in series}
    rows: dict[str, list[Measurement]] = {}
    for run in runs:
        rows.setdefault(run.device, []).extend(run.rows)
    devices = tuple(
        SavedDevice(
            device=device,
            gpu_uuid=uuids.get(device),
            fingerprint=marks,
            doubts=tuple(sorted({doubt.code for row in rows[device] for doubt in row.doubts})),
            # Why requested rows have no figure in any process.
            failures={
                row_id(row): row.error
                for row in rows[device]
                if row.error is not None and row.device == device and row_id(row) not in measured
            },
        )
        for device, marks in fingerprints_of(runs, profile).items()
    )
    return SavedRun(
        schema=BASELINE_SCHEMA,
        tool=TOOL,
        time=time,
        host=host,
        profile=profile,
        devices=devices,
        series=tuple(map(marked, series)),
    )


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
        differing = differences(before[device.device], device.fingerprint)
        if differing:
            why = f"{device.device} differs in {'; '.join(differing.values())}"
            raise _other_machine(why)
    added = {(item.id, item.device): item for item in run.series}
    known = {(item.id, item.device): item for item in saved.series}
    series = [
        _joined(item, added[key]) if key in added else item for key, item in known.items()
    ] + [item for key, item in added.items() if key not in known]
    codes = (saved.exit_code, run.exit_code)
    return replace(
        saved,
        series=tuple(series),
        further_times=(*saved.further_times, run.time),
        # One session that failed makes the whole a run that failed, whatever the others were.
        exit_code=ExitCode.BAD if ExitCode.BAD in codes else saved.exit_code or run.exit_code,
    )


def _joined(first: Series, second: Series) -> Series:
    """Return the series of a row with the session of a later run."""
    if (first.unit, first.direction) != (second.unit, second.direction):
        why = f"{first.id} was in {first.unit} and is now in {second.unit}"
        raise _other_machine(why)
    factors = [item.repeat_factor for item in (first, second) if item.repeat_factor is not None]
    return replace(
        first,
        values=(*first.values, *second.values),
        sessions=(*(first.sessions or (len(first.values),)), len(second.values)),
        repeat_factor=max(factors, default=None),
        doubts=_all_doubts((*first.doubts, *second.doubts)),
        disturbed=first.disturbed or second.disturbed,
    )


def _all_doubts(carried: Sequence[CarriedDoubt]) -> tuple[CarriedDoubt, ...]:
    """Return the doubts of several sessions, each once with all the processes that have it."""
    by_code: dict[str, CarriedDoubt] = {}
    for item in carried:
        known = by_code.get(item.doubt.code, replace(item, processes=0))
        by_code[item.doubt.code] = replace(known, processes=known.processes + item.processes)
    return tuple(sorted(by_code.values(), key=lambda item: -item.processes))


def _other_machine(why: str) -> WrongUseError:
    message = f"The run cannot be added to the saved one, which is unchanged: {why}."
    remedy = "Save it to another file: --save FILE without --append."
    return WrongUseError(code="other-machine", message=message, remedy=(remedy,))


def to_text(run: SavedRun) -> str:
    """Return a saved run as the file's text, a series a line so that a diff can be read."""
    plain = to_plain(run)
    series = ",\n".join(f"    {json.dumps(item)}" for item in plain.pop("series"))
    head = json.dumps(plain, indent=1, allow_nan=False).removesuffix("\n}")
    return f'{head},\n "series": [\n{series}\n ]\n}}\n'


def counterpart_of(
    saved: SavedRun, device: str, fingerprint: Fingerprint
) -> tuple[SavedDevice | None, dict[str, str], list[Series]]:
    """Return the saved device that this one is compared with, how they differ, and its series.

    It is the one of its name, else the first of its board: a baseline of one GPU serves a node of
    eight. The series have this device's name.
    """
    named = {item.device: item for item in saved.devices}
    board = fingerprint.board
    same = [item for item in saved.devices if board is not None and item.fingerprint.board == board]
    match = named.get(device) or next(iter(same), None)
    if match is None:
        return None, {}, []
    series = [replace(item, device=device) for item in saved.series if item.device == match.device]
    return match, differences(match.fingerprint, fingerprint), series


def driver_of(run: SavedRun) -> str | None:
    """Return the driver that a run was measured with, None without a GPU."""
    drivers = (device.fingerprint.driver for device in run.devices)
    return next((driver for driver in drivers if driver is not None), None)


_TEMPERATURE = "temperature="


def temperatures_of(run: SavedRun) -> tuple[str, ...]:
    """Return the temperatures that softmax was measured with, as its rows are named."""
    parts = (part for item in run.series for part in item.id.split("/"))
    temperatures = (part for part in parts if part.startswith(_TEMPERATURE))
    return tuple(dict.fromkeys(part.removeprefix(_TEMPERATURE) for part in temperatures))


def check_temperature(saved: SavedRun, request: BenchRequest) -> None:
    """Check that softmax is measured as in the baseline, if both have it.

    Raises:
        WrongUseError: it is measured with another temperature.
    """
    before = temperatures_of(saved)
    if not before or str(request.temperature) in before:
        return
    if request.kernels and "softmax" not in request.kernels:
        return
    raise WrongUseError(
        code="other-temperature",
        message=f"The baseline was measured with temperature {before[0]}, this run uses "
        f"{request.temperature}: give --temperature {before[0]} or save a new baseline.",
    )


def check_same_temperature(first: SavedRun, second: SavedRun) -> None:
    """Check that two runs measured softmax alike, if both have it.

    Raises:
        WrongUseError: they were measured with different temperatures.
    """
    before, now = temperatures_of(first), temperatures_of(second)
    if before and now and not set(before) & set(now):
        raise WrongUseError(
            code="other-temperature",
            message=f"The first run was measured with temperature {before[0]}, "
            f"the second with {now[0]}.",
            remedy=(f"Measure the second again with --temperature {before[0]}.",),
        )


#: Where the command line is known, it is that of the run.
WRITE_ONE = "Write one with: gpucheck bench --save FILE"


def read_saved_run(path: Path) -> SavedRun:
    """Return the run that was saved in a file.

    Raises:
        WrongUseError: it cannot be read, is no such file, or its figures are no numbers above 0.
    """
    plain = _read(path)
    if plain.get("schema") == BENCH_SCHEMA:
        problem = "is a report of one process, but a baseline is a saved run of several"
        raise _unusable(path, problem)
    return _saved(path, plain)


def read_run(path: Path) -> SavedRun:
    """Return the run of a file saved by bench, or of a JSON report of bench.

    Raises:
        WrongUseError: it cannot be read, is neither, or has no figures above 0.
    """
    plain = _read(path)
    return _reported(path, plain) if plain.get("schema") == BENCH_SCHEMA else _saved(path, plain)


def _read(path: Path) -> Mapping[str, Any]:
    """Return the object that a file holds."""
    try:
        text = read_file(path, MOST_JSON_BYTES)
        plain = json.loads(text.decode("utf-8"))
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        state = "is empty" if not text.strip() else f"is not JSON, or was cut off: {error}"
        raise _unusable(path, state) from None
    if not isinstance(plain, Mapping):
        raise _unusable(path, "is not a saved run")
    return plain


def _saved(path: Path, plain: Mapping[str, Any]) -> SavedRun:
    schema = plain.get("schema")
    if not isinstance(schema, str):
        raise _unusable(path, "is not a saved run")
    if schema != BASELINE_SCHEMA:
        problem = f"is a {schema[:40]} document, not {BASELINE_SCHEMA}{_by(plain)}"
        newer = schema.startswith(BASELINE_SCHEMA.rstrip("1"))
        raise _unusable(path, problem, remedy=NEWER if newer else WRITE_ONE)
    try:
        run = from_plain(SavedRun, plain)
    except DecodeError as error:
        raise _damaged(path, plain, error) from None
    for place, series in enumerate(run.series):
        impossible = _problem(series)
        if impossible is not None:
            raise _unusable(path, f"is damaged: $.series[{place}].{impossible}")
    return replace(run, series=tuple(map(marked, run.series)))


def _problem(series: Series) -> str | None:
    """Return why a series is invalid, None if it is valid."""
    if not series.values or min(series.values) <= 0:
        return "values must be above 0"
    if not 0 < series.tolerance_percent < 100:
        return "tolerance_percent must be between 0 and 100"
    if series.sessions and (min(series.sessions) < 1 or sum(series.sessions) != len(series.values)):
        return "sessions must be above 0 and add up to the number of values"
    if series.repeat_factor is not None and series.repeat_factor < 1:
        return "repeat_factor must be at least 1"
    return None


def _reported(path: Path, plain: Mapping[str, Any]) -> SavedRun:
    """Return a report as a run of one process."""
    try:
        result, host, _ = read_document(plain)
    except DecodeError as error:
        raise _damaged(path, plain, error) from None
    rows = result.measurements if result is not None else ()
    uuids = {row.device: row.gpu_uuid for row in rows}
    runs = [
        ProcessRun(device=device, number=0, gpu_uuid=uuid, result=result, host=host)
        for device, uuid in uuids.items()
    ]
    series = row_series(runs)
    if not series:
        raise _unusable(path, "is a report without figures")
    used = result.profile if result is not None else None
    profile = None if used is None else profile_key(used)
    time, code = plain.get("time"), plain.get("exit_code")
    run = saved_run(runs, series, time=str(time), profile=profile)
    return replace(run, exit_code=code if isinstance(code, int) else None)


def _damaged(path: Path, plain: Mapping[str, Any], error: DecodeError) -> WrongUseError:
    by = _by(plain)
    return _unusable(path, f"is damaged{by}: {error}", remedy=NEWER if by else WRITE_ONE)


def _by(plain: Mapping[str, Any]) -> str:
    """Return which version wrote a file, if it is not this one."""
    tool = plain.get("tool")
    version = tool.get("version") if isinstance(tool, Mapping) else None
    if not isinstance(version, str) or version == __version__:
        return ""
    return f" (written by gpucheck {version}; this is {__version__})"


def _unusable(path: Path, problem: str, *, remedy: str = WRITE_ONE) -> WrongUseError:
    message = f"The file {str(path)!r} {problem}."
    return WrongUseError(code="baseline-unusable", message=message, remedy=(remedy,))
