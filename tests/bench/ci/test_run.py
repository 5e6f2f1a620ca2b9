"""A run in several processes, with a profile and without: its gates, its code, what is saved."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench.ci.baseline import profile_key, row_series, saved_run
from gpucheck.bench.ci.gates import series_of
from gpucheck.bench.ci.model import Reference, SavedRun
from gpucheck.bench.ci.processes import worker_arguments
from gpucheck.bench.ci.profile_model import Profile
from gpucheck.bench.ci.run import (
    Benchmark,
    node_of,
    plan_of,
    request_for,
    run_benchmark,
    run_profile,
    run_request,
    wanted_devices,
)
from gpucheck.bench.ci.run_data import Node, RunData
from gpucheck.bench.model import BenchResult, Corruption, Gate, GateClass, GateStatus, Verified
from gpucheck.bench.plan import BUDGETS_S
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.bench.workers import (
    WORKER_DIED,
    WORKER_INTERRUPTED,
    WorkerAnswer,
    WorkerDevice,
    select_worker_devices,
)
from gpucheck.drivers.host.cpu import LinuxCpu
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    NvmlReading,
    NvmlRequest,
    ProbeFailure,
)
from gpucheck.inventory.model import (
    DecidedBy,
    Gpu,
    Inventory,
    MigInstance,
    MigState,
    Topology,
    TopologyLink,
    Visibility,
)
from gpucheck.report.codec import to_plain
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import (
    ExitCode,
    GpucheckError,
    InconclusiveError,
    MissingError,
    WrongUseError,
)
from gpucheck.report.formats import json as json_format
from gpucheck.report.formats.junit import render
from gpucheck.report.host import Host
from gpucheck.report.text import View
from tests.bench.ci.test_profile_lint import GOOD
from tests.fakes.bench_results import measurement, product, result_of, sensors, uuid_of
from tests.fakes.bench_runs import FakeWorkers, Script, document, gpus, row, runs_of
from tests.fakes.gates import CPU, NODE, cpu_runs, profile_of
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of
from tests.fakes.reports import wrap
from tests.fakes.verdicts import report
from tests.report.formats.junit_rules import violations
from tests.report.schemas import validator

STOPPED = Failure(code=WORKER_INTERRUPTED, message="interrupted")
TIME = "2026-11-21T03:32:00Z"


def copies(values: Iterable[float]) -> list[BenchResult | WorkerAnswer]:
    return [result_of(measurement("copy", 1e9 * value)) for value in values]


def scripted(steps: Iterable[BenchResult | WorkerAnswer]) -> FakeWorkers:
    """Return workers that bring these results, one after the other."""
    script = iter(steps)

    def answer(*_: object) -> WorkerAnswer:
        step = next(script)
        if not isinstance(step, BenchResult):
            return step
        return {
            "schema": "gpucheck/bench/1",
            "exit_code": 0,
            "host": to_plain(Host()),
            "error": None,
            "result": to_plain(step),
        }

    return FakeWorkers(answer)


def judged(
    text: str, workers: FakeWorkers, *devices: str, reference: Reference | None = None, **node: Any
) -> Answer:
    """Run a profile on devices of a node."""
    profile = profile_of(text)
    benchmark = Benchmark(
        profile=profile,
        request=request_for(profile),
        devices=[WorkerDevice(device=device) for device in devices],
        time=TIME,
        node=Node(**node),
        host=Host(),
        reference=reference,
    )
    return run_benchmark(benchmark, workers)[0]


def run_cpu(
    script: Iterable[BenchResult | WorkerAnswer], reference: Reference | None = None
) -> tuple[Answer, int]:
    """Return the answer, and how many processes it took."""
    workers = scripted(script)
    return judged(CPU, workers, "cpu", reference=reference), len(workers.rounds)


def earlier(values: Sequence[float]) -> Reference:
    profile, runs = profile_of(CPU), cpu_runs(values)
    series = series_of(RunData(profile=profile, runs=runs))
    run = saved_run(runs, series, time=TIME, profile=profile_key(profile))
    return Reference(run=run, path=Path("a.json"))


GOOD_COPIES = (10.0, 10.1, 9.9, 10.05, 9.95)


def test_five_processes_are_enough_where_they_agree() -> None:
    answer, count = run_cpu(copies([10.0] * 10), earlier(GOOD_COPIES))

    assert count == 5
    assert answer.exit_code is ExitCode.OK


def test_undecided_ones_are_repeated_up_to_the_maximum() -> None:
    noisy = [9.5, 10.2, 8.8, 9.9, 9.1] * 2

    answer, count = run_cpu(copies(noisy), earlier(GOOD_COPIES))

    assert count == 10
    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert answer.error is not None
    assert answer.error.code == "gate-undecided"


def test_the_report_has_one_processs_rows_and_the_profile() -> None:
    answer, _ = run_cpu(copies([10.0] * 10), earlier(GOOD_COPIES))

    result = answer.result
    assert isinstance(result, BenchResult)
    assert len(result.measurements) == 1
    assert result.profile is not None
    assert (result.profile.name, result.profile.processes) == ("test", 5)
    assert {gate.id for gate in result.gates} == {"processes", "results", "not-finite", "copy"}


def test_the_document_is_described_by_its_schema() -> None:
    answer, _ = run_cpu(copies([5.0] * 5), earlier(GOOD_COPIES))

    document = json.loads(json_format.render(wrap("bench", answer), View()))

    validator("bench").validate(document)
    gates = validator("bench").schema["properties"]["result"]["properties"]["gates"]
    described = set(gates["items"]["properties"])
    assert all(set(one) == described for one in document["result"]["gates"])
    (gate,) = [one for one in document["result"]["gates"] if one["id"] == "copy"]
    assert (gate["status"], gate["class"]) == ("fail", "environment")
    assert document["exit_code"] == 1


def test_an_interrupt_keeps_what_was_measured() -> None:
    answer, _ = run_cpu([*copies([10.0, 10.0]), STOPPED])

    assert answer.exit_code is ExitCode.INTERRUPTED
    assert isinstance(answer.result, BenchResult)
    assert answer.result.interrupted


def test_what_every_process_lacks_is_code_four_and_no_verdict() -> None:
    lacking = Failure(code="cupy-missing", message="CuPy is missing")
    found = document("cpu", 1.0, exit_code=4, error=lacking) | {"result": None}

    answer, _ = run_cpu([found])

    assert (answer.exit_code, answer.error, answer.result) == (ExitCode.MISSING, lacking, None)


def test_processes_that_died_are_a_verdict_without_rows() -> None:
    answer, _ = run_cpu([Failure(code=WORKER_DIED, message="it died")])

    assert answer.exit_code is ExitCode.BAD
    assert isinstance(answer.result, BenchResult)
    assert answer.result.measurements == ()
    assert answer.result.environment.cpu_model == LinuxCpu().facts().model


def test_a_machine_of_another_kind_is_not_measured() -> None:
    workers = scripted([])
    other = Gpu(index=0, cuda_index=0, name="L4")

    answer = judged(NODE, workers, "gpu:0", gpus=(other,), pci_device_ids={0: "27b810de"})

    assert workers.rounds == []
    assert answer.exit_code is ExitCode.BAD
    assert isinstance(answer.result, BenchResult)
    assert [gate.id for gate in answer.result.gates] == ["match-board"]


def test_sensors_of_all_processes_are_put_together() -> None:
    hot = sensors(limited_s={"hardware-thermal": 1.0}, new_errors={"ecc_corrected": 2})
    script: list[BenchResult | WorkerAnswer] = [
        result_of(product(700), telemetry=hot if at == 3 else sensors()) for at in range(5)
    ]
    gpu = Gpu(index=0, cuda_index=0, name="NVIDIA H100 80GB HBM3")

    answer = judged(NODE, scripted(script), "gpu:0", gpus=(gpu,), pci_device_ids={0: "233010de"})
    result = answer.result

    assert isinstance(result, BenchResult)
    assert result.telemetry is not None
    (sensed,) = result.telemetry.gpus
    assert sensed.limited_s == {"hardware-thermal": 1.0}
    assert sensed.new_errors == {"ecc_corrected": 2}
    assert sensed.reading_count == 500


def test_a_worker_is_told_all_that_the_profile_says() -> None:
    profile = profile_of(GOOD)
    told = worker_arguments(request_for(profile), profile.run.corruption_s)

    assert told[:3] == ("matmul", "copy", "softmax")
    line = " ".join(told)
    for part in ("--quick", "--dtype bfloat16,float32", "--size 8192", "--corruption 5"):
        assert part in line


WITH_FRAMEWORKS = GOOD.replace("baseline = true", 'baseline = true\nframework = "pytorch"').replace(
    'data = "normal"', 'data = "normal"\nsame_math = true'
)


def test_a_worker_runs_the_frameworks_that_the_checks_are_about() -> None:
    profile = profile_of(WITH_FRAMEWORKS)

    plain = " ".join(worker_arguments(request_for(profile)))
    named = " ".join(worker_arguments(request_for(profile, ["pytorch=/venv/bin/python"])))

    assert "--framework pytorch --same-math" in plain
    assert "--framework pytorch=/venv/bin/python --same-math" in named


@pytest.mark.parametrize("text", [GOOD, WITH_FRAMEWORKS])
def test_a_framework_that_no_check_is_about_is_refused(text: str) -> None:
    with pytest.raises(WrongUseError, match="measures nothing with jax"):
        request_for(profile_of(text), ["jax"])


def inventory(*kinds: str | None) -> Inventory:
    gpus = tuple(
        Gpu(index=at, cuda_index=None if at == 3 else at, uuid=gpu_reading(at).uuid)
        for at in range(4)
    )
    links = tuple(TopologyLink(from_=0, to=at, kind=kind) for at, kind in enumerate(kinds, start=1))
    seen = Visibility(cuda_visible_devices=None, cuda_device_order=None, decided_by=DecidedBy.RULES)
    return Inventory(gpus=gpus, visibility=seen, topology=Topology(links=links))


READING = reading_of(*(gpu_reading(at) for at in range(4)))


def test_a_mig_instance_is_a_device_of_its_card() -> None:
    instance = MigInstance("MIG-1", None, cuda_index=0)
    split = MigState(enabled=True, instances=(instance,))
    found = inventory()
    card = found.gpus[0]._replace(cuda_index=None, mig=split)

    node = node_of(found._replace(gpus=(card,)), READING, {"gpu:0"})

    (only,) = node.gpus
    assert only == card._replace(uuid="MIG-1", cuda_index=0)
    assert (node.pci_device_ids[only.index], node.left_out) == ("233010de", 0)
    assert RunData(profile=profile_of(GOOD), node=node).uuid_of("gpu:0") == "MIG-1"


def test_only_gpus_that_take_part_are_in_thenode_of() -> None:
    found = node_of(inventory(), READING, {"gpu:0", "gpu:2"})

    assert [gpu.cuda_index for gpu in found.gpus] == [0, 2]
    assert found.left_out == 1
    assert found.driver_version == READING.driver_version
    assert found.nvlink_links == {}
    ids = [found.pci_device_ids[gpu.index] for gpu in found.gpus]
    assert ids == [READING.gpus[0].pci_device_id, READING.gpus[2].pci_device_id]
    assert all(ids)


def test_the_worst_connection_to_another_gpu_counts() -> None:
    found = node_of(inventory("NV18", "NV6"), READING, {"gpu:0", "gpu:1"})

    assert [found.nvlink_links[gpu.index] for gpu in found.gpus] == [6, 18]


def test_a_connection_over_the_bus_has_no_links() -> None:
    found = node_of(inventory("NV18", "SYS"), READING, {"gpu:0"})

    assert found.nvlink_links[found.gpus[0].index] == 0


def test_a_processors_profile_needs_no_gpu() -> None:
    assert node_of(None, NvmlReading(), set()).gpus == ()


def test_a_connection_that_nobody_read_is_unknown() -> None:
    found = node_of(inventory(None), READING, {"gpu:0"})

    assert found.gpus
    assert found.nvlink_links == {}


ON_CPU, ON_GPUS = profile_of(CPU), profile_of(NODE)


@pytest.mark.parametrize(
    ("devices", "profile", "wanted"),
    [
        ((), ON_GPUS, ("gpu",)),
        (("all",), ON_GPUS, ("gpu",)),
        ((), ON_CPU, ("cpu",)),
        (("gpu:1",), ON_GPUS, ("gpu:1",)),
        (("cpu",), ON_CPU, ("cpu",)),
    ],
)
def test_devices_default_to_those_of_the_profile(
    devices: tuple[str, ...], profile: Profile, wanted: tuple[str, ...]
) -> None:
    assert wanted_devices(profile, devices) == wanted


@pytest.mark.parametrize(
    ("device", "profile"), [("cpu", ON_GPUS), ("gpu:0", ON_CPU), ("gpu", ON_CPU)]
)
def test_a_device_of_the_other_kind_is_refused(device: str, profile: Profile) -> None:
    kind = "GPUs" if profile is ON_GPUS else "the processor"
    said = f"The profile is for {kind}, so it cannot be used with --device {device}."
    with pytest.raises(WrongUseError, match=re.escape(said)):
        wanted_devices(profile, (device,))


@pytest.mark.parametrize("device", ["tpu", "gpu:x", "gpu:", "GPU:0", "0"])
def test_what_is_no_device_is_wrong_use_and_no_verdict(device: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        wanted_devices(ON_GPUS, ("gpu:0", device))

    assert caught.value.code == "bad-device"


def examined(
    profile: Profile,
    probes: FakeProbes,
    *,
    speed: float = 1e9,
    baseline: SavedRun | None = None,
) -> tuple[Answer, SavedRun | None, FakeWorkers]:
    rows = [measurement("copy", speed)]
    workers = FakeWorkers(lambda order, *_: document(order.device, speed, rows=rows))
    reference = None if baseline is None else Reference(run=baseline, path=Path("before.json"))
    wanted = wanted_devices(profile, ())
    answer, run = run_profile(profile, wanted, probes, workers, reference)
    return answer, run, workers


def test_a_run_is_kept_with_its_profile() -> None:
    answer, run, _ = examined(ON_CPU, FakeProbes())

    assert answer.exit_code is ExitCode.OK
    assert run is not None
    assert run.profile == f"{ON_CPU.name}/{ON_CPU.version}/{ON_CPU.digest[:12]}"
    assert run.time == FakeProbes().time()
    assert [one.id for one in run.series] == ["copy"]


@pytest.mark.parametrize(("speed", "code"), [(1e9, ExitCode.OK), (5e8, ExitCode.BAD)])
def test_a_run_is_held_against_the_one_that_was_kept(speed: float, code: ExitCode) -> None:
    _, before, _ = examined(ON_CPU, FakeProbes())

    answer, _, _ = examined(ON_CPU, FakeProbes(), speed=speed, baseline=before)

    assert answer.exit_code is code


def test_a_driver_that_does_not_answer_is_no_verdict() -> None:
    failure = ProbeFailure(code="driver-not-answering", message="nothing came")
    answer, run, workers = examined(ON_GPUS, FakeProbes(readings=NvmlReading(failure=failure)))

    assert (answer.exit_code, answer.result, run) == (ExitCode.INCONCLUSIVE, None, None)
    assert workers.rounds == []


@pytest.mark.parametrize(("demand", "reads"), [("", False), ("nvlink_links = 18", True)])
def test_the_topology_is_read_where_links_are_demanded(demand: str, reads: bool) -> None:
    requests: list[NvmlRequest] = []

    class Recording(FakeProbes):
        def nvml(self, request: NvmlRequest) -> NvmlReading:
            requests.append(request)
            return super().nvml(request)

    examined(profile_of(f"{NODE}\n[inventory]\n{demand}\n"), Recording(readings=READING))

    assert {request.topology for request in requests} == {reads}


@pytest.mark.parametrize(
    ("variables", "asks"), [({}, True), ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False)]
)
def test_the_driver_is_asked_where_its_own_order_numbers_the_gpus(
    variables: dict[str, str], asks: bool
) -> None:
    probes = FakeProbes(readings=READING, variables=variables)

    answer, _, _ = examined(ON_GPUS, probes)

    assert answer.result is not None
    assert ("cuda" in probes.asked) is asks
    assert probes.asked.count("nvml") == 1


def test_gpus_that_no_program_sees_are_missing() -> None:
    probes = FakeProbes(readings=READING, variables={"CUDA_VISIBLE_DEVICES": ""})

    answer, run, workers = examined(ON_GPUS, probes)

    assert (answer.exit_code, run) == (ExitCode.MISSING, None)
    assert answer.error is not None
    assert "programs see none here" in answer.error.message
    assert workers.rounds == []


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
    is_kept: bool = False,
) -> tuple[Answer, SavedRun | None, FakeWorkers]:
    workers = FakeWorkers(script)
    request = BenchRequest(devices=tuple(devices))
    more = against is not None
    benchmark = Benchmark(
        profile=plan_of(request, processes=processes, corruption_s=0.0, more=more),
        request=request,
        devices=select_worker_devices(devices, gpus(count)),
        time=TIME,
        reference=None if against is None else Reference(run=against, path=Path("before.json")),
        is_kept=is_kept,
    )
    answer, kept = run_benchmark(benchmark, workers)
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


def test_a_run_that_is_kept_has_an_undecided_gate_for_each_disturbed_row() -> None:
    busy = {"doubts": ("gpu-shared",)}

    answer, kept, _ = measured(steady(gpu3=busy), is_kept=True)

    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert gates(answer, GateStatus.INCONCLUSIVE) == {("gpu:3", ROW): GateClass.ENVIRONMENT}
    assert answer.error is not None
    assert answer.error.code == "rows-disturbed"
    assert answer.error.message == (
        "matmul cublas bfloat16 4096x4096x4096 on gpu:3 was disturbed (environment): gpu-shared."
    )
    assert kept is not None
    assert [one.device for one in kept.series if one.disturbed] == ["gpu:3"]
    # One that is not kept, or that failed, has only its own verdict.
    assert measured(steady(gpu3=busy))[0].exit_code is ExitCode.OK
    slow = measured(steady(gpu2={"speed": 6e14}, gpu3=busy), against=baseline(), is_kept=True)[0]
    assert set(gates(slow, GateStatus.INCONCLUSIVE)) == set()


def test_a_check_whose_figure_is_disturbed_has_one_gate() -> None:
    profile = profile_of(CPU)
    benchmark = Benchmark(
        profile=profile,
        request=request_for(profile),
        devices=[WorkerDevice(device="cpu")],
        time=TIME,
        host=Host(),
        is_kept=True,
    )

    answer, _ = run_benchmark(benchmark, scripted(copies([70.2, 1.4, 2.1, 53.5, 93.4])))

    assert isinstance(answer.result, BenchResult)
    (gate,) = [one for one in answer.result.gates if one.id == "copy"]
    assert gate.status is GateStatus.INCONCLUSIVE
    assert (gate.reason or "").startswith("its 5 processes differ by a factor of 7.77")
    assert answer.exit_code is ExitCode.INCONCLUSIVE


def test_the_same_machine_passes_its_baseline() -> None:
    answer, _, _ = measured(steady(), against=baseline())

    assert answer.exit_code is ExitCode.OK
    assert set(gates(answer, GateStatus.PASS)) >= {(f"gpu:{n}", ROW) for n in range(8)}


@pytest.mark.parametrize(
    ("unit", "changes", "limit"),
    [("FLOP/s", {}, 0.95 * 7e14), ("s", {"throughput": None}, 1.05 * 2 * 4096**3 / 7e14)],
)
def test_a_rows_change_is_a_gate_with_its_limit_and_interval(
    unit: str, changes: dict[str, Any], limit: float
) -> None:
    def script(order: Any, number: int, sequential: bool) -> dict[str, Any]:
        speed = 6e14 * NOISE[number % 5]
        return document(order.device, speed, rows=[row(order.device, speed, **changes)])

    runs = [
        run
        for factor in NOISE
        for device in ("gpu:0", "gpu:1")
        for run in runs_of({device: [1.0]}, rows=[row(device, 7e14 * factor, **changes)])
    ]
    before = saved_run(runs, row_series(runs), time=TIME, profile=None)
    answer, _, _ = measured(script, against=before, count=2)

    assert isinstance(answer.result, BenchResult)
    (found,) = [one for one in answer.result.gates if (one.id, one.device) == (ROW, "gpu:1")]
    assert (found.unit, found.gpu_uuid) == (unit, uuid_of("gpu:1"))
    assert found.limit == pytest.approx(limit, rel=1e-3)
    assert found.interval is not None
    assert found.measured is not None
    low, high = found.interval
    assert low < found.measured < high
    assert high - low < 0.1 * found.measured


def test_one_slow_gpu_among_eight_is_named() -> None:
    answer, _, _ = measured(steady(gpu3={"speed": 6.0e14}), against=baseline())

    assert gates(answer, GateStatus.FAIL) == {("gpu:3", ROW): GateClass.HARDWARE}
    assert answer.exit_code is ExitCode.BAD
    assert answer.error is not None
    message = "matmul cublas bfloat16 4096x4096x4096 on gpu:3 failed"
    assert answer.error.message.startswith(message)
    assert "(hardware)" in answer.error.message
    assert "look for a fault: gpucheck detect" in answer.error.remedy


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


def test_undecided_takes_more_processes_up_to_the_double() -> None:
    answer, _, workers = measured(steady(6.65e14), against=baseline())

    assert len(workers.rounds) == 10
    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert set(gates(answer, GateStatus.INCONCLUSIVE).values()) == {GateClass.NOISE}


@pytest.mark.parametrize(
    ("slow", "doubts", "count", "code", "class_"),
    [
        ((4,), (), 6, ExitCode.OK, None),
        ((4, 5), (), 6, ExitCode.BAD, GateClass.HARDWARE),
        ((4, 5), ("throttled",), 6, ExitCode.BAD, GateClass.THERMAL),
        # Others came for its last processes.
        ((4, 5, 6, 7, 8, 9), ("gpu-shared",), 6, ExitCode.INCONCLUSIVE, GateClass.ENVIRONMENT),
    ],
    ids=["once", "for-good", "heat", "others"],
)
def test_a_last_process_that_is_slow_takes_one_more(
    slow: tuple[int, ...],
    doubts: tuple[str, ...],
    count: int,
    code: ExitCode,
    class_: GateClass | None,
) -> None:
    def script(order: Any, number: int, sequential: bool) -> dict[str, Any]:
        if number in slow:
            return document(order.device, 5e14, doubts=doubts)
        return document(order.device, 7e14 * NOISE[number % 5])

    answer, _, workers = measured(script, against=baseline(1), count=1)

    assert answer.exit_code is code
    assert len(workers.rounds) == count
    status = GateStatus.FAIL if code is ExitCode.BAD else GateStatus.INCONCLUSIVE
    assert set(gates(answer, status).values()) == ({class_} - {None})


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
    rows = [row("gpu:2", 9e14, verified=wrong, error=failure, time_s=None, throughput=None)]
    answer, kept, _ = measured(steady(gpu2={"rows": rows}))

    assert GateClass.HARDWARE in gates(answer, GateStatus.FAIL).values()
    assert {device for device, _ in gates(answer, GateStatus.FAIL)} == {"gpu:2"}
    assert answer.exit_code is ExitCode.BAD
    assert kept is not None
    assert "gpu:2" not in {one.device for one in kept.series}


def test_an_interrupt_is_130_and_saves_nothing() -> None:
    def script(order: Any, number: int, sequential: bool) -> Any:
        return STOPPED if number == 2 else document(order.device, 7e14)

    answer, kept, _ = measured(script)

    assert answer.exit_code is ExitCode.INTERRUPTED
    assert answer.result is not None
    assert kept is None


def test_an_interrupt_before_the_first_figure_is_130_too() -> None:
    answer, kept, _ = measured(lambda order, number, sequential: STOPPED)

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
        return plan_of(request, processes=1, corruption_s=0, more=False).run.seconds

    assert seconds(BenchRequest(mode=BenchMode.QUICK)) == BUDGETS_S[BenchMode.QUICK]
    assert seconds(BenchRequest(budget_s=2.0)) == 2.0


@pytest.mark.parametrize(("devices", "asks"), [(("cpu",), False), (("cpu", "gpu"), True)])
def test_the_driver_is_asked_for_a_request_unless_it_is_for_the_processor(
    devices: tuple[str, ...], asks: bool
) -> None:
    probes = FakeProbes(readings=READING)
    workers = FakeWorkers(lambda order, *_: document(order.device, 7e13))

    run_request(BenchRequest(devices=devices), probes, workers, processes=3)

    assert ("cuda" in probes.asked) is asks


def test_a_request_takes_more_processes_only_against_a_baseline() -> None:
    def counted(speed: float, against: SavedRun | None) -> tuple[int, SavedRun | None]:
        workers = FakeWorkers(steady(speed))
        reference = None if against is None else Reference(run=against, path=Path("b.json"))
        request = BenchRequest(devices=("cpu",))
        _, run = run_request(request, FakeProbes(), workers, reference, processes=3)
        return len(workers.rounds), run

    alone, run = counted(7e13, None)

    assert alone == 3
    assert counted(6.65e13, run)[0] == 6


def test_a_request_is_measured_once_it_is_known_what_there_is() -> None:
    workers = FakeWorkers(lambda order, *_: document(order.device, 7e13))
    request = BenchRequest(devices=("cpu",), budget_s=2.0)

    answer, run = run_request(request, FakeProbes(), workers, processes=3, corruption_s=1.5)

    assert answer.exit_code is ExitCode.OK
    assert answer.host.name == "node17"
    assert run is not None
    assert (run.time, run.profile) == (FakeProbes().time(), None)
    orders = [order for orders, _, _ in workers.rounds for order in orders]
    assert [order.device for order in orders] == ["cpu"] * 3
    assert all("--corruption" in order.arguments for order in orders)


def test_the_gpus_of_a_request_are_those_of_the_inventory() -> None:
    workers = FakeWorkers(lambda order, *_: document(order.device, 7e13))
    readings = reading_of(gpu_reading(0), gpu_reading(1))
    devices = tuple(
        CudaDeviceReading(at, str(one.uuid).removeprefix("GPU-").replace("-", ""))
        for at, one in enumerate(readings.gpus)
    )
    probes = FakeProbes(readings=readings, cuda_reading=CudaReading(devices=devices))
    request = BenchRequest(devices=("gpu",), budget_s=2.0)

    _, run = run_request(request, probes, workers, processes=3)

    orders = [order for orders, _, _ in workers.rounds for order in orders]
    assert {order.device for order in orders} == {"gpu:0", "gpu:1"}
    assert run is not None
