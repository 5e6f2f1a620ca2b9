"""Run of a benchmark in several processes: measure, merge, judge, and return what to save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpucheck.bench.ci.baseline import (
    baseline_against,
    fingerprints_of,
    profile_key,
    row_series,
    saved_run,
)
from gpucheck.bench.ci.compare import compare_runs
from gpucheck.bench.ci.gate_model import Gate, GateStatus, ProfileUse
from gpucheck.bench.ci.gates import (
    failure_of,
    judge,
    judge_machine,
    series_of,
    settled,
    verdict,
    warnings,
)
from gpucheck.bench.ci.model import Baseline, ComparedRow, ProcessRun, SavedRun
from gpucheck.bench.ci.profile_model import (
    InventoryDemands,
    Match,
    Profile,
    RunPlan,
    Stability,
    Target,
)
from gpucheck.bench.ci.run_data import Facts, Node, NodeGpu
from gpucheck.bench.ci.stability_gates import corruption_gates, result_gates
from gpucheck.bench.ci.workers import WorkPlan, collect, was_interrupted, worker_arguments
from gpucheck.bench.model import (
    BenchEnvironment,
    BenchRequest,
    BenchResult,
    Extent,
    GpuTelemetry,
    Telemetry,
)
from gpucheck.bench.plan import BUDGETS_S, check_device_names
from gpucheck.bench.workers import WorkerDevice, Workers, select_worker_devices, worker_devices
from gpucheck.drivers.host.cpu import CpuFacts, LinuxCpu
from gpucheck.drivers.interface import NvmlQuestion, Probes
from gpucheck.drivers.readings import NvmlReading
from gpucheck.inventory.inventory import ListRequest, complete_host, take_inventory
from gpucheck.inventory.model import Gpu, Inventory
from gpucheck.report.envelope import Answer, Failure, Host
from gpucheck.report.errors import (
    ExitCode,
    GpucheckError,
    InconclusiveError,
    MissingError,
    WrongUseError,
)


def wanted_devices(profile: Profile, devices: Sequence[str]) -> tuple[str, ...]:
    """Return the devices that a profile is for: all GPUs if none is named.

    Raises:
        WrongUseError: a device of the other kind is named, or one that is none.
    """
    check_device_names(devices)
    on_cpu = profile.match.target is Target.CPU
    named = tuple(name for name in devices if name != "all")
    wrong = [name for name in named if (name == "cpu") is not on_cpu]
    if wrong:
        kind = "the processor" if on_cpu else "GPUs"
        raise WrongUseError(
            code="other-device",
            message=f"The profile is for {kind}, so it cannot be used with --device {wrong[0]}.",
        )
    return named or (("cpu",) if on_cpu else ("gpu",))


def examine(
    profile: Profile,
    wanted: Sequence[str],
    probes: Probes,
    workers: Workers,
    baseline: SavedRun | None,
    path: Path | None,
    *,
    allowed: Sequence[str] = (),
) -> tuple[Answer, SavedRun | None]:
    """Measure and judge; return the answer and the run to save, None if nothing was measured."""
    topology = profile.inventory.nvlink_links is not None
    reading = probes.nvml(NvmlQuestion(topology=topology))
    host = complete_host(probes.host(), reading)
    found: Inventory | None = None
    if profile.match.target is not Target.CPU:
        answer = _inventory(probes, topology=topology)
        if not isinstance(answer.result, Inventory):
            return answer, None
        found = answer.result
    targets = worker_devices(wanted, found.gpus if found is not None else ())
    if not targets:
        return _no_device(profile, host), None
    node = node_of(found, reading, {worker.device for worker in targets})
    against = _baseline_for(profile, baseline, path, allowed)
    outcome = run_profile(profile, node, targets, workers, against)
    answer = conclude_profile(outcome, host, LinuxCpu().facts())
    return answer, _kept(outcome, probes.time())


def _inventory(probes: Probes, *, topology: bool) -> Answer:
    """Return the GPUs, or the answer without a result that says why there are none."""
    answer = take_inventory(ListRequest(topology=topology), probes)
    if isinstance(answer.result, Inventory) and all(
        gpu.cuda_index is None for gpu in answer.result.gpus
    ):
        # The rules leave open what CUDA sees, so the driver is asked.
        answer = take_inventory(ListRequest(topology=topology, ask_driver=True), probes)
    return answer if answer.exit_code is ExitCode.OK else answer._replace(result=None)


def _no_device(profile: Profile, host: Host) -> Answer:
    failure = Failure(
        code="no-gpu",
        message=f"The profile {profile.name} is for GPUs, and programs see none here.",
        remedy=("gpucheck list shows which are hidden, and why", "gpucheck detect"),
    )
    return Answer(result=None, exit_code=ExitCode.MISSING, host=host, error=failure)


def node_of(found: Inventory | None, reading: NvmlReading, devices: set[str]) -> Node:
    """Return the GPUs that take part, with what only NVML knows about them."""
    if found is None:
        return Node(driver_version=reading.driver_version)
    ids = {gpu.uuid: gpu.pci_device_id for gpu in reading.gpus if gpu.uuid is not None}
    gpus = tuple(
        NodeGpu(
            gpu=gpu,
            device=f"gpu:{gpu.cuda_index}",
            pci_device_id=ids.get(gpu.uuid or ""),
            nvlink_links=_fewest_links(found, gpu.index),
        )
        for gpu in found.gpus
        if gpu.cuda_index is not None and f"gpu:{gpu.cuda_index}" in devices
    )
    return Node(gpus=gpus, driver_version=reading.driver_version)


def _fewest_links(found: Inventory, index: int) -> int | None:
    """Return the fewest NVLink connections to another GPU, None if the topology was not read."""
    links = found.topology.links if found.topology is not None else ()
    kinds = [link.kind for link in links if index in (link.from_, link.to)]
    counts = [int(kind[2:]) if kind.startswith("NV") else 0 for kind in kinds if kind]
    return min(counts, default=None)


def _baseline_for(
    profile: Profile, baseline: SavedRun | None, path: Path | None, allowed: Sequence[str]
) -> Callable[[Sequence[ProcessRun]], Baseline | None]:
    """Return the function that prepares a saved run for comparison with processes."""

    def against(runs: Sequence[ProcessRun]) -> Baseline | None:
        if baseline is None or path is None:
            return None
        return baseline_against(
            baseline, path, fingerprints_of(runs, profile_key(profile)), allowed
        )

    return against


def _kept(outcome: Outcome, time: str) -> SavedRun | None:
    """Return the checks' figures as they are saved for the next run, None if there are none."""
    facts = outcome.facts
    series = series_of(facts)
    if not series:
        return None
    return saved_run(facts.runs, series, time=time, profile=profile_key(facts.profile))


