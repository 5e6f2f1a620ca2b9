"""Slices of one case: how it is warmed up, when it is checked again, what a wrong row says."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain, count, repeat

import pytest

from gpucheck.bench.case import EVENT_SPAN_S
from gpucheck.bench.environment import RowEnvironment
from gpucheck.bench.model import RowClock, Verified
from gpucheck.bench.run import to_measurement
from gpucheck.bench.sampler import CaseState, Sampler, wrong_result
from gpucheck.report.codec import to_plain
from tests.fakes.bench import PYTORCH, FakeCase, FakeClock, label


def test_a_new_slice_warms_up_for_its_share_unless_one_sample_fills_it() -> None:
    clock = FakeClock()
    sampler, state = Sampler(clock, 1000), CaseState(case=FakeCase(repeat(0.01), clock))

    assert state.last_sample_s == 0
    counts = []
    for samples_s in (0.1, 0.1, 0.01):
        before = len(state.warmup_s)
        sampler.take_slice(state, samples_s, warmup_s=0.055)
        counts.append((len(state.warmup_s) - before, len(state.rounds[-1])))

    # The first slice finds the number of loops with one run, and then takes the whole warm-up.
    assert counts == [(1 + 6, 10), (3, 10), (0, 1)]
    assert state.last_sample_s == 0.01
    assert state.error is None


def test_the_output_is_poisoned_again_between_the_warm_up_and_the_samples() -> None:
    clock = FakeClock()
    case = FakeCase(repeat(0.01), clock)
    sampler, state = Sampler(clock, 1000), CaseState(case=case)

    for _ in range(2):
        sampler.take_slice(state, samples_s=0.03, warmup_s=0.02)

    first = ["prepare", "poison", "run", "check", *["run"] * 3, "poison", *["run"] * 3, "check"]
    later = ["prepare", "run", "poison", *["run"] * 3, "check"]
    assert [event for event in case.events if event != "release"] == [*first, *later]


def test_a_long_operation_needs_no_warm_up_and_a_slow_first_run_is_no_long_operation() -> None:
    clock = FakeClock()
    sampler = Sampler(clock, 1000)
    long = CaseState(case=FakeCase(repeat(0.625), clock))
    # Libraries load in the first run.
    short = CaseState(case=FakeCase(chain([0.4], repeat(0.0002)), clock))

    for state in (long, short):
        sampler.take_slice(state, samples_s=0.1, warmup_s=0.05)

    assert (long.cold_s, long.warmup_s, long.loops, long.single_s) == (0.625, [], 1, None)
    # As many as fill a millisecond, with a margin of a fifth.
    assert (short.cold_s, short.loops, short.single_s) == (pytest.approx(0.4), 6, 0.0002)


def test_no_stretch_has_more_samples_than_it_may() -> None:
    clock = FakeClock()
    state = CaseState(case=FakeCase(repeat(0.01), clock))

    Sampler(clock, 4).take_slice(state, samples_s=1.0, warmup_s=0.05)

    assert (len(state.rounds[-1]), len(state.warmup_s)) == (4, 1 + 4)


def test_a_case_that_is_faster_than_the_processor_can_be_is_wrong() -> None:
    clock = FakeClock()

    class Bounded(FakeCase):
        least_s = 0.0025

    quick, slow = (CaseState(case=Bounded(repeat(each), clock)) for each in (0.00125, 0.005))
    for state in (quick, slow):
        Sampler(clock, 10).take_slice(state, samples_s=0.01, warmup_s=0.01)

    assert slow.error is None
    assert quick.error is not None
    assert quick.error.code == "wrong-result"
    assert "it was 2 times as fast as the processor can compute at most" in quick.error.message
    assert quick.verified is not None
    assert not quick.verified.ok


def test_checks_of_later_rounds_take_a_fifth_of_the_time_at_most() -> None:
    clock = FakeClock()

    class Slow(FakeCase):
        def check(self) -> Verified:
            clock.seconds += 1 / 16
            return super().check()

    case = Slow(repeat(1 / 64), clock)
    sampler, state = Sampler(clock, 1000), CaseState(case=case)
    checks = []
    for _ in range(8):
        sampler.take_slice(state, samples_s=1 / 8, warmup_s=0.0)
        checks.append(case.events.count("check"))

    # Twice in the first round; then as soon as five times as long was measured.
    assert checks == [2, 2, 2, 2, 3, 3, 3, 4]
    assert (state.checked_s, state.timed_s) == (4 / 16, 8 / 8)


@pytest.mark.parametrize(
    ("error", "bound", "reference", "said"),
    [
        (None, 1e-6, "float64", "it contains NaN or infinity"),
        (3.0, 0.0, "the source, bit by bit", "3 of its numbers differ from the source, bit by bit"),
        (0.25, 0.01, "float64, every number", "its deviation from float64 is 0.25; at most 0.01"),
        (0.25, 0.01, "one tower", "its deviation from one tower is 0.25; at most 0.01 is allowed"),
    ],
)
def test_a_wrong_row_says_how_far_it_is_off(
    error: float | None, bound: float, reference: str, said: str
) -> None:
    found = Verified(error=error, bound=bound, ok=False, reference=reference)

    failure = wrong_result(CaseState(case=FakeCase([])), found)

    assert failure.code == "wrong-result"
    assert f"gives a wrong result: {said}" in failure.message
    assert failure.remedy[0] == "Do not use its time."


def test_a_span_between_events_is_long_for_their_clock_and_short_for_the_queue() -> None:
    """The clock's tick is half a microsecond, and a short kernel takes about two."""
    assert EVENT_SPAN_S / 0.5e-6 >= 500
    assert EVENT_SPAN_S / 2e-6 <= 1000


