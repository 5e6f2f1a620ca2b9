"""GPUs held against each other: the straggler is found, and nobody else is blamed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpucheck.bench.ci import peers
from gpucheck.bench.ci.decision import Decision
from gpucheck.bench.ci.gates import judge
from gpucheck.bench.ci.run_data import MetricValues, RunData
from gpucheck.bench.model import Direction, GateClass, GateStatus, Severity
from tests.fakes.bench_results import (
    measurement,
    product,
    product_runs,
    result_of,
    run_of,
    sensors,
)
from tests.fakes.gates import GOOD, NODE, PEERS, SLOW, gate, node, profile_of, run_data


def peer_data(values: Sequence[Sequence[float]]) -> RunData:
    runs = [run for at, one in enumerate(values) for run in product_runs(one, f"gpu:{at}")]
    return run_data(runs, PEERS)


def test_the_slow_one_among_eight_is_found_and_no_other() -> None:
    found = peer_data([GOOD] * 7 + [[0.93 * value for value in GOOD]])

    stragglers = [one for one in judge(found) if one.id == "straggler"]
    assert [one.device for one in stragglers if one.status is GateStatus.FAIL] == ["gpu:7"]
    assert [one.status for one in stragglers].count(GateStatus.PASS) == 7
    slow = stragglers[7]
    assert slow.severity is Severity.ERROR
    assert slow.measured == pytest.approx(7.0, abs=0.1)
    assert "7.0 % worse than the median of the others in matmul" in (slow.reason or "")
    assert gate(found, "matmul-spread", "node").status is GateStatus.PASS


def test_one_that_lies_within_what_the_others_differ_by_only_warns() -> None:
    factors = (1.0, 1.03, 0.97, 1.04, 0.98, 1.02, 0.96)
    found = peer_data([*([f * value for value in GOOD] for f in factors), [0.93 * x for x in GOOD]])

    slow = gate(found, "straggler", "gpu:7")
    assert (slow.status, slow.severity) == (GateStatus.FAIL, Severity.WARN)
    assert "but healthy GPUs can differ by as much" in (slow.reason or "")
    assert all(one.severity is Severity.WARN for one in judge(found) if one.id == "matmul-spread")


def test_far_below_what_was_ever_seen_of_healthy_ones_fails_whatever_they_differ_by() -> None:
    factors = (1.0, 1.06, 0.94, 1.08, 0.96, 1.04, 0.92)
    found = peer_data([*([f * value for value in GOOD] for f in factors), [0.7 * x for x in GOOD]])

    assert gate(found, "straggler", "gpu:7").severity is Severity.ERROR


def test_noise_over_the_tolerance_leaves_the_straggler_open() -> None:
    noisy = [(1.2, 0.8, 1.1, 0.9, 1.0)[at] * value for at, value in enumerate(GOOD)]

    found = gate(peer_data([GOOD, GOOD, GOOD, noisy]), "straggler", "gpu:3")

    assert (found.status, found.class_) == (GateStatus.INCONCLUSIVE, GateClass.NOISE)
    assert found.repeat_helps


def test_a_slow_gpu_counts_once_however_many_checks_it_is_slow_in() -> None:
    text = PEERS + NODE[NODE.index("[[check]]") :].replace('id = "matmul"', 'id = "again"')
    values = [GOOD] * 7 + [[0.93 * value for value in GOOD]]
    runs = [run for at, one in enumerate(values) for run in product_runs(one, f"gpu:{at}")]

    found = [one for one in judge(run_data(runs, text)) if one.id == "straggler"]

    assert len(found) == 8
    assert "7.0 % in " in (found[7].reason or "")


def test_one_that_is_just_the_median_of_the_others_is_no_sign_of_anything() -> None:
    own, *others = (
        MetricValues(device=f"gpu:{at}", gpu_uuid=None, values=(speed,) * 3)
        for at, speed in enumerate((1.0, 0.9, 1.0, 1.1))
    )

    assert peers._chance(own, others, Direction.HIGHER) == 1.0
    assert peers._chance(replace(own, values=(0.99,) * 3), others, Direction.HIGHER) < 0.5


@pytest.mark.parametrize("direction", Direction)
def test_how_likely_one_more_like_three_others_is_so_far_off(direction: Direction) -> None:
    """Student's t with two degrees of freedom has a tail in closed form."""
    sign = -1 if direction is Direction.LOWER else 1
    own, *others = (
        MetricValues(device=f"gpu:{at}", gpu_uuid=None, values=(math.exp(sign * log),) * 3)
        for at, log in enumerate((-0.1, -0.02, 0.0, 0.05))
    )
    scatter = statistics.stdev([-0.02, 0.0, 0.05])
    t = 0.1 / (scatter * math.sqrt(1 + math.pi / 2 / 3))

    found = peers._chance(own, others, direction)

    assert found == pytest.approx((1 - t / math.sqrt(2 + t * t)) / 2, rel=1e-6)
    assert peers._chance(own, others[:1], direction) == 1.0
    assert peers._chance(own, others[:2], direction) < 1.0


