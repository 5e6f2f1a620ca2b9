from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from gpucheck.bench import stats
from gpucheck.bench.model import Verified
from gpucheck.bench.record import Record
from gpucheck.bench.rounds import Settings, Slot, measure
from gpucheck.bench.sample_doubts import loops_missing
from gpucheck.report.errors import InconclusiveError
from tests.fakes.bench import RIGHT, WRONG, FakeCase, FakeClock, label

SETTINGS = Settings(budget_s=10.0, warmup_s=0.05)


def silent(label: str, fraction: float, seconds_left: float) -> None:
    assert label
    assert 0 <= fraction <= 1
    assert seconds_left >= 0


def run(*cases: FakeCase, clock: FakeClock, settings: Settings = SETTINGS) -> list[Record]:
    records = [Record(case=case) for case in cases]
    measure([Slot(records=records)], settings, clock, silent)
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


def test_a_kernel_that_does_half_of_its_loops_is_doubted() -> None:
    class Half(FakeCase):
        def run(self, loops: int) -> float:
            return super().run(max(1, loops // 2))

    for kind, expected in ((FakeCase, False), (Half, True)):
        clock = FakeClock()
        (record,) = run(kind(noise(2e-4, 1e-6), clock), clock=clock)
        assert record.loops > 1
        assert (loops_missing(record) is not None) is expected


def test_samples_hold_whole_rounds_of_a_case_s_buffers() -> None:
    clock = FakeClock()
    case = FakeCase(noise(1e-4, 1e-6), clock)
    case.loop_step = 7

    (record,) = run(case, clock=clock)

    assert record.loops > 1
    assert record.loops % 7 == 0
    # One by one it is run at first, and to see what a single operation takes.
    assert {loops % 7 for loops in case.runs} == {0, 1}


def test_a_first_run_that_loads_libraries_says_nothing_of_the_repetitions() -> None:
    clock = FakeClock()

    (record,) = run(FakeCase(itertools.chain([0.3], noise(3e-6, 1e-8)), clock), clock=clock)

    assert record.loops * 3e-6 >= 1e-3


def test_the_first_run_is_told_apart_as_cold() -> None:
    clock = FakeClock()

    (record,) = run(FakeCase(itertools.chain([2.0], noise(0.02, 1e-5)), clock), clock=clock)

    assert record.cold_s == pytest.approx(2.0)
    assert max(record.samples_s) < 0.1


def test_noise_that_never_settles_ends_with_the_budget_unconverged() -> None:
    clock = FakeClock()

    (record,) = run(FakeCase(noise(0.05, 0.02), clock), clock=clock)

    assert record.finished
    assert not record.converged
    assert 9.9 <= clock.seconds < 11.0


def test_heavy_tails_do_not_keep_the_median_from_converging() -> None:
    clock = FakeClock()
    steps = (0.5 if number % 9 == 0 else step for number, step in enumerate(noise(0.01, 1e-5)))

    (record,) = run(FakeCase(steps, clock), clock=clock)

    assert record.converged
    assert stats.median(record.samples_s) == pytest.approx(0.01, rel=0.01)
    assert max(record.samples_s) == 0.5


@pytest.mark.parametrize("step", [0.0, -1e-3, math.nan, math.inf])
def test_a_clock_that_stands_or_goes_back_is_an_error_and_no_endless_loop(step: float) -> None:
    case = FakeCase(itertools.repeat(step))

    (record,) = run(case, clock=FakeClock())

    assert record.error is not None
    assert record.error.code == "clock-stuck"
    assert not record.samples_s
    assert len(case.runs) < 100


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
    settings = Settings(budget_s=1e9, warmup_s=0.0, samples_per_turn=5, most_rounds=9)
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


def test_cases_take_turns_so_that_a_drift_meets_all_of_them() -> None:
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


def test_an_operation_longer_than_the_budget_is_run_twice_and_the_next_not_at_all() -> None:
    clock = FakeClock()
    long = FakeCase(itertools.repeat(100.0), clock)
    next_one = FakeCase(itertools.repeat(100.0), clock)

    first, second = run(long, next_one, clock=clock)

    assert long.runs == [1, 1]
    assert first.samples_s == [100.0]
    assert second.error is not None
    assert second.error.code == "no-time"
    assert next_one.runs == []


def test_a_slow_group_leaves_the_others_their_first_turn() -> None:
    clock = FakeClock()
    slow = Record(case=FakeCase(itertools.repeat(100.0), clock))
    quick = Record(case=FakeCase(noise(0.02, 1e-5), clock))

    measure([Slot(records=[slow]), Slot(records=[quick])], SETTINGS, clock, silent)

    assert quick.error is None
    assert quick.samples_s
    assert not quick.converged


def slow_rows(seconds: float, clock: FakeClock, count: int) -> list[Record]:
    """Return rows that take so long for each turn, besides their samples."""

    def prepare() -> None:
        clock.seconds += seconds

    return [
        Record(case=FakeCase(noise(0.02, 1e-5), clock, prepare=prepare), reference=number > 0)
        for number in range(count)
    ]


def test_where_the_time_is_short_fewer_rows_have_three_rounds_and_none_has_only_one() -> None:
    clock = FakeClock()
    slots = [Slot(records=slow_rows(0.4, clock, 4)) for _ in range(5)]

    measure(slots, SETTINGS, clock, silent)

    records = [record for slot in slots for record in slot.records]
    begun = [record for record in records if record.rounds]
    assert 5 <= len(begun) < len(records)
    assert all(len(record.rounds) >= 3 for record in begun)
    # Each group has its first row before any has its second.
    assert all(slot.records[0].rounds for slot in slots)
    assert {record.error.code for record in records if record.error} == {"no-time"}
    assert clock.seconds < 1.2 * SETTINGS.budget_s


def test_a_row_of_seconds_leaves_rows_of_milliseconds_their_rounds_and_has_three_itself() -> None:
    clock = FakeClock()
    costly = [Record(case=FakeCase(noise(0.6, 0.03, seed), clock)) for seed in range(2)]
    cheap = [Record(case=FakeCase(noise(0.01, 0.001, seed), clock)) for seed in range(6)]

    measure([Slot(records=[*costly, *cheap])], replace(SETTINGS, budget_s=12.0), clock, silent)

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


def test_slots_take_turns_in_each_round_and_are_watched() -> None:
    clock, order = FakeClock(), []

    @contextmanager
    def watched(name: str) -> Iterator[None]:
        order.append(name)
        yield
        order.append(f"{name} ends")

    slots = [
        Slot(
            records=[Record(case=FakeCase(noise(0.02, 0.01), clock))], watch=partial(watched, name)
        )
        for name in ("one", "two")
    ]

    measure(slots, SETTINGS, clock, silent)

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


@pytest.mark.parametrize("spread", [0.01, 0.03])
def test_stopping_early_costs_the_interval_little_of_its_95_percent(spread: float) -> None:
    held = converged = 0
    for seed in range(400):
        clock = FakeClock()
        (record,) = run(FakeCase(noise(0.02, 0.02 * spread, seed), clock), clock=clock)
        if record.converged:
            low, high = stats.interval(record.medians_s) or (0, 0)
            converged += 1
            held += low <= 0.02 <= high

    assert converged > 300
    assert 0.93 <= held / converged <= 0.975


def leaning(memory: float, seed: int) -> Iterator[float]:
    """Yield times each of which leans on the one before by `memory`."""
    source = random.Random(seed)
    state = source.gauss(0, 1)
    while True:
        yield 0.02 * (1 + 0.03 * state)
        state = memory * state + math.sqrt(1 - memory * memory) * source.gauss(0, 1)


@pytest.mark.parametrize(("memory", "least"), [(0.3, 0.92), (0.6, 0.88)])
def test_samples_that_lean_on_each_other_cost_the_interval_little(
    memory: float, least: float
) -> None:
    held = 0
    for seed in range(400):
        clock = FakeClock()
        (record,) = run(FakeCase(leaning(memory, seed), clock), clock=clock)
        low, high = stats.interval(record.medians_s) or (0, 0)
        held += low <= 0.02 <= high

    assert least <= held / 400 <= 0.98


def test_the_clock_the_turns_and_the_facts_are_kept() -> None:
    clock = FakeClock()
    case = FakeCase(noise(0.02, 1e-5), clock, label=label("gpu:0"))
    case.sm_clock_mhz = 1500.0
    case.facts = {"accuracy": 0.9}

    (record,) = run(case, clock=clock)

    assert len(record.sm_clocks_mhz) == len(record.samples_s)
    assert record.facts == {"accuracy": 0.9}
    assert record.turns_s
    assert all(low < high for low, high in record.turns_s)


class Meter:
    """An energy counter that goes up by ten joules at each question."""

    def __init__(self, *answers: float | None) -> None:
        self._answers = list(answers)

    def joules(self, uuid: str) -> float | None:
        assert uuid == "GPU-x"
        return self._answers.pop(0)


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

    record = Record(case=case)
    measure([Slot(records=[record])], settings, clock, silent, Meter(*answers))

    # A second of operations of a fiftieth each.
    assert record.joules_per_op == (
        pytest.approx(per_operation, rel=0.05) if per_operation else None
    )


def test_energy_is_not_counted_for_the_processor_nor_when_nobody_asks() -> None:
    clock = FakeClock()
    settings = Settings(budget_s=5.0, warmup_s=0.05, energy_s=1.0)

    cpu, gpu = (Record(case=FakeCase(noise(0.02, 1e-5), clock)) for _ in range(2))
    measure([Slot(records=[cpu])], settings, clock, silent, Meter())
    measure([Slot(records=[gpu])], SETTINGS, clock, silent, Meter())

    assert cpu.joules_per_op is gpu.joules_per_op is None


def test_the_energy_loop_ends_though_the_clock_stands() -> None:
    clock = FakeClock()
    case = FakeCase(itertools.repeat(0.02), label=replace(label("gpu:0"), gpu_uuid="GPU-x"))
    settings = Settings(budget_s=5.0, warmup_s=0.05, energy_s=1.0)

    record = Record(case=case)
    measure([Slot(records=[record])], settings, clock, silent, Meter(1.0, 2.0))

    assert record.joules_per_op is not None
