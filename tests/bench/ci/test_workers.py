"""Repeats in processes of their own: which are started, in which company, and what they bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.ci.run import work_plan
from gpucheck.bench.ci.workers import WorkPlan, collect, run_of, was_interrupted
from gpucheck.bench.model import BenchRequest
from gpucheck.bench.workers import (
    WORKER_DIED,
    WORKER_INTERRUPTED,
    WORKER_NO_DOCUMENT,
    WorkerAnswer,
    WorkerDevice,
    WorkerOrder,
    worker_devices,
)
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import WrongUseError
from tests.fakes.bench_runs import FakeWorkers, document, gpus, uuid_of

DIED = WorkerAnswer(failure=Failure(code=WORKER_DIED, message="the process was ended by SIGKILL"))
STOPPED = WorkerAnswer(failure=Failure(code=WORKER_INTERRUPTED, message="it was interrupted"))


def good(order: WorkerOrder, number: int, sequential: bool) -> dict[str, Any]:
    return document(order.device, 7e14)


def plan(*devices: str, **changes: Any) -> WorkPlan:
    settings: dict[str, Any] = {
        "devices": worker_devices(devices, gpus(8)),
        "arguments": ("matmul", "--quick"),
        "seconds": 8.0,
        "alone": False,
        "together": True,
    }
    return WorkPlan(**(settings | changes))


# ---------------------------------------------------------------------------------- devices


def test_every_gpu_gets_a_station_with_the_processors_of_its_node() -> None:
    found = worker_devices(["gpu"], gpus(4))

    assert [worker.device for worker in found] == ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]
    assert [worker.gpu_uuid for worker in found] == [uuid_of(f"gpu:{n}") for n in range(4)]
    assert found[0].cpus == frozenset(range(4))
    assert found[3].cpus == frozenset(range(4, 8))


def test_a_gpu_that_cuda_does_not_see_has_none() -> None:
    hidden = [gpu._replace(cuda_index=None) for gpu in gpus(2)]

    assert worker_devices(["gpu"], hidden) == ()


def test_a_device_named_twice_has_one_station() -> None:
    found = worker_devices(["gpu:1", "all", "cpu"], gpus(2))

    assert [worker.device for worker in found] == ["gpu:1", "gpu:0", "cpu"]
    assert found[2] == WorkerDevice(device="cpu")


def test_an_unknown_gpu_has_one_too_whose_process_will_say_so() -> None:
    assert worker_devices(["gpu:9"], gpus(2)) == (WorkerDevice(device="gpu:9"),)


# ---------------------------------------------------------------------------------- rounds


def test_all_at_once_is_one_round_of_everybody() -> None:
    workers = FakeWorkers(good)

    runs = collect(plan("gpu:0", "gpu:1", "gpu:2"), workers)

    ((orders, sequential, _),) = workers.rounds
    assert sequential is False
    assert [order.device for order in orders] == ["gpu:0", "gpu:1", "gpu:2"]
    assert all(run.together for run in runs)


def test_alone_and_at_once_take_turns_and_share_the_time() -> None:
    workers = FakeWorkers(good)

    runs = collect(plan("gpu", alone=True, processes=2, most_processes=2), workers)

    assert [sequential for _, sequential, _ in workers.rounds] == [True, False, True, False]
    budgets = [
        orders[0].arguments[orders[0].arguments.index("--budget") + 1]
        for orders, _, _ in workers.rounds
    ]
    # Eight GPUs in turn take together as long as one, or as all at once.
    assert budgets == ["1", "8", "1", "8"]
    assert len(runs) == 32
    assert {(run.number, run.together) for run in runs} == {
        *((0, False), (0, True), (1, False), (1, True)),
    }


def test_a_lone_device_needs_no_turn() -> None:
    workers = FakeWorkers(good)

    runs = collect(plan("cpu", alone=True, together=False), workers)

    assert len(workers.rounds) == 1
    assert [run.together for run in runs] == [False]


def test_a_worker_is_told_its_device_and_the_options() -> None:
    workers = FakeWorkers(good)
    collect(plan("gpu:2"), workers)
    ((orders, _, _),) = workers.rounds

    assert orders[0].arguments == (
        *("bench", "matmul", "--quick", "--device", "gpu:2", "--budget", "8"),
        *("--json", "--samples", "summary", "--quiet", "--no-github"),
    )
    assert orders[0].cpus == frozenset(range(4))


def test_more_processes_until_it_is_settled() -> None:
    asked: list[int] = []

    def settled(runs: Sequence[ProcessRun]) -> bool:
        asked.append(len(runs))
        return len(runs) == 5

    runs = collect(plan("gpu:0", processes=3, most_processes=10), FakeWorkers(good), settled)

    assert asked == [3, 4, 5]
    assert len(runs) == 5


def test_never_more_than_the_most() -> None:
    wanted = plan("gpu:0", processes=2, most_processes=4)
    runs = collect(wanted, FakeWorkers(good), lambda runs: False)

    assert [run.number for run in runs] == [0, 1, 2, 3]


def test_one_that_dies_costs_the_others_nothing() -> None:
    def script(order: WorkerOrder, number: int, sequential: bool) -> Any:
        return DIED if (order.device, number) == ("gpu:1", 0) else good(order, number, sequential)

    runs = collect(plan("gpu:0", "gpu:1", processes=2, most_processes=2), FakeWorkers(script))

    failed = [run for run in runs if run.failure is not None]
    assert [(run.device, run.number) for run in failed] == [("gpu:1", 0)]
    assert len(runs) == 4
    assert failed[0].gpu_uuid == uuid_of("gpu:1")


def test_where_nobody_answers_it_is_not_tried_again() -> None:
    workers = FakeWorkers(lambda order, number, sequential: DIED)

    runs = collect(plan("gpu:0", "gpu:1", processes=5, most_processes=5), workers)

    assert len(workers.rounds) == 1
    assert all(run.result is None for run in runs)


def test_an_interrupt_ends_it_and_keeps_what_is_there() -> None:
    def script(order: WorkerOrder, number: int, sequential: bool) -> Any:
        return STOPPED if number == 2 else good(order, number, sequential)

    runs = collect(plan("gpu:0", processes=5, most_processes=5), FakeWorkers(script))

    assert len(runs) == 3
    assert was_interrupted(runs)
    assert sum(run.result is not None for run in runs) == 2


# ---------------------------------------------------------------------------------- documents


def read(found: Any) -> ProcessRun:
    worker = WorkerDevice(device="gpu:0", gpu_uuid="GPU-0")
    return run_of(WorkerAnswer(document=found), worker, 0, together=True)


def test_a_document_is_read_whole() -> None:
    run = read(document("gpu:0", 7e14, sensors={"limited_s": {"power-cap": 1.5}}))

    assert run.failure is None
    assert run.result is not None
    assert run.result.measurements[0].throughput is not None
    assert run.result.measurements[0].throughput.value == 7e14
    assert run.result.telemetry is not None
    assert run.result.telemetry.gpus[0].limited_s == {"power-cap": 1.5}
    assert (run.host.driver_version, run.exit_code) == ("580.95.05", 0)


def test_a_workers_own_error_is_kept_with_its_code() -> None:
    found = document("gpu:0", 1.0, error=Failure(code="gpu-lost", message="gone"), exit_code=1)
    found["result"] = None
    run = read(found)

    assert run.result is None
    assert run.failure == Failure(code="gpu-lost", message="gone")
    assert run.exit_code == 1


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), "gpucheck/list/1", "$.schema"),
        (("result",), "text", "$.result"),
        (("result", "measurements"), 5, "$.result.measurements"),
        (("result", "surprise"), 5, "$.result.surprise"),
        (("host",), None, "$.host"),
    ],
)
def test_another_document_is_a_failure(path: tuple[str, ...], value: Any, said: str) -> None:
    found = document("gpu:0", 7e14)
    holder = found
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    run = read(found)

    assert run.result is None
    assert run.failure is not None
    assert run.failure.code == WORKER_NO_DOCUMENT
    assert said in run.failure.message


@pytest.mark.parametrize("name", ["tpu", "gpu:x", "gpu:-1", ""])
def test_what_is_no_device_gets_no_station(name: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        worker_devices(["gpu:0", name], gpus(2))

    assert caught.value.code == "bad-device"


@pytest.mark.parametrize(("alone", "turns"), [(True, 2), (False, 1)])
def test_repeated_products_have_their_time_before_the_deadline(alone: bool, turns: int) -> None:
    short, long = (
        plan("gpu:0", "gpu:1", alone=alone, together=not alone, corruption_s=seconds)
        for seconds in (0.0, 600.0)
    )
    deadlines = []
    for one in (short, long):
        workers = FakeWorkers(good)
        collect(one, workers)
        deadlines.append(workers.rounds[0][2])

    assert deadlines[1] - deadlines[0] == turns * 600.0


def test_a_plan_knows_the_time_of_its_repeated_products() -> None:
    request = BenchRequest(devices=("cpu",), kernels=("copy",))

    found = work_plan(request, (), processes=3, corruption_s=120.0, more=False)

    assert found.corruption_s == 120.0
    assert "--corruption" in found.arguments
