"""Runs without a profile in several processes: their gates, their code, and what is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench.ci.baseline import row_series, saved_run
from gpucheck.bench.ci.gate_model import Gate, GateClass, GateStatus
from gpucheck.bench.ci.model import SavedRun
from gpucheck.bench.ci.run import run_repeated, work_plan
from gpucheck.bench.ci.workers import worker_arguments
from gpucheck.bench.corruption_model import Corruption
from gpucheck.bench.model import BenchMode, BenchRequest, BenchResult, Fill, Verified
from gpucheck.bench.plan import BUDGETS_S
from gpucheck.bench.workers import (
    WORKER_DIED,
    WORKER_INTERRUPTED,
    WorkerAnswer,
    select_worker_devices,
)
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import (
    ExitCode,
    GpucheckError,
    InconclusiveError,
    MissingError,
    WrongUseError,
)
from gpucheck.report.formats.junit import render
from gpucheck.report.text import View
from tests.architecture.commands import built_command
from tests.fakes.bench_runs import FakeWorkers, Script, document, gpus, row, runs_of
from tests.fakes.verdicts import report
from tests.report.formats.junit_rules import violations

TIME = "2026-11-21T03:32:00Z"
NOISE = (0.99, 1.0, 1.01, 1.005, 0.995)


def baseline(count: int = 8, speed: float = 7e14) -> SavedRun:
    speeds = {f"gpu:{n}": [speed * factor for factor in NOISE] for n in range(count)}
    runs = runs_of(speeds)
    return saved_run(runs, row_series(runs), time=TIME, profile=None)


def measured(
    script: Script,
    *,
    devices: Sequence[str] = ("all",),
    against: SavedRun | None = None,
    processes: int = 5,
    count: int = 8,
) -> tuple[Answer, SavedRun | None, FakeWorkers]:
    workers = FakeWorkers(script)
    plan = work_plan(
        BenchRequest(devices=tuple(devices)),
        gpus(count),
        processes=processes,
        corruption_s=0.0,
        more=against is not None,
    )
    path = Path("before.json") if against is not None else None
    answer, kept = run_repeated(plan, workers, against, path, time=TIME)
    text = render(report(answer.result, code=answer.exit_code, failure=answer.error), View())
    assert violations(text) == []
    # Red exactly when the code is not 0.
    assert ("<failure" in text or "<error" in text) is (answer.exit_code is not ExitCode.OK)
    return answer, kept, workers


def steady(speed: float = 7e14, **faults: dict[str, Any]) -> Script:
    """Return a script in which `gpu3=...` changes one device's documents."""

    def script(order: Any, number: int, sequential: bool) -> dict[str, Any]:
        changes = dict(faults.get(order.device.replace(":", ""), {}))
        own = changes.pop("speed", speed)
        return document(order.device, own * NOISE[number % 5], **changes)

    return script


def gates(answer: Answer, status: GateStatus) -> dict[tuple[str, str], GateClass | None]:
    assert isinstance(answer.result, BenchResult)
    found = [gate for gate in answer.result.gates if isinstance(gate, Gate)]
    return {(gate.device, gate.id): gate.class_ for gate in found if gate.status is status}


TAKEN = Failure(code="gpu-memory-taken", message="the memory is taken")
ROW = "matmul/cublas/bfloat16/4096x4096x4096"


def test_a_good_run_passes_and_can_be_saved() -> None:
    answer, kept, workers = measured(steady())

    assert answer.exit_code is ExitCode.OK
    assert kept is not None
    assert [one.device for one in kept.devices] == [f"gpu:{n}" for n in range(8)]
    assert all(len(one.values) == 5 for one in kept.series)
    assert len(workers.rounds) == 5


def test_the_same_machine_passes_its_baseline() -> None:
    answer, _, _ = measured(steady(), against=baseline())

    assert answer.exit_code is ExitCode.OK
    assert set(gates(answer, GateStatus.PASS)) >= {(f"gpu:{n}", ROW) for n in range(8)}