#: Measured if a profile has demands but no checks, as a full load.
_LOAD = "matmul"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a profile's run, and its gates."""

    facts: Facts
    gates: tuple[Gate, ...]


def request_for(profile: Profile) -> BenchRequest:
    """Return what each process of a profile's run measures."""
    run = profile.run
    return BenchRequest(
        kernels=tuple(dict.fromkeys(check.kernel for check in profile.checks)) or (_LOAD,),
        dtypes=tuple(dict.fromkeys(check.dtype for check in profile.checks)),
        size=run.size,
        mode=run.mode,
        seed=run.seed,
        fill=run.fill,
    )


def plan_for(profile: Profile, targets: Sequence[WorkerDevice]) -> WorkPlan:
    """Return the processes of a profile's run."""
    run = profile.run
    return WorkPlan(
        devices=tuple(targets),
        arguments=worker_arguments(request_for(profile), run.corruption_s),
        seconds=run.seconds,
        corruption_s=run.corruption_s,
        processes=run.processes,
        most_processes=run.max_processes,
        alone=run.alone or len(targets) == 1,
        together=run.together and len(targets) > 1,
        each_whole=True,
    )


def run_profile(
    profile: Profile,
    node: Node,
    targets: Sequence[WorkerDevice],
    workers: Workers,
    baseline_for: Callable[[Sequence[ProcessRun]], Baseline | None],
) -> Outcome:
    """Measure until every gate is decided or the processes are used up.

    A machine that the profile is not for is not measured. `baseline_for` is given the processes,
    whose fingerprint decides whether a baseline can be compared with.
    """
    machine = Facts(profile=profile, node=node)
    gates = judge_machine(machine)
    if any(gate.status is GateStatus.FAIL for gate in gates):
        return Outcome(facts=machine, gates=gates)

    def facts_of(runs: Sequence[ProcessRun]) -> Facts:
        return Facts(
            profile=profile, node=node, runs=tuple(runs), baseline=baseline_for(tuple(runs))
        )

    def enough(runs: Sequence[ProcessRun]) -> bool:
        return settled(judge(facts_of(runs)))

    facts = facts_of(collect(plan_for(profile, targets), workers, enough))
    return Outcome(facts=facts, gates=judge(facts))


