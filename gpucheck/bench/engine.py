"""One benchmark run: plan, measure in rounds, assemble the result."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest

from gpucheck.bench import data
from gpucheck.bench.blas_kernels import older_than_cpu
from gpucheck.bench.case import Case, CaseOrder, Kernel
from gpucheck.bench.compare import compare, headline
from gpucheck.bench.doubts import Around
from gpucheck.bench.environment import HostShare, Span, Surroundings, environment_of, unified_notes
from gpucheck.bench.model import (
    BenchRequest,
    BenchResult,
    Conclusion,
    Measurement,
    Roofline,
    SampleDetail,
)
from gpucheck.bench.plan import (
    ENERGY_S,
    PRECISIONS,
    ROUNDS,
    WARMUPS_S,
    Group,
    Machine,
    asked_devices,
    make_plan,
)
from gpucheck.bench.roofline import board_of, rooflines_of, with_percentages
from gpucheck.bench.roofline_doubts import doubts_about_roofline
from gpucheck.bench.rows import row_of
from gpucheck.bench.sampler import Record
from gpucheck.bench.scheduler import (
    Progress,
    Settings,
    Slot,
    expect,
    leave_out,
    measure,
    measure_host,
    without_interval,
)
from gpucheck.bench.telemetry import GpuState, Observer
from gpucheck.drivers.gpu import BenchGpu, GpuDevice, OpenedGpus
from gpucheck.drivers.host.blas import BlasDoor
from gpucheck.drivers.host.clock import Clock
from gpucheck.drivers.host.cpu import CpuLoad, CpuProbe

#: Share of the free memory that inputs may occupy between rounds.
_ROOMY_SHARE = 0.25
_LARGE_BYTES = 32 * 2**20
#: Boards linked to the host by NVLink-C2C: NVML reports a PCIe link that carries no data.
_GRACE = ("GH200", "GB200", "GB300")


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
    offer: Callable[[Callable[[], BenchResult]], None] | None = None,
    announce: Callable[[str], None] | None = None,
) -> BenchResult:
    """Measure what the request names, on the processor and on the given GPUs.

    A row that fails carries its error, and the others continue. An interrupt keeps what was
    measured (`result.interrupted`). Without a GPU the processor's rows come with `gpu_unavailable`.
    Before measuring, `offer` receives a function that returns the result so far, for another thread
    to call when the driver hangs. `announce` receives a sentence with the rows that the budget is
    too short for; the result's notes repeat it.

    Raises:
        WrongUseError: the request is invalid or does not fit into memory.
        MissingError: nothing that it names is on this machine.
    """
    if kernels is None:
        from gpucheck.bench.kernels import KERNELS

        kernels = KERNELS
    around = around or Surroundings()
    bench = _Bench(request, clock, cpu, blas, gpus, progress, around, kernels)
    if offer is not None:
        offer(bench.so_far)
    try:
        return bench.run(announce)
    finally:
        around.telemeter.close()


@dataclass(slots=True, kw_only=True)
class _Measured:
    """Group with its inputs, its records, and the host's other load during its slices."""

    group: Group
    inputs: data.HostData
    records: Sequence[Record]
    host: HostShare