def test_one_slow_gpu_among_eight_is_named() -> None:
    answer, _, _ = measured(steady(gpu3={"speed": 6.0e14}), against=baseline())

    assert gates(answer, GateStatus.FAIL) == {("gpu:3", ROW): GateClass.HARDWARE}
    assert answer.exit_code is ExitCode.BAD
    assert answer.error is not None
    assert answer.error.message.startswith("matmul/cublas/bfloat16/4096x4096x4096 on gpu:3 failed")


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({}, GateStatus.PASS, ExitCode.OK),
        ({"mismatches": 1}, GateStatus.FAIL, ExitCode.BAD),
        ({"products": 0, "failure": TAKEN}, GateStatus.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
    ],
)
def test_repeated_products_have_a_verdict_on_each_device(
    changes: dict[str, Any], status: GateStatus, code: ExitCode
) -> None:
    clean = Corruption(device="gpu:3", gpu_uuid=None, products=9, words=64, reference_ok=True)
    found = {"corruption": (replace(clean, **changes),)}

    answer, _, _ = measured(steady(gpu3=found))

    assert answer.exit_code is code
    assert {key for key in gates(answer, status) if key[1] == "corruption"} == {
        ("gpu:3", "corruption")
    }


def test_one_that_is_hot_is_not_called_defective() -> None:
    hot = {"speed": 6.0e14, "doubts": ("throttled",)}
    answer, _, _ = measured(steady(gpu3=hot), against=baseline())

    assert gates(answer, GateStatus.FAIL) == {("gpu:3", ROW): GateClass.THERMAL}


def test_a_busy_host_is_the_environments_fault() -> None:
    def script(order: Any, number: int, sequential: bool) -> dict[str, Any]:
        return document("cpu", 5e13 * NOISE[number % 5], doubts=("host-busy",))

    runs = runs_of({"cpu": [7e13 * factor for factor in NOISE]})
    before = saved_run(runs, row_series(runs), time=TIME, profile=None)
    answer, _, workers = measured(script, devices=["cpu"], against=before)

    # A slow figure while others used the machine says nothing of it, and no repeat would help.
    assert gates(answer, GateStatus.INCONCLUSIVE) == {("cpu", ROW): GateClass.ENVIRONMENT}
    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert len(workers.rounds) == 5


def test_processes_are_added_while_only_some_of_them_were_disturbed() -> None:
    def script(order: Any, number: int, sequential: bool) -> dict[str, Any]:
        disturbed = ("host-busy",) if number in (0, 3) else ()
        return document("cpu", 6.65e13 * NOISE[number % 5], doubts=disturbed)

    runs = runs_of({"cpu": [7e13 * factor for factor in NOISE]})
    before = saved_run(runs, row_series(runs), time=TIME, profile=None)
    _, _, workers = measured(script, devices=["cpu"], against=before)

    assert len(workers.rounds) == 10


def test_a_failure_against_a_baseline_names_its_class_and_what_to_do() -> None:
    answer, _, _ = measured(steady(gpu3={"speed": 6.0e14}), against=baseline())

    assert answer.error is not None
    assert "(hardware)" in answer.error.message
    assert "gpucheck detect" in answer.error.remedy


def test_undecided_takes_more_processes_up_to_the_double() -> None:
    answer, _, workers = measured(steady(6.65e14), against=baseline())

    assert len(workers.rounds) == 10
    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert set(gates(answer, GateStatus.INCONCLUSIVE).values()) == {GateClass.NOISE}


def test_another_driver_takes_no_more_processes_in_vain() -> None:
    before = baseline()
    devices = tuple(
        replace(one, fingerprint=replace(one.fingerprint, driver="1")) for one in before.devices
    )
    answer, _, workers = measured(steady(), against=replace(before, devices=devices))

    assert len(workers.rounds) == 5
    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert set(gates(answer, GateStatus.INCONCLUSIVE).values()) == {GateClass.CONFIG}


def test_a_wrong_result_is_a_hardware_failure_whatever_its_speed() -> None:
    wrong = Verified(error=None, bound=1e-2, ok=False, reference="float64")
    failure = Failure(code="wrong-result", message="it holds NaN")
    rows = [row("gpu:2", 9e14, verified=wrong, error=failure, median_s=None, throughput=None)]
    answer, kept, _ = measured(steady(gpu2={"rows": rows}))

    assert GateClass.HARDWARE in gates(answer, GateStatus.FAIL).values()
    assert {device for device, _ in gates(answer, GateStatus.FAIL)} == {"gpu:2"}
    assert answer.exit_code is ExitCode.BAD
    assert kept is not None
    assert "gpu:2" not in {one.device for one in kept.series}


