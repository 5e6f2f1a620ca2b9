"""`run_bench`: plans, measures group by group, and puts rows, comparisons and facts together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpucheck.core.bench import data, stats
from gpucheck.core.bench.compare import compare
from gpucheck.core.bench.doubts import HostState, doubts_about
from gpucheck.core.bench.kernel import Case, CaseOrder, Kernel
from gpucheck.core.bench.plan import Group, Memory, Plan, make_plan
from gpucheck.core.bench.runner import Progress, Record, Settings, measure
from gpucheck.models.bench import (
    BenchEnvironment,
    BenchRequest,
    BenchResult,
    Measurement,
    SampleDetail,
    Throughput,
)
from gpucheck.models.errors import MissingError, WrongUseError
from gpucheck.probes.blas import BlasDoor
from gpucheck.probes.clock import Clock
from gpucheck.probes.cpu import CpuFacts, CpuLoad, CpuProbe
from gpucheck.probes.cupy_device import GpuDevice, OpenedGpus


def run_bench(
    request: BenchRequest,
    *,
    clock: Clock,
    cpu: CpuProbe,
    blas: BlasDoor,
    gpus: OpenedGpus,
    progress: Progress,
    kernels: Mapping[str, Kernel] | None = None,
) -> BenchResult:
    """Measure what the request asks for, on the processor and on the GPUs given.

    A failing row carries its error and the others go on; an interrupt keeps what was measured
    (`result.interrupted`). Without a GPU the processor's rows come with `gpu_unavailable`.

    Raises:
        WrongUseError: the request makes no sense or does not fit the memory.
        MissingError: nothing it asks for is on this machine.
    """
    if kernels is None:
        from gpucheck.core.bench.kernels import KERNELS

        kernels = KERNELS
    return _Bench(request, clock, cpu, blas, gpus, progress, kernels).run()


class _Bench:
    """One run on its way."""

    def __init__(
        self,
        request: BenchRequest,
        clock: Clock,
        cpu: CpuProbe,
        blas: BlasDoor,
        gpus: OpenedGpus,
        progress: Progress,
        kernels: Mapping[str, Kernel],
    ) -> None:
        self._request = request
        self._clock = clock
        self._cpu = cpu
        self._blas = blas
        self._opened = gpus
        self._progress = progress
        self._with_cpu, self._gpus = _asked(request.devices, gpus)
        self._facts = cpu.facts()
        self._plan = make_plan(request, kernels, self._memory())

    def run(self) -> BenchResult:
        """Measure every group and assemble the result."""
        start_s, load = self._clock.now_s(), self._cpu.load()
        rows: list[Measurement] = []
        interrupted = False
        for number, group in enumerate(self._plan.groups):
            if interrupted:
                rows.extend(self._skipped(group))
                continue
            try:
                found, interrupted = self._measure_group(group, number)
            except KeyboardInterrupt:  # between two cases, where no row is at work
                found, interrupted = self._skipped(group), True
            rows.extend(found)
        comparisons = compare(rows)
        if self._request.samples is SampleDetail.SUMMARY:
            rows = [replace(row, samples_s=(), warmup_s=()) for row in rows]
        return BenchResult(
            measurements=tuple(rows),
            comparisons=comparisons,
            environment=self._environment(start_s, load, rows),
            notes=self._plan.notes,
            interrupted=interrupted,
        )

    def _memory(self) -> Memory:
        return Memory(
            host_bytes=self._facts.memory_available_bytes,
            gpu_bytes=min((gpu.facts.memory_free_bytes for gpu in self._gpus), default=None),
            gpu_count=len(self._gpus),
        )

    def _cases(self, group: Group) -> list[Case]:
        order = CaseOrder(
            shape=group.shape,
            temperature=self._request.temperature,
            data=data.HostData(self._request.seed),
            cpu=self._facts,
            clock=self._clock,
            blas=self._blas,
        )
        cases: list[Case] = []
        if self._with_cpu:
            cases.extend(group.kernel.cpu_cases(order))
        for gpu in self._gpus:
            cases.extend(group.kernel.gpu_cases(order, gpu))
        return cases

    def _measure_group(self, group: Group, number: int) -> tuple[list[Measurement], bool]:
        start_s, load = self._clock.now_s(), self._cpu.load()
        settings = Settings(budget_s=group.budget_s, warmup_s=group.warmup_s)
        cases = self._cases(group)
        records = measure(cases, settings, self._clock, _Part(self._progress, self._plan, number))
        seconds = self._clock.now_s() - start_s
        host = host_state(load, self._cpu.load(), seconds, self._facts)
        interrupted = any(record.interrupted for record in records)
        return [row_of(record, host) for record in records], interrupted

    def _skipped(self, group: Group) -> list[Measurement]:
        """Return the rows of a group that an interrupt kept from starting."""
        idle = HostState(others_percent=None, steal_percent=None)
        cases = self._cases(group)
        return [row_of(Record(case=case, interrupted=True), idle) for case in cases]

    def _environment(
        self, start_s: float, before: CpuLoad, rows: Sequence[Measurement]
    ) -> BenchEnvironment:
        import numpy as np

        seconds = self._clock.now_s() - start_s
        host = host_state(before, self._cpu.load(), seconds, self._facts)
        blas, facts, reason = self._blas.read(), self._facts, self._opened.unavailable
        unavailable = {
            "cupy_version": None if self._opened.cupy_version else reason or "no GPU was asked for",
            "blas_name": None if blas else "threadpoolctl knows no BLAS in this process",
            "parallel_efficiency": "matmul was not measured at one and at all threads",
        }
        efficiency = parallel_efficiency(rows)
        if efficiency is not None:
            unavailable["parallel_efficiency"] = None
        return BenchEnvironment(
            cpu_model=facts.model,
            logical_cores=facts.logical_cores,
            usable_cores=facts.usable_cores,
            cpu_quota_cores=facts.quota_cores,
            blas_name=blas.name if blas else None,
            blas_version=blas.version if blas else None,
            blas_architecture=blas.architecture if blas else None,
            blas_threads=facts.threads if blas else None,
            numpy_version=np.__version__,
            cupy_version=self._opened.cupy_version,
            gpus=tuple(gpu.facts for gpu in self._gpus),
            gpu_unavailable=reason,
            load_average_1m=before.load_average_1m,
            other_load_percent=host.others_percent,
            steal_percent=host.steal_percent,
            parallel_efficiency=efficiency,
            peak_memory_bytes=self._cpu.peak_memory_bytes(),
            duration_s=seconds,
            seed=self._request.seed,
            data=data.DESCRIPTION,
            mode=self._request.mode,
            budget_s=self._plan.budget_s,
            unavailable={field: why for field, why in unavailable.items() if why},
        )


class _Part:
    """The progress of the whole run, told by one group of it."""

    def __init__(self, progress: Progress, plan: Plan, number: int) -> None:
        self._progress = progress
        self._number = number
        self._count = len(plan.groups)
        self._later_s = sum(group.budget_s for group in plan.groups[number + 1 :])

    def __call__(self, label: str, fraction: float, seconds_left: float) -> None:
        """Pass on the group's progress as the run's."""
        done = (self._number + fraction) / self._count
        self._progress(label, done, seconds_left + self._later_s)


def _asked(devices: Sequence[str], gpus: OpenedGpus) -> tuple[bool, Sequence[GpuDevice]]:
    """Return whether the processor is asked for, and the GPUs that are."""
    known = {f"gpu:{gpu.facts.cuda_index}": gpu for gpu in gpus.devices}
    with_cpu, chosen = False, {}
    for name in devices:
        if name in ("cpu", "all"):
            with_cpu = True
        if name in ("gpu", "all"):
            chosen.update(known)
        elif name in known:
            chosen[name] = known[name]
        elif name != "cpu" and not _is_gpu_name(name):
            raise WrongUseError(
                code="bad-device",
                message=f"bench does not understand the device {name!r}",
                remedy=("choose from: cpu, gpu, gpu:0 (and so on), all",),
            )
    if not with_cpu and not chosen:
        raise MissingError(
            code="no-gpu",
            message=gpus.unavailable or "none of the GPUs asked for is here",
            remedy=("run gpucheck detect", "measure the processor with --device cpu"),
        )
    return with_cpu, list(chosen.values())


def _is_gpu_name(name: str) -> bool:
    return name.startswith("gpu:") and name[4:].isascii() and name[4:].isdigit()


def host_state(before: CpuLoad, after: CpuLoad, seconds: float, facts: CpuFacts) -> HostState:
    """Return what others did between two readings, in percent of the host's cores.

    The kernel counts all processors, also those we may not use, so the share is of all of them.
    """
    capacity_s = seconds * (facts.logical_cores or facts.usable_cores)
    if capacity_s <= 0 or before.busy_s is None or after.busy_s is None:
        return HostState(others_percent=None, steal_percent=None)
    own_s = after.own_s - before.own_s
    others_s = max(0.0, after.busy_s - before.busy_s - own_s)
    steal_s = max(0.0, (after.steal_s or 0.0) - (before.steal_s or 0.0))
    return HostState(
        others_percent=100 * others_s / capacity_s, steal_percent=100 * steal_s / capacity_s
    )


def row_of(record: Record, host: HostState) -> Measurement:
    """Return the row of a record, its figures computed from its samples."""
    label, work, samples = record.case.label, record.case.work, record.samples_s
    median_s = stats.median(samples) if samples else None
    return Measurement(
        kernel=label.kernel,
        variant=label.variant,
        device=label.device,
        gpu_uuid=label.gpu_uuid,
        dtype=label.dtype,
        shape=label.shape,
        scope=label.scope,
        threads=label.threads,
        parameters=label.parameters,
        flops=work.flops,
        bytes_moved=work.bytes_moved,
        loops=record.loops if samples else None,
        samples_s=tuple(samples),
        warmup_s=tuple(record.warmup_s),
        cold_s=record.cold_s,
        summary=stats.summarise(samples) if samples else None,
        median_s=median_s,
        ci95_s=stats.median_interval(samples),
        converged=record.converged,
        throughput=Throughput(value=work.amount / median_s, unit=work.unit) if median_s else None,
        verified=record.verified,
        doubts=doubts_about(record, host),
        error=record.error,
        interrupted=record.interrupted,
        unavailable=_unavailable(record),
    )


def _unavailable(record: Record) -> dict[str, str]:
    reasons = {
        "percent_of_peak": "no table of peaks yet",
        "percent_of_copy": "the copy bandwidth was not measured",
        "joules_per_op": "energy was not measured",
    }
    if not record.samples_s:
        why = "it was interrupted" if record.interrupted else "see the row's error"
        return reasons | dict.fromkeys(("median_s", "ci95_s", "throughput"), why)
    if len(record.samples_s) < stats.FEWEST_FOR_INTERVAL:
        reasons["ci95_s"] = f"an interval needs {stats.FEWEST_FOR_INTERVAL} samples"
    return reasons


def parallel_efficiency(rows: Sequence[Measurement]) -> float | None:
    """Return the matrix product's speed-up by threads, divided by the threads (1 is ideal)."""
    times = {
        row.threads: row.median_s
        for row in rows
        if row.kernel == "matmul" and row.device == "cpu" and row.threads and row.median_s
    }
    most = max(times, default=1)
    if most == 1 or 1 not in times:
        return None
    return times[1] / times[most] / most
