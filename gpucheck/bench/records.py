"""Rows and metrics of `bench`, its burn and `compare` for other programs: CSV, JSON, Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpucheck.bench.ci.model import ComparedRow, RunComparison
from gpucheck.bench.ci.run_data import row_id
from gpucheck.bench.model import BenchResult, BurnResult, Gate, GateStatus, Measurement
from gpucheck.report.envelope import Report
from gpucheck.report.formats.prometheus import Metric, gauge, gpu_labels, ratio
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
    return COLUMNS, [[cell[column] for column in COLUMNS] for cell in cells]


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
    environment = result.environment
    return {"cpu": environment.cpu_model} | {gpu.device: gpu.name for gpu in environment.gpus}


def compared_rows(report: Report, view: View) -> tuple[Sequence[str], list[list[Value]]]:
    """Return the heading of CSV and a row for each that was compared."""
    comparison = report.result
    if not isinstance(comparison, RunComparison):
        return COMPARED_COLUMNS, []
    runs: dict[str, Value] = {
        "before_time": comparison.first.time,
        "now_time": comparison.second.time,
    }
    runs |= {"before_host": comparison.first.host, "now_host": comparison.second.host}
    cells = [{**_compared_cells(row), **runs} for row in comparison.rows]
    return COMPARED_COLUMNS, [[cell[column] for column in COMPARED_COLUMNS] for cell in cells]


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
        yield from (("comparison", item) for item in result.comparisons)
        yield from (("corruption", item) for item in result.corruption)
    if isinstance(result, BurnResult):
        yield from (("device", item) for item in result.devices)
    if isinstance(result, BenchResult | BurnResult):
        yield from (("gate", gate) for gate in result.gates)
    if isinstance(result, RunComparison):
        yield from (("row", row) for row in result.rows)


Labels = dict[str, str | None]
#: UUID -> name of the GPU.
Names = Mapping[str | None, str]

#: Unit of a row's throughput -> the metric and its help text.
_THROUGHPUT = {
    "FLOP/s": ("gpucheck_bench_flop_per_second", "Floating-point operations per second."),
    "B/s": ("gpucheck_bench_bytes_per_second", "Bytes moved per second."),
    "image/s": ("gpucheck_bench_images_per_second", "Images trained on per second."),
    "launch/s": ("gpucheck_bench_launches_per_second", "Kernels launched per second."),
}


def metrics(report: Report) -> Iterator[Metric]:
    """Yield the metrics of a benchmark; a row that was not measured has only `verified`."""
    result = report.result
    if not isinstance(result, BenchResult):
        raise TypeError(type(result).__name__)
    names: Names = {gpu.uuid: gpu.name for gpu in result.environment.gpus}
    yield gauge(
        "gpucheck_bench_duration_seconds",
        "Time that the run took.",
        [({}, result.environment.duration_s)],
    )
    yield from _row_metrics([(_labels(row, names), row) for row in result.measurements])
    yield _gates("gpucheck_bench_gate", result.gates, names)
    yield gauge(
        "gpucheck_bench_corrupt_numbers",
        "Numbers that differed between identical products.",
        [
            (_device(item.device, item.gpu_uuid, names), item.mismatches)
            for item in result.corruption
        ],
    )


def burn_metrics(report: Report) -> Iterator[Metric]:
    """Yield the metrics of a burn."""
    result = report.result
    if not isinstance(result, BurnResult):
        raise TypeError(type(result).__name__)
    names = {item.gpu_uuid: item.name or "" for item in result.devices}
    labelled = [(_device(item.device, item.gpu_uuid, names), item) for item in result.devices]
    yield gauge("gpucheck_burn_duration_seconds", "Time under load.", [({}, result.duration_s)])
    yield gauge(
        "gpucheck_burn_flop_per_second",
        "Floating-point operations per second under full load.",
        [(labels, item.flops_per_s) for labels, item in labelled],
    )
    yield gauge(
        "gpucheck_burn_corrupt_numbers",
        "Numbers that differed between identical products.",
        [(labels, item.corruption.mismatches) for labels, item in labelled],
    )
    yield _gates("gpucheck_burn_gate", result.gates, names)


def _gates(name: str, gates: Sequence[Gate], names: Names) -> Metric:
    """Return the states of gates, a series for each state so that none has to vanish."""
    return gauge(
        name,
        "1 for the state of the gate, 0 for the others.",
        [
            (
                {"gate": gate.id, "status": status.value}
                | _device(gate.device, gate.gpu_uuid, names),
                status is gate.status,
            )
            for gate in gates
            for status in GateStatus
        ],
    )


def _row_metrics(rows: list[tuple[Labels, Measurement]]) -> Iterator[Metric]:
    yield gauge(
        "gpucheck_bench_seconds",
        "Time of one operation.",
        [(labels, row.time_s) for labels, row in rows],
    )
    for unit, (name, text) in _THROUGHPUT.items():
        measured = [
            (labels, row.throughput.value)
            for labels, row in rows
            if row.throughput is not None and row.throughput.unit == unit
        ]
        yield gauge(name, text, measured)
    yield gauge(
        "gpucheck_bench_peak_ratio",
        "Throughput over the board's peak.",
        [(labels, ratio(row.percent_of_peak)) for labels, row in rows],
    )
    yield gauge(
        "gpucheck_bench_copy_ratio",
        "Throughput over the copy that this run measured.",
        [(labels, ratio(row.percent_of_copy)) for labels, row in rows],
    )
    yield gauge(
        "gpucheck_bench_verified",
        "1 if the result was right against float64, 0 if it was wrong; absent if not checked.",
        [(labels, None if row.verified is None else row.verified.ok) for labels, row in rows],
    )
    yield gauge(
        "gpucheck_bench_doubts",
        "Number of reasons to distrust the figure.",
        [(labels, len(row.doubts)) for labels, row in rows],
    )


def _labels(row: Measurement, names: Names) -> Labels:
    return {
        "id": row.id or row_id(row),
        "kernel": row.kernel,
        "dtype": row.dtype.format,
        "scope": row.scope.value,
        **_device(row.device, row.gpu_uuid, names),
    }


def _device(device: str, uuid: str | None, names: Names) -> Labels:
    """Return the labels of a device; `gpu`, which is NVML's number, is not known to a benchmark."""
    return {"target": device} | gpu_labels(uuid=uuid, name=names.get(uuid) if uuid else None)
