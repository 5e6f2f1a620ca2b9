"""Processes of a benchmark: each device alone, all at once, and their results merged.

The samples of one process share its memory layout and temperature, so a verdict counts processes,
not samples. Each device has its own process, so that a card that hangs does not stop the others,
and each process is bound to the processors of its GPU's NUMA node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.ci.profile_model import RunPlan
from gpucheck.bench.ci.run_data import row_id
from gpucheck.bench.model import BenchResult, Extent, GpuTelemetry, Telemetry
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.bench.workers import (
    WORKER_INTERRUPTED,
    WORKER_NO_DOCUMENT,
    WorkerAnswer,
    WorkerDevice,
    Workers,
    crowding,
)
from gpucheck.report.codec import DecodeError, from_plain
from gpucheck.report.envelope import Failure
from gpucheck.report.host import Host
from gpucheck.report.options import command_words
from gpucheck.report.text import group_by

#: A benchmark may take this much longer than its budget, which excludes preparing and checking.
_DEADLINE_FACTOR, _DEADLINE_S = 4.0, 60.0
BENCH_SCHEMA = "gpucheck/bench/1"
#: Options of a worker: one small document, and nothing on the terminal.
_AS_A_WORKER = ("--json", "--samples", "summary", "--quiet", "--no-github")


def worker_arguments(request: BenchRequest, corruption_s: float = 0.0) -> tuple[str, ...]:
    """Return the request as options of `gpucheck bench`, without device, time and format."""
    words = command_words(request, ("devices", "budget_s", "samples"))
    words += [] if request.mode is BenchMode.DEFAULT else [f"--{request.mode}"]
    return (*words, *(("--corruption", str(corruption_s)) if corruption_s else ()))


def collect(
    plan: RunPlan,
    devices: Sequence[WorkerDevice],
    request: BenchRequest,
    workers: Workers,
    settled: Callable[[Sequence[ProcessRun]], bool] = lambda runs: True,
) -> tuple[ProcessRun, ...]:
    """Run the plan's processes and return what became of each, in the order of their start.

    From `processes` of each device on, `settled` decides after each repeat whether that is enough.
    An interrupt ends it, and so does a round in which no device answered.
    """
    runs: list[ProcessRun] = []
    arguments = worker_arguments(request, plan.corruption_s)
    time = ("--budget", f"{plan.seconds:g}", *_AS_A_WORKER)
    orders = [
        replace(device, arguments=("bench", *arguments, "--device", device.device, *time))
        for device in devices
    ]
    # A single device needs one round, in which it is alone.
    rounds = [True] * plan.alone + [False] * (plan.together or not plan.alone)
    if len(devices) == 1:
        rounds = [True]
    for number in range(plan.max_processes):
        if number >= plan.processes and settled(runs):
            break
        for sequential in rounds:
            answered = _round(plan, orders, workers, number, sequential=sequential)
            runs.extend(answered)
            if was_interrupted(answered) or all(run.result is None for run in answered):
                return tuple(runs)
    return tuple(runs)


def was_interrupted(runs: Sequence[ProcessRun]) -> bool:
    """Return whether a person or a signal ended the processes."""
    return any(run.failure is not None and run.failure.code == WORKER_INTERRUPTED for run in runs)


def _round(
    plan: RunPlan,
    orders: Sequence[WorkerDevice],
    workers: Workers,
    number: int,
    *,
    sequential: bool,
) -> Sequence[ProcessRun]:
    """Run a process of each device, one by one or all at once."""
    turns, crowd = (len(orders), 1.0) if sequential else (1, crowding(len(orders)))
    around_s = (_DEADLINE_FACTOR * plan.seconds + _DEADLINE_S) * crowd
    deadline_s = turns * (around_s + plan.corruption_s)
    answers = workers.round(orders, sequential=sequential, deadline_s=deadline_s)
    return [
        run_of(answer, order, number, together=not sequential)
        for order, answer in zip(orders, answers, strict=True)
    ]


def run_of(
    answer: WorkerAnswer, worker: WorkerDevice, number: int, *, together: bool
) -> ProcessRun:
    """Return a process's run from its answer, read strictly: a bench document, or a failure."""
    result, host, exit_code = None, Host(), None
    if isinstance(answer, Failure):
        failure: Failure | None = answer
    else:
        exit_code = answer.get("exit_code")
        try:
            result, host, failure = read_document(answer)
        except DecodeError as error:
            failure = Failure(
                code=WORKER_NO_DOCUMENT,
                message=f"the process that measured {worker.device} returned no bench document: "
                f"{error}",
            )
    gpus = result.environment.gpus if result is not None else ()
    return ProcessRun(
        device=worker.device,
        gpu_uuid=worker.gpu_uuid or (gpus[0].uuid if gpus else None),
        number=number,
        together=together,
        result=result,
        failure=failure,
        host=host,
        exit_code=exit_code,
    )


