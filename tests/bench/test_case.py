"""Threads that share the rows of a case: each repeats its own part, and all end with the case."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import replace

import pytest

from gpucheck.bench.case import HOST_SPAN_S, Team, TeamCase, Work
from gpucheck.bench.model import Verified
from tests.fakes.bench import label, order

WORK = Work(flops=0, bytes_moved=8, unit="B/s")


class Counting(TeamCase):
    """Counts which thread worked on which part, and how often."""

    def __init__(self, threads: int) -> None:
        given = order((8, 8))
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

    assert elapsed_s >= 0
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
