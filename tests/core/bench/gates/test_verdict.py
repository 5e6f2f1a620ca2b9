"""Faults put into pretended runs: each ends with the right verdict, class and exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.core.bench.gates.facts import Facts, Node, NodeGpu
from gpucheck.core.bench.gates.verdict import (
    judge,
    judge_machine,
    series_of,
    settled,
    verdict,
    warnings,
)
from gpucheck.core.bench.profiles.lint import lint_text
from gpucheck.models import worker
from gpucheck.models.bench import Scope, Verified
from gpucheck.models.bench_run import Baseline, ProcessRun
from gpucheck.models.corruption import Corruption
from gpucheck.models.device import Gpu, MigState, PcieLink
from gpucheck.models.errors import ExitCode
from gpucheck.models.gate import Gate, GateClass, GateStatus
from gpucheck.models.profile import Profile
from gpucheck.models.report import Failure
from tests.fakes.bench_results import (
    doubt,
    measurement,
    product,
    product_runs,
    result_of,
    run_of,
    sensors,
    uuid_of,
)

HEAD = '[profile]\nschema = 1\nname = "test"\nversion = 1\n'
NODE = (
    HEAD
    + """
[match]
pci_device_ids = ["2330"]
[run]
seconds = 5
processes = 5
[[check]]
id = "matmul"
kernel = "matmul"
dtype = "bfloat16"
value = 700
unit = "TFLOP/s"
tolerance_percent = 5
warn_percent = 2
source = "test"
date = "2026-11-21"
"""
)
CPU = (
    HEAD
    + """
