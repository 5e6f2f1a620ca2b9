"""Run of a benchmark in several processes: find the devices, measure, judge, return what to save.

Each benchmark here has a profile. Without `--profile` it is `NO_PROFILE`: it demands only that the
processes answer correctly and, with a baseline, that no row got slower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpucheck.bench.boards import VGPU
from gpucheck.bench.ci.baseline import (
    check_temperature,
    driver_of,
    profile_key,
    row_series,
    saved_run,
)
from gpucheck.bench.ci.compare import compare_runs, gate_of_row
from gpucheck.bench.ci.diagnosis import disturbed_gates
from gpucheck.bench.ci.gates import judge, judge_machine, series_of, settled
from gpucheck.bench.ci.machine_gates import corruption_gates
from gpucheck.bench.ci.model import ProcessRun, Reference, SavedRun, Series
from gpucheck.bench.ci.processes import collect, merged, was_interrupted
from gpucheck.bench.ci.profile_model import (
    InventoryDemands,
    Match,
    Profile,
    RunPlan,
    Stability,
    Target,
)
from gpucheck.bench.ci.run_data import Node, RunData
from gpucheck.bench.ci.verdicts import DISTURBED, exit_status, warnings
from gpucheck.bench.frameworks import parse_framework
from gpucheck.bench.model import (
    BaselineUse,
    BenchEnvironment,
    BenchResult,
    Gate,
    GateStatus,
    ProfileUse,
    shared_fields,
)
from gpucheck.bench.plan import BUDGETS_S, check_device_names
from gpucheck.bench.request_model import BenchRequest
from gpucheck.bench.workers import (
    WorkerDevice,
    Workers,
    select_worker_devices,
    visible_gpus,
    worker_devices,
)
from gpucheck.drivers.host.cpu import LinuxCpu
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.readings import NvmlReading, NvmlRequest
from gpucheck.inventory.inventory import complete_host, take_inventory
from gpucheck.inventory.model import Inventory, Topology
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import (
    ExitCode,
    GpucheckError,
    InconclusiveError,
    MissingError,
    WrongUseError,
)
from gpucheck.report.host import Host

#: Processes of a run that is saved or compared with one, and the factor while undecided.
PROCESSES, _MORE = 5, 2
#: Measured if a profile has demands but no checks, as a full load.
_LOAD = "matmul"
NO_PROFILE = Profile(
    name="none",
    version=1,
    description="",
    path="",
    digest="",
    match=Match(target=Target.GPU),
    inventory=InventoryDemands(),
    run=RunPlan(alone=False, together=True),
    checks=(),
    stability=Stability(),
)
_INTERRUPTED = Failure(
    code="interrupted", message="Interrupted: the report has what was measured until then."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A profile on the devices of a machine, and what each of its processes measures.

    `host` None stands for the one that the processes report. `is_kept`: the run is to be saved.
    """

    profile: Profile
    request: BenchRequest
    devices: Sequence[WorkerDevice]
    time: str
    node: Node = field(default_factory=Node)
    host: Host | None = None
    reference: Reference | None = None
    is_kept: bool = False

    @property
    def has_profile(self) -> bool:
        """Return whether the profile is one from a file."""
        return bool(self.profile.digest)

    @property
    def profile_key(self) -> str | None:
        """Return the identity of the profile in a saved run."""
        return profile_key(self.profile) if self.has_profile else None

    def data(self, runs: Sequence[ProcessRun]) -> RunData:
        """Return the inputs of the gates."""
        kept, against = tuple(runs), self.reference
        return RunData(profile=self.profile, node=self.node, runs=kept, reference=against)

    def series(self, runs: Sequence[ProcessRun]) -> Sequence[Series]:
        """Return the series that a saved run keeps: checks, or rows without a profile."""
        return series_of(self.data(runs)) if self.has_profile else row_series(runs)

    def saved(self, runs: Sequence[ProcessRun]) -> SavedRun | None:
        """Return the run as it is saved, None if it has no figures."""
        series = self.series(runs)
        if not series:
            return None
        return saved_run(runs, series, time=self.time, profile=self.profile_key)

    def gates(self, runs: Sequence[ProcessRun]) -> tuple[Gate, ...]:
        """Return all gates of the processes so far."""
        data = self.data(runs)
        if self.has_profile:
            return judge(data)
        corruption = data.identify(corruption_gates(data))
        return (*judge(data), *corruption, *self._changes(runs))

    def with_disturbed(self, gates: Sequence[Gate], runs: Sequence[ProcessRun]) -> tuple[Gate, ...]:
        """Return the gates with those of the figures that are too disturbed to be a baseline."""
        now = self.saved(runs)
        disturbed = tuple(disturbed_gates(now.series)) if now is not None else ()
        places = {(gate.id, gate.device) for gate in disturbed}
        return (*(gate for gate in gates if (gate.id, gate.device) not in places), *disturbed)

    def _changes(self, runs: Sequence[ProcessRun]) -> Sequence[Gate]:
        """Return the gates of the rows against the baseline, of the devices that take part."""
        against, now = self.reference, self.saved(runs)
        if against is None or now is None:
            return ()
        files = (against.path, Path())
        comparison = compare_runs(against.run, now, files=files, allowed=against.allowed)
        uuids = {run.device: run.gpu_uuid for run in reversed(runs)}
        # A device that is only in the baseline was not requested.
        return [
            replace(gate_of_row(row), gpu_uuid=uuids[row.device])
            for row in comparison.rows
            if row.device in uuids
        ]


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