def conclude_profile(outcome: Outcome, host: Host, cpu: CpuFacts) -> Answer:
    """Wrap a run as bench's answer: its rows, its gates, and the code that they come to.

    What every process lacked (CuPy, say) is code 4. `cpu` is the processor of a report without any
    process that brought a document.
    """
    gates, runs = outcome.gates, outcome.facts.runs
    code, failure = verdict(gates)
    if runs and all(run.exit_code == ExitCode.MISSING and run.result is None for run in runs):
        # Nothing about any GPU was found out: that is no verdict.
        return Answer(result=None, exit_code=ExitCode.MISSING, host=host, error=runs[0].failure)
    if was_interrupted(runs):
        code = ExitCode.INTERRUPTED
        failure = Failure(
            code="interrupted", message="Interrupted: the report has what was measured until then."
        )
    return Answer(
        result=_result(outcome, cpu),
        exit_code=code,
        host=host,
        error=failure,
        warnings=warnings(gates),
    )


def _result(outcome: Outcome, cpu: CpuFacts) -> BenchResult:
    """Return the rows of each device's first process, with the gates and the sensors of all."""
    facts, profile = outcome.facts, outcome.facts.profile
    first: dict[str, BenchResult] = {}
    for run in facts.runs:
        if run.result is not None:
            first.setdefault(run.device, run.result)
    counts = Counter(run.device for run in facts.runs)
    results = list(first.values())
    known = results[0].environment if results else _unmeasured(profile, cpu)
    environment = replace(
        known,
        gpus=tuple(gpu for result in results for gpu in result.environment.gpus),
        duration_s=sum(run.result.environment.duration_s for run in facts.runs if run.result),
    )
    notes = dict.fromkeys(note for result in results for note in result.notes)
    most = max(counts.values(), default=0)
    told = f"the rows are those of each device's first process; {most} processes were started"
    if not facts.runs:
        told = "nothing was measured: the profile is not for this machine"
    return BenchResult(
        measurements=tuple(row for result in results for row in result.measurements),
        comparisons=(),
        environment=environment,
        conclusions=tuple(one for result in results for one in result.conclusions),
        corruption=facts.corruption,
        gates=outcome.gates,
        telemetry=merged_telemetry([run.result for run in facts.runs]),
        profile=ProfileUse(
            name=profile.name,
            version=profile.version,
            path=profile.path,
            digest=profile.digest,
            processes=most,
            max_processes=profile.run.max_processes,
        ),
        notes=(*notes, told),
        interrupted=was_interrupted(facts.runs),
    )


def _unmeasured(profile: Profile, cpu: CpuFacts) -> BenchEnvironment:
    """Return the surroundings of a run in which no process said where it was."""
    from importlib.metadata import version

    reason = "no process returned a document"
    unread = ("blas_name", "cupy_version", "load_average_1m", "parallel_efficiency")
    return BenchEnvironment(
        cpu_model=cpu.model,
        logical_cores=cpu.logical_cores,
        usable_cores=cpu.usable_cores,
        cpu_quota_cores=cpu.quota_cores,
        blas_name=None,
        blas_version=None,
        blas_architecture=None,
        blas_threads=None,
        numpy_version=version("numpy"),
        cupy_version=None,
        gpus=(),
        gpu_unavailable=reason,
        load_average_1m=None,
        other_load_percent=None,
        steal_percent=None,
        parallel_efficiency=None,
        peak_memory_bytes=None,
        duration_s=0.0,
        seed=profile.run.seed,
        data=profile.run.fill.value,
        mode=profile.run.mode,
        budget_s=profile.run.seconds,
        unavailable=dict.fromkeys(unread, reason),
    )


#: Processes of a run that is saved or compared with one, and the factor while undecided.
PROCESSES, _MORE = 5, 2


