"""Rows of `bench` and `compare` for other programs: CSV and JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck.bench.ci.model import ComparedRow, RunComparison
from gpucheck.bench.ci.run_data import row_id
from gpucheck.bench.model import BenchResult, BurnResult, Measurement
from gpucheck.report.envelope import Report
from gpucheck.report.text import View

Value = str | int | float | bool | None

#: Columns of CSV; new ones come last.
COLUMNS = (
    *("time", "host", "driver_version", "id", "kernel", "variant", "device", "gpu_uuid"),
    *("processor", "framework", "framework_version", "dtype", "accumulate", "math_mode"),
    *("shape", "scope", "threads", "median_s", "ci95_low_s", "ci95_high_s"),
    *("repeat95_low_s", "repeat95_high_s", "throughput", "throughput_unit", "percent_of_peak"),
    *("percent_of_copy", "joules_per_op", "converged", "verified", "doubts", "error"),
    *("time_s", "clock", "cpu_median_s", "waited_percent"),
)
#: Columns that are fields of a row.
_AS_IN_ROWS = (
    *("kernel", "variant", "device", "gpu_uuid", "threads", "median_s", "percent_of_peak"),
    *("percent_of_copy", "joules_per_op", "converged", "time_s", "cpu_median_s", "waited_percent"),
)
#: Those of a comparison. Both figures are in `unit`, and `ratio` is now over before.
COMPARED_COLUMNS = (
    *("id", "device", "status", "unit", "direction", "before", "now", "ratio", "ratio_low"),
    *("ratio_high", "tolerance_percent", "before_count", "now_count", "class", "reason"),
    *("before_time", "now_time", "before_host", "now_host"),
)
#: Columns that are fields of a compared row.
_AS_COMPARED = (
    *("id", "device", "status", "unit", "direction", "ratio", "tolerance_percent", "reason"),
)


def rows(report: Report, view: View) -> tuple[Sequence[str], list[list[Value]]]:
    """Return the heading of CSV and a row for each measurement, those without a figure included."""
    result = report.result
    if not isinstance(result, BenchResult):
        return COLUMNS, []
    where = {"time": report.time, "host": report.host.name}
    where["driver_version"] = report.host.driver_version
    names = _processors(result)
    cells = [
        {**where, "processor": names.get(row.device), **_cells(row)} for row in result.measurements
    ]
    return COLUMNS, [[each[column] for column in COLUMNS] for each in cells]


def _cells(row: Measurement) -> dict[str, Value]:
    use, rate = row.framework, row.throughput
    return {
        **{name: getattr(row, name) for name in _AS_IN_ROWS},
        "id": row.id or row_id(row),
        "framework": None if use is None else use.name,
        "framework_version": None if use is None else use.version,
        "dtype": row.dtype.input,
        "accumulate": row.dtype.accumulate,
        "math_mode": row.dtype.math_mode,
        "shape": "x".join(str(edge) for edge in row.shape),
        "scope": row.scope.value,
        **_ends("ci95", row.ci95_s),
        **_ends("repeat95", row.repeat95_s),
        "throughput": None if rate is None else rate.value,
        "throughput_unit": None if rate is None else rate.unit,
        "verified": None if row.verified is None else row.verified.ok,
        "doubts": " ".join(doubt.code for doubt in row.doubts) or None,
        "error": None if row.error is None else row.error.message,
        "clock": row.clock.value,
    }


def _ends(name: str, interval: tuple[float, float] | None) -> dict[str, Value]:
    low, high = interval or (None, None)
    return {f"{name}_low_s": low, f"{name}_high_s": high}


def _processors(result: BenchResult) -> dict[str, str | None]:
    """Return the name of each device's processor: the GPU's, or the CPU's."""
    found = result.environment
    return {"cpu": found.cpu_model} | {gpu.device: gpu.name for gpu in found.gpus}


def compared_rows(report: Report, view: View) -> tuple[Sequence[str], list[list[Value]]]:
    """Return the heading of CSV and a row for each that was compared."""
    found = report.result
    if not isinstance(found, RunComparison):
        return COMPARED_COLUMNS, []
    runs: dict[str, Value] = {"before_time": found.first.time, "now_time": found.second.time}
    runs |= {"before_host": found.first.host, "now_host": found.second.host}
    cells = [{**_compared_cells(row), **runs} for row in found.rows]
    return COMPARED_COLUMNS, [[each[column] for column in COMPARED_COLUMNS] for each in cells]


def _compared_cells(row: ComparedRow) -> dict[str, Value]:
    low, high = row.interval or (None, None)
    return {
        **{name: getattr(row, name) for name in _AS_COMPARED},
        "before": row.first,
        "now": row.second,
        "ratio_low": low,
        "ratio_high": high,
        "before_count": row.first_count,
        "now_count": row.second_count,
        "class": row.class_,
    }


def records(result: object) -> Iterator[tuple[str, object]]:
    """Yield the lines of a result: rows, speed-ups, gates, corruption, devices, compared rows."""
    if isinstance(result, BenchResult):
        yield from (("measurement", row) for row in result.measurements)
        yield from (("comparison", one) for one in result.comparisons)
        yield from (("corruption", one) for one in result.corruption)
    if isinstance(result, BurnResult):
        yield from (("device", one) for one in result.devices)
    if isinstance(result, BenchResult | BurnResult):
        yield from (("gate", gate) for gate in result.gates)
    if isinstance(result, RunComparison):
        yield from (("row", row) for row in result.rows)