def run_profile(
    profile: Profile,
    devices: Sequence[str],
    probes: Probes,
    workers: Workers,
    reference: Reference | None = None,
    frameworks: Sequence[str] = (),
    *,
    is_kept: bool = False,
) -> tuple[Answer, SavedRun | None]:
    """Measure and judge by a profile; return the answer and the run to save, if there is one.

    `frameworks` names the interpreters of the profile's frameworks, each as `NAME=PYTHON`.

    Raises:
        WrongUseError: a framework is named that no check of the profile is about.
    """
    request = request_for(profile, frameworks)
    topology = profile.inventory.nvlink_links is not None
    reading = probes.nvml(NvmlRequest(topology=topology))
    host = complete_host(probes.host(), reading)
    inventory: Inventory | None = None
    if profile.match.target is not Target.CPU:
        answer = take_inventory(probes, names_devices=True, topology=topology, reading=reading)
        if answer.exit_code is not ExitCode.OK or not isinstance(answer.result, Inventory):
            return answer._replace(result=None), None
        inventory = answer.result
    targets = worker_devices(devices, inventory.gpus if inventory is not None else ())
    if not targets:
        failure = Failure(
            code="no-gpu",
            message=f"The profile {profile.name} is for GPUs, and programs see none here.",
            remedy=("See which are hidden, and why: gpucheck list", "Run: gpucheck detect"),
        )
        return Answer(result=None, exit_code=ExitCode.MISSING, host=host, error=failure), None
    benchmark = Benchmark(
        profile=profile,
        request=request,
        devices=targets,
        time=probes.time(),
        node=node_of(inventory, reading, {target.device for target in targets}),
        host=host,
        reference=reference,
        is_kept=is_kept,
    )
    return run_benchmark(benchmark, workers)


def run_request(
    request: BenchRequest,
    probes: Probes,
    workers: Workers,
    reference: Reference | None = None,
    *,
    processes: int = PROCESSES,
    corruption_s: float = 0.0,
    require_gpu: bool = False,
    is_kept: bool = False,
) -> tuple[Answer, SavedRun | None]:
    """Measure a request in several processes; return the answer and the run to save, if any.

    Raises:
        WrongUseError: the baseline was measured with another temperature of softmax.
        MissingError: GPUs are requested or required, and CUDA sees none.
        GpucheckError: no process measured anything, for the reason that the first one gave.
    """
    if reference is not None:
        check_temperature(reference.run, request)
    on_gpus = set(request.devices) != {"cpu"}
    inventory = take_inventory(probes, names_devices=on_gpus).result
    gpus = inventory.gpus if isinstance(inventory, Inventory) else ()
    benchmark = Benchmark(
        profile=plan_of(request, processes, corruption_s, more=reference is not None),
        request=request,
        devices=select_worker_devices(request.devices, gpus, require_gpu=require_gpu),
        time=probes.time(),
        reference=reference,
        is_kept=is_kept,
    )
    return run_benchmark(benchmark, workers)


