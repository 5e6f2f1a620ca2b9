"""GPUs held against each other: the straggler is found, and nobody else is blamed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.ci import gates
from gpucheck.bench.ci.decision import Decision
from gpucheck.bench.ci.gates import judge
from gpucheck.bench.ci.profile_model import Profile
from gpucheck.bench.ci.run_data import RunData
from gpucheck.bench.model import Gate, GateClass, GateStatus, Severity
from tests.fakes.bench_results import (
    measurement,
    product,
    product_runs,
    result_of,
    run_of,
    sensors,
)
from tests.fakes.gates import GOOD, NODE, PEERS, SLOW, gate, node, profile_of, run_data
from tests.fakes.nodes import AcceptanceNode


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
    found = peer_data([*([f * value for value in GOOD] for f in factors), [0.92 * x for x in GOOD]])

    slow = gate(found, "straggler", "gpu:7")
    assert (slow.status, slow.severity) == (GateStatus.FAIL, Severity.WARN)
    assert "fewer than 1 in 25 healthy nodes have such a GPU" in (slow.reason or "")
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


#: What eight healthy GPUs are off by, alike in each check.
HEALTHY = (0.0, 0.012, -0.008, 0.004, -0.015, 0.009, -0.004, 0.002)


def nodes_gate(logs: Sequence[Sequence[float]], device: str = "gpu:0", **stability: float) -> Gate:
    """Return a GPU's gate in a node whose GPUs are off by these logarithms in each check."""
    noise = (0.002, -0.001, 0.0, 0.001, -0.002)
    drawn = AcceptanceNode([[[log + own for own in noise] for log in gpu] for gpu in logs])
    gates = judge(replace(drawn.data(5), profile=with_stability(drawn.data(5).profile, stability)))
    (found,) = [one for one in gates if (one.id, one.device) == ("straggler", device)]
    return found


def with_stability(profile: Profile, changes: Mapping[str, Any]) -> Profile:
    return replace(profile, stability=replace(profile.stability, **changes))


def test_the_mean_of_the_checks_shows_a_slow_gpu_that_no_check_alone_does() -> None:
    # Each check has the same seven others, but each time in another order.
    others = [[0.012 * (at * turn % 7 - 3) for turn in (1, 2, 3, 5)] for at in range(7)]

    found = nodes_gate([[math.log(0.92)] * 4, *others])

    assert (found.status, found.severity) == (GateStatus.FAIL, Severity.ERROR)
    assert (found.reason or "").split("; ")[0] == (
        "8.3 % worse than the median of the others in the mean of 4 checks (8.0 % in "
        "matmul-bfloat16, 8.0 % in matmul-bfloat16-alone, 8.0 % in matmul-float32, 8.0 % in copy): "
        "fewer than 1 in 100 healthy nodes have such a GPU"
    )


def test_a_gpu_that_is_slow_in_one_check_alone_fails() -> None:
    found = nodes_gate([[0.0, 0.0, 0.0, math.log(0.85)], *([log] * 4 for log in HEALTHY[1:])])

    assert (found.status, found.severity) == (GateStatus.FAIL, Severity.ERROR)
    assert "15.2 % worse than the median of the others in copy: fewer" in (found.reason or "")


def test_three_slow_gpus_of_eight_do_not_hide_each_other() -> None:
    logs = [[log + (math.log(0.85) if at < 3 else 0)] * 4 for at, log in enumerate(HEALTHY)]

    found = [nodes_gate(logs, f"gpu:{at}") for at in range(8)]

    assert [one.status for one in found] == [GateStatus.FAIL] * 3 + [GateStatus.PASS] * 5
    assert {one.severity for one in found} == {Severity.ERROR}


def test_one_that_is_as_slow_as_many_healthy_ones_passes_and_is_told() -> None:
    logs = [[log] * 4 for log in (math.log(0.948), 0.02, -0.02, 0.01, -0.01, 0.02, -0.02, 0.0)]

    found = nodes_gate(logs)

    assert found.status is GateStatus.PASS
    assert found.reason == (
        "5.2 % worse than the median of the others in the mean of 4 checks (5.2 % in "
        "matmul-bfloat16, 5.2 % in matmul-bfloat16-alone, 5.2 % in matmul-float32, 5.2 % in copy): "
        "more than 1 in 25 healthy nodes have such a GPU"
    )
    assert (found.measured or 0) < (found.limit or 0)


def test_the_profile_says_how_much_healthy_gpus_differ() -> None:
    logs = [[log] * 4 for log in (math.log(0.92), *HEALTHY[1:])]

    assert nodes_gate(logs).severity is Severity.ERROR
    assert nodes_gate(logs, healthy_spread_percent=4.0).status is GateStatus.PASS
    assert nodes_gate(logs, healthy_spread_percent=1.0).severity is Severity.ERROR


def test_how_far_below_two_equal_others_a_healthy_gpu_can_be_by_hand() -> None:
    # Student's t of 13 degrees of freedom is above 2.650 in one of 100 cases.
    scatter = 0.018 * math.sqrt(12 / 13 * (1 + math.pi / (2 * 2 + math.pi - 2)))

    _, failing = gates._healthy_percents([(0.5, 0.5)], 2, 0.018, 1)

    assert failing == pytest.approx(100 * (1 - math.exp(-2.650 * scatter)), abs=1e-3)


def test_a_longer_time_is_a_lower_speed() -> None:
    text = NODE.replace('value = 700\nunit = "TFLOP/s"', 'metric = "time"\nvalue = 1\nunit = "s"')
    runs = [
        run
        for at, factor in enumerate((1.0, 1.0, 1.0, 0.8))
        for run in product_runs([factor * value for value in GOOD], f"gpu:{at}")
    ]

    found = gate(
        RunData(profile=profile_of(text + PEERS), node=node(4), runs=runs), "straggler", "gpu:3"
    )

    assert (found.status, found.severity) == (GateStatus.FAIL, Severity.ERROR)
    assert found.measured == pytest.approx(20.0)


def test_two_slow_processes_of_six_make_no_straggler() -> None:
    steady = [*GOOD, 700.0]
    found = peer_data([*([steady] * 7), [*steady[:4], 610.0, 611.0]])

    lately = gate(found, "straggler", "gpu:7")
    assert lately.status is GateStatus.PASS
    assert lately.measured == pytest.approx(4.4, abs=0.1)
    assert lately.interval is None


def test_of_a_pair_one_that_is_lower_than_any_healthy_one_ever_was_fails() -> None:
    found = gate(peer_data([GOOD, [0.7 * value for value in GOOD]]), "straggler", "gpu:1")

    assert (found.status, found.severity) == (GateStatus.FAIL, Severity.ERROR)
    assert "30.0 % worse than gpu:0, its only peer in matmul: it is unknown which" in (
        found.reason or ""
    )


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
    decision = Decision(
        status=GateStatus.PASS, measured=1.1, expected=1.0, ratio=1.1, interval=(1.0, high)
    )

    # 1 / 0.9 squared is 1.2346.
    assert gates._is_blurred(decision, 10.0) is blurred


def test_a_gpu_that_lags_in_one_check_names_it_once() -> None:
    slow = gate(peer_data([GOOD, GOOD, GOOD, SLOW]), "straggler", "gpu:3")

    text = "10.0 % worse than the median of the others in matmul: "
    assert (slow.reason or "").startswith(text)