def read_document(document: Mapping[str, Any]) -> tuple[BenchResult | None, Host, Failure | None]:
    """Return the result, the host and the error of a report of bench.

    Raises:
        DecodeError: it is not a report of bench, or is damaged.
    """
    if document.get("schema") != BENCH_SCHEMA:
        where, problem = "$.schema", f"is not {BENCH_SCHEMA}"
        raise DecodeError(where, problem)
    given, error = document.get("result"), document.get("error")
    result = None if given is None else from_plain(BenchResult, given, where="$.result")
    failure = None if error is None else from_plain(Failure, error, where="$.error")
    return result, from_plain(Host, document.get("host"), where="$.host"), failure


def merged(runs: Sequence[ProcessRun]) -> BenchResult | None:
    """Return a merged result for all processes, None if none of them has a result.

    Rows, comparisons and GPUs are those of each device's first process; what goes on during a run
    (sensors, corruption, notes) is joined over all processes.
    """
    answered = [run.result for run in runs if run.result is not None]
    if not answered:
        return None
    first: dict[str, BenchResult] = {}
    for run in runs:
        if run.result is not None:
            first.setdefault(run.device, run.result)
    results = list(first.values())
    environment = replace(
        results[0].environment,
        gpus=tuple(gpu for item in results for gpu in item.environment.gpus),
        rooflines=tuple(line for item in results for line in item.environment.rooflines),
        duration_s=sum(item.environment.duration_s for item in answered),
    )
    medians = _process_times(runs)
    return replace(
        results[0],
        measurements=tuple(
            replace(row, process_times_s=medians.get((row.device, row_id(row)), ()))
            for item in results
            for row in item.measurements
        ),
        comparisons=tuple(item for result in results for item in result.comparisons),
        conclusions=tuple(item for result in results for item in result.conclusions),
        corruption=tuple(check for item in answered for check in item.corruption),
        environment=environment,
        telemetry=_merged_telemetry(answered),
        notes=tuple(dict.fromkeys(note for item in answered for note in item.notes)),
        interrupted=was_interrupted(runs) or any(item.interrupted for item in answered),
    )


def _process_times(runs: Sequence[ProcessRun]) -> dict[tuple[str, str], tuple[float, ...]]:
    """Return the medians of each row's processes, those measured all at once if there are any."""
    chosen = [run for run in runs if run.together] or list(runs)
    times: dict[tuple[str, str], tuple[float, ...]] = {}
    for run in chosen:
        for row in run.rows:
            if row.time_s is not None and row.error is None:
                key = (row.device, row_id(row))
                times[key] = (*times.get(key, ()), row.time_s)
    return times


def _merged_telemetry(results: Sequence[BenchResult]) -> Telemetry | None:
    """Return each GPU's sensors over all processes, None if no GPU took part."""
    parts = [item.telemetry for item in results if item.telemetry is not None]
    by_gpu = group_by((gpu for part in parts for gpu in part.gpus), lambda gpu: gpu.uuid)
    # Only processes that read a GPU count; if none did, the reason is kept.
    read = {uuid: [item for item in of if item.reading_count] or of for uuid, of in by_gpu.items()}
    if not parts:
        return None
    reason = next((part.unavailable for part in parts if part.unavailable is not None), None)
    gpus = tuple(_merged_sensors(of) for of in read.values())
    return Telemetry(gpus=gpus, unavailable=None if gpus else reason)


def _merged_sensors(parts: Sequence[GpuTelemetry]) -> GpuTelemetry:
    """Return a GPU's readings merged over processes: extremes, sums, and the longest shares."""
    energies_j = [part.energy_j for part in parts if part.energy_j is not None]
    errors: Counter[str] = Counter()
    limited: dict[str, float] = {}
    reasons: dict[str, float] = {}
    for part in parts:
        errors.update(part.new_errors)
        for name, seconds in part.limited_s.items():
            limited[name] = limited.get(name, 0.0) + seconds
        for name, share in part.reasons.items():
            reasons[name] = max(reasons.get(name, 0.0), share)
    return replace(
        parts[0],
        reading_count=sum(part.reading_count for part in parts),
        clock_sm_mhz=_widest([part.clock_sm_mhz for part in parts]),
        clock_memory_mhz=_widest([part.clock_memory_mhz for part in parts]),
        power_w=_widest([part.power_w for part in parts]),
        temperature_c=_widest([part.temperature_c for part in parts]),
        reasons=reasons,
        limited_s=limited,
        energy_j=sum(energies_j) if energies_j else None,
        new_errors=dict(errors),
        other_processes=tuple(sorted({pid for part in parts for pid in part.other_processes})),
    )


def _widest(extents: Sequence[Extent | None]) -> Extent | None:
    known = [item for item in extents if item is not None]
    if not known:
        return None
    medians = sorted(item.median for item in known)
    return Extent(
        low=min(item.low for item in known),
        median=medians[len(medians) // 2],
        high=max(item.high for item in known),
    )
