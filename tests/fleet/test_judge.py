"""Judgement of speeds: each rule at its edges, on drawn fleets with known faults."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpucheck.fleet.judge import (
    attribute,
    chance_of_at_least,
    healthy_part,
    judge,
    shifts,
    survivors,
    tail,
)
from gpucheck.fleet.model import Correction, GpuSpeed, Group, JudgedBy, JudgementRule, Scope

RULE = JudgementRule()


def group(key: str = "g") -> Group:
    return Group(key=key, test="copy", gpu_name="H100", gpus=0, judged_by=JudgedBy.PEERS)


def reference(scale: float = 0.01, gpus: int = 800) -> Group:
    """Return the group of an earlier report whose speed was 1."""
    return group()._replace(median=1.0, scale=scale, gpus=gpus)


def healthy(count: int, *, seed: int = 1, deviation: float = 0.01) -> Any:
    return 1 + deviation * np.random.default_rng(seed).standard_normal(count)


def named(judgement: tuple[Any, ...]) -> Any:
    groups, verdicts, percents = judgement
    return SimpleNamespace(groups=groups, verdicts=verdicts, worst_percent=percents)


def judged(values: Any, *, runs: int = 1, rule: JudgementRule = RULE, **more: Any) -> Any:
    """Return the judgement of values by GPU, or by GPU and run."""
    values = np.asarray(values, dtype=float).reshape(-1, runs)
    gpus = np.repeat(np.arange(len(values)), runs)
    return named(judge([(group(), gpus, values.ravel())], len(values), rule, **more))


def speeds(judgement: Any) -> dict[int, GpuSpeed]:
    return {one.gpu: one.speed for one in judgement.verdicts}


def test_healthy_gpus_are_called_nothing() -> None:
    assert judged(healthy(800)).verdicts == ()


@pytest.mark.parametrize(
    ("percent", "speed"), [(4.9, None), (5.5, GpuSpeed.WATCH), (9.0, GpuSpeed.SLOW)]
)
def test_a_slow_gpu_needs_both_a_score_and_a_loss(percent: float, speed: GpuSpeed | None) -> None:
    values = healthy(800, deviation=0.012)
    values[17] = 1 - percent / 100

    assert speeds(judged(values)).get(17) is speed


def test_a_tight_group_makes_no_small_loss_slow() -> None:
    values = healthy(800, deviation=0.0005)
    values[17] = 0.955

    assert judged(values).verdicts == ()


@pytest.mark.parametrize(
    ("slow_runs", "runs", "speed"),
    [
        (1, 1, GpuSpeed.SLOW),
        (1, 2, GpuSpeed.UNSTABLE),
        (2, 2, GpuSpeed.SLOW),
        (1, 3, GpuSpeed.UNSTABLE),
        (2, 3, GpuSpeed.SLOW),
        (3, 6, GpuSpeed.UNSTABLE),
        (4, 6, GpuSpeed.SLOW),
    ],
)
def test_slow_is_confirmed_by_two_runs_in_three(slow_runs: int, runs: int, speed: GpuSpeed) -> None:
    values = np.repeat(healthy(100), runs).reshape(-1, runs)
    values[5, :slow_runs] = 0.85

    found = judged(values, runs=runs)

    assert speeds(found)[5] is speed
    assert found.verdicts[0].runs == runs
    assert found.verdicts[0].slow_runs == slow_runs


@pytest.mark.parametrize("share", [0.2, 0.3, 0.4])
def test_many_slow_gpus_hide_none(share: float) -> None:
    values = healthy(800)
    bad = round(share * len(values))
    values[:bad] *= 0.92

    found = [gpu for gpu, speed in speeds(judged(values)).items() if speed is GpuSpeed.SLOW]

    assert len(found) >= 0.99 * bad
    assert max(found) < bad


def test_half_the_group_needs_the_baseline() -> None:
    values = healthy(800)
    values[:400] *= 0.9
    alone, beside = judged(values), judged(values, baseline={"g": reference()})

    assert alone.groups[0].judged_by is JudgedBy.NOTHING
    assert "two kinds" in alone.groups[0].reason
    assert beside.groups[0].judged_by is JudgedBy.BASELINE
    assert sum(one.speed is GpuSpeed.SLOW for one in beside.verdicts) >= 396
    assert not list(shifts(beside.groups, RULE))


def test_a_group_that_moved_as_a_whole_is_one_finding() -> None:
    found = judged(0.93 * healthy(800), baseline={"g": reference()})

    assert found.verdicts == ()
    (moved,) = shifts(found.groups, RULE)
    assert moved.scope is Scope.GROUP
    assert found.groups[0].shift_percent == pytest.approx(7, abs=0.5)


def test_few_gpus_are_judged_by_the_baseline_alone() -> None:
    values = [1.0] * 7 + [0.9]

    assert judged(values).groups[0].judged_by is JudgedBy.NOTHING
    assert np.isnan(judged(values).worst_percent).all()
    assert speeds(judged(values, baseline={"g": reference()})) == {7: GpuSpeed.SLOW}


@pytest.mark.parametrize(("learned_from", "speed"), [(800, "slow"), (8, "watch")])
def test_a_baselines_scale_is_as_certain_as_the_gpus_that_it_is_from(
    learned_from: int, speed: str
) -> None:
    """At exactly z = -5, among few GPUs; in steps of a 64th every number is exact."""
    baseline = {"g": reference(1 / 64, learned_from)}

    assert speeds(judged([1.0] * 7 + [1 - 5 / 64], baseline=baseline)) == {7: GpuSpeed(speed)}


def test_groups_are_not_mixed() -> None:
    capped = (group("500 W"), np.arange(400), 0.8 * healthy(400, seed=2))
    free = (group("700 W"), np.arange(400, 800), healthy(400, seed=3))

    assert judge([capped, free], 800, RULE)[1] == ()


def test_a_gpu_is_named_once_with_its_worst_test() -> None:
    one, two = healthy(100), healthy(100, seed=2)
    one[3], two[3] = 0.9, 0.8
    samples = [(group(), np.arange(100), values) for values in (one, two)]

    (found,) = judge(samples, 100, RULE)[1]

    assert (found.gpu, found.group, found.tests, found.judged_tests) == (3, 1, 2, 2)
    assert found.slower_percent == pytest.approx(20, abs=1)


def test_nothing_at_all_is_judged() -> None:
    assert judge([], 0, RULE)[1] == ()


def test_scale_is_that_of_the_healthy() -> None:
    values = np.r_[healthy(550), 0.9 * healthy(450, seed=2)]

    centre, scale = healthy_part(values, RULE)

    assert centre == pytest.approx(1, abs=0.002)
    assert scale == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize(("z", "chance"), [(-3.0, 1.35e-3), (-5.0, 2.87e-7)])
def test_tail_of_many_is_the_normal_one(z: float, chance: float) -> None:
    assert tail(np.array([z]), 1_000_000)[0] == pytest.approx(chance, rel=0.01)


def test_tail_of_few_is_students() -> None:
    # Student's tail at -5 with 7 degrees of freedom.
    assert tail(np.array([-5.0]), 20)[0] == pytest.approx(7.8e-4, rel=0.1)


@pytest.mark.parametrize(
    ("correction", "kept"),
    [
        (Correction.NONE, [True, True, True]),
        (Correction.HOLM, [True, False, False]),
        (Correction.FDR, [True, True, False]),
    ],
)
def test_corrections_keep_what_they_should(correction: Correction, kept: list[bool]) -> None:
    rule = RULE._replace(correction=correction, risk=0.05)

    # Of 100: Holm's first steps are 0.0005 and 0.000505, Hochberg's 0.0005, 0.001 and 0.0015.
    assert survivors(np.array([0.0004, 0.0009, 0.0016]), 100, rule).tolist() == kept


def test_holms_last_step_is_the_whole_risk() -> None:
    rule = RULE._replace(correction=Correction.HOLM, risk=0.05)

    assert survivors(np.array([0.01, 0.02, 0.05]), 3, rule).tolist() == [True, True, True]


def test_many_suspects_come_back_in_their_order() -> None:
    chances = np.array([0.5, 1e-9, 0.9, 1e-8])

    assert survivors(chances, 4, RULE).tolist() == [False, True, False, True]
    assert survivors(np.array([]), 4, RULE).tolist() == []


def places(nodes: int, per_rack: int) -> dict[int, tuple[str, str | None]]:
    return {
        8 * node + gpu: (f"n{node}", f"r{node // per_rack}")
        for node in range(nodes)
        for gpu in range(8)
    }


def test_half_of_a_nodes_gpus_point_to_the_node() -> None:
    where = places(20, 10)

    found = list(attribute(where, [0, 1, 2, 3, 8, 9, 10], list(where), RULE))

    assert [(one.scope, one.name, one.slow) for one in found] == [(Scope.NODE, "n0", 4)]


def test_a_node_is_not_accused_where_slow_gpus_are_everywhere() -> None:
    where = places(100, 10)
    chosen = np.random.default_rng(1).choice(800, 240, replace=False).tolist()

    assert list(attribute(where, chosen, list(where), RULE)) == []


def test_a_bad_rack_is_named_and_a_scattered_fault_is_not() -> None:
    where = places(200, 10)
    gathered = [8 * node for node in range(30, 36)]
    scattered = [8 * node for node in range(5, 200, 33)]

    (rack,) = attribute(where, gathered, list(where), RULE)

    assert (rack.scope, rack.name, rack.slow, rack.judged) == (Scope.RACK, "r3", 6, 10)
    assert rack.chance is not None
    assert rack.chance < 1e-6
    assert list(attribute(where, scattered, list(where), RULE)) == []


def test_without_racks_none_is_named() -> None:
    where = {number: (f"n{number}", None) for number in range(10)}

    assert list(attribute(where, [1, 2, 3], list(where), RULE)) == []


def test_chance_of_many_in_one_place() -> None:
    assert chance_of_at_least(0, 10, 5, 100) == 1
    assert chance_of_at_least(2, 2, 2, 4) == pytest.approx(1 / 6)
    # Of 8 of 10, 5 are bad in any case if 7 of them are.
    assert chance_of_at_least(5, 8, 7, 10) == 1


@pytest.mark.parametrize(("here", "size", "bad", "total"), [(3, 16, 9, 400), (1, 8, 700, 800)])
def test_chance_is_the_hypergeometric_one(here: int, size: int, bad: int, total: int) -> None:
    ways = [
        math.comb(bad, one) * math.comb(total - bad, size - one) for one in range(here, size + 1)
    ]

    assert chance_of_at_least(here, size, bad, total) == pytest.approx(
        sum(ways) / math.comb(total, size)
    )


@pytest.mark.parametrize(
    ("steps", "speed"),
    [(5, GpuSpeed.SLOW), (4.5, GpuSpeed.WATCH), (3.5, GpuSpeed.WATCH), (3.25, None)],
)
def test_the_limits_of_the_score_are_part_of_it(steps: float, speed: GpuSpeed | None) -> None:
    """In steps of a 64th every number is exact."""
    rule = RULE._replace(correction=Correction.NONE)
    found = judged([1.0] * 7 + [1 - steps / 64], baseline={"g": reference(1 / 64)}, rule=rule)

    assert speeds(found).get(7) is speed
    assert found.groups[0].finds_percent == 100 * 5 / 64
    assert found.groups[0].shift_percent == 0


def test_the_limit_of_the_loss_is_part_of_it() -> None:
    rule = RULE._replace(least_percent=6.25)

    assert speeds(judged([1.0] * 99 + [0.9375], rule=rule)) == {99: GpuSpeed.SLOW}
    assert judged([1.0] * 99 + [0.94], rule=rule).verdicts == ()


def test_the_scale_is_never_less_than_half_a_percent() -> None:
    assert healthy_part(np.full(30, 4.0), RULE) == (4.0, 0.02)


def test_a_baseline_without_a_speed_is_none() -> None:
    found = judged([1.0] * 8, baseline={"g": reference()._replace(median=0.0)})

    assert found.groups[0].judged_by is JudgedBy.NOTHING
    assert found.groups[0].baseline_median is None


def test_a_small_group_moves_by_its_median() -> None:
    found = judged([0.75] * 8, baseline={"g": reference()})

    assert found.groups[0].shift_percent == 25
    assert speeds(found) == dict.fromkeys(range(8), GpuSpeed.SLOW)


@pytest.mark.parametrize(("share", "speed"), [(1.2, GpuSpeed.SLOW), (0.8, GpuSpeed.WATCH)])
@pytest.mark.parametrize("gpus", [25, 100_000])
def test_the_correction_counts_gpus_that_were_judged(
    share: float, speed: GpuSpeed, gpus: int
) -> None:
    values = healthy(25)
    centre, scale = healthy_part(values, RULE)
    values[5] = centre - 6 * scale
    centre, scale = healthy_part(values, RULE)
    chance = tail(np.array([(values[5] - centre) / scale]), 25)[0]
    rule = RULE._replace(risk=share * 25 * float(chance), least_percent=1.0)

    found = named(judge([(group(), np.arange(25), values)], gpus, rule))

    assert speeds(found)[5] is speed
    assert found.groups[0].slow == (speed is GpuSpeed.SLOW)
    assert int(np.isfinite(found.worst_percent).sum()) == 25


def test_two_tests_are_two_chances() -> None:
    values, other = healthy(25), healthy(25, seed=2)
    centre, scale = healthy_part(values, RULE)
    values[5] = centre - 6 * scale
    centre, scale = healthy_part(values, RULE)
    chance = tail(np.array([(values[5] - centre) / scale]), 25)[0]
    rule = RULE._replace(risk=1.5 * 25 * float(chance), least_percent=1.0)
    samples = [(group(), np.arange(25), one) for one in (values, other)]

    assert speeds(named(judge(samples, 25, rule)))[5] is GpuSpeed.WATCH
    rule = rule._replace(risk=2.5 * 25 * float(chance))
    assert speeds(named(judge(samples, 25, rule)))[5] is GpuSpeed.SLOW


@pytest.mark.parametrize(("deviation", "judged_by"), [(4.9, "peers"), (5.1, "nothing")])
def test_a_group_that_varies_too_much_is_not_judged(deviation: float, judged_by: str) -> None:
    step = deviation / 100 / 1.4826
    found = judged([1 - step, 1.0, 1 + step] * 20)

    assert found.groups[0].judged_by == judged_by


@pytest.mark.parametrize(("count", "named"), [(19, False), (20, True)])
def test_twenty_are_a_group(count: int, named: bool) -> None:
    found = judged([1.0] * (count - 1) + [0.5])

    assert bool(found.verdicts) is named
    assert found.groups[0].reason == (None if named else "only 19 alike, and no baseline")


def test_a_node_needs_two_slow_gpus_and_half() -> None:
    where = {number: (f"n{number // 2}", None) for number in range(200)}

    assert list(attribute(where, [0], list(where), RULE)) == []
    (found,) = attribute(where, [0, 1], list(where), RULE)
    assert (found.slow, found.judged) == (2, 2)
    assert found.sentence == "2 of 2 GPUs of n0 are slow: seek the cause in the node"


def test_a_rack_needs_three_nodes() -> None:
    where = places(200, 3)

    assert list(attribute(where, [0, 8], list(where), RULE)) == []
    (found,) = attribute(where, [0, 8, 16], list(where), RULE)
    assert found.sentence == "3 of 3 nodes of rack r0 have slow GPUs: seek it in the rack"


def test_a_shift_at_the_limit_is_none() -> None:
    at, beyond = (group()._replace(shift_percent=percent, gpus=9) for percent in (3.0, 3.1))

    assert list(shifts([group(), at], RULE)) == []
    (found,) = shifts([beyond], RULE)
    assert (found.slow, found.judged) == (9, 9)
    assert "all 9 H100 are 3.1 % slower in copy" in found.sentence