class CompilingCase(FakeCase):
    """A framework's operation whose first run compiles."""

    compiles = True


def test_compiling_is_no_part_of_the_budget_and_does_not_decide_the_repetitions() -> None:
    clock = FakeClock()
    framework = replace(label(), framework=PYTORCH)
    case = CompilingCase(chain([60.0], repeat(1e-5)), clock, label=framework)
    state, sampler = CaseState(case=case), Sampler(clock, 100)

    sampler.take_slice(state, 0.1, 0.01)

    assert state.error is None
    assert state.cold_s == sampler.compiled_s == 60.0
    assert sampler.ran_s < 1
    assert state.loops >= 100
    assert max(state.samples_s) == pytest.approx(1e-5)


class WaitingCase(FakeCase):
    """A case whose threads wait: it has the processor for a share of the time."""

    share = 0.1

    def run(self, loops: int) -> float:
        elapsed_s = super().run(loops)
        self.cpu_s = None if self.share is None else self.share * elapsed_s
        return elapsed_s


BUSY = RowEnvironment(others_percent=90.0, steal_percent=0.0, cores=2)


def waiting(threads: int, *, share: float = 0.1, **changes: object) -> CaseState:
    """Return a row of twelve rounds of samples that are 10 to 11 ms long by the wall's clock."""
    clock, source = FakeClock(), random.Random(4)
    times = (0.010 + 0.001 * source.random() for _ in count())
    case = WaitingCase(times, clock, label=replace(label(), threads=threads, **changes))  # type: ignore[arg-type]
    case.share = share
    sampler, state = Sampler(clock, 1000), CaseState(case=case, converged=True)
    for _ in range(12):
        sampler.take_slice(state, samples_s=0.1, warmup_s=0.02)
    return state


def test_the_speed_of_a_thread_that_waited_is_by_its_cpu_time() -> None:
    state = waiting(1)
    row = to_measurement(state, BUSY)

    assert row.clock is RowClock.CPU
    assert row.time_s == min(row.cpu_samples_s) == pytest.approx(0.001, rel=0.01)
    assert row.throughput is not None
    assert row.throughput.value == state.case.work.amount / row.time_s
    assert row.ci95_s is not None
    assert row.ci95_s[1] == row.time_s
    assert (row.converged, row.doubts) == (True, ())
    assert row.waited_percent == pytest.approx(90.0)
    # Both clocks stand in the document.
    written = to_plain(row)
    assert written["clock"] == "cpu"
    assert written["median_s"] == pytest.approx(0.0105, rel=0.02)
    assert written["cpu_median_s"] == pytest.approx(0.00105, rel=0.02)
    assert len(written["cpu_samples_s"]) == len(written["samples_s"])


def test_a_team_on_a_busy_machine_is_shown_by_the_wall_and_never_settles() -> None:
    row = to_measurement(waiting(2), BUSY)

    assert row.clock is RowClock.WALL
    assert row.time_s == min(row.samples_s)
    assert not row.converged
    assert [doubt.code for doubt in row.doubts] == ["host-busy"]
    assert (row.cpu_median_s or 0) < 0.2 * row.time_s
    assert row.waited_percent is None
    assert row.unavailable["waited_percent"].startswith("known of rows of one thread")


@pytest.mark.parametrize(
    ("threads", "share", "changes"),
    [(1, 0.97, {}), (1, 0.0, {}), (1, 0.1, {"framework": PYTORCH}), (1, 0.1, {"device": "gpu:0"})],
    ids=["hardly waited", "a clock that stands still", "a framework's", "a GPU's"],
)
def test_other_figures_are_by_the_wall(threads: int, share: float, changes: dict[str, str]) -> None:
    state = waiting(threads, share=share, **changes)

    assert state.clock is RowClock.WALL


def test_a_thread_that_waited_in_half_of_its_samples_is_measured_by_the_others() -> None:
    state = waiting(1)
    samples = len(state.samples_s)
    share = [0.1 if place < samples // 2 else 1.0 for place in range(samples)]
    left = iter(share)
    state.cpu_rounds = [[next(left) * one for one in samples] for samples in state.rounds]
    assert state.clock is RowClock.WALL
    state.cpu_rounds[-1] = [0.1 * one for one in state.rounds[-1]]
    assert state.clock is RowClock.CPU
