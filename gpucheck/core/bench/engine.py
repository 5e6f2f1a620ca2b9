"""`run_bench`: plans, measures group by group, and puts rows, comparisons and facts together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucheck.core.bench import data, stats
from gpucheck.core.bench.compare import compare
from gpucheck.core.bench.doubts import Around, HostState, doubts_about, doubts_about_limits
from gpucheck.core.bench.kernel import Case, CaseOrder, Kernel
from gpucheck.core.bench.limits import held_against, rooflines_of
from gpucheck.core.bench.peaks import board_of
from gpucheck.core.bench.plan import ENERGY_S, WARMUPS_S, Group, Machine, make_plan
from gpucheck.core.bench.runner import Progress, Record, Settings, measure
from gpucheck.core.bench.telemetry import Observer
from gpucheck.models.bench import (
    BenchEnvironment,
    BenchGpu,
    BenchRequest,
    BenchResult,
    Conclusion,
    Measurement,
    Roofline,
    SampleDetail,
    Throughput,
)
from gpucheck.models.errors import MissingError, WrongUseError
from gpucheck.probes.blas import BlasDoor
from gpucheck.probes.clock import Clock
from gpucheck.probes.cpu import CpuFacts, CpuLoad, CpuProbe
from gpucheck.probes.cupy_device import GpuDevice, OpenedGpus
from gpucheck.probes.telemetry import NoTelemeter, Telemeter

#: A group that only shows a device's limits gets this share of a case's time.
_LIMIT_WEIGHT = 0.5
#: The least part of its planned time that a group gets when those before it took too long.
_LEAST_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the driver knows of the GPUs beyond CUDA, by UUID.

    `pci_device_ids` as NVML gives them, `processes` that used a GPU before we opened it, `claims`
    by whom it is held.
    """

    telemeter: Telemeter = field(default_factory=lambda: NoTelemeter("no GPU is measured"))
    pci_device_ids: Mapping[str, str] = field(default_factory=dict)
    processes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)