def test_of_a_pair_nobody_can_say_which_is_off() -> None:
    found = peer_data([GOOD, SLOW])

    slow = gate(found, "straggler", "gpu:1")
    assert (slow.status, slow.severity) == (GateStatus.FAIL, Severity.WARN)
    assert "it is unknown which" in (slow.reason or "")


def test_a_lone_gpu_has_no_company_to_be_held_against() -> None:
    assert not [one for one in judge(peer_data([GOOD])) if "straggler" in one.id]


def test_the_spread_names_both_ends() -> None:
    found = gate(peer_data([GOOD, GOOD, SLOW]), "matmul-spread", "node")

    assert found.status is GateStatus.FAIL
    assert "gpu:2 is 10.0 % slower than gpu:" in (found.reason or "")


def test_a_node_is_as_fast_as_its_slowest() -> None:
    text = NODE + 'per = "node"\n'
    runs = [*product_runs(GOOD, "gpu:0"), *product_runs(SLOW, "gpu:1")]
    found = RunData(profile=profile_of(text), node=node(2), runs=runs)

    slowest = gate(found, "matmul", "node")
    assert slowest.status is GateStatus.FAIL
    assert "gpu:1 is the slowest" in (slowest.reason or "")


def test_a_noisy_check_does_not_hide_one_that_surely_fails() -> None:
    noisy = NODE[NODE.index("[[check]]") :].replace('id = "matmul"', 'id = "copy"')
    noisy = noisy.replace('kernel = "matmul"\ndtype = "bfloat16"', 'kernel = "copy"')
    noisy = noisy.replace('value = 700\nunit = "TFLOP/s"', 'value = 2000\nunit = "GB/s"')
    runs = []
    for at in range(8):
        device = f"gpu:{at}"
        factors = (0.5, 1.4, 0.6, 1.3, 0.2) if at == 7 else (1.0,) * 5
        for number, (value, factor) in enumerate(zip(GOOD, factors, strict=True)):
            slow = 0.9 * value if at == 7 else value
            copy = measurement("copy", 2e12 * factor, device=device)
            result = result_of(product(slow, device), copy, telemetry=sensors(device))
            runs.append(run_of(result, number, device))

    found = gate(run_data(runs, PEERS + noisy), "straggler", "gpu:7")

    assert (found.status, found.severity) == (GateStatus.FAIL, Severity.ERROR)
    assert "in matmul" in (found.reason or "")


@pytest.mark.parametrize(("high", "blurred"), [(1.234, False), (1.235, True)])
def test_noise_hides_a_straggler_if_it_spans_twice_the_tolerance(
    high: float, blurred: bool
) -> None:
    own = MetricValues(device="gpu:0", gpu_uuid=None, values=GOOD)
    decision = Decision(
        status=GateStatus.PASS, measured=1.1, expected=1.0, ratio=1.1, interval=(1.0, high)
    )
    held = peers._Held(
        check=profile_of(NODE).checks[0], own=own, others=(own,), decision=decision, chance=1.0
    )

    # 1 / 0.9 squared is 1.2346.
    assert peers._is_blurred(held, 10.0) is blurred


def test_a_gpu_that_lags_in_one_check_names_it_once() -> None:
    slow = gate(peer_data([GOOD, GOOD, GOOD, SLOW]), "straggler", "gpu:3")

    text = "10.0 % worse than the median of the others in matmul, "
    assert (slow.reason or "").startswith(text)
