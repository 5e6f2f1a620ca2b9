"""Threads that share the rows of a case, and the identity of rows."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from gpucheck.bench.case import (
    HOST_SPAN_S,
    CpuCase,
    Team,
    TeamCase,
    Work,
    cpu_label,
    row_parts,
    thread_counts,
)
from gpucheck.bench.model import Scope, Verified
from tests.fakes.bench import FLOAT32, PYTORCH, FakeBlas, FakeClock, FakeCpu, label, order

WORK = Work(flops=0, bytes_moved=8, unit="B/s")


class Counting(TeamCase):
    """Counts which thread worked on which part, and how often."""

    def __init__(self, threads: int) -> None:
        clock = FakeClock()
        clock.seconds = 100.0
        given = order((8, 8), clock=clock)
        super().__init__(given, replace(label("cpu"), threads=threads), WORK)
        self.done: Counter[tuple[int, str]] = Counter()

    def prepare(self) -> None:
        self.gather(self._work, [(part,) for part in range(self._threads)])

    def _work(self, part: int) -> None:
        self.done[part, threading.current_thread().name] += 1

    def poison(self) -> None:
        self.done.clear()

    def check(self) -> Verified:
        raise NotImplementedError


@pytest.mark.parametrize("threads", [1, 3])
def test_every_thread_repeats_its_own_part(threads: int) -> None:
    case = Counting(threads)
    case.prepare()

    elapsed_s = case.run(6)
    case.step()
    case.release()

    assert elapsed_s == 0.0
    counts = Counter(dict.fromkeys(range(threads), 0))
    for (part, _), count in case.done.items():
        counts[part] += count
    assert counts == dict.fromkeys(range(threads), 7)
    assert (0, threading.current_thread().name) in case.done


def test_the_threads_end_with_the_case_and_it_may_be_released_again() -> None:
    before = threading.active_count()
    case = Counting(4)
    case.prepare()
    case.run(1)
    case.release()
    case.release()

    assert threading.active_count() == before


def test_what_a_thread_raises_is_raised() -> None:
    def broken(part: int) -> None:
        if part:
            raise MemoryError

    team = Team(broken, [(0,), (1,)])
    with pytest.raises(MemoryError):
        team.run(3)
    team.close()


def test_the_more_threads_the_longer_a_sample_so_that_handing_over_stays_small() -> None:
    spans = [Counting(threads).shortest_span_s for threads in (1, 2, 8, 64, 1024)]

    assert spans == [HOST_SPAN_S, HOST_SPAN_S, 4e-3, 32e-3, 50e-3]


def test_no_two_threads_share_a_cpu_and_the_calling_thread_gets_its_own_back() -> None:
    before = os.sched_getaffinity(0)
    threads = min(2, len(before))
    seen: list[frozenset[int]] = []

    team = Team(lambda _: seen.append(frozenset(os.sched_getaffinity(0))), [(0,), (1,)][:threads])
    team.run(2)
    team.close()

    assert len(seen) == 2 * threads
    assert frozenset.union(*seen) == before
    assert sum(len(cpus) for cpus in set(seen)) == len(before)
    assert os.sched_getaffinity(0) == before


def test_where_a_sandbox_forbids_pinning_the_threads_still_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.sched_setaffinity", forbidden)
    done: list[int] = []

    team = Team(done.append, [(0,), (1,)])
    team.run(2)
    team.close()

    assert sorted(done) == [0, 0, 1, 1]


@pytest.mark.parametrize(("cores", "counts"), [(1, (1,)), (2, (2, 1)), (64, (64, 1))])
def test_all_threads_and_one_are_measured(cores: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(FakeCpu(cores=cores).facts()) == counts


class Stepping(CpuCase):
    """Takes a second for each operation."""

    def prepare(self) -> None:
        raise NotImplementedError

    poison = release = prepare

    def check(self) -> Verified:
        raise NotImplementedError

    def step(self) -> None:
        clock = self._order.clock
        assert isinstance(clock, FakeClock)
        clock.seconds += 1.0


@pytest.mark.parametrize(("threads", "limit"), [(None, 1), (1, 1), (3, 3)])
def test_a_case_on_the_processor_is_timed_under_its_threads(
    threads: int | None, limit: int
) -> None:
    given = order((8, 8))
    case = Stepping(given, replace(label("cpu"), threads=threads), WORK)

    assert case.run(5) == 5.0
    assert isinstance(given.blas, FakeBlas)
    assert given.blas.limits == [limit]
    assert (case.starved_share, case.sm_clock_mhz, case.loop_step) == (0.0, None, 1)
    assert case.facts == {}


@pytest.mark.parametrize("walks", [True, False])
@pytest.mark.parametrize("cache_bytes", [None, 1024])
def test_data_that_is_walked_may_fit_into_the_last_cache(
    cache_bytes: int | None, *, walks: bool
) -> None:
    given = order((8, 8))
    case = Stepping(
        replace(given, cpu=replace(given.cpu, last_level_bytes=cache_bytes)), label("cpu"), WORK
    )
    case.walks_memory = walks

    assert case.walked_and_cache_bytes == ((8, 1024) if walks and cache_bytes else None)


@pytest.mark.parametrize(("unit", "amount"), [("FLOP/s", 6), ("B/s", 8), ("image/s", 10)])
def test_the_throughput_counts_what_its_unit_names(unit: str, amount: int) -> None:
    assert Work(flops=6, bytes_moved=8, items=10, unit=unit).amount == amount


def test_a_rows_id_names_the_measurement_without_the_device() -> None:
    assert label("cpu").id == label("gpu:0").id == "fake/scripted/-/-/float32/8/resident"


def test_one_thread_of_several_is_in_the_variant() -> None:
    given = order((8, 8))

    assert cpu_label(given, "softmax", "blocked", 1, FLOAT32).variant == "blocked-1-thread"
    several = cpu_label(given, "softmax", "blocked", 2, FLOAT32)
    assert (several.device, several.variant, several.threads) == ("cpu", "blocked", 2)
    assert several.shape == (8, 8)


@drawn(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 64))
def test_threads_share_all_rows_in_equal_parts_that_are_worth_a_thread(
    rows: int, columns: int, threads: int
) -> None:
    parts = row_parts(rows, columns, threads)

    assert [row for part in parts for row in range(rows)[part]] == list(range(rows))
    sizes = {part.stop - part.start for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert 1 <= len(parts) <= threads
    assert len(parts) == 1 or rows * columns * 4 >= len(parts) * 2**18


def test_large_rows_take_all_threads() -> None:
    assert len(row_parts(8, 2**16, 8)) == 8
    assert len(row_parts(8, 2**16 - 1, 8)) == 7


def test_a_frameworks_row_names_it_and_its_form_but_neither_version_nor_python() -> None:
    one = replace(label("gpu:0"), framework=PYTORCH)
    other = replace(one, framework=replace(PYTORCH, version=None, python="/elsewhere/python"))

    assert one.id == other.id == "fake/scripted/pytorch/eager/float32/8/resident"
    assert one.text == "fake float32 8 PyTorch eager scripted on gpu:0"
    moved = replace(one, variant="fake", scope=Scope.END_TO_END)
    assert moved.text == "fake float32 8 PyTorch eager with transfers on gpu:0"


class Spending(CpuCase):
    """Spends scripted CPU times, by thread, in each operation."""

    def __init__(self, threads: int, spent: Mapping[int, float]) -> None:
        self.clock, self.spent = FakeClock(), spent
        self.seconds: dict[int, float] = {1: 5.0}
        self.asked: list[bool] = []
        given = replace(order((8, 8), clock=self.clock), thread_times=self._times)
        super().__init__(given, replace(label("cpu"), threads=threads), WORK)

    def _times(self, every: bool) -> Mapping[int, float]:
        self.asked.append(every)
        return dict(self.seconds)

    def prepare(self) -> None:
        raise NotImplementedError

    def step(self) -> None:
        self.clock.seconds += 10.0
        for thread, seconds in self.spent.items():
            self.seconds[thread] = self.seconds.get(thread, 0.0) + seconds

    def check(self) -> Verified:
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("threads", "spent", "longest_s"),
    [
        (1, {1: 1.0}, 3.0),
        (2, {1: 1.0, 2: 4.0}, 12.0),  # the second one is new
        (2, {}, 0.0),
    ],
)
def test_the_cpu_time_of_a_run_is_that_of_its_longest_thread(
    threads: int, spent: Mapping[int, float], longest_s: float
) -> None:
    case = Spending(threads, spent)

    assert case.run(3) == 30.0
    assert case.cpu_s == longest_s
    assert case.asked == [threads > 1] * 2


def test_the_cpu_time_beside_helpers_of_a_blas_that_cannot_be_limited_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FakeBlas, "keeps_to_one", False)
    one, several = Spending(1, {1: 1.0}), Spending(2, {1: 1.0, 2: 4.0})

    one.run(1)
    several.run(1)

    assert (one.cpu_s, several.cpu_s) == (None, 4.0)


def test_cpu_times_that_cannot_be_read_are_unknown() -> None:
    case = Spending(2, {})
    case.seconds = {}

    case.run(1)

    assert case.cpu_s is None
