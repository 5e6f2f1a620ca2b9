from __future__ import annotations

import os
import threading
import time

import pytest

from gpucheck.drivers.host.clock import monotonic_s, thread_times


def test_the_clock_moves_and_never_back() -> None:
    readings = [monotonic_s() for _ in range(100_000)]

    assert readings == sorted(readings)
    assert readings[-1] > readings[0]


def test_the_cpu_time_of_the_calling_thread_grows_with_its_work() -> None:
    own = threading.get_native_id()
    before = thread_times(False)
    sum(range(200_000))

    assert thread_times(False)[own] > before[own]
    assert list(before) == [own]


def test_the_cpu_times_of_all_threads_are_those_of_their_own_clocks() -> None:
    done, ids = threading.Event(), []

    def work() -> None:
        sum(range(400_000))
        ids.append(threading.get_native_id())
        ids.append(time.thread_time())
        done.set()
        stop.wait()

    stop = threading.Event()
    other = threading.Thread(target=work)
    other.start()
    done.wait()
    found = thread_times(True)
    stop.set()
    other.join()

    number, seconds = ids
    assert found[threading.get_native_id()] > 0
    assert found[number] >= seconds > 0


def test_cpu_times_are_unknown_where_threads_cannot_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(path: str) -> object:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "scandir", fail)

    assert thread_times(True) == {}


def test_a_thread_that_ends_while_it_is_looked_at_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = {thread.native_id for thread in threading.enumerate()}
    read = time.clock_gettime

    def ended(clock: int) -> float:
        if clock == (~threading.get_native_id() << 3) | 6:
            raise OSError(22, "Invalid argument")
        return read(clock)

    monkeypatch.setattr(time, "clock_gettime", ended)

    assert set(thread_times(True)) >= ids - {threading.get_native_id()}
    assert threading.get_native_id() not in thread_times(True)