def work_plan(
    request: BenchRequest,
    gpus: Sequence[Gpu],
    *,
    processes: int,
    corruption_s: float,
    more: bool,
    require_gpu: bool = False,
) -> WorkPlan:
    """Return how the request is repeated: a process for each device, all at once."""
    targets = select_worker_devices(request.devices, gpus, require_gpu=require_gpu)
    seconds = request.budget_s or BUDGETS_S[request.mode]
    return WorkPlan(
        devices=targets,
        arguments=worker_arguments(request, corruption_s),
        seconds=seconds,
        corruption_s=corruption_s,
        processes=processes,
        most_processes=processes * _MORE if more else processes,
        alone=False,
        together=True,
    )


def run_repeated(
    plan: WorkPlan,
    workers: Workers,
    baseline: SavedRun | None,
    path: Path | None,
    *,
    time: str,
    allowed: Sequence[str] = (),
) -> tuple[Answer, SavedRun | None]:
    """Run the processes; return the answer and the run to save.

    There is none to save if it was interrupted or nothing was measured.

    Raises:
        GpucheckError: no process measured anything, for the reason that the first one gave.
    """

    def settled(runs: Sequence[ProcessRun]) -> bool:
        return not any(row.repeat_helps for row in _compared(runs, baseline, path, time, allowed))

    runs = collect(plan, workers, settled)
    result = merged(runs)
    if result is None and was_interrupted(runs):
        return Answer(result=None, exit_code=ExitCode.INTERRUPTED, error=_INTERRUPTED), None
    if result is None:
        raise _nothing(runs)
    facts = Facts(profile=_NO_PROFILE, runs=runs)
    gates = [*result_gates(facts), *corruption_gates(facts)]
    gates += [_gate(row, runs) for row in _compared(runs, baseline, path, time, allowed)]
    interrupted = was_interrupted(runs) or result.interrupted
    result = replace(result, gates=tuple(gates), interrupted=interrupted)
    host = next(run.host for run in runs if run.result is not None)
    answer = _judged(result.gates, Answer(result=result, host=host), interrupted=interrupted)
    series = row_series(runs)
    kept = None
    if series and not interrupted:
        kept = saved_run(runs, series, time=time, profile=None)
    return answer, kept


_INTERRUPTED = Failure(
    code="interrupted", message="Interrupted: the report has what was measured until then."
)
#: Demands only that the processes answer correctly.
_NO_PROFILE = Profile(
    name="none",
    version=1,
    description="",
    path="",
    digest="",
    match=Match(target=Target.GPU),
    inventory=InventoryDemands(),
    run=RunPlan(seconds=0.0),
    checks=(),
    stability=Stability(),
)


def _compared(
    runs: Sequence[ProcessRun],
    baseline: SavedRun | None,
    path: Path | None,
    time: str,
    allowed: Sequence[str],
) -> Sequence[ComparedRow]:
    series = row_series(runs)
    if baseline is None or path is None or not series:
        return ()
    now = saved_run(runs, series, time=time, profile=None)
    found = compare_runs(baseline, now, files=(path, Path()), allowed=allowed)
    there = {run.device for run in runs}
    # A device that is only in the baseline was not requested.
    return [row for row in found.rows if row.device in there]


def _gate(row: ComparedRow, runs: Sequence[ProcessRun]) -> Gate:
    scale = row.first or 1.0
    better = 1 - row.tolerance_percent / 100
    if row.direction.value == "lower":
        better = 1 + row.tolerance_percent / 100
    return Gate(
        id=row.id,
        device=row.device,
        gpu_uuid=next((run.gpu_uuid for run in runs if run.device == row.device), None),
        status=row.status,
        direction=row.direction,
        unit=row.unit,
        measured=row.second,
        limit=None if row.first is None else row.first * better,
        interval=(row.interval[0] * scale, row.interval[1] * scale) if row.interval else None,
        reason=row.reason,
        class_=row.class_,
        repeat_helps=row.repeat_helps,
        next=row.next,
    )


def _judged(gates: Sequence[Gate], answer: Answer, *, interrupted: bool) -> Answer:
    """Return the answer with the code of its worst gate: 130 interrupted, 1 fail, 3 undecided."""
    if interrupted:
        return answer._replace(exit_code=ExitCode.INTERRUPTED, error=_INTERRUPTED)
    for status, code, name, what in (
        (GateStatus.FAIL, ExitCode.BAD, "gate-failed", "failed"),
        (GateStatus.INCONCLUSIVE, ExitCode.INCONCLUSIVE, "gate-undecided", "cannot be decided"),
    ):
        found = [gate for gate in gates if gate.status is status]
        if found:
            return answer._replace(exit_code=code, error=failure_of(name, found, what))
    return answer