def plan_of(request: BenchRequest, processes: int, corruption_s: float, *, more: bool) -> Profile:
    """Return a request's profile: its processes, each on all devices at once."""
    plan = replace(
        NO_PROFILE.run,
        seconds=request.budget_s or BUDGETS_S[request.mode],
        processes=processes,
        max_processes=processes * _MORE if more else processes,
        corruption_s=corruption_s,
    )
    return replace(NO_PROFILE, run=plan)


def request_for(profile: Profile, frameworks: Sequence[str] = ()) -> BenchRequest:
    """Return the request of each process of a profile's run.

    `frameworks` names the interpreters of the profile's frameworks, each as `NAME=PYTHON`.

    Raises:
        WrongUseError: a framework is named that no check of the profile is about.
    """
    run = profile.run
    given = {parse_framework(text)[0]: text for text in frameworks}
    for name in given:
        if name not in profile.frameworks:
            known = ", ".join(profile.frameworks)
            raise WrongUseError(
                code="profile-and-options",
                message=f"The profile {profile.name} measures nothing with {name}: "
                f"leave --framework {name} out.",
                remedy=(f"It names: {known}.",) if known else (),
            )
    return BenchRequest(
        frameworks=tuple(given.get(name, name) for name in profile.frameworks),
        same_math=run.same_math,
        kernels=tuple(dict.fromkeys(check.kernel for check in profile.checks)) or (_LOAD,),
        dtypes=tuple(dict.fromkeys(check.dtype for check in profile.checks)),
        size=run.size,
        mode=run.mode,
        seed=run.seed,
        fill=run.fill,
    )


def node_of(inventory: Inventory | None, reading: NvmlReading, devices: set[str]) -> Node:
    """Return the GPUs that take part, with what only NVML knows about them."""
    if inventory is None:
        return Node(driver_version=reading.driver_version)
    seen = visible_gpus(inventory.gpus)
    gpus = tuple(gpu for device, gpu in seen.items() if device in devices)
    return Node(
        gpus=gpus,
        left_out=len(seen) - len(gpus),
        driver_version=reading.driver_version,
        pci_device_ids={gpu.index: gpu.pci_device_id for gpu in reading.gpus if gpu.pci_device_id},
        vgpus=frozenset(gpu.index for gpu in reading.gpus if gpu.virtualization == VGPU),
        nvlink_links=_fewest_links(inventory.topology),
    )


def _fewest_links(topology: Topology | None) -> dict[int, int]:
    """Return each GPU's fewest NVLink connections to another GPU, nothing if they were not read."""
    fewest: dict[int, int] = {}
    for link in () if topology is None else topology.links:
        if link.kind:
            count = int(link.kind[2:]) if link.kind.startswith("NV") else 0
            for index in (link.from_, link.to):
                fewest[index] = min(count, fewest.get(index, count))
    return fewest


def run_benchmark(benchmark: Benchmark, workers: Workers) -> tuple[Answer, SavedRun | None]:
    """Measure until every gate is decided or the processes are used up, and judge.

    A machine that the profile is not for is not measured.

    Raises:
        GpucheckError: without a profile, no process measured anything.
    """
    runs: tuple[ProcessRun, ...] = ()
    gates = judge_machine(benchmark.data(()))
    if not any(gate.status is GateStatus.FAIL for gate in gates):
        runs = collect(
            *(benchmark.profile.run, benchmark.devices, benchmark.request, workers),
            settled=lambda runs: settled(benchmark.gates(runs)),
        )
        gates = benchmark.gates(runs)
    answer = _conclude(benchmark, runs, gates)
    is_whole = answer.exit_code is not ExitCode.INTERRUPTED
    return answer, benchmark.saved(runs) if is_whole else None


