"""A figure against its limit, or a baseline: whose fault it is, and when nothing is decided."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.core.bench.gates.facts import Facts
from gpucheck.core.bench.gates.verdict import judge, settled, warnings
from gpucheck.models.bench import Scope
from gpucheck.models.bench_run import Baseline
from gpucheck.models.errors import ExitCode
from gpucheck.models.gate import GateClass, GateStatus
from tests.fakes.bench_results import doubt, product, product_runs, result_of, run_of, sensors
from tests.fakes.gates import (
    GOOD,
    NODE,
    SLOW,
    code,
    cpu_facts,
    facts,
    gate,
    node,
    profile_of,
    saved,
)


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


# ---------------------------------------------------------------------------------- baseline


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
    found = cpu_facts(GOOD, saved(differences={"cpu": ("blas: a -> b",)}))

    other = gate(found, "copy", "cpu")
    assert (other.status, other.class_) == (GateStatus.INCONCLUSIVE, GateClass.CONFIG)
    assert "blas: a -> b" in (other.reason or "")
    assert settled(judge(found)), "more processes would not change the fingerprint"


def test_a_fingerprint_that_differs_elsewhere_does_not_matter() -> None:
    found = cpu_facts(GOOD, saved(differences={"gpu:3": ("vbios: 1 -> 2",)}))

    assert gate(found, "copy", "cpu").status is GateStatus.PASS


def test_a_baseline_without_this_check_is_no_pass() -> None:
    empty = Baseline(path="a.json", time="", series=())

    assert gate(cpu_facts(GOOD, empty), "copy", "cpu").status is GateStatus.FAIL
