"""One benchmark run: plan, measure in rounds, assemble the result."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from gpucheck.bench import stats
from gpucheck.bench.case import Case, CaseOrder, Kernel
from gpucheck.bench.comparison import compare, headline, is_known, maker_of
from gpucheck.bench.doubts import doubts_about, is_disturbed
from gpucheck.bench.environment import (
    WSL_NOTE,
    HostShare,
    RowEnvironment,
    RunEnvironment,
    blas_text,
    environment_of,
    explain_slow_blas,
    gpu_notes,
)
from gpucheck.bench.framework_case import framework_cases
from gpucheck.bench.framework_conclusions import framework_conclusions, with_framework_doubts
from gpucheck.bench.frameworks import Frameworks
from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.model import (
    BenchResult,
    Conclusion,
    Measurement,
    Roofline,
    Telemetry,
    Throughput,
    is_wrong,
    shared_fields,
)
from gpucheck.bench.numerics import DESCRIPTIONS, HostData
from gpucheck.bench.plan import (
    ENERGY_S,
    PRECISIONS,
    ROUNDS,
    WARMUPS_S,
    Group,
    Plan,
    Resources,
    select_devices,
)
from gpucheck.bench.request_model import BenchRequest, SampleDetail
from gpucheck.bench.roofline import (
    doubts_about_roofline,
    rooflines_of,
    with_board,
    with_percentages,
)
from gpucheck.bench.sampler import CaseState
from gpucheck.bench.scheduler import (
    HostRates,
    Progress,
    Settings,
    estimate_costs,
    measure,
    measure_host_rates,
    name_budget,
    shortage,
)
from gpucheck.bench.telemetry import Observer
from gpucheck.drivers.gpu import BenchGpu, OpenedGpus
from gpucheck.drivers.host.blas import Blas
from gpucheck.drivers.host.clock import Clock
from gpucheck.drivers.host.cpu import CpuLoad, LinuxCpu
from gpucheck.report.text import group_by

#: Share of the free memory that inputs may occupy between rounds.
_KEPT_SHARE = 0.25
_LARGE_BYTES = 32 * 2**20
_INTERVALS = ("ci95_s", "repeat95_s")


@dataclass(slots=True, kw_only=True)
class _GroupRun:
    """Group with its inputs, its states, and the host's other load during its slices."""

    group: Group
    inputs: HostData
    states: Sequence[CaseState]
    host: HostShare


