"""Metrics of `gpucheck bench`: time and throughput of each row, gates, corruption, full load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpucheck.bench.ci.run_data import row_id
from gpucheck.bench.model import BenchResult, BurnResult, Gate, GateStatus, Measurement
from gpucheck.report.envelope import Report
from gpucheck.report.formats.prometheus import Metric, gauge, gpu_labels, ratio

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
        [(_device(one.device, one.gpu_uuid, names), one.mismatches) for one in result.corruption],
    )


def burn_metrics(report: Report) -> Iterator[Metric]:
    """Yield the metrics of a burn."""
    result = report.result
    if not isinstance(result, BurnResult):
        raise TypeError(type(result).__name__)
    names = {one.gpu_uuid: one.name or "" for one in result.devices}
    labelled = [(_device(one.device, one.gpu_uuid, names), one) for one in result.devices]
    yield gauge("gpucheck_burn_duration_seconds", "Time under load.", [({}, result.duration_s)])
    yield gauge(
        "gpucheck_burn_flop_per_second",
        "Floating-point operations per second under full load.",
        [(labels, one.flops_per_s) for labels, one in labelled],
    )
    yield gauge(
        "gpucheck_burn_corrupt_numbers",
        "Numbers that differed between identical products.",
        [(labels, one.corruption.mismatches) for labels, one in labelled],
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