def test_a_gpu_lost_in_mid_run_is_a_hardware_failure() -> None:
    lost = Failure(code="gpu-lost", message="the GPU stopped answering")

    def script(order: Any, number: int, sequential: bool) -> dict[str, Any]:
        rows = [row(order.device, 7e14, error=lost)] if order.device == "gpu:5" else None
        return document(order.device, 7e14 * NOISE[number % 5], rows=rows)

    answer, _, _ = measured(script)

    assert gates(answer, GateStatus.FAIL) == {("gpu:5", "processes"): GateClass.HARDWARE}
    assert answer.exit_code is ExitCode.BAD


def test_a_worker_that_dies_fails_its_device() -> None:
    died = WorkerAnswer(failure=Failure(code=WORKER_DIED, message="ended by SIGSEGV"))

    def script(order: Any, number: int, sequential: bool) -> Any:
        return died if (order.device, number) == ("gpu:1", 2) else document(order.device, 7e14)

    answer, _, _ = measured(script)

    assert ("gpu:1", "processes") in gates(answer, GateStatus.FAIL)


def test_an_interrupt_is_130_and_saves_nothing() -> None:
    stopped = WorkerAnswer(failure=Failure(code=WORKER_INTERRUPTED, message="interrupted"))

    def script(order: Any, number: int, sequential: bool) -> Any:
        return stopped if number == 2 else document(order.device, 7e14)

    answer, kept, _ = measured(script)

    assert answer.exit_code is ExitCode.INTERRUPTED
    assert answer.result is not None
    assert kept is None


def test_an_interrupt_before_the_first_figure_is_130_too() -> None:
    stopped = WorkerAnswer(failure=Failure(code=WORKER_INTERRUPTED, message="interrupted"))

    answer, kept, _ = measured(lambda order, number, sequential: stopped)

    assert (answer.exit_code, answer.result, kept) == (ExitCode.INTERRUPTED, None, None)


@pytest.mark.parametrize(
    ("exit_code", "error"),
    [(2, WrongUseError), (4, MissingError), (3, InconclusiveError), (1, InconclusiveError)],
)
def test_where_no_process_measured_anything_their_reason_is_ours(
    exit_code: int, error: type[GpucheckError]
) -> None:
    def script(order: Any, number: int, sequential: bool) -> dict[str, Any]:
        failure = Failure(code="no-such-thing", message="there is none", remedy=("look",))
        return document(order.device, 1.0, exit_code=exit_code, error=failure) | {"result": None}

    with pytest.raises(error) as raised:
        measured(script)

    assert (raised.value.code, raised.value.remedy) == ("no-such-thing", ("look",))


def test_zero_samples_are_never_a_pass() -> None:
    answer, kept, _ = measured(steady(gpu0={"rows": []}), against=baseline(), count=1)

    assert answer.exit_code is not ExitCode.OK
    assert kept is None


# ------------------------------------------------------------------------------------- plans


def test_all_means_gpus_and_the_processor_only_where_there_is_none() -> None:
    assert [one.device for one in select_worker_devices(["all"], gpus(2))] == ["gpu:0", "gpu:1"]
    assert [one.device for one in select_worker_devices(["all"], ())] == ["cpu"]
    assert [one.device for one in select_worker_devices(["cpu", "all"], gpus(1))] == [
        "cpu",
        "gpu:0",
    ]


def test_gpus_that_are_not_there_are_missing() -> None:
    with pytest.raises(MissingError, match="No GPU is visible"):
        select_worker_devices(["gpu"], ())


def test_the_time_is_the_modes_or_what_was_asked() -> None:
    def seconds(request: BenchRequest) -> float:
        return work_plan(request, gpus(1), processes=1, corruption_s=0, more=False).seconds

    assert seconds(BenchRequest(mode=BenchMode.QUICK)) == BUDGETS_S[BenchMode.QUICK]
    assert seconds(BenchRequest(budget_s=2.0)) == 2.0


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
    assert (found["size"], list(found["dtype"]), found["full"]) == (512, ["float16,bfloat16"], True)
    assert (found["seed"], found["fill"], found["temperature"]) == (7, Fill.ZEROS, 0.9)
    assert (found["towers"], str(found["data"]), found["corruption"]) == (4, "images.gz", 1.5)


def test_nothing_is_asked_for_twice() -> None:
    words = worker_arguments(BenchRequest())

    assert "--quick" not in words
    assert "--full" not in words
    assert "--size" not in words