@dataclass(kw_only=True)
class Bench:
    """Benchmark of what a request names, on the processor and on the given GPUs.

    `frameworks` are measured beside gpucheck's own kernels; their children have been started.
    """

    request: BenchRequest
    clock: Clock
    cpu: LinuxCpu
    blas: Blas
    gpus: OpenedGpus
    run_environment: RunEnvironment = field(default_factory=RunEnvironment)
    kernels: Mapping[str, Kernel] = field(default_factory=lambda: KERNELS)
    frameworks: Frameworks = field(default_factory=Frameworks)

    def _plan_run(self) -> None:
        """Select the devices and plan what to measure on them."""
        run_environment = self.run_environment
        self._observer = Observer(
            run_environment.sensors,
            own_pid=os.getpid(),
            before=run_environment.processes,
            claims=run_environment.claims,
            children=self.frameworks.pids,
        )
        with_cpu, chosen = select_devices(self.request.devices, self.gpus)
        self._devices = {gpu.facts.cuda_index: gpu for gpu in self.gpus.devices}
        self._facts = self.cpu.facts()
        self._boards = tuple(_described(gpu, run_environment) for gpu in chosen)
        self._plan = Plan(
            self.request,
            self.kernels,
            Resources(
                with_cpu=with_cpu,
                gpus=self._boards,
                host_bytes=self._facts.memory_available_bytes,
                cache_bytes=self._facts.last_level_bytes,
                holders=run_environment.holders,
                variables=run_environment.variables,
                frameworks=tuple(member.name for member in self.frameworks.members),
            ),
        )
        self._kept: dict[str, object] = {}
        self._start_s: float
        self._load: CpuLoad
        self._host_rates: HostRates | None
        self._group_runs: list[_GroupRun] = []

    def run(
        self,
        progress: Progress = lambda label, fraction, seconds_left: None,
        watch: Callable[[Sequence[CaseState]], None] | None = None,
        offer: Callable[[Callable[[], BenchResult]], None] | None = None,
    ) -> BenchResult:
        """Measure every group and assemble the result.

        A row that fails carries its error, and the others continue. An interrupt keeps what was
        measured (`result.interrupted`). Without a GPU the processor's rows come with
        `gpu_unavailable`. Before measuring, `watch` receives the rows' states, to look at whenever
        `progress` is called, and `offer` receives a function that returns the result so far, for
        another thread to call when the driver hangs.

        Raises:
            WrongUseError: the request is invalid or does not fit into memory.
            MissingError: nothing that it names is on this machine.
        """
        self._plan_run()
        if offer is not None:
            offer(self.so_far)
        try:
            self.frameworks.wait(lambda text: progress(text, 0.0, self._plan.budget_s))
            self._start_s, self._load = self.clock(), self.cpu.load()
            self._observer.start(gpu.uuid for gpu in self._boards if gpu.uuid is not None)
            self._host_rates = measure_host_rates(self.clock, self.blas)
            self._group_runs = [self._prepare(group) for group in self._plan.groups]
            states = self._states()
            estimate_costs(states, self._host_rates, self._boards)
            if watch is not None:
                watch(states)
            interrupted = measure(
                [alternating(group_run.states) for group_run in self._group_runs],
                self._settings(),
                self.clock,
                progress,
                self.run_environment.sensors.joules,
                self._watched,
            )
            return self._result(interrupted=interrupted)
        finally:
            self.run_environment.sensors.close()

    def _states(self) -> list[CaseState]:
        return [state for group_run in self._group_runs for state in group_run.states]

    def so_far(self) -> BenchResult:
        """Return the result so far, marked as interrupted, while measuring is stuck."""
        for state in self._states():
            state.interrupted = state.active
        return self._result(interrupted=True)

    def _result(self, *, interrupted: bool) -> BenchResult:
        group_runs, seconds = self._group_runs, self.clock() - self._start_s
        name_budget(self._states())
        host = HostShare(facts=self._facts)
        host.add(self._load, self.cpu.load(), seconds)
        limits, rows = (
            [
                row
                for group_run in group_runs
                if group_run.group.limit is limit
                for row in self._rows(group_run)
            ]
            for limit in (True, False)
        )
        measured = [*limits, *rows]
        rooflines = rooflines_of(measured)
        rows = [self._with_roofline(row, rooflines, measured) for row in rows]
        load, request = host.state(), self.request
        environment = environment_of(
            *(self.cpu, self._facts, self.blas, self.gpus),
            gpus=self._boards,
            rooflines=rooflines,
            frameworks=self.frameworks.facts(),
            variables=dict(self.run_environment.variables),
            load_average_1m=self._load.load_average_1m,
            other_load_percent=load.others_percent,
            steal_percent=load.steal_percent,
            duration_s=seconds,
            budget_s=self._plan.budget_s,
            seed=request.seed,
            data=DESCRIPTIONS[request.fill],
            mode=request.mode,
        )
        rows = with_framework_doubts(rows, environment.frameworks)
        comparisons = compare(rows, self._faster_cpu())
        conclusions = (
            *self._conclusions([row for row in rows if row.framework is None]),
            *framework_conclusions(
                rows, comparisons, environment.frameworks, blas_text(environment)
            ),
        )
        makers = {row.framework.name for row in rows if row.framework is not None}
        short = shortage(self._states(), self._plan.budget_s)
        if self.request.samples is SampleDetail.SUMMARY:
            rows = [replace(row, samples_s=(), cpu_samples_s=(), warmup_s=()) for row in rows]
        return BenchResult(
            measurements=tuple(rows),
            comparisons=comparisons,
            environment=environment,
            conclusions=conclusions,
            telemetry=self._telemetry() if self._boards else None,
            notes=(
                *self.run_environment.notes,
                *((WSL_NOTE,) if self.run_environment.host.is_wsl and self._boards else ()),
                *gpu_notes(self._boards),
                *self._plan.notes,
                *self.frameworks.without_rows(makers, on_gpus=bool(self._boards)),
                *([] if short is None else [short]),
            ),
            headline=headline(comparisons),
            interrupted=interrupted,
        )

    def _telemetry(self) -> Telemetry:
        telemetry = self._observer.result()
        if self.request.samples is not SampleDetail.SUMMARY:
            return telemetry
        why = {"history": "left out by --samples summary"}
        gpus = (
            replace(gpu, history=None, unavailable=gpu.unavailable | why) for gpu in telemetry.gpus
        )
        return replace(telemetry, gpus=tuple(gpus))

    def _kept_from_bytes(self, group: Group) -> float:
        """Return the size from which a group's inputs are kept, not drawn anew for each round.

        Inputs for GPUs alone are copied to fresh memory anyway. The placement of large inputs
        matters little: they have so many pages that good and bad ones average out.
        """
        free_bytes = self._facts.memory_available_bytes
        needed_bytes = sum(
            group.kernel.host_bytes(group.shape, group.dtype, len(group.gpus))
            for group in self._plan.groups
        )
        if free_bytes is None or needed_bytes >= _KEPT_SHARE * free_bytes:
            return math.inf
        return _LARGE_BYTES if group.with_cpu else 0.0

    def _prepare(self, group: Group) -> _GroupRun:
        inputs = HostData(
            self.request.seed,
            self.request.fill,
            kept_from_bytes=self._kept_from_bytes(group),
            kept=self._kept,
        )
        states: list[CaseState] = []
        for case in self._cases(group, inputs):
            maker = (case.label.device, maker_of(case.label))
            state = CaseState(
                case=case,
                near_cpus=self.run_environment.near_cpus.get(case.label.gpu_uuid or ""),
                reference=any(
                    (item.case.label.device, maker_of(item.case.label)) == maker for item in states
                ),
                limit=group.limit,
            )
            states.append(state)
        states += [
            CaseState(case=case, error=error)
            for number, error in group.taken.items()
            for case in self._cases(group, inputs, number)
        ]
        return _GroupRun(
            group=group, inputs=inputs, states=states, host=HostShare(facts=self._facts)
        )

    def _cases(self, group: Group, inputs: HostData, taken: int | None = None) -> Iterator[Case]:
        """Yield a group's cases, or those that a GPU would run whose memory others have taken."""
        numbers = group.gpus if taken is None else frozenset((taken,))
        of_all = group.gpus if taken is None else group.gpus | group.taken.keys()
        order = self._order(group, inputs, of_all)
        if taken is None and group.with_cpu:
            yield from group.kernel.cpu_cases(order)
        for number, gpu in self._devices.items():
            if number in numbers:
                yield from group.kernel.gpu_cases(order, gpu)
        places: list[BenchGpu | None] = [
            board for board in self._boards if board.cuda_index in numbers
        ]
        if taken is None and group.frameworks_on_cpu:
            places.insert(0, None)
        for framework in () if group.limit else self.frameworks.members:
            for place in places:
                yield from framework_cases(group.kernel, order, framework, place)

    def _order(self, group: Group, inputs: HostData, numbers: Container[int]) -> CaseOrder:
        gpus = [gpu for number, gpu in self._devices.items() if number in numbers]
        return CaseOrder(
            request=group.request,
            shape=group.shape,
            dtype=group.dtype,
            data=inputs,
            cpu=self._facts,
            clock=self.clock,
            blas=self.blas,
            gpus=gpus,
            slowdown=1.0 if self._host_rates is None else self._host_rates.slowdown,
        )

    def _settings(self) -> Settings:
        """Return the settings; energy gets at most half of the time, samples the rest."""
        mode, budget_s = self.request.mode, self._plan.budget_s
        on_gpu = sum(
            state.case.label.gpu_uuid is not None and not group_run.group.limit
            for group_run in self._group_runs
            for state in group_run.states
        )
        energy_s = min(ENERGY_S[mode], budget_s / 2 / max(on_gpu, 1))
        return Settings(
            budget_s=budget_s - energy_s * on_gpu,
            warmup_s=WARMUPS_S[mode],
            energy_s=energy_s,
            rounds=ROUNDS[mode],
            wanted=PRECISIONS[mode],
        )

    @contextmanager
    def _watched(self, place: int) -> Iterator[None]:
        """Read the host's load and the sensors before and after a group's slices."""
        group_run = self._group_runs[place]
        start_s, load = self.clock(), self.cpu.load()
        try:
            yield
        finally:
            seconds = self.clock() - start_s
            group_run.host.add(load, self.cpu.load(), seconds)
            self._observer.end_slices(id(group_run), seconds)
            # The next group needs this memory, and the next round needs different memory.
            group_run.inputs.renew()

    def _rows(self, group_run: _GroupRun) -> list[Measurement]:
        host, rows = group_run.host.state(), []
        slow_blas = explain_slow_blas(
            self.blas.read(), self._facts.instruction_sets, self.run_environment.variables
        )
        for state in group_run.states:
            uuid = state.case.label.gpu_uuid
            gpu = self._observer.state(uuid, state.slices_s, id(group_run))
            board = next((item for item in self._boards if uuid and item.uuid == uuid), None)
            # Newer CUDA drivers do not report the highest clock, so NVML comes first.
            clocks = (gpu.clock_sm_max_mhz, board and board.clock_sm_max_mhz)
            environment = replace(
                host,
                gpu=gpu,
                fill=self.request.fill,
                far=uuid in self.run_environment.far,
                integrated=bool(board and board.integrated),
                chip_to_chip=bool(board and board.is_linked_chip_to_chip),
                wsl=self.run_environment.host.is_wsl,
                clock_max_mhz=next((clock for clock in clocks if clock), None),
                slow_blas=slow_blas,
            )
            rows.append(to_measurement(state, environment))
        return rows

    def _with_roofline(
        self, row: Measurement, rooflines: Sequence[Roofline], measured: Sequence[Measurement]
    ) -> Measurement:
        """Return the row compared with its roofline, with the doubts that follow."""
        row = with_percentages(row, rooflines, self._boards, measured)
        gpu = next((gpu for gpu in self._boards if row.device == gpu.device), None)
        unavailable = row.unavailable
        if gpu is not None and ENERGY_S[self.request.mode] > 0 and row.joules_per_op is None:
            unavailable = unavailable | {"joules_per_op": "the GPU's energy was not counted here"}
        doubts = (*row.doubts, *doubts_about_roofline(row, gpu))
        return replace(row, doubts=doubts, unavailable=unavailable)

    def _faster_cpu(self) -> dict[str, str]:
        """Return, by kernel, how to get a CPU side that is known to be faster."""
        cases = [state.case for state in self._states()]
        return {case.label.kernel: case.faster_version for case in cases if case.faster_version}

    def _conclusions(self, rows: Sequence[Measurement]) -> tuple[Conclusion, ...]:
        """Return the conclusions from rows that are known well enough, and from accuracies.

        The host's other work hardly touches the figures of a GPU.
        """
        conclusions: list[Conclusion] = []
        faster_cpu = self._faster_cpu()
        for name in dict.fromkeys(row.kernel for row in rows):
            good = [
                row
                for row in rows
                if row.kernel == name
                and row.error is None
                and (
                    is_known(row)
                    or "accuracy" in row.facts
                    or (row.device != "cpu" and row.ci95_s is not None)
                )
            ]
            if name in self.kernels:
                conclusions.extend(self.kernels[name].conclude(good))
            on_cpu = [row for row in good if row.device == "cpu"]
            if name in faster_cpu and 0 < len(on_cpu) < len(good):
                text = (
                    f"compiled by numba, the processor's {name} is several times faster: "
                    f"{faster_cpu[name]}"
                )
                conclusions.append(Conclusion.of(on_cpu[0], "faster-cpu-kernel", text))
        return tuple(conclusions)


