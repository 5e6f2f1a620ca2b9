"""Benchmark without a profile in several processes: its gates, and the exit code.

The gates are whether every process answered correctly and, with a baseline, each row's change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpucheck.bench.ci.gate_model import Gate, GateStatus
from gpucheck.bench.ci.gates.facts import Facts
from gpucheck.bench.ci.gates.stability import corruption_gates, result_gates
from gpucheck.bench.ci.gates.verdict import failure_of
from gpucheck.bench.ci.processes.baseline import row_series, saved_run
from gpucheck.bench.ci.processes.compare import compare_runs
from gpucheck.bench.ci.processes.merge import merged
from gpucheck.bench.ci.processes.workers import (
    Station,
    WorkPlan,
    collect,
    stations_of,
    was_interrupted,
    worker_arguments,
)
from gpucheck.bench.ci.profile_model import (
    InventoryDemands,
    Match,
    Profile,
    RunPlan,
    Stability,
    Target,
)
from gpucheck.bench.ci.run_model import ProcessRun
from gpucheck.bench.ci.saved_run_model import ComparedRow, SavedRun
from gpucheck.bench.model import BenchRequest
from gpucheck.bench.plan import BUDGETS_S
from gpucheck.bench.workers import Workers
from gpucheck.inventory.model import Gpu
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import (
    ExitCode,
    GpucheckError,
    InconclusiveError,
    MissingError,
    WrongUseError,
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
    stations = chosen_stations(request.devices, gpus, require_gpu=require_gpu)
    seconds = request.budget_s or BUDGETS_S[request.mode]
    return WorkPlan(
        stations=stations,
        arguments=worker_arguments(request, corruption_s),
        seconds=seconds,
        corruption_s=corruption_s,
        processes=processes,
        most_processes=processes * _MORE if more else processes,
        alone=False,
        together=True,
    )


def chosen_stations(
    devices: Sequence[str], gpus: Sequence[Gpu], *, require_gpu: bool = False
) -> tuple[Station, ...]:
    """Return the devices that get processes of their own.

    `all` means every GPU, or the processor if there is none: it would disturb GPUs.

    Raises:
        MissingError: GPUs are requested or required, and CUDA sees none.
    """
    asked = [name for name in devices if name != "all"]
    stations = stations_of([*asked, *(["gpu"] if "all" in devices else [])], gpus)
    if not stations and "all" in devices and not require_gpu:
        stations = stations_of(["cpu"], gpus)
    if not stations or (require_gpu and all(one.device == "cpu" for one in stations)):
        message = "No GPU is visible to CUDA, so none can be measured."
        instead = () if require_gpu else ("Measure the processor with: --device cpu",)
        remedy = ("Run: gpucheck detect", *instead)
        raise MissingError(code="no-gpu", message=message, remedy=remedy)
    return stations


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
