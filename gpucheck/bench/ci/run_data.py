"""Inputs of the gate evaluation: what a run brought, and each check's values in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucheck.bench import stats
from gpucheck.bench.ci.limits import scale_of
from gpucheck.bench.ci.model import CarriedDoubt, ProcessRun, Reference
from gpucheck.bench.ci.profile_model import Check, Metric, Phase, Profile, Statistic, Target
from gpucheck.bench.kernels import needs_host
from gpucheck.bench.model import Corruption, Gate, GpuTelemetry, Measurement, Scope
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.inventory.model import Gpu
from gpucheck.report.envelope import Failure
from gpucheck.report.text import group_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The machine's GPUs that take part, and how many CUDA sees that `--device` leaves out.

    By the index of a GPU: `pci_device_ids` are NVML's eight digits, `vgpus` those with a share of a
    board, `nvlink_links` the fewest links to another GPU.
    """

    gpus: tuple[Gpu, ...] = ()
    left_out: int = 0
    driver_version: str | None = None
    pci_device_ids: Mapping[int, str] = field(default_factory=dict)
    vgpus: frozenset[int] = frozenset()
    nvlink_links: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """One run of a profile so far; `reference` is the saved run to compare it with."""

    profile: Profile
    node: Node = field(default_factory=Node)
    runs: Sequence[ProcessRun] = ()
    reference: Reference | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices that take part, in their order."""
        if self.profile.match.target is Target.CPU:
            return ("cpu",)
        seen = [f"gpu:{gpu.cuda_index}" for gpu in self.node.gpus if gpu.cuda_index is not None]
        return tuple(dict.fromkeys((*seen, *(run.device for run in self.runs))))

    def runs_of(self, device: str) -> tuple[ProcessRun, ...]:
        """Return a device's processes."""
        return tuple(run for run in self.runs if run.device == device)

    def telemetry_of(self, device: str) -> tuple[GpuTelemetry, ...]:
        """Return the telemetry of a GPU from each process that read its sensors."""
        results = (run.result for run in self.runs_of(device) if run.result is not None)
        return tuple(
            gpu
            for result in results
            if result.telemetry is not None
            for gpu in result.telemetry.gpus
            if gpu.reading_count
        )

    def why_no_telemetry(self, device: str) -> str:
        """Return why a device's sensors were not read."""
        for run in self.runs_of(device):
            telemetry = run.result.telemetry if run.result is not None else None
            if telemetry is not None and telemetry.unavailable is not None:
                return telemetry.unavailable
        return "no process read its sensors"

    def uuid_of(self, device: str) -> str | None:
        """Return the UUID of a device, None for the processor or where it is not known."""
        known = (gpu.uuid for gpu in self.node.gpus if f"gpu:{gpu.cuda_index}" == device)
        reported = (run.gpu_uuid for run in self.runs if run.device == device)
        return next((uuid for uuid in (*known, *reported) if uuid is not None), None)

    def identify(self, gates: Iterable[Gate]) -> tuple[Gate, ...]:
        """Return gates with the UUIDs of their devices."""
        return tuple(
            replace(gate, gpu_uuid=gate.gpu_uuid or self.uuid_of(gate.device)) for gate in gates
        )

    def figures(self, check: Check) -> dict[str, MetricValues]:
        """Return a check's figures on every device."""
        return {device: metric_values(check, device, self.runs) for device in self.devices}

    @property
    def corruption(self) -> tuple[Corruption, ...]:
        """Return the corruption checks of every process."""
        results = (run.result for run in self.runs if run.result is not None)
        return tuple(item for result in results for item in result.corruption)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValues:
    """A check on one device: the rows of its processes, and their values in the check's unit.

    `failures` are those of processes and rows that gave none; `gpu` is the device as the first
    process saw it. Rows and values go together; `doubts` are the rows', as far as they are about
    what the figure depends on. Figures of a saved run have no rows.
    """

    device: str
    gpu_uuid: str | None
    rows: tuple[Measurement, ...] = ()
    values: tuple[float, ...] = ()
    failures: tuple[Failure, ...] = ()
    telemetry: tuple[GpuTelemetry, ...] = ()
    gpu: BenchGpu | None = None
    doubts: tuple[CarriedDoubt, ...] = ()

    def since(self, process: int | None) -> MetricValues:
        """Return the figures from a process on, counted from 1; None stands for all.

        Which processes have a doubt is not known, only how many: it counts as theirs.
        """
        if process is None:
            return self
        values = self.values[process - 1 :]
        doubts = tuple(
            replace(item, processes=min(item.processes, len(values))) for item in self.doubts
        )
        return replace(self, values=values, doubts=doubts)

    @property
    def clock_mhz(self) -> float | None:
        """Return the SM clock of the middle process, None where it was not measured."""
        clocks = [row.sm_clock_mhz for row in self.rows if row.sm_clock_mhz is not None]
        return stats.median(clocks) if clocks else None