def to_measurement(state: CaseState, environment: RowEnvironment) -> Measurement:
    """Return the row of a state, with figures computed from its samples.

    Each round counts the same. A wrong result has samples, and no figure made of them.
    """
    label, work = state.case.label, state.case.work
    samples, medians = state.samples_s, [] if is_wrong(state.verified) else state.medians_s
    rounds = state.rounds_s if medians else []
    time_s = state.estimator.run_figure(rounds) if rounds else None
    cpu = state.cpu_samples_s if medians else []
    settled = state.converged and not (label.device == "cpu" and is_disturbed(state, environment))
    doubts = doubts_about(state, environment)
    return Measurement(
        **shared_fields(label, Measurement),
        flops=work.flops,
        bytes_moved=work.bytes_moved,
        loops=state.loops if samples else None,
        samples_s=tuple(samples),
        round_sizes=tuple(len(round_s) for round_s in state.rounds if round_s),
        round_medians_s=tuple(medians),
        warmup_s=tuple(state.warmup_s),
        cold_s=state.cold_s,
        summary=stats.summarise(samples) if medians else None,
        time_s=time_s,
        clock=state.clock,
        ci95_s=state.estimator.interval(rounds),
        repeat95_s=state.estimator.repeat_interval(rounds),
        median_s=stats.median(medians) if medians else None,
        cpu_samples_s=tuple(cpu),
        cpu_median_s=stats.median(cpu) if cpu else None,
        waited_percent=state.waited_percent if cpu else None,
        converged=settled and not is_wrong(state.verified),
        throughput=Throughput(value=work.amount / time_s, unit=work.unit) if time_s else None,
        sm_clock_mhz=stats.median(state.sm_clocks_mhz) if state.sm_clocks_mhz else None,
        joules_per_op=state.joules_per_op,
        facts=state.facts,
        verified=state.verified,
        doubts=doubts,
        error=state.error,
        interrupted=state.interrupted,
        unavailable=_unavailable(state),
    )