def _nothing(runs: Sequence[ProcessRun]) -> GpucheckError:
    """Return the error of a run without any result, of the kind that its processes ended with."""
    failure = next((run.failure for run in runs if run.failure is not None), None)
    code = next((run.exit_code for run in runs if run.exit_code is not None), None)
    failure = failure or Failure(code="nothing-measured", message="no process returned a document")
    kinds: dict[int, type[GpucheckError]] = {2: WrongUseError, 4: MissingError}
    kind = kinds.get(code or 0, InconclusiveError)
    return failure.as_error(kind)


def merged(runs: Sequence[ProcessRun]) -> BenchResult | None:
    """Return one result for all processes, None if none of them has one.

    The rows, comparisons and GPUs are those of each device's first process, preferring one that
    measured together with the others. Sensor readings are joined over the processes.
    """
    best: dict[str, BenchResult] = {}
    for run in sorted(runs, key=lambda run: (not run.together, run.number)):
        if run.result is not None:
            best.setdefault(run.device, run.result)
    if not best:
        return None
    results = [best[device] for device in dict.fromkeys(run.device for run in runs if run.result)]
    answered = [run.result for run in runs if run.result is not None]
    first = results[0]
    environment = replace(
        first.environment,
        gpus=tuple(gpu for one in results for gpu in one.environment.gpus),
        rooflines=tuple(line for one in results for line in one.environment.rooflines),
        duration_s=sum(one.environment.duration_s for one in answered),
    )
    return replace(
        first,
        measurements=tuple(row for one in results for row in one.measurements),
        comparisons=tuple(one for result in results for one in result.comparisons),
        conclusions=tuple(one for result in results for one in result.conclusions),
        corruption=tuple(check for one in answered for check in one.corruption),
        environment=environment,
        telemetry=merged_telemetry(answered),
        notes=tuple(dict.fromkeys(note for one in answered for note in one.notes)),
        interrupted=any(one.interrupted for one in answered),
    )


def merged_telemetry(results: Sequence[BenchResult | None]) -> Telemetry | None:
    """Return each GPU's sensors over all processes, None if no GPU took part."""
    parts = [one.telemetry for one in results if one is not None and one.telemetry is not None]
    found: dict[str, list[GpuTelemetry]] = {}
    for part in parts:
        for gpu in part.gpus:
            found.setdefault(gpu.uuid, []).append(gpu)
    # Only processes that read a GPU count; if none did, the reason is kept.
    read = {uuid: [one for one in of if one.reading_count] or of for uuid, of in found.items()}
    if not parts:
        return None
    reason = next((part.unavailable for part in parts if part.unavailable is not None), None)
    gpus = tuple(_merged(of) for of in read.values())
    return Telemetry(gpus=gpus, unavailable=None if gpus else reason)


def _merged(found: Sequence[GpuTelemetry]) -> GpuTelemetry:
    """Return one GPU's readings of several processes: extremes, sums, and the longest shares."""
    errors: Counter[str] = Counter()
    limited: dict[str, float] = {}
    reasons: dict[str, float] = {}
    for one in found:
        errors.update(one.new_errors)
        for name, seconds in one.limited_s.items():
            limited[name] = limited.get(name, 0.0) + seconds
        for name, share in one.reasons.items():
            reasons[name] = max(reasons.get(name, 0.0), share)
    return replace(
        found[0],
        reading_count=sum(one.reading_count for one in found),
        clock_sm_mhz=_widest([one.clock_sm_mhz for one in found]),
        clock_memory_mhz=_widest([one.clock_memory_mhz for one in found]),
        power_w=_widest([one.power_w for one in found]),
        temperature_c=_widest([one.temperature_c for one in found]),
        reasons=reasons,
        limited_s=limited,
        energy_j=_sum([one.energy_j for one in found]),
        new_errors=dict(errors),
        other_processes=tuple(sorted({pid for one in found for pid in one.other_processes})),
    )


def _widest(extents: Sequence[Extent | None]) -> Extent | None:
    known = [one for one in extents if one is not None]
    if not known:
        return None
    medians = sorted(one.median for one in known)
    return Extent(
        low=min(one.low for one in known),
        median=medians[len(medians) // 2],
        high=max(one.high for one in known),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