def run_bench(
    request: BenchRequest,
    *,
    clock: Clock,
    cpu: CpuProbe,
    blas: BlasDoor,
    gpus: OpenedGpus,
    progress: Progress,
    around: Surroundings | None = None,
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
    around = around or Surroundings()
    bench = _Bench(request, clock, cpu, blas, gpus, progress, around, kernels)
    try:
        return bench.run()
    finally:
        around.telemeter.close()


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
        around: Surroundings,
        kernels: Mapping[str, Kernel],
    ) -> None:
        self._request = request
        self._clock = clock
        self._cpu = cpu
        self._blas = blas
        self._opened = gpus
        self._progress = progress
        self._telemeter = around.telemeter
        self._observer = Observer(
            around.telemeter,
            own_pid=os.getpid(),
            before=around.processes,
            claims=around.claims,
        )
        self._with_cpu, self._gpus = _asked(request.devices, gpus)
        self._facts = cpu.facts()
        self._boards = tuple(_described(gpu.facts, around.pci_device_ids) for gpu in self._gpus)
        self._kernels = kernels
        self._plan = make_plan(request, kernels, self._machine())
        self._later = [self._weight(group) for group in self._plan.groups]
        self._weights_total = sum(self._later) or 1.0
        self._told = [0.0]

    def run(self) -> BenchResult:
        """Measure every group and assemble the result."""
        self._start_s, load = self._clock.now_s(), self._cpu.load()
        rows: list[Measurement] = []
        limits: list[Measurement] = []
        interrupted = False
        self._observer.start(gpu.uuid for gpu in self._boards if gpu.uuid is not None)
        for group in self._plan.groups:
            if interrupted:
                found = self._skipped(group)
            else:
                try:
                    found, interrupted = self._measure_group(group)
                except KeyboardInterrupt:  # between two cases, where no row is at work
                    found, interrupted = self._skipped(group), True
            (limits if group.limit else rows).extend(found)
        rooflines = rooflines_of([*limits, *rows])
        rows = [self._judged(row, rooflines) for row in rows]
        conclusions, comparisons = self._conclusions(rows), compare(rows)
        if self._request.samples is SampleDetail.SUMMARY:
            rows = [replace(row, samples_s=(), warmup_s=()) for row in rows]
        return BenchResult(
            measurements=tuple(rows),
            comparisons=comparisons,
            environment=self._environment(load, rooflines),
            conclusions=conclusions,
            telemetry=self._observer.result() if self._boards else None,
            notes=self._plan.notes,
            interrupted=interrupted,
        )

    def _machine(self) -> Machine:
        return Machine(
            with_cpu=self._with_cpu,
            gpus=self._boards,
            host_bytes=self._facts.memory_available_bytes,
            gpu_bytes=min((gpu.memory_free_bytes for gpu in self._boards), default=None),
        )

    def _cases(self, group: Group) -> list[Case]:
        gpus = [gpu for gpu in self._gpus if gpu.facts.cuda_index in group.gpus]
        order = CaseOrder(
            request=group.request,
            shape=group.shape,
            dtype=group.dtype,
            data=data.HostData(self._request.seed, self._request.fill),
            cpu=self._facts,
            clock=self._clock,
            blas=self._blas,
            gpus=gpus,
        )
        cases: list[Case] = []
        if group.with_cpu:
            cases.extend(group.kernel.cpu_cases(order))
        for gpu in gpus:
            cases.extend(group.kernel.gpu_cases(order, gpu))
        return cases

    def _weight(self, group: Group) -> float:
        return len(self._cases(group)) * (_LIMIT_WEIGHT if group.limit else 1.0)

    def _settings(self, cases: Sequence[Case]) -> Settings:
        """Return a group's time: its share of what is left, so that early groups' rest is used."""
        left_s = self._plan.budget_s - (self._clock.now_s() - self._start_s)
        share_s = max(0.0, left_s) * self._later[0] / (sum(self._later) or 1.0)
        # Whatever the groups before it took, a group gets some of its own time.
        planned_s = self._plan.budget_s * self._later[0] / self._weights_total
        share_s = max(share_s, _LEAST_SHARE * planned_s)
        energy_s = ENERGY_S[self._request.mode]
        on_gpu = sum(case.label.gpu_uuid is not None for case in cases)
        return Settings(
            # The energy's own time is in the mode's budget, but at most half of the share.
            budget_s=share_s - min(share_s / 2, energy_s * on_gpu),
            warmup_s=min(WARMUPS_S[self._request.mode], share_s / 4 / max(len(cases), 1)),
            energy_s=min(energy_s, share_s / 2 / max(on_gpu, 1)),
        )

    def _measure_group(self, group: Group) -> tuple[list[Measurement], bool]:
        start_s, load = self._clock.now_s(), self._cpu.load()
        cases = self._cases(group)
        settings = self._settings(cases)
        left_s = self._plan.budget_s - (start_s - self._start_s)
        later_s = max(0.0, left_s - settings.budget_s)
        progress = _Part(self._progress, self._told, self._plan.budget_s, later_s)
        records = measure(cases, settings, self._clock, progress, self._telemeter)
        self._later.pop(0)
        self._observer.end_group()
        seconds = self._clock.now_s() - start_s
        host = host_state(load, self._cpu.load(), seconds, self._facts)
        interrupted = any(record.interrupted for record in records)
        rows = []
        for record in records:
            gpu = self._observer.state(record.case.label.gpu_uuid, record.turns_s, seconds)
            around = Around(host=host, gpu=gpu, fill=self._request.fill)
            rows.append(row_of(record, around))
        return rows, interrupted

    def _skipped(self, group: Group) -> list[Measurement]:
        """Return the rows of a group that an interrupt kept from starting."""
        idle = Around(host=HostState(others_percent=None, steal_percent=None))
        cases = self._cases(group)
        return [row_of(Record(case=case, interrupted=True), idle) for case in cases]

    def _judged(self, row: Measurement, rooflines: Sequence[Roofline]) -> Measurement:
        """Return the row held against its limits, with the doubts that raises."""
        row = held_against(row, rooflines, self._boards)
        board = next(
            (gpu.board for gpu in self._boards if row.device == f"gpu:{gpu.cuda_index}"), None
        )
        return replace(row, doubts=(*row.doubts, *doubts_about_limits(row, board)))

    def _conclusions(self, rows: Sequence[Measurement]) -> tuple[Conclusion, ...]:
        found: list[Conclusion] = []
        for name in dict.fromkeys(row.kernel for row in rows):
            good = [
                row
                for row in rows
                if row.kernel == name and row.error is None and row.median_s is not None
            ]
            if name in self._kernels:
                found.extend(self._kernels[name].conclude(good))
        return tuple(found)

    def _environment(self, before: CpuLoad, rooflines: tuple[Roofline, ...]) -> BenchEnvironment:
        import numpy as np

        seconds = self._clock.now_s() - self._start_s
        host = host_state(before, self._cpu.load(), seconds, self._facts)
        blas, facts, reason = self._blas.read(), self._facts, self._opened.unavailable
        unavailable = {
            "cupy_version": None if self._opened.cupy_version else reason or "no GPU was asked for",
            "blas_name": None if blas else "threadpoolctl knows no BLAS in this process",
            "parallel_efficiency": "matmul was not measured at one and at all threads",
        }
        efficiency = parallel_efficiency(rooflines)
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
            gpus=self._boards,
            gpu_unavailable=reason,
            load_average_1m=before.load_average_1m,
            other_load_percent=host.others_percent,
            steal_percent=host.steal_percent,
            parallel_efficiency=efficiency,
            peak_memory_bytes=self._cpu.peak_memory_bytes(),
            duration_s=seconds,
            seed=self._request.seed,
            data=data.DESCRIPTIONS[self._request.fill],
            mode=self._request.mode,
            budget_s=self._plan.budget_s,
            rooflines=rooflines,
            unavailable={field: why for field, why in unavailable.items() if why},
        )


