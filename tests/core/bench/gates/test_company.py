"""GPUs held against each other: the straggler is found, and nobody else is blamed."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.core.bench.gates.facts import Facts
from gpucheck.core.bench.gates.verdict import judge
from gpucheck.models.gate import GateStatus
from tests.fakes.bench_results import product_runs
from tests.fakes.gates import COMPANY, GOOD, NODE, SLOW, facts, gate, node, profile_of


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
