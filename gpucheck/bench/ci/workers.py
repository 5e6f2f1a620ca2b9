"""Benchmark repeated in several processes: each device alone, and all at once.

The samples of one process share its memory layout and temperature, so a verdict counts processes,
not samples. Each device has its own process, so that a card that hangs does not stop the others,
and each process is bound to the processors of its GPU's NUMA node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.model import BenchMode, BenchRequest, BenchResult, Fill
from gpucheck.bench.workers import (
    WORKER_INTERRUPTED,
    WORKER_NO_DOCUMENT,
    WorkerAnswer,
    WorkerDevice,
    WorkerOrder,
    Workers,
)
from gpucheck.report.codec import DecodeError, from_plain
from gpucheck.report.envelope import Failure, Host

#: A benchmark may take this much longer than its budget, which excludes preparing and checking.
_DEADLINE_FACTOR, _DEADLINE_S = 4.0, 60.0
BENCH_SCHEMA = "gpucheck/bench/1"
#: Options of a worker: one small document, and nothing on the terminal.
_AS_A_WORKER = ("--json", "--samples", "summary", "--quiet", "--no-github")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPlan:
    """Processes to run, and how often.

    `arguments` are options of `gpucheck bench` without the device, the time and the format.
    `seconds` is the measuring time of one process; devices that are measured alone, in turn, share
    it unless `each_whole`. `corruption_s` is each one's additional time for repeated products. Each
    device has at least `processes`, and up to `most_processes` while that is not enough.
    """

    devices: tuple[WorkerDevice, ...]
    arguments: tuple[str, ...]
    seconds: float
    corruption_s: float = 0.0
    processes: int = 1
    most_processes: int = 1
    alone: bool = True
    together: bool = False
    each_whole: bool = False


def worker_arguments(request: BenchRequest, corruption_s: float = 0.0) -> tuple[str, ...]:
    """Return the request as options of `gpucheck bench`, without device, time and format."""
    found = [*request.kernels]
    modes = {BenchMode.QUICK: ["--quick"], BenchMode.FULL: ["--full"], BenchMode.DEFAULT: []}
    found += modes[request.mode]
    for option, value in (
        ("--size", request.size),
        ("--dtype", ",".join(request.dtypes) or None),
        ("--data", request.data_file),
        ("--fill", request.fill.value if request.fill is not Fill.NORMAL else None),
        ("--seed", request.seed),
        ("--towers", request.towers),
        ("--temperature", request.temperature),
        ("--corruption", corruption_s or None),
    ):
        if value is not None:
            found += [option, str(value)]
    return tuple(found)


def collect(
    plan: WorkPlan,
    workers: Workers,
    settled: Callable[[Sequence[ProcessRun]], bool] = lambda runs: True,
) -> tuple[ProcessRun, ...]:
    """Run the plan's processes and return what became of each, in the order of their start.

    From `processes` of each device on, `settled` decides after each round whether that is enough.
    An interrupt ends it, and so does a round in which no device answered.
    """
    runs: list[ProcessRun] = []
    for number in range(plan.most_processes):
        if number >= plan.processes and settled(runs):
            break
        for sequential in _company(plan):
            found = _round(plan, workers, number, sequential=sequential)
            runs.extend(found)
            if was_interrupted(found) or all(run.result is None for run in found):
                return tuple(runs)
    return tuple(runs)


def was_interrupted(runs: Sequence[ProcessRun]) -> bool:
    """Return whether a person or a signal ended the processes."""
    return any(run.failure is not None and run.failure.code == WORKER_INTERRUPTED for run in runs)


def _company(plan: WorkPlan) -> Sequence[bool]:
    """Return the rounds of one repeat: in turn, all at once, or both; a single device needs one."""
    if len(plan.devices) == 1:
        return [not plan.together]
    return [True] * plan.alone + [False] * (plan.together or not plan.alone)


def _round(
    plan: WorkPlan, workers: Workers, number: int, *, sequential: bool
) -> Sequence[ProcessRun]:
    shared = sequential and not plan.each_whole
    seconds = plan.seconds / len(plan.devices) if shared else plan.seconds
    orders = [
        WorkerOrder(
            device=worker.device,
            arguments=(
                *("bench", *plan.arguments, "--device", worker.device),
                *("--budget", f"{seconds:g}", *_AS_A_WORKER),
            ),
            cpus=worker.cpus,
        )
        for worker in plan.devices
    ]
    turns = len(orders) if sequential else 1
    deadline_s = turns * (_DEADLINE_FACTOR * seconds + plan.corruption_s + _DEADLINE_S)
    answers = workers.round(orders, sequential=sequential, deadline_s=deadline_s)
    return [
        run_of(answer, worker, number, together=not sequential)
        for worker, answer in zip(plan.devices, answers, strict=True)
    ]


def run_of(
    answer: WorkerAnswer, worker: WorkerDevice, number: int, *, together: bool
) -> ProcessRun:
    """Return what one process returned, read strictly: a bench document, or a failure."""
    document = answer.document
    result, host, failure = None, Host(), answer.failure
    if document is not None:
        try:
            result, host, failure = read_document(document)
        except DecodeError as error:
            failure = Failure(
                code=WORKER_NO_DOCUMENT,
                message=f"the process that measured {worker.device} returned no bench document: "
                f"{error}",
            )
    return ProcessRun(
        device=worker.device,
        gpu_uuid=worker.gpu_uuid or _uuid_in(result),
        number=number,
        together=together,
        result=result,
        failure=failure,
        host=host,
        exit_code=document.get("exit_code") if document is not None else None,
    )


def read_document(document: Mapping[str, Any]) -> tuple[BenchResult | None, Host, Failure | None]:
    """Return what a report of bench holds: its result, its host, and its error.

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


def _uuid_in(result: BenchResult | None) -> str | None:
    gpus = result.environment.gpus if result is not None else ()
    return gpus[0].uuid if gpus else None