def metric_values(check: Check, device: str, runs: Sequence[ProcessRun]) -> MetricValues:
    """Return a check's figures on one device.

    All processes give the same row, so that they can be compared: of the rows that fit in most of
    the processes the one of the largest shape, with the most threads, and then the fastest.
    """
    own = [run for run in runs if run.device == device]
    # A single device is alone and together at once.
    own = [run for run in own if run.together is check.together] or own
    keyed = [_rows_by_key(check, run) for run in own]
    chosen = _chosen(keyed)
    picked = [rows[chosen] for rows in keyed if chosen in rows] if chosen is not None else []
    valued = [(row, value) for row in picked if (value := value_of(check, row)) is not None]
    results = [run.result for run in own if run.result is not None]
    gpus = [gpu for result in results for gpu in result.environment.gpus]
    return MetricValues(
        device=device,
        gpu_uuid=next((run.gpu_uuid for run in own if run.gpu_uuid is not None), None),
        rows=tuple(row for row, _ in valued),
        values=tuple(value for _, value in valued),
        failures=tuple(_failures(check, own)),
        telemetry=tuple(
            gpu
            for result in results
            for gpu in (result.telemetry.gpus if result.telemetry is not None else ())
        ),
        gpu=gpus[0] if gpus else None,
        doubts=doubts_of([row for row, _ in valued]),
    )


def doubts_of(rows: Sequence[Measurement]) -> tuple[CarriedDoubt, ...]:
    """Return the doubts of one figure's rows and how many carry each, those of most rows first."""
    doubts = [
        doubt
        for row in rows
        for doubt in row.doubts
        if needs_host(row, row.facts) or doubt.code != "host-busy"
    ]
    same = group_by(doubts, lambda doubt: doubt.code).values()
    carried = [CarriedDoubt(doubt=of[0], processes=len(of)) for of in same]
    return tuple(sorted(carried, key=lambda item: -item.processes))


def _rows_by_key(check: Check, run: ProcessRun) -> Mapping[str, Measurement]:
    """Return the rows of one process that a check is about."""
    return {row_id(row): row for row in run.rows if fits(check, row) and row.time_s}


def row_id(row: Measurement) -> str:
    """Return a row's name, the same in every run: kernel, variant, format, shape and the rest.

    A framework and its form are part of it, its version and its Python are not.
    """
    shape = "x".join(str(edge) for edge in row.shape)
    parts = [row.kernel, row.variant, row.dtype.format, shape]
    if row.framework is not None:
        parts.append(f"framework={row.framework.name}")
        parts.append(f"form={row.framework.form}")
    if row.scope is not Scope.RESIDENT:
        parts.append(row.scope.value)
    if row.threads is not None:
        parts.append(f"threads={row.threads}")
    parts.extend(f"{key}={value}" for key, value in sorted(row.parameters.items()))
    return "/".join(parts)


def fits(check: Check, row: Measurement) -> bool:
    """Return whether a row is one that a check is about."""
    demanded = {**row.parameters, **check.parameters}
    return (
        (row.kernel, row.dtype.format, row.scope) == (check.kernel, check.dtype, check.scope)
        and check.variant in (None, row.variant)
        and _is_made_by(check, row)
        and demanded == row.parameters
    )


def _is_made_by(check: Check, row: Measurement) -> bool:
    """Return whether a row is of the framework that a check names, or of none as the check."""
    if row.framework is None or check.framework is None:
        return row.framework is None and check.framework is None
    return row.framework.name == check.framework and check.form in (None, row.framework.form)


def _chosen(runs: Sequence[Mapping[str, Measurement]]) -> str | None:
    """Return the row that all processes are compared in, None if there is none."""
    every = [(key, row) for rows in runs for key, row in rows.items()]
    if not every:
        return None
    times: dict[str, list[float]] = {}
    for key, row in every:
        times.setdefault(key, []).append(row.time_s or math.inf)
    shapes = {key: math.prod(row.shape) for key, row in every}
    threads = {key: row.threads or 0 for key, row in every}

    def rank(key: str) -> tuple[float, ...]:
        return (len(times[key]), shapes[key], threads[key], -stats.median(times[key]))

    return max(times, key=rank)


def value_of(check: Check, row: Measurement) -> float | None:
    """Return a row's figure in the check's unit, None where it has none that is positive."""
    if check.metric is Metric.FACT:
        fact = row.facts.get(check.fact or "")
        value = float(fact) if isinstance(fact, int | float) else None
    else:
        value = _timed(check, row)
    return value if value is not None and 0 < value < math.inf else None


def _timed(check: Check, row: Measurement) -> float | None:
    """Return the time, or the throughput at that time; a low throughput is a long time."""
    by_time = check.metric is Metric.TIME
    seconds = _seconds(check, row, slow=(check.statistic is Statistic.P90) is by_time)
    if seconds is None or row.time_s is None:
        return None
    if by_time:
        return seconds / scale_of(check.unit)
    if row.throughput is None:
        return None
    return row.throughput.value * row.time_s / seconds / scale_of(check.unit)


def _seconds(check: Check, row: Measurement, *, slow: bool) -> float | None:
    """Return the seconds of one operation that a check looks at; `slow` is the upper quantile."""
    medians = row.round_medians_s
    if check.phase is Phase.FIRST:
        return medians[0] if medians else None
    if check.phase is Phase.STEADY:
        return stats.median(medians[len(medians) // 2 :]) if medians else None
    if check.statistic is Statistic.MEDIAN:
        return row.time_s
    if row.summary is None:
        return None
    return row.summary.p90_s if slow else row.summary.p10_s


def _failures(check: Check, runs: Sequence[ProcessRun]) -> list[Failure]:
    """Return why processes and rows gave no figure, each reason once."""
    failures: dict[Failure, None] = {}
    for run in runs:
        if run.result is None and run.failure is not None:
            failures[run.failure] = None
        for row in run.rows:
            work = (row.kernel, row.dtype.format)
            if row.error and work == (check.kernel, check.dtype) and _is_made_by(check, row):
                failures[row.error] = None
    return list(failures)