def _conclude(benchmark: Benchmark, runs: Sequence[ProcessRun], gates: tuple[Gate, ...]) -> Answer:
    """Return the answer: the rows, the gates, and the exit code that they give."""
    result, host = merged(runs), benchmark.host
    if host is None:
        host = next((run.host for run in runs if run.result is not None), Host())
    if result is None and not benchmark.has_profile:
        if was_interrupted(runs):
            return Answer(result=None, exit_code=ExitCode.INTERRUPTED, error=_INTERRUPTED)
        raise _nothing(runs)
    if result is None and runs and all(run.exit_code == ExitCode.MISSING for run in runs):
        # Nothing about any GPU was found out: that is no verdict.
        return Answer(result=None, exit_code=ExitCode.MISSING, host=host, error=runs[0].failure)
    interrupted = was_interrupted(runs) if result is None else result.interrupted
    code, failure = exit_status(gates)
    if code is ExitCode.OK and benchmark.is_kept:
        gates = benchmark.with_disturbed(gates, runs)
        code, failure = exit_status(gates, DISTURBED)
    if interrupted:
        code, failure = ExitCode.INTERRUPTED, _INTERRUPTED
    result = result or _unmeasured(benchmark.profile)
    result = replace(result, gates=gates, interrupted=interrupted)
    if benchmark.reference is not None:
        before = benchmark.reference.run
        use = BaselineUse(
            **shared_fields(before, BaselineUse),
            file=str(benchmark.reference.path),
            driver=driver_of(before),
            gpucheck=before.tool.version,
        )
        result = replace(result, baseline=use)
    if benchmark.has_profile:
        result = _with_profile(result, benchmark.profile, runs)
    return Answer(result=result, exit_code=code, host=host, error=failure, warnings=warnings(gates))


def _with_profile(result: BenchResult, profile: Profile, runs: Sequence[ProcessRun]) -> BenchResult:
    """Return a result with the profile that it was judged by, and how it was measured."""
    most = max(Counter(run.device for run in runs).values(), default=0)
    note = f"the rows are those of each device's first process; {most} processes were started"
    if not runs:
        note = "nothing was measured: the profile is not for this machine"
    use = ProfileUse(
        **shared_fields(profile, ProfileUse),
        processes=most,
        max_processes=profile.run.max_processes,
    )
    return replace(result, profile=use, notes=(*result.notes, note))


def _nothing(runs: Sequence[ProcessRun]) -> GpucheckError:
    """Return the error of a run without any result, of the kind that its processes ended with."""
    failure = next((run.failure for run in runs if run.failure is not None), None)
    code = next((run.exit_code for run in runs if run.exit_code is not None), None)
    failure = failure or Failure(code="nothing-measured", message="no process returned a document")
    kinds: dict[int, type[GpucheckError]] = {2: WrongUseError, 4: MissingError}
    return failure.as_error(kinds.get(code or 0, InconclusiveError))


def _unmeasured(profile: Profile) -> BenchResult:
    """Return the result of a run in which no process returned a document."""
    from importlib.metadata import version

    cpu = LinuxCpu().facts()
    reason = "no process returned a document"
    explained = ("blas_name", "cupy_version", "load_average_1m", "parallel_efficiency")
    others = ("blas_version", "blas_architecture", "blas_threads", "other_load_percent")
    unread = (*explained, *others, "steal_percent", "peak_memory_bytes")
    unknown: dict[str, Any] = dict.fromkeys(unread)
    environment = BenchEnvironment(
        cpu_model=cpu.model,
        logical_cores=cpu.logical_cores,
        usable_cores=cpu.usable_cores,
        cpu_quota_cores=cpu.quota_cores,
        numpy_version=version("numpy"),
        gpus=(),
        gpu_unavailable=reason,
        duration_s=0,
        seed=profile.run.seed,
        data=profile.run.fill.value,
        mode=profile.run.mode,
        budget_s=profile.run.seconds,
        unavailable=dict.fromkeys(explained, reason),
        **unknown,
    )
    return BenchResult(measurements=(), comparisons=(), environment=environment)
