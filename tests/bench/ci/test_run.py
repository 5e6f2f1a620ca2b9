"""A profile's run with pretended processes: how many are started, and what is made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.ci.gates import series_of
from gpucheck.bench.ci.model import Baseline, ProcessRun
from gpucheck.bench.ci.profile_lint import lint_text
from gpucheck.bench.ci.profile_model import Profile
from gpucheck.bench.ci.run import Outcome, conclude_profile, plan_for, run_profile
from gpucheck.bench.ci.run_data import Facts, Node, NodeGpu
from gpucheck.bench.model import BenchResult
from gpucheck.bench.workers import (
    WORKER_DIED,
    WORKER_INTERRUPTED,
    WorkerAnswer,
    WorkerDevice,
    WorkerOrder,
)
from gpucheck.drivers.host.cpu import CpuFacts
from gpucheck.inventory.model import Gpu
from gpucheck.report.codec import to_plain
from gpucheck.report.envelope import Failure, Host
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.json import render
from gpucheck.report.text import View
from tests.bench.ci.test_profile_lint import GOOD
from tests.fakes.bench_results import measurement, product, result_of, sensors
from tests.fakes.gates import CPU, NODE, cpu_runs
from tests.fakes.reports import wrap
from tests.report.schemas import validator

PROCESSOR = CpuFacts(
    model="Pretended CPU",
    logical_cores=2,
    usable_cores=2,
    quota_cores=None,
    l2_bytes=None,
    last_level_bytes=None,
    memory_available_bytes=None,
)


def profile_of(text: str) -> Profile:
    found = lint_text(text, "p.toml").profile
    assert found is not None
    return found


class ScriptedWorkers:
    """Processes that bring the results of a script, and note what they were told."""

    def __init__(self, script: Iterable[BenchResult | Failure]) -> None:
        self._script = iter(script)
        self.orders: list[WorkerOrder] = []

    def round(
        self, orders: Sequence[WorkerOrder], *, sequential: bool, deadline_s: float
    ) -> Sequence[WorkerAnswer]:
        """Return the next results."""
        self.orders.extend(orders)
        return [self._answer(next(self._script)) for _ in orders]

    def _answer(self, step: BenchResult | Failure) -> WorkerAnswer:
        if isinstance(step, Failure):
            return WorkerAnswer(failure=step)
        document: dict[str, Any] = {
            "schema": "gpucheck/bench/1",
            "exit_code": 0,
            "host": to_plain(Host()),
            "error": None,
            "result": to_plain(step),
        }
        return WorkerAnswer(document=document)


def no_baseline(runs: Sequence[ProcessRun]) -> Baseline | None:
    return None


def copies(values: Iterable[float]) -> list[BenchResult | Failure]:
    return [result_of(measurement("copy", 1e9 * value)) for value in values]


def run_cpu(
    script: list[BenchResult | Failure], baseline: Baseline | None = None
) -> tuple[Outcome, ScriptedWorkers]:
    workers = ScriptedWorkers(script)
    outcome = run_profile(
        profile_of(CPU), Node(), (WorkerDevice(device="cpu"),), workers, lambda runs: baseline
    )
    return outcome, workers


def earlier(values: Sequence[float]) -> Baseline:
    facts = Facts(profile=profile_of(CPU), runs=cpu_runs(values))
    return Baseline(path="a.json", time="", series=series_of(facts))


GOOD_COPIES = (10.0, 10.1, 9.9, 10.05, 9.95)


def test_five_processes_are_enough_where_they_agree() -> None:
    outcome, workers = run_cpu(copies([10.0] * 10), earlier(GOOD_COPIES))

    assert len(workers.orders) == 5
    assert conclude_profile(outcome, Host(), PROCESSOR).exit_code is ExitCode.OK


def test_undecided_ones_are_repeated_up_to_the_maximum() -> None:
    noisy = [9.5, 10.2, 8.8, 9.9, 9.1] * 2

    outcome, workers = run_cpu(copies(noisy), earlier(GOOD_COPIES))

    answer = conclude_profile(outcome, Host(), PROCESSOR)
    assert len(workers.orders) == 10
    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert answer.error is not None
    assert answer.error.code == "gate-undecided"


def test_the_report_has_one_processs_rows_and_the_profile() -> None:
    outcome, _ = run_cpu(copies([10.0] * 10), earlier(GOOD_COPIES))

    result = conclude_profile(outcome, Host(), PROCESSOR).result

    assert isinstance(result, BenchResult)
    assert len(result.measurements) == 1
    assert result.profile is not None
    assert (result.profile.name, result.profile.processes) == ("test", 5)
    assert {gate.id for gate in result.gates} == {"processes", "results", "not-finite", "copy"}


def test_the_document_is_described_by_its_schema() -> None:
    outcome, _ = run_cpu(copies([5.0] * 5), earlier(GOOD_COPIES))
    answer = conclude_profile(outcome, Host(), PROCESSOR)

    document = json.loads(render(wrap("bench", answer), View()))

    validator("bench").validate(document)
    gates = validator("bench").schema["properties"]["result"]["properties"]["gates"]
    described = set(gates["items"]["properties"])
    assert all(set(one) == described for one in document["result"]["gates"])
    (gate,) = [one for one in document["result"]["gates"] if one["id"] == "copy"]
    assert (gate["status"], gate["class"]) == ("fail", "environment")
    assert document["exit_code"] == 1


def test_an_interrupt_keeps_what_was_measured() -> None:
    stopped = Failure(code=WORKER_INTERRUPTED, message="it was interrupted")

    outcome, _ = run_cpu([*copies([10.0, 10.0]), stopped])

    answer = conclude_profile(outcome, Host(), PROCESSOR)
    assert answer.exit_code is ExitCode.INTERRUPTED
    assert isinstance(answer.result, BenchResult)
    assert answer.result.interrupted


def test_what_every_process_lacks_is_code_four_and_no_verdict() -> None:
    lacking = Failure(code="cupy-missing", message="CuPy is missing")
    outcome, _ = run_cpu([lacking])
    run = replace(outcome.facts.runs[0], exit_code=4)
    outcome = replace(outcome, facts=replace(outcome.facts, runs=(run,)))

    answer = conclude_profile(outcome, Host(), PROCESSOR)

    assert (answer.exit_code, answer.error, answer.result) == (ExitCode.MISSING, lacking, None)


def test_processes_that_died_are_a_verdict_without_rows() -> None:
    outcome, _ = run_cpu([Failure(code=WORKER_DIED, message="it died")])

    answer = conclude_profile(outcome, Host(), PROCESSOR)

    assert answer.exit_code is ExitCode.BAD
    assert isinstance(answer.result, BenchResult)
    assert answer.result.measurements == ()
    assert answer.result.environment.cpu_model == "Pretended CPU"


def test_a_machine_of_another_kind_is_not_measured() -> None:
    workers = ScriptedWorkers([])
    other = NodeGpu(gpu=Gpu(index=0, name="L4"), device="gpu:0", pci_device_id="27b810de")

    outcome = run_profile(
        profile_of(NODE), Node(gpus=(other,)), (WorkerDevice(device="gpu:0"),), workers, no_baseline
    )

    answer = conclude_profile(outcome, Host(), PROCESSOR)
    assert workers.orders == []
    assert answer.exit_code is ExitCode.BAD
    assert isinstance(answer.result, BenchResult)
    assert [gate.id for gate in answer.result.gates] == ["match-board"]


def test_sensors_of_all_processes_are_put_together() -> None:
    hot = sensors(limited_s={"hardware-thermal": 1.0}, new_errors={"ecc_corrected": 2})
    script: list[BenchResult | Failure] = [
        result_of(product(700), telemetry=hot if at == 3 else sensors()) for at in range(5)
    ]
    gpu = NodeGpu(
        gpu=Gpu(index=0, cuda_index=0, name="NVIDIA H100 80GB HBM3"),
        device="gpu:0",
        pci_device_id="233010de",
    )

    outcome = run_profile(
        profile_of(NODE),
        Node(gpus=(gpu,)),
        (WorkerDevice(device="gpu:0"),),
        ScriptedWorkers(script),
        no_baseline,
    )

    result = conclude_profile(outcome, Host(), PROCESSOR).result
    assert isinstance(result, BenchResult)
    assert result.telemetry is not None
    (merged,) = result.telemetry.gpus
    assert merged.limited_s == {"hardware-thermal": 1.0}
    assert merged.new_errors == {"ecc_corrected": 2}
    assert merged.reading_count == 500


def test_a_worker_is_told_all_that_the_profile_says() -> None:
    told = plan_for(profile_of(GOOD), [WorkerDevice(device="gpu:0")]).arguments

    assert told[:3] == ("matmul", "copy", "softmax")
    line = " ".join(told)
    for part in ("--quick", "--dtype bfloat16,float32", "--size 8192", "--corruption 5"):
        assert part in line


@pytest.mark.parametrize(("count", "together"), [(1, False), (2, True)])
def test_one_device_has_no_company(count: int, together: bool) -> None:
    targets = [WorkerDevice(device=f"gpu:{at}") for at in range(count)]

    plan = plan_for(profile_of(GOOD), targets)

    assert plan.alone
    assert plan.together is together
    assert plan.each_whole