class _Bench:
    """State of a running benchmark."""

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
        self._around = around
        self._observer = Observer(
            around.telemeter,
            own_pid=os.getpid(),
            before=around.processes,
            claims=around.claims,
        )
        self._with_cpu, self._gpus = asked_devices(request.devices, gpus)
        self._facts = cpu.facts()
        self._boards = tuple(_described(gpu.facts, around) for gpu in self._gpus)
        self._kernels = kernels
        self._plan = make_plan(request, kernels, self._machine())
        self._roomy = self._has_room()
        self._kept: dict[str, object] = {}
        self._start_s: float
        self._load: CpuLoad
        self._measured: list[_Measured] = []
        self._left_out: str | None = None

    def run(self, announce: Callable[[str], None] | None) -> BenchResult:
        """Measure every group and assemble the result."""
        self._start_s, self._load = self._clock.now_s(), self._cpu.load()
        self._observer.start(gpu.uuid for gpu in self._boards if gpu.uuid is not None)
        self._measured = [self._prepared(group) for group in self._plan.groups]
        settings = self._settings(self._measured)
        self._left_out = self._leave_out(settings.budget_s)
        if announce is not None and self._left_out is not None:
            announce(self._left_out)
        interrupted = measure(
            [self._slot(one) for one in self._measured],
            settings,
            self._clock,
            self._progress,
            self._around.telemeter.joules,
        )
        return self._result(interrupted=interrupted)

    def _leave_out(self, budget_s: float) -> str | None:
        """Leave out the rows that the budget is expected to be too short for."""
        records = [record for one in self._measured for record in one.records]
        host = measure_host(self._clock, self._blas)
        expect(records, host, self._boards)
        return leave_out(records, budget_s)

    def _time_notes(self) -> list[str]:
        """Return the notes on rows that lacked time."""
        records = [record for one in self._measured for record in one.records]
        notes = (self._left_out, without_interval(records, self._plan.budget_s))
        return [note for note in notes if note is not None]

    def so_far(self) -> BenchResult:
        """Return the result so far, marked as interrupted, while measuring is stuck."""
        for one in self._measured:
            for record in one.records:
                record.interrupted = record.active
        return self._result(interrupted=True)

    def _result(self, *, interrupted: bool) -> BenchResult:
        measured, span = self._measured, self._span(self._start_s, self._load)
        limits = [row for one in measured if one.group.limit for row in self._rows(one)]
        rows = [row for one in measured if not one.group.limit for row in self._rows(one)]
        rooflines = rooflines_of([*limits, *rows])
        rows = [self._judged(row, rooflines) for row in rows]
        conclusions, comparisons = self._conclusions(rows), compare(rows)
        if self._request.samples is SampleDetail.SUMMARY:
            rows = [replace(row, samples_s=(), warmup_s=()) for row in rows]
        environment = environment_of(
            self._request,
            span,
            self._cpu,
            self._facts,
            self._blas,
            self._opened,
            self._boards,
            rooflines,
            self._around.variables,
        )
        return BenchResult(
            measurements=tuple(rows),
            comparisons=comparisons,
            environment=environment,
            conclusions=conclusions,
            telemetry=self._observer.result() if self._boards else None,
            notes=(
                *self._around.notes,
                *unified_notes(self._boards),
                *self._plan.notes,
                *self._time_notes(),
            ),
            headline=headline(comparisons),
            interrupted=interrupted,
        )

    def _machine(self) -> Machine:
        return Machine(
            with_cpu=self._with_cpu,
            gpus=self._boards,
            host_bytes=self._facts.memory_available_bytes,
            cache_bytes=self._facts.last_level_bytes,
            holders=self._around.holders,
            variables=self._around.variables,
        )

    def _kept_from(self, group: Group) -> float:
        """Return the size from which a group's inputs are kept, not drawn anew for each round.

        Inputs for GPUs alone are copied to fresh memory anyway. The placement of large inputs
        matters little: they have so many pages that good and bad ones average out.
        """
        if not self._roomy:
            return math.inf
        return _LARGE_BYTES if group.with_cpu else 0.0

    def _has_room(self) -> bool:
        """Return whether the inputs of all groups together fit easily into memory."""
        free_bytes = self._facts.memory_available_bytes
        needed_bytes = sum(
            group.kernel.host_bytes(group.shape, group.dtype, len(group.gpus))
            for group in self._plan.groups
        )
        return free_bytes is not None and needed_bytes < _ROOMY_SHARE * free_bytes

    def _prepared(self, group: Group) -> _Measured:
        inputs = data.HostData(
            self._request.seed,
            self._request.fill,
            kept_from_bytes=self._kept_from(group),
            kept=self._kept,
        )
        records: list[Record] = []
        for case in self._cases(group, inputs):
            device = case.label.device
            record = Record(
                case=case,
                near_cpus=self._around.near_cpus.get(case.label.gpu_uuid or ""),
                reference=any(one.case.label.device == device for one in records),
                limit=group.limit,
            )
            records.append(record)
        records += [
            Record(case=case, error=group.taken[gpu.facts.cuda_index])
            for gpu in self._gpus
            if gpu.facts.cuda_index in group.taken
            for case in self._cases_of(group, inputs, gpu)
        ]
        return _Measured(
            group=group, inputs=inputs, records=records, host=HostShare(facts=self._facts)
        )

    def _cases(self, group: Group, inputs: data.HostData) -> list[Case]:
        gpus = [gpu for gpu in self._gpus if gpu.facts.cuda_index in group.gpus]
        order = self._order(group, inputs, gpus)
        cases: list[Case] = []
        if group.with_cpu:
            cases.extend(group.kernel.cpu_cases(order))
        for gpu in gpus:
            cases.extend(group.kernel.gpu_cases(order, gpu))
        return cases

    def _cases_of(self, group: Group, inputs: data.HostData, gpu: GpuDevice) -> Sequence[Case]:
        """Return the cases that a GPU would run if its memory were free."""
        asked = group.gpus | group.taken.keys()
        gpus = [one for one in self._gpus if one.facts.cuda_index in asked]
        return group.kernel.gpu_cases(self._order(group, inputs, gpus), gpu)

    def _order(self, group: Group, inputs: data.HostData, gpus: Sequence[GpuDevice]) -> CaseOrder:
        return CaseOrder(
            request=group.request,
            shape=group.shape,
            dtype=group.dtype,
            data=inputs,
            cpu=self._facts,
            clock=self._clock,
            blas=self._blas,
            gpus=gpus,
        )

    def _settings(self, measured: Sequence[_Measured]) -> Settings:
        """Return the settings; energy gets at most half of the time, samples the rest."""
        mode, budget_s = self._request.mode, self._plan.budget_s
        asked = [one for one in measured if not one.group.limit]
        labels = [record.case.label for one in asked for record in one.records]
        on_gpu = sum(label.gpu_uuid is not None for label in labels)
        energy_s = min(ENERGY_S[mode], budget_s / 2 / max(on_gpu, 1))
        return Settings(
            budget_s=budget_s - energy_s * on_gpu,
            warmup_s=WARMUPS_S[mode],
            energy_s=energy_s,
            rounds=ROUNDS[mode],
            wanted=PRECISIONS[mode],
        )

    def _slot(self, one: _Measured) -> Slot:
        def watch() -> AbstractContextManager[None]:
            return self._watched(one)

        return Slot(records=in_turn(one.records), watch=watch, with_energy=not one.group.limit)

    @contextmanager
    def _watched(self, one: _Measured) -> Iterator[None]:
        """Read the host's load and the sensors before and after a group's slices."""
        start_s, load = self._clock.now_s(), self._cpu.load()
        try:
            yield
        finally:
            seconds = self._clock.now_s() - start_s
            one.host.add(load, self._cpu.load(), seconds)
            self._observer.end_turns(id(one), seconds)
            # The next group needs this memory, and the next round needs different memory.
            one.inputs.renew()

    def _span(self, start_s: float, load: CpuLoad) -> Span:
        seconds = self._clock.now_s() - start_s
        host = HostShare(facts=self._facts)
        host.add(load, self._cpu.load(), seconds)
        return Span(
            seconds=seconds,
            budget_s=self._plan.budget_s,
            host=host.state(),
            load_average_1m=load.load_average_1m,
        )

    def _rows(self, one: _Measured) -> list[Measurement]:
        host, rows = one.host.state(), []
        old_blas = older_than_cpu(
            self._blas.read(), self._facts.instruction_sets, self._around.variables
        )
        for record in one.records:
            uuid = record.case.label.gpu_uuid
            gpu = self._observer.state(uuid, record.turns_s, id(one))
            board = next((one for one in self._boards if uuid and one.uuid == uuid), None)
            around = Around(
                host=host,
                gpu=gpu,
                fill=self._request.fill,
                far=uuid in self._around.far,
                integrated=bool(board and board.integrated),
                chip_to_chip=bool(board and any(name in board.name for name in _GRACE)),
                clock_max_mhz=_highest_clock(board, gpu),
                old_blas=old_blas,
            )
            rows.append(row_of(record, around))
        return rows

    def _judged(self, row: Measurement, rooflines: Sequence[Roofline]) -> Measurement:
        """Return the row compared with its roofline, with the doubts that follow."""
        row = with_percentages(row, rooflines, self._boards)
        gpu = next((gpu for gpu in self._boards if row.device == f"gpu:{gpu.cuda_index}"), None)
        unavailable = row.unavailable
        if gpu is not None and ENERGY_S[self._request.mode] > 0 and row.joules_per_op is None:
            unavailable = unavailable | {"joules_per_op": "the GPU's energy was not counted here"}
        doubts = (*row.doubts, *doubts_about_roofline(row, gpu))
        return replace(row, doubts=doubts, unavailable=unavailable)

    def _conclusions(self, rows: Sequence[Measurement]) -> tuple[Conclusion, ...]:
        """Return the conclusions from rows with intervals, and from accuracies."""
        found: list[Conclusion] = []
        for name in dict.fromkeys(row.kernel for row in rows):
            good = [
                row
                for row in rows
                if row.kernel == name
                and row.error is None
                and (row.ci95_s is not None or "accuracy" in row.facts)
            ]
            if name in self._kernels:
                found.extend(self._kernels[name].conclude(good))
        return tuple(found)


def in_turn(records: Sequence[Record]) -> list[Record]:
    """Return records alternating between devices, so that each soon gets its first row."""
    by_device: dict[str, list[Record]] = {}
    for record in records:
        by_device.setdefault(record.case.label.device, []).append(record)
    turns = zip_longest(*by_device.values())
    return [record for turn in turns for record in turn if record is not None]


def _described(gpu: BenchGpu, around: Surroundings) -> BenchGpu:
    """Return a GPU with its PCI device id, memory kind and limits."""
    known = replace(
        gpu,
        pci_device_id=around.pci_device_ids.get(gpu.uuid or ""),
        integrated=around.integrated.get(gpu.uuid or "", gpu.integrated),
    )
    return replace(known, board=board_of(known))


def _highest_clock(board: BenchGpu | None, gpu: GpuState | None) -> float | None:
    """Return the highest SM clock from NVML, else from CUDA; newer CUDA drivers lack it."""
    if gpu is not None and gpu.clock_sm_max_mhz:
        return gpu.clock_sm_max_mhz
    return board.clock_sm_max_mhz if board is not None else None