def alternating(states: Sequence[CaseState]) -> list[CaseState]:
    """Return states alternating between devices, so that each soon gets its first row."""
    in_step = zip_longest(*group_by(states, lambda state: state.case.label.device).values())
    return [state for states in in_step for state in states if state is not None]


def _described(gpu: BenchGpu, run_environment: RunEnvironment) -> BenchGpu:
    """Return a GPU with its PCI device id, memory kind and limits."""
    card = run_environment.cards.get(gpu.uuid or "")
    known = replace(
        gpu,
        pci_device_id=card and card.pci_device_id,
        integrated=run_environment.integrated.get(gpu.uuid or "", gpu.integrated),
        virtualization=card and card.virtualization,
    )
    return with_board(known)


def _unavailable(state: CaseState) -> dict[str, str]:
    on_cpu = state.case.label.device == "cpu"
    reasons = {
        "percent_of_peak": "no limit was measured to compare it with",
        "percent_of_copy": "no copy was measured to compare it with",
    }
    if state.joules_per_op is None:
        reasons["joules_per_op"] = (
            "energy is not read on processors" if on_cpu else "only --full counts energy"
        )
    if not state.samples_s or is_wrong(state.verified):
        why = "it was interrupted" if state.interrupted else "see the row's error"
        return reasons | dict.fromkeys(("time_s", "median_s", *_INTERVALS, "throughput"), why)
    if len(state.medians_s) < stats.FEWEST_FOR_INTERVAL:
        needed = f"an interval needs {stats.FEWEST_FOR_INTERVAL} rounds"
        reasons |= dict.fromkeys(_INTERVALS, needed)
    if on_cpu and not state.cpu_samples_s:
        reasons["cpu_median_s"] = "the CPU time of these threads is not read"
    if on_cpu and state.waited_percent is None:
        reasons["waited_percent"] = "known of rows of one thread only, by its CPU time"
    if not on_cpu and not state.sm_clocks_mhz:
        reasons["sm_clock_mhz"] = "timed by the host's clock, or the GPU reported no clock"
    return reasons
