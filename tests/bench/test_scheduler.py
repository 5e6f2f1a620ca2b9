"""Rounds, their end, the choice of rows within a budget, and estimates of their cost."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench import scheduler, stats
from gpucheck.bench.case import Work
from gpucheck.bench.doubts import doubts_about
from gpucheck.bench.environment import RowEnvironment
from gpucheck.bench.model import SMALLER_SIZE, FrameworkUse, Scope, Verified
from gpucheck.bench.sampler import CaseState
from gpucheck.bench.scheduler import (
    HostRates,
    Settings,
    affordable,
    enough_budget_s,
    enough_s,
    estimate_costs,
    is_unsettled,
    left_out,
    measure,
    measure_host_rates,
    needed_s,
    shortage,
)
from gpucheck.drivers.gpu import BenchGpu, Board
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import InconclusiveError
from tests.fakes.bench import FLOAT32, RIGHT, WRONG, FakeBlas, FakeCase, FakeClock, FakeGpu, label

SETTINGS = Settings(budget_s=10.0, warmup_s=0.05)


class CompilingCase(FakeCase):
    """An operation whose first run compiles."""

    compiles = True


def silent(label: str, fraction: float, seconds_left: float) -> None:
    assert label
    assert 0 <= fraction <= 1
    assert seconds_left >= 0


def run(*cases: FakeCase, clock: FakeClock, settings: Settings = SETTINGS) -> list[CaseState]:
    records = [CaseState(case=case) for case in cases]
    measure([records], settings, clock, silent)
    return records


def noise(middle: float, spread: float, seed: int = 1) -> Iterator[float]:
    source = random.Random(seed)
    return (max(middle / 10, source.gauss(middle, spread)) for _ in itertools.count())


def test_a_steady_case_converges_with_every_sample_kept() -> None:
    clock = FakeClock()
    case = FakeCase(noise(0.02, 1e-5), clock)

    (record,) = run(case, clock=clock)

    assert record.converged
    assert record.error is None
    assert record.verified == RIGHT
    assert stats.median(record.samples_s) == pytest.approx(0.02, rel=0.01)
    # One run is the cold one; all others are kept, as warm-up or as samples.
    assert len(case.runs) == 1 + len(record.warmup_s) + len(record.samples_s)


def test_every_round_has_fresh_memory_and_its_result_is_checked() -> None:
    clock = FakeClock()
    case = FakeCase(noise(0.02, 1e-5), clock)

    (record,) = run(case, clock=clock)

    assert case.events[:4] == ["prepare", "poison", "run", "check"]
    assert case.events[-2:] == ["check", "release"]
    rounds = len(record.rounds)
    assert rounds >= SETTINGS.fewest_rounds
    assert case.events.count("prepare") == case.events.count("release") == rounds
    # Before the first samples too, so that a wrong result is never timed.
    assert case.events.count("check") == rounds + 1


def test_checks_that_take_long_are_made_less_often() -> None:
    clock = FakeClock()

    class Slow(FakeCase):
        def check(self) -> Verified:
            clock.seconds += 0.5
            return super().check()

    case = Slow(noise(0.02, 1e-3), clock)

    (record,) = run(case, clock=clock)

    assert 2 <= case.events.count("check") <= len(record.rounds) // 2


def test_a_short_operation_is_repeated_until_the_clock_can_measure_it() -> None:
    clock = FakeClock()

    (record,) = run(FakeCase(noise(3e-6, 1e-8), clock), clock=clock)

    assert record.loops * 3e-6 >= 1e-3
    assert stats.median(record.samples_s) == pytest.approx(3e-6, rel=0.01)


@pytest.mark.parametrize(
    ("operation_s", "loops"), [(2e-3, 1), (9e-4, 2), (5e-4, 3), (2.1e-4, 6), (5e-5, 30)]
)
def test_a_sample_has_a_fifth_more_than_the_clock_needs(operation_s: float, loops: int) -> None:
    clock = FakeClock()

    (record,) = run(FakeCase(itertools.repeat(operation_s), clock), clock=clock)

    assert record.loops == loops


def test_a_kernel_that_does_half_of_its_loops_is_doubted() -> None:
    class Half(FakeCase):
        def run(self, loops: int) -> float:
            return super().run(max(1, loops // 2))

    for kind, expected in ((FakeCase, False), (Half, True)):
        clock = FakeClock()
        (record,) = run(kind(noise(2e-4, 1e-6), clock), clock=clock)
        assert record.loops > 1
        idle = RowEnvironment(others_percent=0.0, steal_percent=0.0)
        codes = {doubt.code for doubt in doubts_about(record, idle)}
        assert ("loops-missing" in codes) is expected


def test_samples_hold_whole_rounds_of_a_case_s_buffers() -> None:
    clock = FakeClock()
    case = FakeCase(noise(1e-4, 1e-6), clock)
    case.loop_step = 7

    (record,) = run(case, clock=clock)

    assert record.loops > 1
    assert record.loops % 7 == 0
    # One by one it is run at first, and to see what a single operation takes.
    assert {loops % 7 for loops in case.runs} == {0, 1}


def test_a_first_run_that_loads_libraries_does_not_decide_the_repetitions() -> None:
    clock = FakeClock()

    (record,) = run(FakeCase(itertools.chain([0.3], noise(3e-6, 1e-8)), clock), clock=clock)

    assert record.loops * 3e-6 >= 1e-3


def test_the_first_run_is_the_cold_one() -> None:
    clock = FakeClock()

    (record,) = run(FakeCase(itertools.chain([2.0], noise(0.02, 1e-5)), clock), clock=clock)

    assert record.cold_s == pytest.approx(2.0)
    assert max(record.samples_s) < 0.1


def test_a_row_that_only_shows_a_limit_ends_once_it_can_have_an_interval() -> None:
    clock = FakeClock()
    case = FakeCase(noise(0.01, 0.005), clock)
    record = CaseState(case=case, limit=True)

    measure([[record]], SETTINGS, clock, silent)

    assert record.finished
    assert len(record.rounds) == stats.FEWEST_FOR_INTERVAL


def test_noise_that_never_settles_ends_with_the_budget_unconverged() -> None:
    clock = FakeClock()

    (record,) = run(FakeCase(noise(0.05, 0.02), clock), clock=clock)

    assert record.finished
    assert not record.converged
    # A slice that does not fit into the rest of the time does not begin.
    assert 9.8 <= clock.seconds <= 10.0


def test_heavy_tails_do_not_keep_the_median_from_converging() -> None:
    clock = FakeClock()
    steps = (0.5 if number % 9 == 0 else step for number, step in enumerate(noise(0.01, 1e-5)))

    (record,) = run(FakeCase(steps, clock), clock=clock)

    assert record.converged
    assert stats.median(record.samples_s) == pytest.approx(0.01, rel=0.01)
    assert max(record.samples_s) == 0.5


@pytest.mark.parametrize(
    ("step", "most"), [(0.0, 10**4), (1e-12, 10**8), (-1e-3, 1), (math.nan, 1), (math.inf, 1)]
)
def test_a_clock_that_stands_still_or_goes_back_is_an_error_and_no_endless_loop(
    step: float, most: int
) -> None:
    case = FakeCase(itertools.repeat(step))

    (record,) = run(case, clock=FakeClock())

    assert record.error is not None
    assert record.error.code == "clock-stuck"
    assert not record.samples_s
    # Tenfold each time, until a clock that goes must have moved.
    tenfold = [1, *itertools.takewhile(most.__ge__, (10**each for each in itertools.count()))]
    assert case.runs == tenfold


def test_a_clock_that_stops_in_mid_run_is_an_error() -> None:
    clock = FakeClock()
    steps = itertools.chain(itertools.repeat(0.02, 12), itertools.repeat(0.0))

    (record,) = run(FakeCase(steps, clock), clock=clock)

    assert record.error is not None
    assert record.error.code == "clock-stuck"


def test_the_budget_holds_when_only_the_cases_time_moves() -> None:
    clock = FakeClock()

    (record,) = run(FakeCase(noise(0.05, 0.02)), clock=clock)

    assert record.finished
    assert sum(record.samples_s) < 11


def test_samples_are_bounded_when_there_is_all_the_time() -> None:
    settings = Settings(budget_s=1e9, warmup_s=0.0, samples_per_slice=5, most_rounds=9)
    clock = FakeClock()

    (record,) = run(FakeCase(noise(0.05, 0.04), clock), clock=clock, settings=settings)

    assert len(record.samples_s) == 45
    assert not record.converged


def test_a_wrong_result_is_never_timed() -> None:
    clock = FakeClock()
    case = FakeCase(noise(1e-3, 1e-6), clock, checks=[WRONG])

    (record,) = run(case, clock=clock)

    assert record.error is not None
    assert record.error.code == "wrong-result"
    assert record.verified == WRONG
    assert not record.samples_s
    assert case.runs == [1]


def test_a_result_that_goes_wrong_with_time_is_caught_at_the_end() -> None:
    clock = FakeClock()

    (record,) = run(FakeCase(noise(0.02, 1e-5), clock, checks=[RIGHT, WRONG]), clock=clock)

    assert record.error is not None
    assert record.error.code == "wrong-result"
    assert record.verified == WRONG


def test_the_larger_of_two_good_errors_is_reported() -> None:
    worse = Verified(error=5e-6, bound=1e-5, ok=True, reference="scripted")
    clock = FakeClock()

    (record,) = run(FakeCase(noise(0.02, 1e-5), clock, checks=[worse, RIGHT]), clock=clock)

    assert record.verified == worse


def test_a_case_without_memory_keeps_its_row_and_the_others_go_on() -> None:
    clock = FakeClock()

    def refuse() -> None:
        raise MemoryError

    poor = FakeCase(noise(0.02, 1e-5), clock, prepare=refuse)
    rich = FakeCase(noise(0.02, 1e-5), clock, label=label(variant="rich"))

    first, second = run(poor, rich, clock=clock)

    assert first.error is not None
    assert first.error.code == "out-of-memory"
    assert "release" in poor.events
    assert second.converged


def test_a_gpu_lost_in_mid_run_keeps_its_samples_and_the_others_go_on() -> None:
    clock = FakeClock()
    lost = InconclusiveError(code="gpu-lost", message="the GPU stopped answering", remedy=("look",))
    # Quiet at first, but not quiet enough to be finished before it is lost.
    steps = itertools.chain(itertools.islice(noise(0.05, 0.02), 40), [lost])
    gpu = FakeCase(steps, clock, label=label("gpu:0"))
    cpu = FakeCase(noise(0.02, 1e-5), clock)

    first, second = run(gpu, cpu, clock=clock)

    assert first.error is not None
    assert (first.error.code, first.error.remedy) == ("gpu-lost", ("look",))
    assert first.samples_s
    assert not first.converged
    assert second.converged
    assert second.error is None


def test_an_interrupt_keeps_what_was_measured_and_marks_the_rest() -> None:
    clock = FakeClock()
    quick = FakeCase(noise(0.02, 1e-6), clock, label=label(variant="quick"))
    steps = itertools.chain(itertools.islice(noise(0.05, 0.02), 100), [KeyboardInterrupt()])
    slow = FakeCase(steps, clock, label=label(variant="slow"))

    first, second = run(quick, slow, clock=clock)

    assert first.converged
    assert not first.interrupted
    assert second.interrupted
    assert second.samples_s
    assert slow.events[-1] == "release"


def test_an_interrupt_in_the_first_case_marks_them_all() -> None:
    clock = FakeClock()

    records = run(FakeCase([KeyboardInterrupt()], clock), FakeCase([], clock), clock=clock)

    assert [record.interrupted for record in records] == [True, True]


def test_cases_alternate_so_that_a_drift_affects_all_of_them() -> None:
    clock, order = FakeClock(), []

    def logged(name: str, steps: Iterator[float]) -> Iterator[float]:
        for step in steps:
            order.append(name)
            yield step

    one = FakeCase(logged("one", noise(0.02, 0.01)), clock)
    two = FakeCase(logged("two", noise(0.02, 0.01, seed=2)), clock)

    run(one, two, clock=clock)

    changes = sum(a != b for a, b in itertools.pairwise(order))
    assert changes >= 8


def test_an_operation_longer_than_the_budget_is_run_twice_where_it_is_the_only_one() -> None:
    clock = FakeClock()
    long = FakeCase(itertools.repeat(100.0), clock)

    (state,) = run(long, clock=clock)

    assert long.runs == [1, 1]
    assert state.samples_s == [100.0]
    assert state.error is None


def test_an_operation_longer_than_the_budget_is_given_up_where_there_are_others() -> None:
    clock = FakeClock()
    long = FakeCase(itertools.repeat(100.0), clock)

    first, second = run(long, FakeCase(noise(0.02, 1e-5), clock), clock=clock)

    assert long.runs == [1]
    assert first.error is not None
    assert first.error.code == "no-time"
    assert second.error is None
    assert len(second.rounds) == 1


def test_a_row_that_has_compiled_gets_its_three_rounds_after_the_budget_too() -> None:
    clock = FakeClock()
    case = CompilingCase(itertools.chain([60.0], itertools.repeat(7.0)), clock)

    (state,) = run(case, clock=clock)

    assert state.error is None
    assert len(state.rounds) == 3


def test_where_no_row_can_end_in_time_the_cheapest_is_measured_all_the_same() -> None:
    clock = FakeClock()
    records = [
        CaseState(case=FakeCase(itertools.repeat(seconds), clock), expected_operation_s=seconds)
        for seconds in (1e3, 1e2, 1e3)
    ]

    measure([records], SETTINGS, clock, silent)

    assert [state.error and state.error.code for state in records] == ["no-time", None, "no-time"]
    # One budget is enough for all rows, whichever names it.
    assert {budget_named(records[0]), budget_named(records[2])} == {25000.0}


def test_a_row_that_turns_out_to_take_long_is_given_up_and_leaves_the_others_the_time() -> None:
    clock = FakeClock()
    case = FakeCase(itertools.repeat(6.0), clock)
    long = CaseState(case=case)
    others = [
        CaseState(case=FakeCase(noise(0.2, 0.02), clock), expected_operation_s=0.2)
        for _ in range(2)
    ]

    measure([[long, *others]], SETTINGS, clock, silent)

    assert case.runs == [1]
    assert long.error is not None
    assert long.error.code == "no-time"
    # Eight operations of six seconds.
    assert budget_named(long) >= 48
    assert all(len(other.rounds) >= 3 for other in others)
    assert clock.seconds <= SETTINGS.budget_s


@pytest.mark.parametrize("turn", [2, 3])
def test_a_row_gets_no_slice_after_another_has_used_up_the_time_in_the_same_round(
    turn: int,
) -> None:
    clock = FakeClock()
    prepared = itertools.count(1)

    def hang() -> None:
        if next(prepared) == turn:
            clock.seconds += 10 * SETTINGS.budget_s

    hanging = FakeCase(noise(0.01, 0.005), clock, prepare=hang)
    other = FakeCase(noise(0.01, 0.005, seed=2), clock)
    # The second round goes backwards.
    states = run(*((hanging, other) if turn == 3 else (other, hanging)), clock=clock)

    found = {state.case: len(state.rounds) for state in states}
    assert (found[hanging], found[other]) == (turn, turn - 1)
    assert all(state.finished for state in states)


def test_a_slow_group_leaves_the_others_their_first_slice() -> None:
    clock = FakeClock()
    slow = CaseState(case=FakeCase(itertools.repeat(100.0), clock))
    quick = CaseState(case=FakeCase(noise(0.02, 1e-5), clock))

    measure([[slow], [quick]], SETTINGS, clock, silent)

    assert quick.error is None
    assert quick.samples_s
    assert not quick.converged


def slow_rows(seconds: float, clock: FakeClock, count: int) -> list[CaseState]:
    """Return rows that take so long for each turn, besides their samples."""

    def prepare() -> None:
        clock.seconds += seconds

    return [
        CaseState(case=FakeCase(noise(0.02, 1e-5), clock, prepare=prepare), reference=number > 0)
        for number in range(count)
    ]


def test_where_the_time_is_short_fewer_rows_have_three_rounds_and_none_has_only_one() -> None:
    clock = FakeClock()
    groups = [slow_rows(0.4, clock, 4) for _ in range(5)]

    measure(groups, SETTINGS, clock, silent)

    records = [record for group in groups for record in group]
    begun = [record for record in records if record.rounds]
    assert 5 <= len(begun) < len(records)
    assert all(len(record.rounds) >= 3 for record in begun)
    # Each group has its first row before any has its second.
    assert all(group[0].rounds for group in groups)
    assert {record.error.code for record in records if record.error} == {"no-time"}
    assert clock.seconds < 1.2 * SETTINGS.budget_s


def test_a_row_of_seconds_leaves_rows_of_milliseconds_their_rounds_and_has_three_itself() -> None:
    clock = FakeClock()
    costly = [CaseState(case=FakeCase(noise(0.6, 0.03, seed), clock)) for seed in range(2)]
    cheap = [CaseState(case=FakeCase(noise(0.01, 0.001, seed), clock)) for seed in range(6)]

    measure([[*costly, *cheap]], replace(SETTINGS, budget_s=12.0), clock, silent)

    assert all(len(record.rounds) >= 3 for record in costly)
    assert all(len(record.rounds) > len(costly[0].rounds) for record in cheap)
    assert clock.seconds <= 1.2 * 12.0


def test_what_finished_rows_leave_over_gives_the_others_more_rounds() -> None:
    clock = FakeClock()
    steady = FakeCase(noise(0.02, 1e-6), clock)
    restless = FakeCase(noise(0.02, 0.01), clock)

    first, second = run(steady, restless, clock=clock)

    assert first.converged
    assert len(first.rounds) < SETTINGS.rounds < len(second.rounds)


def test_groups_alternate_in_each_round_and_are_watched() -> None:
    clock, order = FakeClock(), []

    @contextmanager
    def watched(name: str) -> Iterator[None]:
        order.append(name)
        yield
        order.append(f"{name} ends")

    groups = [[CaseState(case=FakeCase(noise(0.02, 0.01), clock))] for _ in range(2)]

    measure(groups, SETTINGS, clock, silent, watch=lambda place: watched(("one", "two")[place]))

    assert order[:8] == ["one", "one ends", "two", "two ends"] * 2


def test_a_failing_release_is_reported_and_breaks_nothing() -> None:
    clock = FakeClock()

    class Stubborn(FakeCase):
        def release(self) -> None:
            raise InconclusiveError(code="gpu-lost", message="gone")

    (record,) = run(Stubborn(noise(0.02, 1e-5), clock), clock=clock)

    assert record.samples_s
    assert not record.converged
    assert record.error is not None
    assert record.error.code == "gpu-lost"


@pytest.mark.parametrize("spread", [pytest.param(0.01, marks=pytest.mark.slow), 0.03])
def test_stopping_early_costs_the_interval_little_of_its_95_percent(spread: float) -> None:
    held = converged = 0
    for seed in range(250):
        clock = FakeClock()
        case = FakeCase(noise(0.02, 0.02 * spread, seed), clock, label=label("gpu:0"))
        (record,) = run(case, clock=clock)
        if record.converged:
            low, high = stats.interval(record.medians_s) or (0, 0)
            converged += 1
            held += low <= 0.02 <= high

    assert converged > 180
    assert 0.93 <= held / converged <= 0.975


def leaning(memory: float, seed: int) -> Iterator[float]:
    """Yield times each of which leans on the one before by `memory`."""
    source = random.Random(seed)
    state = source.gauss(0, 1)
    while True:
        yield 0.02 * (1 + 0.03 * state)
        state = memory * state + math.sqrt(1 - memory * memory) * source.gauss(0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "least"), [(0.3, 0.92), (0.6, 0.88)])
def test_samples_that_lean_on_each_other_cost_the_interval_little(
    memory: float, least: float
) -> None:
    held = 0
    for seed in range(400):
        clock = FakeClock()
        (record,) = run(FakeCase(leaning(memory, seed), clock, label=label("gpu:0")), clock=clock)
        low, high = stats.interval(record.medians_s) or (0, 0)
        held += low <= 0.02 <= high

    assert least <= held / 400 <= 0.98


def test_the_clock_the_slices_and_the_facts_are_kept() -> None:
    clock = FakeClock()
    case = FakeCase(noise(0.02, 1e-5), clock, label=label("gpu:0"))
    case.sm_clock_mhz = 1500.0
    case.facts = {"accuracy": 0.9}

    (record,) = run(case, clock=clock)

    assert len(record.sm_clocks_mhz) == len(record.samples_s)
    assert record.facts == {"accuracy": 0.9}
    assert record.slices_s
    assert all(low < high for low, high in record.slices_s)


def counter(*readings: float | None) -> Callable[[str], float | None]:
    """Return an energy counter that gives these readings one after the other."""
    left = list(readings)

    def read(uuid: str) -> float | None:
        assert uuid == "GPU-x"
        return left.pop(0)

    return read


@pytest.mark.parametrize(
    ("answers", "per_operation"),
    [((100.0, 150.0), 1.0), ((None,), None), ((100.0, None), None), ((100.0, 100.0), None)],
)
def test_energy_is_divided_by_the_operations_that_took_it(
    answers: tuple[float | None, ...], per_operation: float | None
) -> None:
    clock = FakeClock()
    case = FakeCase(itertools.repeat(0.02), clock, label=replace(label("gpu:0"), gpu_uuid="GPU-x"))
    settings = Settings(budget_s=5.0, warmup_s=0.05, energy_s=1.0)

    record = CaseState(case=case)
    measure([[record]], settings, clock, silent, counter(*answers))

    assert case.events.count("prepare") == case.events.count("release") == len(record.rounds) + 1
    last = len(case.events) - 1 - case.events[::-1].index("prepare")
    assert case.events[last : last + 3] == ["prepare", "poison", "run"]
    # A second of operations of a fiftieth each.
    assert record.joules_per_op == (
        pytest.approx(per_operation, rel=0.05) if per_operation else None
    )


def test_the_time_for_sensors_is_overhead_that_the_rows_of_a_group_share() -> None:
    clock = FakeClock()

    @contextmanager
    def reading_sensors(_place: int) -> Iterator[None]:
        yield
        clock.seconds += 0.1

    states = [CaseState(case=FakeCase(noise(0.02, 1e-5), clock)) for _ in range(2)]
    one_round = replace(SETTINGS, most_rounds=1)
    measure([states], one_round, clock, silent, watch=reading_sensors)

    assert [state.overhead_s for state in states] == [pytest.approx(0.05)] * 2


@pytest.mark.parametrize(("device", "more"), [("cpu", True), ("gpu:0", False)])
def test_where_preparing_takes_long_a_slice_of_the_processor_has_more_samples(
    device: str, more: bool
) -> None:
    clock = FakeClock()

    def wait() -> None:
        clock.seconds += 1.0

    cases = [FakeCase(noise(0.1, 1e-2), clock, label=label(device), prepare=wait) for _ in range(5)]

    rows = run(*cases, clock=clock, settings=replace(SETTINGS, budget_s=60.0))

    taken_s = [sum(samples) for row in rows for samples in row.rounds[1:-1]]
    assert all((seconds >= 0.5) == more for seconds in taken_s)
    assert len(taken_s) > 20


def test_energy_is_not_counted_for_the_processor_nor_without_request() -> None:
    clock = FakeClock()
    settings = Settings(budget_s=5.0, warmup_s=0.05, energy_s=1.0)

    on_gpu = replace(label("gpu:0"), gpu_uuid="GPU-x")
    cpu = CaseState(case=FakeCase(noise(0.02, 1e-5), clock))
    gpu, limit, uncounted = (
        CaseState(case=FakeCase(noise(0.02, 1e-5), clock, label=on_gpu), limit=limits)
        for limits in (False, True, False)
    )
    measure([[cpu]], settings, clock, silent, counter())
    measure([[gpu]], SETTINGS, clock, silent, counter())
    measure([[limit]], settings, clock, silent, counter())
    measure([[uncounted]], settings, clock, silent)

    assert {state.joules_per_op for state in (cpu, gpu, limit, uncounted)} == {None}


def test_the_energy_loop_ends_although_the_clock_stands_still() -> None:
    clock = FakeClock()
    case = FakeCase(itertools.repeat(0.02), label=replace(label("gpu:0"), gpu_uuid="GPU-x"))
    settings = Settings(budget_s=5.0, warmup_s=0.05, energy_s=1.0)

    record = CaseState(case=case)
    measure([[record]], settings, clock, silent, counter(1.0, 2.0))

    assert record.joules_per_op is not None


COSTS = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0, 10), st.booleans()), min_size=1, max_size=12
)


def waiting(
    operation_s: float, overhead_s: float = 0.0, *, reference: bool = False, variant: str = "any"
) -> CaseState:
    """Return a row that was not measured yet, with its estimates."""
    case = FakeCase((), label=replace(label(), variant=variant))
    return CaseState(
        case=case,
        reference=reference,
        expected_operation_s=operation_s,
        expected_overhead_s=overhead_s,
    )


def begun(rounds: int, sample_s: float, overhead_s: float = 0.0) -> CaseState:
    """Return a row with so many rounds of one sample each."""
    record = CaseState(case=FakeCase(()), loops=1, overhead_s=overhead_s)
    record.rounds = [[sample_s] for _ in range(rounds)]
    return record


def test_a_row_needs_enough_rounds_and_the_overhead_of_its_first_slice() -> None:
    assert needed_s(waiting(1.0, 0.5)) == pytest.approx(3 * 1 + 5 * 0.5 + 5 * (1 + 0.5))
    on_gpu = CaseState(case=FakeCase((), label=label("gpu:0")), expected_operation_s=1.0)
    # Nothing takes no time at all.
    assert needed_s(on_gpu) == pytest.approx(3 + 2 + 7 * 0.01)
    assert needed_s(begun(1, 1.0, 0.5)) == pytest.approx(5 * 1.5)
    assert needed_s(begun(1, 1.0, 0.5), 3) == pytest.approx(3.0)
    assert needed_s(begun(3, 1.0, 0.5), 3) == needed_s(begun(6, 1.0, 0.5)) == 0
    limit = begun(1, 1.0)
    limit.limit = True
    assert needed_s(limit) == 0


@pytest.mark.parametrize(
    ("times", "unsettled"),
    [
        (5 * [1.0], True),
        (6 * [1.0], False),
        # Half of the interval is 1.43 times the excess of the other rounds: 0.09 and 0.19.
        ([1.0, *5 * [1.07]], False),
        ([1.0, *5 * [1.18]], True),
        ([1.0, *14 * [3.0]], True),
        ([1.0, *15 * [3.0]], False),
    ],
)
def test_a_row_is_unsettled_until_its_interval_is_narrow_or_has_had_its_rounds(
    times: list[float], *, unsettled: bool
) -> None:
    state = begun(0, 1.0)
    state.rounds, state.precision = [[seconds] for seconds in times], 0.1

    assert is_unsettled(state) is unsettled

    state.limit = True
    assert not is_unsettled(state)


@given(COSTS, st.floats(0.1, 300))
def test_affordable_rows_fit_and_none_is_preferred_to_a_cheaper_one_of_its_kind(
    costs: list[tuple[float, float, bool]], left_s: float
) -> None:
    rows = [waiting(run, rest, reference=other) for run, rest, other in costs]
    needs = [(row, needed_s(row)) for row in rows]

    found = affordable(needs, left_s)

    assert sum(seconds for _, seconds in found) <= left_s * (1 + 1e-9)
    kept = {id(row) for row, _ in found}
    for row, seconds in found:
        assert all(
            id(other) in kept
            for other, other_s in needs
            if other.reference == row.reference and other_s < seconds
        )
    # Everything is measured where the time does for everything.
    assert len(affordable(needs, 1e9)) == len(needs)


def scripted(
    seconds: float, clock: FakeClock, *, reference: bool = False, variant: str = "any"
) -> CaseState:
    """Return a row whose operation takes as long as expected."""
    state = waiting(seconds, reference=reference, variant=variant)
    state.case = FakeCase(itertools.repeat(seconds), clock, label=state.case.label)
    return state


def test_first_rows_go_before_references_and_the_cheap_ones_before_the_costly() -> None:
    clock = FakeClock()
    first, naive = scripted(1.0, clock), scripted(0.6, clock, reference=True, variant="naive")
    cheap = scripted(0.01, clock, reference=True)

    measure([[first, naive, cheap]], replace(SETTINGS, budget_s=10.0), clock, silent)

    assert first.error is cheap.error is None
    assert naive.error == Failure(
        code="no-time",
        message="left out: measuring fake float32 8 naive on cpu takes about 4.9 s, "
        "more than the budget leaves",
        remedy=("Give more time: --budget 20 (seconds in a profile).", f"Or {SMALLER_SIZE}."),
    )
    assert shortage([first, naive, cheap], 10.0) == (
        "10 s is too short for every row; left out: fake float32 8 naive on cpu; "
        "--budget 20 (seconds in a profile) would be enough"
    )


def test_a_row_that_is_settled_waits_for_one_that_is_not() -> None:
    clock = FakeClock()
    settled, unsettled = (
        CaseState(case=FakeCase(noise(0.05, spread), clock)) for spread in (0.002, 0.02)
    )

    measure([[settled, unsettled]], replace(SETTINGS, wanted=0.1, most_rounds=12), clock, silent)

    assert [len(state.rounds) for state in (settled, unsettled)] == [6, 12]
    assert settled.converged


def test_rows_begin_after_all_when_other_programs_have_ended() -> None:
    clock = FakeClock()
    states = []
    for _ in range(3):
        case = FakeCase(noise(0.2, 0.002), clock, label=replace(label(), threads=1))
        case.cpu_s = 0.2
        # Each is expected to take 8 s.
        states.append(CaseState(case=case, expected_operation_s=1.0, expected_slowdown=5.0))

    measure([states], replace(SETTINGS, budget_s=8.5), clock, silent)

    assert all(len(state.rounds) >= 6 for state in states)


@given(
    st.lists(
        st.tuples(
            st.floats(1e-6, 20),
            st.floats(0, 5),
            st.booleans(),
            st.booleans(),
            st.sampled_from([0.5, 1.0, 2.0]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.floats(0.01, 60),
)
def test_a_run_ends_in_time_and_measures_something_whatever_the_rows_cost(
    costs: list[tuple[float, float, bool, bool, float]], budget_s: float
) -> None:
    clock = FakeClock()

    def wait(seconds: float) -> Callable[[], None]:
        def prepare() -> None:
            clock.seconds += seconds

        return prepare

    states = [
        CaseState(
            case=FakeCase(itertools.repeat(run_s), clock, prepare=wait(rest_s)),
            reference=reference,
            contended=contended,
            expected_operation_s=factor * run_s,
            expected_overhead_s=factor * rest_s,
        )
        for run_s, rest_s, reference, contended, factor in costs
    ]

    cheapest = min(states, key=needed_s)
    measure([states], Settings(budget_s=budget_s, warmup_s=0.2), clock, silent)

    measured = [state for state in states if state.samples_s]
    assert measured
    # A sample of a short operation takes up to three milliseconds to find.
    run_s, rest_s, *_ = costs[states.index(cheapest)]
    cheapest_s = 3 * max(run_s, 3e-3) + rest_s
    assert clock.seconds <= 1.2 * budget_s + cheapest_s + 0.02 * len(states)
    assert all((state.error is None) is (state in measured) for state in states)
    assert {state.error.code for state in states if state.error} <= {"no-time"}
    # A row that lacked time, and only such a one, is named with a budget.
    assert (shortage(states, budget_s) is None) is all(len(one.rounds) >= 3 for one in states)


def test_beside_other_programs_the_rows_of_one_thread_go_before_those_of_several() -> None:
    clock = FakeClock()
    team, alone, framework = (
        scripted(1.0, clock, reference=other) for other in (False, True, True)
    )
    team.contended = framework.contended = True

    measure([[team, alone, framework]], replace(SETTINGS, budget_s=9.0), clock, silent)

    assert alone.error is None
    assert team.error is not None
    assert framework.error is not None


def test_no_row_of_several_threads_begins_beside_others_before_those_of_one_settle() -> None:
    clock = FakeClock()
    begun_at = []
    alone = CaseState(case=FakeCase(noise(0.05, 0.005), clock))
    team = CaseState(
        case=FakeCase(
            noise(0.05, 0.005), clock, prepare=lambda: begun_at.append(len(alone.rounds))
        ),
        contended=True,
    )

    measure([[alone, team]], replace(SETTINGS, wanted=0.1), clock, silent)

    assert alone.converged
    assert begun_at[0] > 6
    assert team.rounds


def test_the_budget_that_is_named_does_for_every_row() -> None:
    clock = FakeClock()
    records = [
        scripted(1.0, clock),
        scripted(0.6, clock, reference=True),
        scripted(0.01, clock, reference=True),
    ]

    measure([records], replace(SETTINGS, budget_s=enough_s(records)), clock, silent)

    assert all(record.error is None for record in records)


def test_where_nothing_fits_the_cheapest_row_is_still_measured() -> None:
    clock = FakeClock()
    costly, cheap = scripted(100.0, clock), scripted(50.0, clock)
    other = scripted(10.0, clock, reference=True)

    measure([[costly, cheap, other]], replace(SETTINGS, budget_s=1e-3), clock, silent)

    assert other.error is None
    assert costly.error is not None
    assert cheap.error is not None


def test_a_limit_that_was_not_requested_is_left_out_without_a_note() -> None:
    clock = FakeClock()
    limit = scripted(100.0, clock, reference=True)
    limit.limit = True
    records = [scripted(0.1, clock), limit]

    measure([records], replace(SETTINGS, budget_s=5.0), clock, silent)

    assert shortage(records, 5.0) is None
    assert limit.error is not None


def test_rows_that_lacked_time_are_named_at_the_end() -> None:
    def over(*states: CaseState) -> list[CaseState]:
        for state in states:
            state.finished = True
        return list(states)

    assert shortage(over(begun(3, 1.0), begun(200, 0.1)), 10.0) is None
    # Not those that are still measured.
    assert shortage([begun(2, 4.0)], 10.0) is None

    short = begun(2, 4.0)
    short.spent_s = 9.0
    assert shortage(over(begun(3, 1.0), short), 10.0) == (
        "10 s is too short for every row; fewer than three rounds: fake float32 8 scripted on cpu; "
        "--budget 35 (seconds in a profile) would be enough"
    )
    # What could not even begin needs its time as well: 38 s beside the 25 s of the other.
    late = waiting(1.0, 3.0, variant="late")
    late.error = left_out(late, [late])
    said = shortage([*over(short), late], 10.0)
    assert said is not None
    assert "left out: fake float32 8 late on cpu; fewer than three rounds: fake" in said
    assert "--budget 80 (seconds in a profile) would be enough" in said
    # Not those that failed, were interrupted, or were not requested.
    others = over(*(begun(1, 1.0) for _ in range(3)))
    others[0].error = Failure(code="gpu-lost", message="gone")
    others[1].interrupted = others[2].limit = True
    assert shortage(others, 10.0) is None
    five = shortage([*others, *over(*(begun(2, 1.0) for _ in range(6)))], 10.0)
    assert five is not None
    assert five.count("scripted on cpu") == 4
    assert "on cpu and 2 more; " in five


def test_a_budget_that_is_named_is_round_and_a_quarter_more_than_needed() -> None:
    needed = (0.1, 0.9, 4.0, 8.0, 8.1, 11.0, 79.0, 81.0, 1000.0)

    assert [enough_budget_s(each) for each in needed] == [
        *(1.0, 1.5, 5.0, 10.0, 15.0, 15.0, 100.0, 150.0, 1500.0),
    ]


def test_rows_that_only_show_a_limit_come_after_first_rows_and_before_further_ones() -> None:
    further, limit, first = waiting(1 / 8, reference=True), waiting(1 / 4), waiting(3.0)
    limit.limit = True

    kept = affordable([(state, needed_s(state)) for state in (further, limit, first)], 100.0)

    assert [state for state, _ in kept] == [first, limit, further]
    assert [seconds for _, seconds in kept] == pytest.approx([24.1, 0.8, 1.1])
    # The time of one that does not fit is left to others, which it may do exactly.
    left = affordable(
        [(state, needed_s(state)) for state in (further, limit, first)], needed_s(limit)
    )
    assert [state for state, _ in left] == [limit]


HOST = HostRates(flops_per_s=100e9, bytes_per_s=10e9, fresh_bytes_per_s=1e9, slowdown=1.0)
PRODUCT = Work(flops=2 * 4096**3, bytes_moved=3 * 4 * 4096**2, unit="FLOP/s")
BOARD = Board(
    name="any",
    source="datasheet",
    flops_per_s={"float32": 50e12},
    high_flops_per_s={"float32": 50e12},
    bytes_per_s=2e12,
    clock_mhz=1000.0,
    tensor_clock_mhz=1000.0,
)
GPU = replace(FakeGpu(FakeClock()).facts, board=BOARD)


def expected_s(
    *,
    threads: int | None = 1,
    device: str = "cpu",
    dtype: str = "float32",
    scope: Scope = Scope.RESIDENT,
    gpu: BenchGpu = GPU,
) -> float:
    named = replace(
        label(device), threads=threads, scope=scope, dtype=replace(FLOAT32, input=dtype)
    )
    case = FakeCase((), label=named)
    case.work = PRODUCT
    record = CaseState(case=case)
    # Another GPU comes first.
    estimate_costs([record], HOST, [replace(gpu, cuda_index=7, board=None), gpu])
    # Half of its bytes are written to fresh memory.
    assert record.expected_overhead_s == pytest.approx(0.01 + 3 * 4 * 4096**2 / 2 / 1e9)
    return record.expected_operation_s


def test_a_product_takes_what_its_threads_do_and_float64_twice_that() -> None:
    one = expected_s()

    assert one == pytest.approx(2 * 4096**3 / 100e9)
    assert expected_s(threads=2) == pytest.approx(one / 2)
    assert expected_s(dtype="float64") == pytest.approx(2 * one)


def test_what_an_operation_showed_in_a_trial_counts_if_it_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seconds, expected in ((98.0, 98.0), (1e-9, 2 * 4096**3 / 100e9)):
        monkeypatch.setattr(FakeCase, "trial_s", lambda case, found=seconds: found)
        assert expected_s() == pytest.approx(expected)


def test_a_gpu_is_taken_to_do_half_of_its_sheet_and_a_link_its_bytes() -> None:
    assert expected_s(device="gpu:0") == pytest.approx(2 * 4096**3 / 25e12)
    moved = expected_s(device="gpu:0", scope=Scope.END_TO_END)
    assert moved == pytest.approx(PRODUCT.bytes_moved / 5e9)
    assert expected_s(device="gpu:0", gpu=replace(GPU, board=None)) == 0.0
    # Without a rate for the format the memory decides, and the other way round.
    assert expected_s(device="gpu:0", dtype="int8") == pytest.approx(PRODUCT.bytes_moved / 1e12)
    slow = replace(BOARD, bytes_per_s=1e9)
    slow_s = expected_s(device="gpu:0", gpu=replace(GPU, board=slow))
    assert slow_s == pytest.approx(PRODUCT.bytes_moved / 0.5e9)
    unknown = replace(BOARD, bytes_per_s=None, flops_per_s={})
    assert expected_s(device="gpu:0", gpu=replace(GPU, board=unknown)) == 0.0
    assert expected_s(device="gpu:1") == 0.0


def test_a_clock_that_stands_still_gives_no_rates_and_no_estimates() -> None:
    assert measure_host_rates(FakeClock(), FakeBlas(), FakeClock()) is None
    record = CaseState(case=FakeCase(()))

    estimate_costs([record], None, [])

    assert record.expected_operation_s == record.expected_overhead_s == 0


def test_the_rates_are_measured_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, copied = FakeClock(), []

    def multiply(left: np.ndarray, right: np.ndarray) -> None:
        assert left.shape == right.shape == (384, 384)
        # The fastest counts: the first finds cold caches.
        clock.seconds += 0.01 if copied else 1.0

    def copy(target: np.ndarray, source: np.ndarray) -> None:
        assert target.dtype == source.dtype == np.float32
        copied.append(target.nbytes)
        clock.seconds += 0.02 if len(copied) > 1 else 1.0

    monkeypatch.setattr(np, "matmul", multiply)
    monkeypatch.setattr(np, "copyto", copy)
    blas = FakeBlas()

    class Fresh:
        def fill(self, value: int) -> None:
            clock.seconds += 0.005

    monkeypatch.setattr(scheduler, "fresh_array", lambda *_: Fresh())
    # The processor is this thread's for a quarter of the time.
    found = measure_host_rates(clock, blas, lambda: clock.seconds / 4)

    assert blas.limits == [1]
    assert copied == [2**23] * 8
    assert found is not None
    assert found.flops_per_s == pytest.approx(4 * 2 * 384**3 / 0.01)
    assert found.bytes_per_s == pytest.approx(4 * 2 * 2**23 / 0.02)
    assert found.fresh_bytes_per_s == pytest.approx(4 * 2**22 / 0.005)
    assert found.slowdown == pytest.approx(4)


@pytest.mark.parametrize("share", [0.0, 2.0])
def test_a_clock_of_the_processor_that_tells_nothing_slows_nothing(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    clock = FakeClock()

    def take(*_: np.ndarray) -> None:
        clock.seconds += 0.01

    monkeypatch.setattr(np, "matmul", take)
    monkeypatch.setattr(np, "copyto", take)
    monkeypatch.setattr(scheduler, "fresh_array", lambda *_: SimpleNamespace(fill=take))

    found = measure_host_rates(clock, FakeBlas(), lambda: share * clock.seconds)

    assert found is not None
    assert found.slowdown == 1
    assert found.bytes_per_s == pytest.approx(2 * 2**23 / 0.01 / (share or 1))


def test_a_busy_processor_takes_longer_and_disturbs_what_needs_all_of_it() -> None:
    host = replace(HOST, slowdown=8.0)
    framework = FrameworkUse(name="numpy", version="2", form="eager", python="python3")
    labels = {
        "alone": replace(label(), threads=1),
        "team": replace(label(), threads=2),
        "framework": replace(label(), threads=1, framework=framework),
        "gpu": label("gpu:0"),
    }
    states = {name: CaseState(case=FakeCase((), label=each)) for name, each in labels.items()}

    estimate_costs(list(states.values()), host, [GPU])

    assert [name for name, state in states.items() if state.contended] == ["team", "framework"]
    alone = states["alone"]
    assert alone.expected_overhead_s == pytest.approx(8 * (0.01 + 50 / 1e9))
    assert alone.expected_operation_s == pytest.approx(8 * 100 / 10e9)


def test_what_is_needed_exactly_is_enough() -> None:
    """Equal times, whose interval has no width at all, and a time that ends with a sample."""
    exactly = Settings(budget_s=64.0, warmup_s=0.0, precision=0.0, wanted=0.0, samples_per_slice=1)
    clock = FakeClock()
    (steady,) = run(FakeCase(itertools.repeat(1.0), clock), clock=clock, settings=exactly)
    assert (steady.converged, len(steady.rounds)) == (True, 8)
    # At the end of the time, too, after the fewest rounds.
    clock, short = FakeClock(), replace(exactly, budget_s=4.0)
    (early,) = run(FakeCase(itertools.repeat(1.0), clock), clock=clock, settings=short)
    assert (early.converged, len(early.rounds), clock.seconds) == (True, 3, 4.0)

    clock = FakeClock()
    uneven = itertools.cycle([1.0, 1.5, 0.5])
    (restless,) = run(FakeCase(uneven, clock), clock=clock, settings=exactly)
    assert (restless.converged, clock.seconds) == (False, 62.5)


def budget_named(state: CaseState) -> float:
    assert state.error is not None
    return float(state.error.remedy[0].split("--budget ")[1].split()[0])