class _Part:
    """The progress of the whole run, told by one group of it.

    `later_s` is the time after this group. The share done never goes back.
    """

    def __init__(self, progress: Progress, told: list[float], budget_s: float, later_s: float):
        self._progress = progress
        self._told = told
        self._budget_s = budget_s
        self._later_s = later_s

    def __call__(self, label: str, fraction: float, seconds_left: float) -> None:
        """Pass on the group's progress as the run's."""
        left_s = seconds_left + self._later_s
        self._told[0] = max(self._told[0], min(1.0, 1 - left_s / self._budget_s))
        self._progress(label, self._told[0], left_s)


def _described(gpu: BenchGpu, pci_device_ids: Mapping[str, str]) -> BenchGpu:
    """Return a GPU with its PCI device id and its limits."""
    known = replace(gpu, pci_device_id=pci_device_ids.get(gpu.uuid or ""))
    return replace(known, board=board_of(known))


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


def row_of(record: Record, around: Around) -> Measurement:
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
        ci95_s=stats.lasting_interval(samples),
        converged=record.converged,
        throughput=Throughput(value=work.amount / median_s, unit=work.unit) if median_s else None,
        sm_clock_mhz=stats.median(record.sm_clocks_mhz) if record.sm_clocks_mhz else None,
        joules_per_op=record.joules_per_op,
        facts=record.facts,
        verified=record.verified,
        doubts=doubts_about(record, around),
        error=record.error,
        interrupted=record.interrupted,
        unavailable=_unavailable(record),
    )


def _unavailable(record: Record) -> dict[str, str]:
    on_cpu = record.case.label.device == "cpu"
    reasons = {
        "percent_of_peak": "no limit was measured to hold it against",
        "percent_of_copy": "no copy was measured to hold it against",
    }
    if record.joules_per_op is None:
        reasons["joules_per_op"] = (
            "processors are not asked for their energy" if on_cpu else "only --full counts energy"
        )
    if not record.samples_s:
        why = "it was interrupted" if record.interrupted else "see the row's error"
        return reasons | dict.fromkeys(("median_s", "ci95_s", "throughput"), why)
    if len(record.samples_s) < stats.FEWEST_FOR_INTERVAL:
        reasons["ci95_s"] = f"an interval needs {stats.FEWEST_FOR_INTERVAL} samples"
    if not on_cpu and not record.sm_clocks_mhz:
        reasons["sm_clock_mhz"] = "timed by the host's clock, or the GPU gave no clock"
    return reasons


def parallel_efficiency(rooflines: Sequence[Roofline]) -> float | None:
    """Return the best product's speed-up by threads, divided by the threads (1 is ideal)."""
    speeds = {
        roofline.threads: roofline.gemm_flops_per_s
        for roofline in rooflines
        if roofline.device == "cpu" and roofline.threads and roofline.gemm_flops_per_s
    }
    most = max(speeds, default=1)
    if most == 1 or 1 not in speeds:
        return None
    return speeds[most] / speeds[1] / most