[match]
device = "cpu"
[run]
seconds = 1
[[check]]
id = "copy"
kernel = "copy"
device = "cpu"
baseline = true
tolerance_percent = 5
"""
)
GOOD = (701.0, 699.0, 702.0, 698.0, 700.0)
SLOW = tuple(0.9 * value for value in GOOD)


def profile_of(text: str) -> Profile:
    found = lint_text(text, "p.toml")
    assert found.profile is not None, found.problems
    return found.profile


def node(count: int = 1, **gpu: Any) -> Node:
    gpus = tuple(
        NodeGpu(
            gpu=Gpu(
                index=at,
                cuda_index=at,
                uuid=uuid_of(f"gpu:{at}"),
                name="NVIDIA H100 80GB HBM3",
                memory_total_bytes=80 << 30,
                power_limit_w=700.0,
                ecc_mode=True,
                persistence_mode=True,
                pcie=PcieLink(generation_max=5, width_max=16),
                mig=MigState(enabled=False),
            )._replace(**gpu),
            device=f"gpu:{at}",
            pci_device_id="233010de",
            nvlink_links=18,
        )
        for at in range(count)
    )
    return Node(gpus=gpus, driver_version="580.95.05")


def facts(runs: Sequence[ProcessRun], extra: str = "", **changes: Any) -> Facts:
    count = len({run.device for run in runs})
    found = Facts(profile=profile_of(NODE + extra), node=node(count), runs=runs)
    return replace(found, **changes)


def gate(found: Facts, name: str, device: str = "gpu:0") -> Gate:
    (only,) = [one for one in judge(found) if (one.id, one.device) == (name, device)]
    return only


def code(found: Facts) -> ExitCode:
    return verdict(judge(found))[0]


# ---------------------------------------------------------------------------------- speed


def test_a_good_gpu_passes() -> None:
    found = facts(product_runs(GOOD))

    assert {one.status for one in judge(found)} == {GateStatus.PASS}
    assert code(found) is ExitCode.OK
    assert gate(found, "matmul").limit == pytest.approx(665)
    assert gate(found, "matmul").values == GOOD


def test_a_slow_gpu_without_any_excuse_is_hardware() -> None:
    found = facts(product_runs(SLOW))

    slow = gate(found, "matmul")
    assert (slow.status, slow.class_) == (GateStatus.FAIL, GateClass.HARDWARE)
    assert "10.0 % below 700" in (slow.reason or "")
    assert slow.next
    assert code(found) is ExitCode.BAD


@pytest.mark.parametrize(
    ("seen", "class_", "status"),
    [
        (doubt("starved"), GateClass.ENVIRONMENT, GateStatus.INCONCLUSIVE),
        (doubt("gpu-shared"), GateClass.ENVIRONMENT, GateStatus.INCONCLUSIVE),
        (doubt("throttled", **{"hardware-thermal_share": 0.4}), GateClass.THERMAL, GateStatus.FAIL),
        (doubt("throttled", **{"power-brake_share": 0.4}), GateClass.POWER_CAP, GateStatus.FAIL),
        (doubt("clocks-locked"), GateClass.CONFIG, GateStatus.FAIL),
        (doubt("pcie-narrow"), GateClass.CONFIG, GateStatus.FAIL),
        (doubt("new-errors", ecc_uncorrected=1.0), GateClass.HARDWARE, GateStatus.FAIL),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_what_was_seen_decides_whose_fault_it_is(
    seen: Any, class_: GateClass, status: GateStatus
) -> None:
    found = facts(product_runs(SLOW, doubts=(seen,)))

    slow = gate(found, "matmul")
    assert (slow.status, slow.class_) == (status, class_)
    assert any(seen.code in one.source for one in slow.evidence)


def test_a_busy_host_excuses_no_product_in_place_but_one_with_transfers() -> None:
    busy = (doubt("host-busy", others_percent=60.0),)
    moved = NODE + 'scope = "end-to-end"\n'
    runs = product_runs(SLOW, doubts=busy, scope=Scope.END_TO_END)
    with_transfers = Facts(profile=profile_of(moved), node=node(), runs=runs)

    assert gate(facts(product_runs(SLOW, doubts=busy)), "matmul").class_ is GateClass.HARDWARE
    assert gate(with_transfers, "matmul").class_ is GateClass.ENVIRONMENT


def test_a_load_during_one_process_of_five_excuses_nothing() -> None:
    runs = product_runs(SLOW)
    busy = product(SLOW[0], doubts=(doubt("gpu-shared"),))
    runs[0] = run_of(result_of(busy, telemetry=sensors()), 0, "gpu:0")

    assert gate(facts(runs), "matmul").class_ is GateClass.HARDWARE


def test_a_lowered_power_limit_is_named() -> None:
    capped = product(630, doubts=(doubt("power-capped", power_cap_share=0.98),))
    low = sensors(power_limit_w=500.0)
    runs = [run_of(result_of(capped, telemetry=low), at, "gpu:0") for at in range(5)]

    slow = gate(facts(runs), "matmul")

    assert slow.class_ is GateClass.POWER_CAP
    assert "500 W" in (slow.reason or "")


def test_a_power_cap_that_all_have_excuses_nothing() -> None:
    capped = (doubt("power-capped", power_cap_share=0.98),)
    runs = [
        run
        for at in range(4)
        for run in product_runs(SLOW if at == 0 else GOOD, f"gpu:{at}", doubts=capped)
    ]

    assert gate(facts(runs), "matmul").class_ is GateClass.HARDWARE


def test_a_low_clock_at_the_power_limit_is_the_power_limits() -> None:
    capped = (doubt("power-capped", power_cap_share=0.98),)
    runs = product_runs(SLOW, doubts=capped, sm_clock_mhz=1400.0)
    for at in (1, 2, 3):
        runs += product_runs(GOOD, f"gpu:{at}", doubts=capped, sm_clock_mhz=1700.0)

    assert gate(facts(runs), "matmul").class_ is GateClass.POWER_CAP


def test_noise_that_reaches_over_the_limit_is_undecided() -> None:
    found = facts(product_runs((700.0, 600.0, 750.0, 640.0, 660.0)))

    noisy = gate(found, "matmul")
    assert (noisy.status, noisy.class_) == (GateStatus.INCONCLUSIVE, GateClass.NOISE)
    assert code(found) is ExitCode.INCONCLUSIVE
    assert not settled(judge(found))


def test_a_pass_beyond_the_warn_level_warns() -> None:
    found = facts(product_runs([0.97 * value for value in GOOD]))

    assert gate(found, "matmul").warning
    assert code(found) is ExitCode.OK
    assert [one.code for one in warnings(judge(found))] == ["gate-warning"]


def test_two_processes_decide_nothing() -> None:
    assert gate(facts(product_runs(GOOD[:2])), "matmul").status is GateStatus.INCONCLUSIVE


def test_a_severity_of_warn_does_not_end_in_failure() -> None:
    text = NODE + 'severity = "warn"\n'
    found = Facts(profile=profile_of(text), node=node(), runs=product_runs(SLOW))

    assert gate(found, "matmul").status is GateStatus.FAIL
    assert code(found) is ExitCode.OK
    assert warnings(judge(found))


# ---------------------------------------------------------------------------------- nothing


def test_zero_samples_never_pass() -> None:
    runs = [run_of(result_of(telemetry=sensors()), at, "gpu:0") for at in range(5)]
    found = facts(runs)

    assert gate(found, "matmul").status is GateStatus.FAIL
    assert gate(found, "results").status is GateStatus.INCONCLUSIVE
    assert code(found) is ExitCode.BAD


def test_no_gate_at_all_is_inconclusive() -> None:
    assert verdict(())[0] is ExitCode.INCONCLUSIVE


def test_only_skipped_gates_are_inconclusive() -> None:
    skipped = replace(gate(facts(product_runs(GOOD)), "matmul"), status=GateStatus.SKIP)

    assert verdict((skipped,))[0] is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(
    ("failure", "status", "class_"),
    [
        (Failure("gpu-lost", "the GPU stopped answering"), GateStatus.FAIL, GateClass.HARDWARE),
        (Failure("cupy-missing", "no CuPy"), GateStatus.FAIL, GateClass.SOFTWARE),
        (Failure("gpu-out-of-memory", "full"), GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT),
        (Failure(worker.DIED, "died"), GateStatus.FAIL, GateClass.SOFTWARE),
        (Failure(worker.SILENT, "silent"), GateStatus.INCONCLUSIVE, GateClass.SOFTWARE),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_a_process_that_failed_is_a_verdict(
    failure: Failure, status: GateStatus, class_: GateClass
) -> None:
    found = facts([run_of(None, at, "gpu:0", failure=failure) for at in range(5)])

    processes = gate(found, "processes")
    assert (processes.status, processes.class_) == (status, class_)
    assert (gate(found, "matmul").status, gate(found, "matmul").class_) == (status, class_)
    assert code(found) is (ExitCode.BAD if status is GateStatus.FAIL else ExitCode.INCONCLUSIVE)


def test_a_gpu_lost_in_mid_run_is_hardware_though_others_gave_figures() -> None:
    lost = product(700, median_s=None, error=Failure("gpu-lost", "it fell off the bus"))
    runs = [*product_runs(GOOD), run_of(result_of(lost, telemetry=sensors()), 5, "gpu:0")]
    found = facts(runs)

    assert gate(found, "processes").class_ is GateClass.HARDWARE
    assert code(found) is ExitCode.BAD


def test_a_format_that_the_gpu_has_not_is_skipped() -> None:
    old = result_of(product(1))
    old = replace(
        old,
        measurements=(),
        environment=replace(
            old.environment,
            gpus=(replace(old.environment.gpus[0], compute_capability="7.0"),),
        ),
    )
    found = facts([run_of(old, at, "gpu:0") for at in range(5)])

    assert gate(found, "matmul").status is GateStatus.SKIP
    assert "bfloat16" in (gate(found, "matmul").reason or "")


# ---------------------------------------------------------------------------------- results


@pytest.mark.parametrize(("error", "name"), [(0.5, "results"), (None, "not-finite")])
def test_wrong_results_and_nan_are_hardware(error: float | None, name: str) -> None:
    bad = Verified(error=error, bound=1e-5, ok=False, reference="float64")
    wrong = product(700, median_s=None, verified=bad, error=Failure("wrong-result", "it is wrong"))
    runs = [*product_runs(GOOD), run_of(result_of(wrong, telemetry=sensors()), 5, "gpu:0")]
    found = facts(runs)

    assert (gate(found, name).status, gate(found, name).class_) == (
        GateStatus.FAIL,
        GateClass.HARDWARE,
    )
    assert code(found) is ExitCode.BAD


CORRUPTION = "\n[stability]\ncorruption = 0\n"


def corrupt(device: str = "gpu:0", **changes: Any) -> ProcessRun:
    check = Corruption(
        device=device, gpu_uuid=uuid_of(device), products=100, words=64, digest="aa",
        reference_ok=True, dtype="bfloat16", shape=(8, 8, 8),
    )  # fmt: skip
    row = product(700, device)
    found = result_of(row, telemetry=sensors(device), corruption=(replace(check, **changes),))
    return run_of(found, 0, device)


def corruption_facts(runs: Sequence[ProcessRun]) -> Facts:
    text = NODE.replace("seconds = 5", "seconds = 5\ncorruption_seconds = 5") + CORRUPTION
    count = len({run.device for run in runs})
    return Facts(profile=profile_of(text), node=node(count), runs=runs)


def test_equal_bits_pass() -> None:
    assert gate(corruption_facts([corrupt()]), "corruption").status is GateStatus.PASS


def test_one_flipped_bit_is_hardware_with_count_place_and_size() -> None:
    found = corruption_facts([corrupt(mismatches=1, first_index=17, largest_ulp=4096)])

    flipped = gate(found, "corruption")
    assert (flipped.status, flipped.class_) == (GateStatus.FAIL, GateClass.HARDWARE)
    assert flipped.measured == 1
    for part in ("1 numbers", "at 17", "4096 units"):
        assert part in (flipped.reason or "")


def test_a_gpu_that_is_always_wrong_differs_from_its_twins() -> None:
    found = corruption_facts([corrupt("gpu:0"), corrupt("gpu:1"), corrupt("gpu:2", digest="bb")])

    assert gate(found, "corruption", "gpu:1").status is GateStatus.PASS
    assert gate(found, "corruption", "gpu:2").class_ is GateClass.HARDWARE


def test_of_two_different_twins_both_are_named() -> None:
    found = corruption_facts([corrupt("gpu:0"), corrupt("gpu:1", digest="bb")])

    reasons = [gate(found, "corruption", device).reason or "" for device in ("gpu:0", "gpu:1")]
    assert all("cannot be told" in reason for reason in reasons)


def test_products_that_were_never_compared_are_undecided() -> None:
    found = corruption_facts(product_runs(GOOD))

    assert gate(found, "corruption").status is GateStatus.INCONCLUSIVE


# ---------------------------------------------------------------------------------- stability


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
    found = facts([*good, bad], CALM)

    assert (gate(found, name).status, gate(found, name).class_) == (GateStatus.FAIL, class_)
    assert {one.id for one in judge(found) if one.status is GateStatus.FAIL} == {name}
    assert code(found) is ExitCode.BAD


def test_calm_sensors_pass() -> None:
    assert code(facts(product_runs(GOOD), CALM)) is ExitCode.OK


def test_heat_fails_even_if_the_speed_is_good() -> None:
    from gpucheck.models.bench import Extent

    hot = sensors(temperature_c=Extent(low=40, median=80, high=92))
    runs = [run_of(result_of(product(700), telemetry=hot), at, "gpu:0") for at in range(5)]

    assert gate(facts(runs, CALM), "temperature").class_ is GateClass.THERMAL


def test_sensors_that_said_nothing_are_no_pass() -> None:
    runs = [run_of(result_of(product(value)), at, "gpu:0") for at, value in enumerate(GOOD)]
    found = facts(runs, CALM)

    assert gate(found, "temperature").status is GateStatus.INCONCLUSIVE
    assert code(found) is ExitCode.INCONCLUSIVE


# ---------------------------------------------------------------------------------- company


COMPANY = "\n[stability]\nstraggler_percent = 5\nspread_percent = 8\n"


def company(values: Sequence[Sequence[float]]) -> Facts:
    runs = [run for at, one in enumerate(values) for run in product_runs(one, f"gpu:{at}")]
    return facts(runs, COMPANY)


def test_the_slow_one_among_eight_is_found_and_no_other() -> None:
    found = company([GOOD] * 7 + [[0.93 * value for value in GOOD]])

    stragglers = [one for one in judge(found) if one.id == "matmul-straggler"]
    assert [one.device for one in stragglers if one.status is GateStatus.FAIL] == ["gpu:7"]
    assert [one.status for one in stragglers].count(GateStatus.PASS) == 7
    assert gate(found, "matmul-spread", "node").status is GateStatus.PASS


def test_of_a_pair_nobody_can_say_which_is_off() -> None:
    found = company([GOOD, SLOW])

    slow = gate(found, "matmul-straggler", "gpu:1")
    assert slow.status is GateStatus.FAIL
    assert "cannot be told" in (slow.reason or "")


def test_a_lone_gpu_has_no_company_to_be_held_against() -> None:
    assert not [one for one in judge(company([GOOD])) if "straggler" in one.id]


def test_the_spread_names_both_ends() -> None:
    found = gate(company([GOOD, GOOD, SLOW]), "matmul-spread", "node")

    assert found.status is GateStatus.FAIL
    assert "gpu:2 is 10.0 % slower than gpu:" in (found.reason or "")


def test_a_node_is_as_fast_as_its_slowest() -> None:
    text = NODE + 'per = "node"\n'
    runs = [*product_runs(GOOD, "gpu:0"), *product_runs(SLOW, "gpu:1")]
    found = Facts(profile=profile_of(text), node=node(2), runs=runs)

    slowest = gate(found, "matmul", "node")
    assert slowest.status is GateStatus.FAIL
    assert "gpu:1 is the slowest" in (slowest.reason or "")


# ---------------------------------------------------------------------------------- machine


HAVE = """
[inventory]
memory_total_gib = 79
ecc = true
persistence_mode = true
pcie_generation = 5
pcie_width = 16
pcie_full = true
nvlink_links = 18
power_limit_w = 700
identical_gpus = true
"""


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
    found = facts(product_runs(GOOD), HAVE, node=node(1, **gpu))

    assert (gate(found, name).status, gate(found, name).class_) == (GateStatus.FAIL, class_)


def test_a_machine_that_has_everything_passes() -> None:
    found = facts(product_runs(GOOD), HAVE)

    assert {one.status for one in judge(found)} == {GateStatus.PASS}


def test_pcie_x8_under_load_is_config() -> None:
    narrow = sensors(pcie_width=8)
    runs = [run_of(result_of(product(value), telemetry=narrow), at, "gpu:0")
            for at, value in enumerate(GOOD)]  # fmt: skip
    found = facts(runs, HAVE)

    failed = {one.id: one.class_ for one in judge(found) if one.status is GateStatus.FAIL}
    assert failed == {
        "inventory-pcie-width": GateClass.CONFIG,
        "inventory-pcie-full": GateClass.CONFIG,
    }
    assert gate(found, "inventory-pcie-full").measured == 50


def test_one_different_gpu_is_named() -> None:
    odd = node(3)
    gpus = (*odd.gpus[:2], replace(odd.gpus[2], gpu=odd.gpus[2].gpu._replace(name="H200")))
    runs = [run for at in range(3) for run in product_runs(GOOD, f"gpu:{at}")]
    found = facts(runs, HAVE, node=replace(odd, gpus=gpus))

    assert "gpu:2 differs" in (gate(found, "inventory-identical", "node").reason or "")


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
    found = Facts(profile=profile_of(text), node=machine)

    gates = judge_machine(found)

    assert {one.id for one in gates if one.status is GateStatus.FAIL} == {name}
    assert verdict(gates)[0] is ExitCode.BAD


# ---------------------------------------------------------------------------------- baseline


def cpu_runs(values: Sequence[float], **row: Any) -> list[ProcessRun]:
    return [
        run_of(result_of(measurement("copy", 1e9 * value, **row)), at)
        for at, value in enumerate(values)
    ]


def cpu_facts(values: Sequence[float], baseline: Baseline | None, **row: Any) -> Facts:
    return Facts(profile=profile_of(CPU), runs=cpu_runs(values, **row), baseline=baseline)


def saved(values: Sequence[float] = GOOD, differences: tuple[str, ...] = ()) -> Baseline:
    return Baseline(
        path="a.json",
        time="",
        series=series_of(cpu_facts(values, None)),
        differences=differences,
    )


def test_without_a_baseline_the_speed_is_skipped_and_the_results_count() -> None:
    found = cpu_facts(GOOD, None)

    assert gate(found, "copy", "cpu").status is GateStatus.SKIP
    assert gate(found, "copy", "cpu").measured == 700
    assert code(found) is ExitCode.OK


def test_the_same_again_passes() -> None:
    assert gate(cpu_facts(GOOD, saved()), "copy", "cpu").status is GateStatus.PASS


def test_better_than_the_baseline_is_a_pass_that_says_so() -> None:
    better = gate(cpu_facts([1.2 * value for value in GOOD], saved()), "copy", "cpu")

    assert better.status is GateStatus.PASS
    assert "renew" in (better.reason or "")


def test_a_load_on_the_same_cores_is_the_environments() -> None:
    found = cpu_facts(SLOW, saved(), doubts=(doubt("host-busy", others_percent=50.0),))

    slow = gate(found, "copy", "cpu")
    assert (slow.status, slow.class_) == (GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT)
    assert code(found) is ExitCode.INCONCLUSIVE


def test_a_slow_processor_is_never_called_defective() -> None:
    slow = gate(cpu_facts(SLOW, saved()), "copy", "cpu")

    assert (slow.status, slow.class_) == (GateStatus.FAIL, GateClass.ENVIRONMENT)


def test_another_fingerprint_decides_nothing_and_names_the_keys() -> None:
    found = cpu_facts(GOOD, saved(differences=("blas: a -> b",)))

    other = gate(found, "copy", "cpu")
    assert (other.status, other.class_) == (GateStatus.INCONCLUSIVE, GateClass.CONFIG)
    assert "blas: a -> b" in (other.reason or "")
    assert settled(judge(found)), "more processes would not change the fingerprint"


def test_a_baseline_without_this_check_is_no_pass() -> None:
    empty = Baseline(path="a.json", time="", series=())

    assert gate(cpu_facts(GOOD, empty), "copy", "cpu").status is GateStatus.FAIL


def test_gates_are_named_once() -> None:
    runs = [run for at in range(8) for run in product_runs(GOOD, f"gpu:{at}")]
    gates = judge(facts(runs, COMPANY + HAVE))

    names = [(one.id, one.device) for one in gates]
    assert len(names) == len(set(names))


# ---------------------------------------------------------------------------------- any run


DOUBTS = st.sampled_from(
    [
        "host-busy",
        "gpu-shared",
        "throttled",
        "power-capped",
        "clocks-locked",
        "new-errors",
        "bimodal",
    ]
)
ROWS = st.builds(
    lambda value, codes, ok: product(
        value,
        doubts=tuple(doubt(code) for code in codes),
        verified=Verified(error=0.0 if ok else None, bound=1.0, ok=ok, reference="r"),
    ),
    st.floats(1.0, 2000.0),
    st.lists(DOUBTS, max_size=2),
    st.booleans(),
)
FAILED = st.sampled_from(["gpu-lost", "cupy-missing", worker.DIED, worker.SILENT, "gpu-error"])


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.one_of(ROWS, FAILED, st.none()), st.booleans()), max_size=12
    )
)
def test_whatever_processes_bring_each_gate_is_explained_and_nothing_good_is_invented(
    brought: list[tuple[int, Any, bool]],
) -> None:
    runs = []
    for number, (at, what, with_sensors) in enumerate(brought):
        device = f"gpu:{at}"
        if what is None or isinstance(what, str):
            failure = None if what is None else Failure(what, "it failed")
            runs.append(run_of(None, number, device, failure=failure))
            continue
        row = replace(what, device=device, gpu_uuid=uuid_of(device))
        found = result_of(row, telemetry=sensors(device) if with_sensors else None)
        runs.append(run_of(found, number, device))
    judged = Facts(profile=profile_of(NODE + COMPANY), node=node(3), runs=runs)

    gates = judge(judged)

    assert len({(one.id, one.device) for one in gates}) == len(gates)
    for one in gates:
        if one.status in (GateStatus.FAIL, GateStatus.INCONCLUSIVE):
            assert one.reason
            assert one.class_ is not None
        if one.status is GateStatus.PASS:
            assert one.measured is not None
            assert one.class_ is None
    if verdict(gates)[0] is ExitCode.OK:
        assert all(run.result is not None for run in runs)
    settled(gates)
    series_of(judged)
