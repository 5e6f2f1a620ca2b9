"""Gates on the machine and the run: each thing that is lacking, and each fault, fails its gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.ci.gates import judge, judge_machine
from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.ci.run_data import Node, RunData
from gpucheck.bench.ci.verdicts import exit_status
from gpucheck.bench.model import Corruption, GateClass, GateStatus, Verified
from gpucheck.inventory.model import MigState
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import ExitCode
from tests.fakes.bench import PYTORCH
from tests.fakes.bench_results import product, product_runs, result_of, run_of, sensors, uuid_of
from tests.fakes.gates import GOOD, HAVE, HEAD, NODE, code, gate, node, profile_of, run_data


@pytest.mark.parametrize(
    ("gpu", "name", "class_"),
    [
        ({"memory_total_bytes": 64 << 30}, "inventory-memory", GateClass.HARDWARE),
        ({"ecc_mode": False}, "inventory-ecc", GateClass.CONFIG),
        ({"persistence_mode": False}, "inventory-persistence", GateClass.CONFIG),
        ({"power_limit_w": 500.0}, "inventory-power-limit", GateClass.POWER_CAP),
    ],
    ids=["memory", "ecc", "persistence", "power"],
)
def test_each_thing_that_is_lacking_fails_its_gate(
    gpu: dict[str, Any], name: str, class_: GateClass
) -> None:
    found = run_data(product_runs(GOOD), HAVE, node=node(1, **gpu))

    assert (gate(found, name).status, gate(found, name).class_) == (GateStatus.FAIL, class_)


@pytest.mark.parametrize(
    ("links", "status", "class_"),
    [
        (18, GateStatus.PASS, None),
        (17, GateStatus.FAIL, GateClass.HARDWARE),
        (None, GateStatus.INCONCLUSIVE, GateClass.SOFTWARE),
    ],
)
def test_the_fewest_links_to_another_gpu_decide(
    links: int | None, status: GateStatus, class_: GateClass | None
) -> None:
    machine = node()
    wired = replace(machine, nvlink_links={} if links is None else {0: links})
    found = gate(run_data(product_runs(GOOD), HAVE, node=wired), "inventory-nvlink")

    assert (found.status, found.class_) == (status, class_)
    assert found.measured == links


@pytest.mark.parametrize(
    ("unread", "name"),
    [
        ("memory_total_bytes", "inventory-memory"),
        ("ecc_mode", "inventory-ecc"),
        ("persistence_mode", "inventory-persistence"),
        ("power_limit_w", "inventory-power-limit"),
    ],
)
def test_a_thing_that_is_unknown_is_undecided(unread: str, name: str) -> None:
    found = run_data(product_runs(GOOD), HAVE, node=node(1, **{unread: None}))

    assert gate(found, name).status is GateStatus.INCONCLUSIVE


@pytest.mark.parametrize(
    "name", ["inventory-pcie-generation", "inventory-pcie-width", "inventory-pcie-full"]
)
def test_a_link_that_was_not_read_under_load_is_undecided(name: str) -> None:
    runs = [run_of(result_of(product(value)), at, "gpu:0") for at, value in enumerate(GOOD)]

    found = gate(run_data(runs, HAVE), name)

    assert found.status is GateStatus.INCONCLUSIVE
    assert "no process read its sensors" in (found.reason or "")


def test_without_gpus_it_is_unknown_whether_they_are_alike() -> None:
    found = RunData(profile=profile_of(HEAD + "[inventory]\nidentical_gpus = true\n"))

    assert gate(found, "inventory-identical", "node").status is GateStatus.INCONCLUSIVE


def test_a_machine_that_has_everything_passes() -> None:
    found = run_data(product_runs(GOOD), HAVE)

    assert {one.status for one in judge(found)} == {GateStatus.PASS}


def test_pcie_x8_under_load_is_config() -> None:
    narrow = sensors(pcie_width=8)
    runs = [run_of(result_of(product(value), telemetry=narrow), at, "gpu:0")
            for at, value in enumerate(GOOD)]  # fmt: skip
    found = run_data(runs, HAVE)

    failed = {one.id: one.class_ for one in judge(found) if one.status is GateStatus.FAIL}
    assert failed == {
        "inventory-pcie-width": GateClass.CONFIG,
        "inventory-pcie-full": GateClass.CONFIG,
    }
    assert gate(found, "inventory-pcie-full").measured == 50


def test_the_fastest_link_of_all_processes_counts() -> None:
    links = [{"pcie_generation": 5, "pcie_width": 8}, {"pcie_generation": 3, "pcie_width": 16}]
    runs = [run_of(result_of(product(7e14), telemetry=sensors(**link)), at, "gpu:0")
            for at, link in enumerate(links)]  # fmt: skip

    found = gate(run_data(runs, HAVE), "inventory-pcie-full")

    assert found.measured == 50
    assert found.reason is not None
    assert "generation 5 x8 instead of 5 x16" in found.reason


def test_one_different_gpu_is_named() -> None:
    odd = node(3)
    gpus = (*odd.gpus[:2], odd.gpus[2]._replace(name="H200"))
    runs = [run for at in range(3) for run in product_runs(GOOD, f"gpu:{at}")]
    found = run_data(runs, HAVE, node=replace(odd, gpus=gpus))

    only = gate(found, "inventory-identical", "node")
    assert (only.status, only.class_, only.measured) == (GateStatus.FAIL, GateClass.CONFIG, 2)
    assert (only.reason or "").startswith("gpu:2 differs")


@pytest.mark.parametrize(
    ("match", "machine", "name"),
    [
        ('pci_device_ids = ["20b2"]', node(), "match-board"),
        ('names = ["NVIDIA A100*"]', node(), "match-board"),
        ("count = 8", node(7), "match-count"),
        ("mig = false", node(1, mig=MigState(enabled=True)), "match-mig"),
        ('min_driver = "600"', node(), "match-driver"),
    ],
    ids=["id", "name", "count", "mig", "driver"],
)
def test_a_machine_that_the_profile_is_not_for(match: str, machine: Node, name: str) -> None:
    text = HEAD + f"[match]\n{match}\n[stability]\nspread_percent = 5\n"
    found = RunData(profile=profile_of(text), node=machine)

    gates = judge_machine(found)

    assert {one.id for one in gates if one.status is GateStatus.FAIL} == {name}
    assert exit_status(gates)[0] is ExitCode.BAD


@pytest.mark.parametrize(
    ("match", "status"),
    [
        ('names = ["NVIDIA H100*"]', GateStatus.PASS),
        ('pci_device_ids = ["2330"]', GateStatus.PASS),
        ('pci_device_ids = ["2330"]\nnames = ["NVIDIA H100*"]', GateStatus.PASS),
    ],
)
def test_a_board_is_matched_by_its_id_or_by_its_name(match: str, status: GateStatus) -> None:
    text = HEAD + f"[match]\n{match}\n[stability]\nspread_percent = 5\n"

    (found,) = judge_machine(RunData(profile=profile_of(text), node=node()))

    assert (found.id, found.status) == ("match-board", status)


@pytest.mark.parametrize(
    ("wanted", "found", "status"),
    [
        ("false", None, GateStatus.PASS),  # a board without MIG does not report the mode
        ("true", None, GateStatus.INCONCLUSIVE),
        ("false", False, GateStatus.PASS),
        ("true", False, GateStatus.FAIL),
        ("true", True, GateStatus.PASS),
    ],
)
def test_a_mig_mode_that_is_not_reported_is_off(
    wanted: str, found: bool | None, status: GateStatus
) -> None:
    text = HEAD + f"[match]\nmig = {wanted}\n[stability]\nspread_percent = 5\n"
    machine = node(1, mig=MigState(enabled=found))

    (only,) = judge_machine(RunData(profile=profile_of(text), node=machine))

    assert (only.id, only.status) == ("match-mig", status)


@pytest.mark.parametrize(
    ("why", "status"),
    [
        ("not supported (NVML error 3)", GateStatus.PASS),
        ("the driver did not answer in time (NVML error 10)", GateStatus.INCONCLUSIVE),
    ],
)
def test_a_mig_mode_that_could_not_be_read_is_no_board_without_mig(
    why: str, status: GateStatus
) -> None:
    text = HEAD + "[match]\nmig = false\n[stability]\nspread_percent = 5\n"
    unread = {"mig": MigState(enabled=None), "unavailable": {"mig.enabled": why}}

    (only,) = judge_machine(RunData(profile=profile_of(text), node=node(1, **unread)))

    assert only.status is status
    assert (why in (only.reason or "")) is (status is GateStatus.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("ecc_mode", "inventory-ecc"),
        ("persistence_mode", "inventory-persistence"),
        ("memory_total_bytes", "inventory-memory"),
        ("power_limit_w", "inventory-power-limit"),
    ],
)
def test_what_was_refused_has_the_drivers_reason(key: str, name: str) -> None:
    unread = {key: None, "unavailable": {key: "not supported (NVML error 3)"}}
    found = run_data(product_runs(GOOD), HAVE, node=node(1, **unread))

    assert "not supported (NVML error 3)" in (gate(found, name).reason or "")


@pytest.mark.parametrize(("count", "class_"), [(7, GateClass.HARDWARE), (9, GateClass.CONFIG)])
def test_gpus_that_are_missing_blame_the_hardware_and_too_many_the_profile(
    count: int, class_: GateClass
) -> None:
    text = HEAD + "[match]\ncount = 8\n[stability]\nspread_percent = 5\n"

    (only,) = judge_machine(RunData(profile=profile_of(text), node=node(count)))

    assert (only.status, only.class_, only.measured) == (GateStatus.FAIL, class_, count)
    assert ("count in [match]" in only.next[0]) is (count > 8)


@pytest.mark.parametrize(("left_out", "class_"), [(7, "config"), (6, "hardware"), (8, "config")])
def test_gpus_that_an_option_leaves_out_are_not_missing(left_out: int, class_: str) -> None:
    text = HEAD + "[match]\ncount = 8\n[stability]\nspread_percent = 5\n"
    machine = replace(node(1), left_out=left_out)

    (only,) = judge_machine(RunData(profile=profile_of(text), node=machine))

    assert (only.status, only.class_) == (GateStatus.FAIL, class_)
    assert (only.next == ("leave --device out",)) is (left_out == 7)
    if left_out == 7:
        assert only.reason == "--device leaves 7 of 8 GPUs out"
    else:
        assert only.reason == "1 GPU can be used; the profile is for 8"


def test_a_board_that_nobody_knows_is_undecided() -> None:
    text = HEAD + '[match]\npci_device_ids = ["2330"]\n[stability]\nspread_percent = 5\n'
    machine = node()
    unknown = replace(machine, pci_device_ids={})

    (found,) = judge_machine(RunData(profile=profile_of(text), node=unknown))

    assert found.status is GateStatus.INCONCLUSIVE
    assert "NVIDIA H100 80GB HBM3 (no PCI device id)" in (found.reason or "")


@pytest.mark.parametrize(("error", "name"), [(0.5, "results"), (None, "not-finite")])
def test_wrong_results_and_nan_are_hardware(error: float | None, name: str) -> None:
    bad = Verified(error=error, bound=1e-5, ok=False, reference="float64")
    wrong = product(700, time_s=None, verified=bad, error=Failure("wrong-result", "it is wrong"))
    runs = [*product_runs(GOOD), run_of(result_of(wrong, telemetry=sensors()), 5, "gpu:0")]
    found = run_data(runs)

    assert (gate(found, name).status, gate(found, name).class_) == (
        GateStatus.FAIL,
        GateClass.HARDWARE,
    )
    assert code(found) is ExitCode.BAD


@pytest.mark.parametrize(("own_is_wrong", "class_"), [(False, "software"), (True, "hardware")])
def test_a_frameworks_wrong_result_accuses_no_card_that_computes_right(
    own_is_wrong: bool, class_: str
) -> None:
    bad = Verified(error=0.5, bound=1e-5, ok=False, reference="float64")
    wrong = product(700, verified=bad, framework=PYTORCH)
    own = product(700, verified=bad) if own_is_wrong else product(700)
    runs = [*product_runs(GOOD), run_of(result_of(wrong, own, telemetry=sensors()), 5, "gpu:0")]

    found = gate(run_data(runs), "results")

    assert (found.status, found.class_) == (GateStatus.FAIL, class_)
    assert "matmul PyTorch eager" in (found.reason or "")


@pytest.mark.parametrize(("most", "status"), [(0, GateStatus.FAIL), (1, GateStatus.PASS)])
def test_as_many_results_may_be_nan_as_the_profile_says(most: int, status: GateStatus) -> None:
    bad = Verified(error=None, bound=1e-5, ok=False, reference="float64")
    nan = run_of(result_of(product(700, verified=bad), telemetry=sensors()), 5, "gpu:0")
    found = run_data([*product_runs(GOOD), nan], f"\n[stability]\nnot_finite = {most}\n")

    assert (gate(found, "not-finite").status, gate(found, "not-finite").limit) == (status, most)
    assert gate(found, "results").limit == 0


CORRUPTION = "\n[stability]\ncorruption = 0\n"


def corrupt(device: str = "gpu:0", **changes: Any) -> ProcessRun:
    check = Corruption(
        device=device, gpu_uuid=uuid_of(device), products=100, words=64, digest="aa",
        reference_ok=True, dtype="bfloat16", shape=(8, 8, 8),
    )  # fmt: skip
    row = product(700, device)
    found = result_of(row, telemetry=sensors(device), corruption=(replace(check, **changes),))
    return run_of(found, 0, device)


def corruption_facts(runs: Sequence[ProcessRun]) -> RunData:
    text = NODE.replace("seconds = 5", "seconds = 5\ncorruption_seconds = 5") + CORRUPTION
    count = len({run.device for run in runs})
    return RunData(profile=profile_of(text), node=node(count), runs=runs)


def test_equal_bits_pass() -> None:
    assert gate(corruption_facts([corrupt()]), "corruption").status is GateStatus.PASS


def test_one_flipped_bit_is_hardware_with_count_place_and_size() -> None:
    found = corruption_facts([corrupt(mismatches=1, first_index=17, largest_ulp=4096)])

    flipped = gate(found, "corruption")
    assert (flipped.status, flipped.class_) == (GateStatus.FAIL, GateClass.HARDWARE)
    assert flipped.measured == 1
    for part in ("1 of 6400 numbers", "at index 17", "4096 ULP"):
        assert part in (flipped.reason or "")


def test_a_gpu_that_is_always_wrong_differs_from_its_twins() -> None:
    found = corruption_facts([corrupt("gpu:0"), corrupt("gpu:1"), corrupt("gpu:2", digest="bb")])

    assert gate(found, "corruption", "gpu:1").status is GateStatus.PASS
    assert gate(found, "corruption", "gpu:2").class_ is GateClass.HARDWARE


def test_of_two_different_twins_both_are_named() -> None:
    found = corruption_facts([corrupt("gpu:0"), corrupt("gpu:1", digest="bb")])

    reasons = [gate(found, "corruption", device).reason or "" for device in ("gpu:0", "gpu:1")]
    assert all("the wrong one is unknown" in reason for reason in reasons)


def test_a_gpu_whose_processes_compute_other_bits_is_hardware() -> None:
    found = corruption_facts([corrupt(), corrupt(digest="bb"), corrupt()])

    differing = gate(found, "corruption")
    assert (differing.status, differing.class_) == (GateStatus.FAIL, GateClass.HARDWARE)
    assert "its digest is bb, other processes have aa" in (differing.reason or "")


def test_a_flipped_bit_counts_although_the_gpu_was_lost_afterwards() -> None:
    lost = Failure("gpu-lost", "the GPU stopped answering")
    found = corruption_facts([corrupt(mismatches=1, not_finite=1, failure=lost)])

    assert gate(found, "corruption").status is GateStatus.FAIL
    assert gate(found, "corruption").measured == 1


def test_a_wrong_first_product_counts_though_nothing_was_repeated_after_it() -> None:
    lost = Failure(code="gpu-lost", message="the GPU stopped answering")
    found = corruption_facts([corrupt(products=0, reference_ok=False, failure=lost)])

    wrong = gate(found, "corruption")

    assert (wrong.status, wrong.class_) == (GateStatus.FAIL, GateClass.HARDWARE)
    assert wrong.measured == 1


def test_a_gpu_that_others_fill_is_undecided_for_its_environment() -> None:
    taken = Failure("gpu-memory-taken", "the memory is taken", ("see who",))
    found = corruption_facts([corrupt(products=0, digest=None, reference_ok=None, failure=taken)])

    full = gate(found, "corruption")
    assert (full.status, full.class_) == (GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT)
    assert (full.reason, full.next) == ("the memory is taken", ("see who",))


def test_products_that_were_never_compared_are_undecided() -> None:
    found = corruption_facts(product_runs(GOOD))

    assert gate(found, "corruption").status is GateStatus.INCONCLUSIVE


# ---------------------------------------------------------------------------------- sensors


CALM = """
[stability]
max_temperature_c = 80
max_clock_drop_percent = 20
new_ecc_uncorrected = 0
new_pcie_replays = 10
[stability.throttle_s]
hardware-thermal = 0
power-brake = 0
"""


@pytest.mark.parametrize(
    ("changes", "name", "class_"),
    [
        ({"limited_s": {"hardware-thermal": 0.2}}, "throttle-hardware-thermal", GateClass.THERMAL),
        ({"reasons": {"power-brake": 0.5}}, "throttle-power-brake", GateClass.POWER_CAP),
        ({"new_errors": {"ecc_uncorrected": 1}}, "new-ecc-uncorrected", GateClass.HARDWARE),
        ({"new_errors": {"pcie_replays": 11}}, "new-pcie-replays", GateClass.HARDWARE),
    ],
    ids=["thermal", "brake", "ecc", "replay"],
)
def test_each_fault_of_the_sensors_fails_its_gate(
    changes: dict[str, Any], name: str, class_: GateClass
) -> None:
    good = product_runs(GOOD)
    bad = run_of(result_of(product(700), telemetry=sensors(**changes)), 5, "gpu:0")
    found = run_data([*good, bad], CALM)

    assert (gate(found, name).status, gate(found, name).class_) == (GateStatus.FAIL, class_)
    assert {one.id for one in judge(found) if one.status is GateStatus.FAIL} == {name}
    assert code(found) is ExitCode.BAD


def test_calm_sensors_pass() -> None:
    assert code(run_data(product_runs(GOOD), CALM)) is ExitCode.OK


def test_heat_fails_even_if_the_speed_is_good() -> None:
    from gpucheck.bench.model import Extent

    hot = sensors(temperature_c=Extent(low=40, median=80, high=92))
    runs = [run_of(result_of(product(700), telemetry=hot), at, "gpu:0") for at in range(5)]

    assert gate(run_data(runs, CALM), "temperature").class_ is GateClass.THERMAL


def test_sensors_that_said_nothing_are_no_pass() -> None:
    runs = [run_of(result_of(product(value)), at, "gpu:0") for at, value in enumerate(GOOD)]
    found = run_data(runs, CALM)

    assert gate(found, "temperature").status is GateStatus.INCONCLUSIVE
    assert code(found) is ExitCode.INCONCLUSIVE


def test_error_counters_that_nobody_read_are_no_pass() -> None:
    runs = [run_of(result_of(product(value)), at, "gpu:0") for at, value in enumerate(GOOD)]
    found = run_data(runs, CALM)

    for name in ("new-ecc-uncorrected", "new-pcie-replays"):
        assert gate(found, name).status is GateStatus.INCONCLUSIVE


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("not supported by this GPU (NVML error 3)", GateStatus.SKIP),
        ("the GPU is lost (NVML error 15)", GateStatus.INCONCLUSIVE),
    ],
)
def test_what_a_gpu_does_not_tell_is_no_pass(reason: str, status: GateStatus) -> None:
    names = ("reasons", "limited_s.hardware-thermal", "new_errors.ecc_uncorrected")
    silent = sensors(unavailable=dict.fromkeys(names, reason))
    runs = [run_of(result_of(product(700), telemetry=silent), at, "gpu:0") for at in range(5)]
    found = run_data(runs, CALM)

    for name in ("throttle-hardware-thermal", "new-ecc-uncorrected"):
        unread = gate(found, name)
        assert (unread.status, unread.measured) == (status, None)
        assert reason in (unread.reason or "")
    # What the driver counts is known, though nothing was read in between.
    assert gate(found, "throttle-power-brake").status is GateStatus.PASS
    # And what was seen counts.
    seen = replace(silent, new_errors={"ecc_uncorrected": 1})
    runs[0] = run_of(result_of(product(700), telemetry=seen), 0, "gpu:0")
    assert gate(run_data(runs, CALM), "new-ecc-uncorrected").status is GateStatus.FAIL


SLOWDOWN = "\n[stability.throttle_s]\nhardware-slowdown = 0\n"


@pytest.mark.parametrize(
    ("reasons", "status"),
    [
        ({"hardware-slowdown": 0.01}, GateStatus.PASS),
        ({"hardware-slowdown": 0.01, "power-cap": 0.9}, GateStatus.PASS),
        ({"hardware-slowdown": 0.01, "hardware-thermal": 0.01}, GateStatus.FAIL),
        ({"hardware-slowdown": 0.5, "power-brake": 0.5}, GateStatus.FAIL),
    ],
)
def test_a_slowdown_that_a_change_of_clocks_explains_fails_nothing(
    reasons: dict[str, float], status: GateStatus
) -> None:
    runs = [
        run_of(result_of(product(value), telemetry=sensors(reasons=reasons)), at, "gpu:0")
        for at, value in enumerate(GOOD)
    ]

    assert gate(run_data(runs, SLOWDOWN), "throttle-hardware-slowdown").status is status


def test_results_that_the_time_did_not_reach_are_noise_and_not_the_softwares() -> None:
    why = Failure("no-time", "the time was over", ("give more time",))
    row = product(700, time_s=None, verified=None, throughput=None, error=why)
    runs = [run_of(result_of(row, telemetry=sensors()), at, "gpu:0") for at in range(5)]

    unchecked = gate(run_data(runs), "results")

    assert (unchecked.status, unchecked.class_) == (GateStatus.INCONCLUSIVE, GateClass.NOISE)
    assert unchecked.next == ("give more time",)


@pytest.mark.parametrize(
    ("error", "name", "said"),
    [
        (0.5, "results", " 0.5"),
        (None, "not-finite", "gave NaN or infinity (6 results were checked)"),
    ],
)
def test_the_first_wrong_result_is_described(error: float | None, name: str, said: str) -> None:
    bad = Verified(error=error, bound=1e-5, ok=False, reference="float64")
    wrong = product(700, time_s=None, verified=bad, error=Failure("wrong-result", "it is wrong"))
    runs = [*product_runs(GOOD), run_of(result_of(wrong, telemetry=sensors()), 5, "gpu:0")]

    found = gate(run_data(runs), name)

    assert found.measured == 1
    assert wrong.kernel in (found.reason or "")
    assert said in (found.reason or "")
    assert "(6 results were checked)" in (found.reason or "")
    assert found.evidence[0].value == "it is wrong"


def test_without_sensors_each_of_their_gates_is_undecided_with_the_reason() -> None:
    runs = [run_of(result_of(product(value)), at, "gpu:0") for at, value in enumerate(GOOD)]
    found = run_data(runs, CALM)

    undecided = {one.id: one for one in judge(found) if one.status is GateStatus.INCONCLUSIVE}

    assert set(undecided) == {
        "temperature",
        "clock-drop",
        "new-ecc-uncorrected",
        "new-pcie-replays",
        "throttle-hardware-thermal",
        "throttle-power-brake",
    }
    assert {one.reason for one in undecided.values()} == {found.why_no_telemetry("gpu:0")}


def test_seconds_of_throttling_are_counted_or_else_read() -> None:
    # Half of 40 readings, each 0.25 s after the last.
    read = replace(sensors(reasons={"power-brake": 0.5}), reading_count=40, period_s=0.25)
    counted = replace(read, limited_s={"power-brake": 7.0})
    runs = [
        [run_of(result_of(product(700), telemetry=one), at, "gpu:0") for at in range(5)]
        for one in (read, counted)
    ]

    found = [gate(run_data(one, CALM), "throttle-power-brake").measured for one in runs]

    assert found == [pytest.approx(5.0), pytest.approx(7.0)]
