"""Processes of a benchmark: which are started, alone or together, what they return, merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.ci.processes import collect, merged, run_of, was_interrupted, worker_arguments
from gpucheck.bench.ci.profile_model import RunPlan
from gpucheck.bench.model import Corruption, Extent
from gpucheck.bench.request_model import BenchMode, BenchRequest, Fill
from gpucheck.bench.workers import (
    WORKER_DIED,
    WORKER_INTERRUPTED,
    WORKER_NO_DOCUMENT,
    WorkerDevice,
    worker_devices,
)
from gpucheck.inventory.model import MigInstance, MigState
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import WrongUseError
from tests.architecture.commands import built_command
from tests.fakes.bench_results import uuid_of
from tests.fakes.bench_runs import FakeWorkers, document, gpus, runs_of

DIED = Failure(code=WORKER_DIED, message="the process was ended by SIGKILL")
STOPPED = Failure(code=WORKER_INTERRUPTED, message="it was interrupted")


def good(order: WorkerDevice, number: int, sequential: bool) -> dict[str, Any]:
    return document(order.device, 7e14)


def collected(
    workers: FakeWorkers,
    *devices: str,
    settled: Callable[[Sequence[ProcessRun]], bool] = lambda runs: True,
    **plan: Any,
) -> tuple[ProcessRun, ...]:
    """Run processes that multiply matrices on these of eight GPUs, all at once if not told."""
    settings = {
        "seconds": 8.0,
        "processes": 1,
        "max_processes": 1,
        "alone": False,
        "together": True,
    }
    request = BenchRequest(kernels=("matmul",), mode=BenchMode.QUICK)
    targets = worker_devices(devices, gpus(8))
    return collect(RunPlan(**(settings | plan)), targets, request, workers, settled)


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


def test_a_split_card_s_workers_are_its_instances_next_to_its_processors() -> None:
    whole, card = gpus(2)
    instance = MigInstance("MIG-1", None, cuda_index=0)
    split = card._replace(cuda_index=None, mig=MigState(enabled=True, instances=(instance,)))

    found = worker_devices(["gpu"], (whole._replace(cuda_index=1), split))

    assert [(one.device, one.gpu_uuid) for one in found] == [
        ("gpu:0", "MIG-1"),
        ("gpu:1", whole.uuid),
    ]
    assert found[0].cpus == worker_devices(["gpu:1"], (whole, card))[0].cpus


def test_a_device_named_twice_has_one_station() -> None:
    found = worker_devices(["gpu:1", "all", "cpu"], gpus(2))

    assert [worker.device for worker in found] == ["gpu:1", "gpu:0", "cpu"]
    assert found[2] == WorkerDevice(device="cpu")


def test_an_unknown_gpu_has_one_too_whose_process_will_say_so() -> None:
    assert worker_devices(["gpu:9"], gpus(2)) == (WorkerDevice(device="gpu:9"),)


# ---------------------------------------------------------------------------------- rounds


def test_all_at_once_is_one_round_of_everybody() -> None:
    workers = FakeWorkers(good)

    runs = collected(workers, "gpu:0", "gpu:1", "gpu:2")

    ((orders, sequential, _),) = workers.rounds
    assert sequential is False
    assert [order.device for order in orders] == ["gpu:0", "gpu:1", "gpu:2"]
    assert all(run.together for run in runs)


def test_each_device_has_the_whole_time_alone_and_at_once() -> None:
    workers = FakeWorkers(good)

    runs = collected(workers, "gpu", alone=True, processes=2, max_processes=2)

    assert [sequential for _, sequential, _ in workers.rounds] == [True, False, True, False]
    budgets = [
        orders[0].arguments[orders[0].arguments.index("--budget") + 1]
        for orders, _, _ in workers.rounds
    ]
    assert budgets == ["8"] * 4
    assert len(runs) == 32
    assert {(run.number, run.together) for run in runs} == {
        *((0, False), (0, True), (1, False), (1, True)),
    }


def test_a_lone_device_needs_no_turn() -> None:
    workers = FakeWorkers(good)

    runs = collected(workers, "cpu", alone=False, together=True)

    assert len(workers.rounds) == 1
    assert [run.together for run in runs] == [False]


def test_a_worker_is_told_its_device_and_the_options() -> None:
    workers = FakeWorkers(good)
    collected(workers, "gpu:2")
    ((orders, _, _),) = workers.rounds

    assert orders[0].arguments == (
        *("bench", *worker_arguments(BenchRequest(kernels=("matmul",), mode=BenchMode.QUICK))),
        *("--device", "gpu:2", "--budget", "8"),
        *("--json", "--samples", "summary", "--quiet", "--no-github"),
    )
    assert orders[0].cpus == frozenset(range(4))


def test_more_processes_until_it_is_settled() -> None:
    asked: list[int] = []

    def settled(runs: Sequence[ProcessRun]) -> bool:
        asked.append(len(runs))
        return len(runs) == 5

    runs = collected(FakeWorkers(good), "gpu:0", settled=settled, processes=3, max_processes=10)

    assert asked == [3, 4, 5]
    assert len(runs) == 5


def test_never_more_than_the_most() -> None:
    runs = collected(
        *(FakeWorkers(good), "gpu:0"), settled=lambda runs: False, processes=2, max_processes=4
    )

    assert [run.number for run in runs] == [0, 1, 2, 3]


def test_one_that_dies_costs_the_others_nothing() -> None:
    def script(order: WorkerDevice, number: int, sequential: bool) -> Any:
        return DIED if (order.device, number) == ("gpu:1", 0) else good(order, number, sequential)

    runs = collected(FakeWorkers(script), "gpu:0", "gpu:1", processes=2, max_processes=2)

    failed = [run for run in runs if run.failure is not None]
    assert [(run.device, run.number) for run in failed] == [("gpu:1", 0)]
    assert len(runs) == 4
    assert failed[0].gpu_uuid == uuid_of("gpu:1")


def test_where_nobody_answers_it_is_not_tried_again() -> None:
    workers = FakeWorkers(lambda order, number, sequential: DIED)

    runs = collected(workers, "gpu:0", "gpu:1", processes=5, max_processes=5)

    assert len(workers.rounds) == 1
    assert all(run.result is None for run in runs)


def test_an_interrupt_ends_it_and_keeps_what_is_there() -> None:
    def script(order: WorkerDevice, number: int, sequential: bool) -> Any:
        return STOPPED if number == 2 else good(order, number, sequential)

    runs = collected(FakeWorkers(script), "gpu:0", processes=5, max_processes=5)

    assert len(runs) == 3
    assert was_interrupted(runs)
    assert sum(run.result is not None for run in runs) == 2


# ---------------------------------------------------------------------------------- documents


def read(found: Any) -> ProcessRun:
    worker = WorkerDevice(device="gpu:0", gpu_uuid="GPU-0")
    return run_of(found, worker, 0, together=True)


def test_a_document_is_read_whole() -> None:
    run = read(document("gpu:0", 7e14, readings={"limited_s": {"power-cap": 1.5}}))

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
    deadlines = []
    for corruption_s in (0.0, 600.0):
        workers = FakeWorkers(good)
        rounds = {"alone": alone, "together": not alone, "corruption_s": corruption_s}
        collected(workers, "gpu:0", "gpu:1", **rounds)
        deadlines.append(workers.rounds[0][2])

    assert deadlines[1] - deadlines[0] == turns * 600.0


@pytest.mark.parametrize(("processors", "factor"), [(1, 2.0), (2, 1.0), (64, 1.0)])
def test_processes_that_share_a_processor_have_as_much_more_time(
    monkeypatch: pytest.MonkeyPatch, processors: int, factor: float
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: frozenset(range(processors)))
    deadlines = []
    for devices in (("gpu:0",), ("gpu:0", "gpu:1")):
        workers = FakeWorkers(good)
        collected(workers, *devices, alone=False, together=True)
        deadlines.append(workers.rounds[0][2])

    assert deadlines[1] == factor * deadlines[0]


def test_nothing_makes_nothing() -> None:
    lost = ProcessRun(device="gpu:0", number=0, failure=Failure(code="x", message="x"))

    assert merged([]) is None
    assert merged([lost]) is None


def test_the_rows_are_those_of_each_devices_first_process() -> None:
    found = merged(runs_of({"gpu:0": [1e14, 2e14], "gpu:1": [3e14, 4e14]}))

    assert found is not None
    speeds = [row.throughput.value for row in found.measurements if row.throughput]
    assert speeds == [1e14, 3e14]
    first, second = (row.process_times_s for row in found.measurements)
    assert first[0] == pytest.approx(2 * first[1])
    assert second[0] == pytest.approx(4 / 3 * second[1])
    assert [gpu.cuda_index for gpu in found.environment.gpus] == [0, 1]


def test_the_medians_are_those_measured_all_at_once_if_any_were() -> None:
    runs = runs_of({"gpu:0": [1e14, 2e14, 4e14]})
    alone = [replace(run, together=False) for run in runs]

    some, none = merged((alone[0], *runs[1:])), merged(tuple(alone))

    assert some is not None
    assert none is not None
    assert [len(found.measurements[0].process_times_s) for found in (some, none)] == [2, 3]


def test_a_device_whose_first_process_died_is_shown_by_the_next() -> None:
    lost = ProcessRun(device="gpu:0", number=0, together=True)
    found = merged((lost, *runs_of({"gpu:0": [1e14, 2e14]})))

    assert found is not None
    assert len(found.measurements) == 1


def test_the_sensors_of_all_processes_are_joined() -> None:
    first = runs_of(
        {"gpu:0": [1e14]},
        readings={
            "temperature_c": Extent(low=40, median=60, high=70),
            "limited_s": {"power-cap": 1.0},
            "new_errors": {"ecc_corrected": 1},
            "reasons": {"power-cap": 1.0},
            "energy_j": 100.0,
        },
    )
    second = runs_of(
        {"gpu:0": [1e14]},
        readings={
            "temperature_c": Extent(low=50, median=80, high=90),
            "limited_s": {"power-cap": 2.0, "software-thermal": 0.5},
            "new_errors": {"ecc_corrected": 2},
            "energy_j": 50.0,
        },
    )
    found = merged((*first, *second))

    assert found is not None
    assert found.telemetry is not None
    (gpu,) = found.telemetry.gpus
    assert gpu.temperature_c == Extent(low=40, median=80, high=90)
    assert gpu.limited_s == {"power-cap": 3.0, "software-thermal": 0.5}
    assert gpu.new_errors == {"ecc_corrected": 3}
    assert gpu.reasons == {"power-cap": 1.0}
    assert (gpu.energy_j, gpu.reading_count) == (150.0, 400)
    assert gpu.period_s == first[0].result.telemetry.gpus[0].period_s
    assert found.telemetry.unavailable is None


def test_the_reasons_of_different_processes_are_kept_with_their_largest_share() -> None:
    runs = [
        run
        for reasons in ({"power-cap": 0.1, "idle": 0.3}, {"power-cap": 0.2})
        for run in runs_of({"gpu:0": [1e14]}, readings={"reasons": reasons, "energy_j": None})
    ]
    found = merged(runs)

    assert found is not None
    assert found.telemetry is not None
    (gpu,) = found.telemetry.gpus
    assert gpu.reasons == {"power-cap": 0.2, "idle": 0.3}
    assert gpu.energy_j is None


def test_a_gpu_that_no_process_could_read_keeps_its_reason() -> None:
    unread = {"reading_count": 0, "unavailable": {"power_w": "not supported"}}

    found = merged(runs_of({"gpu:0": [1e14, 1e14]}, readings=unread))

    assert found is not None
    assert found.telemetry is not None
    (gpu,) = found.telemetry.gpus
    assert (gpu.reading_count, gpu.unavailable) == (0, {"power_w": "not supported"})


def test_every_processes_products_are_kept() -> None:
    check = Corruption(device="gpu:0", gpu_uuid=None, products=5)
    found = merged(runs_of({"gpu:0": [1e14, 1e14]}, corruption=(check,)))

    assert found is not None
    assert len(found.corruption) == 2


def test_the_times_add_up() -> None:
    found = merged(runs_of({"gpu:0": [1e14, 1e14]}))

    assert found is not None
    assert found.environment.duration_s == 25.0


def test_a_worker_is_asked_for_exactly_what_we_were() -> None:
    """The program's own parser reads the worker's options back."""
    request = BenchRequest(
        kernels=("matmul", "copy"),
        size=512,
        dtypes=("float16", "bfloat16"),
        mode=BenchMode.FULL,
        seed=7,
        fill=Fill.ZEROS,
        temperature=0.9,
        towers=4,
        data_file="images.gz",
    )

    words = list(worker_arguments(request, 1.5))
    found = built_command("bench").make_context("bench", words).params

    assert list(found["kernels"]) == ["matmul", "copy"]
    assert (found["size"], list(found["dtypes"]), found["full"]) == (
        512,
        ["float16,bfloat16"],
        True,
    )
    assert (found["seed"], found["fill"], found["temperature"]) == (7, Fill.ZEROS, 0.9)
    assert (found["towers"], str(found["data_file"]), found["corruption_s"]) == (
        4,
        "images.gz",
        1.5,
    )


def test_nothing_is_asked_for_twice() -> None:
    words = worker_arguments(BenchRequest())

    assert "--quick" not in words
    assert "--full" not in words
    assert "--size" not in words
