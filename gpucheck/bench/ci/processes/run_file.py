"""Files with a run: one saved by `bench --save` or, for a comparison, a JSON report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucheck import __version__
from gpucheck.bench.ci.processes.baseline import row_series, saved_run
from gpucheck.bench.ci.processes.fingerprint import profile_key
from gpucheck.bench.ci.processes.workers import BENCH_SCHEMA, read_document
from gpucheck.bench.ci.run_model import ProcessRun, Series
from gpucheck.bench.ci.saved_run_model import BASELINE_SCHEMA, SavedRun
from gpucheck.drivers.host.files import MOST_JSON_BYTES, read_file
from gpucheck.report.codec import DecodeError, from_plain
from gpucheck.report.errors import WrongUseError

_SAVE = "Write one with: gpucheck bench --save FILE"
_NEWER = "Read it with the gpucheck that wrote it, or a newer one."


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
        what = "is empty" if not text.strip() else f"is not JSON, or was cut off: {error}"
        raise _unusable(path, what) from None
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
        raise _unusable(path, problem, remedy=_NEWER if newer else _SAVE)
    try:
        run = from_plain(SavedRun, plain)
    except DecodeError as error:
        raise _damaged(path, plain, error) from None
    for place, series in enumerate(run.series):
        impossible = _problem(series)
        if impossible is not None:
            raise _unusable(path, f"is damaged: $.series[{place}].{impossible}")
    return run


def _problem(series: Series) -> str | None:
    """Return what is impossible about a series, None if nothing is."""
    if not series.values or min(series.values) <= 0:
        return "values must be above 0"
    if not 0 < series.tolerance_percent < 100:
        return "tolerance_percent must be between 0 and 100"
    if series.sessions and sum(series.sessions) != len(series.values):
        return "sessions must add up to the number of values"
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
    return _unusable(path, f"is damaged{by}: {error}", remedy=_NEWER if by else _SAVE)


def _by(plain: Mapping[str, Any]) -> str:
    """Return which version wrote a file, if it is not this one."""
    tool = plain.get("tool")
    version = tool.get("version") if isinstance(tool, Mapping) else None
    if not isinstance(version, str) or version == __version__:
        return ""
    return f" (written by gpucheck {version}; this is {__version__})"


def _unusable(path: Path, problem: str, *, remedy: str = _SAVE) -> WrongUseError:
    message = f"The file {str(path)!r} {problem}."
    return WrongUseError(code="baseline-unusable", message=message, remedy=(remedy,))
