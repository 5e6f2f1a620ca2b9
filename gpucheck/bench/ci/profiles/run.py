"""Run of a profile: processes until its gates are decided, then the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpucheck.bench.ci.gate_model import Gate, GateStatus, ProfileUse
from gpucheck.bench.ci.gates.facts import Facts, Node
from gpucheck.bench.ci.gates.verdict import judge, judge_machine, settled, verdict, warnings
from gpucheck.bench.ci.processes.merge import merged_telemetry
from gpucheck.bench.ci.processes.workers import (
    Station,
    WorkPlan,
    collect,
    was_interrupted,
    worker_arguments,
)
from gpucheck.bench.ci.profile_model import Profile
from gpucheck.bench.ci.run_model import Baseline, ProcessRun
from gpucheck.bench.model import BenchEnvironment, BenchRequest, BenchResult
from gpucheck.bench.workers import Workers
from gpucheck.drivers.host.cpu import CpuFacts
from gpucheck.report.envelope import Answer, Failure, Host
from gpucheck.report.errors import ExitCode

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


def plan_for(profile: Profile, stations: Sequence[Station]) -> WorkPlan:
    """Return the processes of a profile's run."""
    run = profile.run
    return WorkPlan(
        stations=tuple(stations),
        arguments=worker_arguments(request_for(profile), run.corruption_s),
        seconds=run.seconds,
        corruption_s=run.corruption_s,
        processes=run.processes,
        most_processes=run.max_processes,
        alone=run.alone or len(stations) == 1,
        together=run.together and len(stations) > 1,
        each_whole=True,
    )


def run_profile(
    profile: Profile,
    node: Node,
    stations: Sequence[Station],
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

    facts = facts_of(collect(plan_for(profile, stations), workers, enough))
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
