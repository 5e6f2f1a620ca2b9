"""Committed streams of samples: how often the shown range holds another run."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks import streams

#: Rounds of a run that settles, and the numbers of rounds for which the range is held.
ROUNDS, COUNTS = 12, (3, 4, 6, 8, 12, 16)


def mean_held(load_is_none: bool | None, count: int, *, single: bool) -> dict[str, float]:
    """Return the share of pairs of runs whose range holds the other, by stream; mean of its rows.

    Streams too short for two runs of so many rounds are left out.
    """
    found = {}
    for stream in streams.read_streams():
        if load_is_none not in (None, stream.load == streams.QUIET):
            continue
        runs = [
            streams.estimates(streams.bound, row, rounds, count)
            for row, rounds in stream.rows.items()
            if streams.one_thread(row) == single
        ]
        shares = [held for one in runs if (held := streams.held_share(one, count)) is not None]
        found |= {stream.name: statistics.mean(shares)} if shares else {}
    return found


def long_streams() -> list[streams.Stream]:
    names = mean_held(None, ROUNDS, single=True)
    return [one for one in streams.read_streams() if one.name in names]


def test_the_streams_are_of_quiet_and_of_busy_machines() -> None:
    assert {one.load for one in long_streams()} == {"none", "build", "hogs", "spin4"}
    assert {one.load for one in streams.read_streams()} >= {"spin20"}


@pytest.mark.parametrize("count", COUNTS)
def test_the_range_of_one_thread_holds_another_run_whatever_else_runs(count: int) -> None:
    held = mean_held(None, count, single=True)

    assert len(held) >= 5
    assert {name: share for name, share in held.items() if share < 0.9} == {}


@pytest.mark.parametrize("count", COUNTS)
def test_the_range_of_a_team_holds_another_run_where_nothing_else_runs(count: int) -> None:
    """Under a load it need not: such a row is never settled."""
    held = mean_held(True, count, single=False)

    assert len(held) == 3
    assert {name: share for name, share in held.items() if share < 0.9} == {}


def test_one_thread_settles_at_ten_percent_whatever_else_runs() -> None:
    for stream in long_streams():
        widths = [
            width
            for row in stream.rows
            if streams.one_thread(row)
            for *_, width in streams.estimates(streams.bound, row, stream.rows[row], ROUNDS)
        ]

        assert statistics.mean(width <= streams.SETTLED for width in widths) > 0.8, stream.name


def test_a_run_of_one_thread_that_ends_as_soon_as_it_settles_holds_another_such_run() -> None:
    for stream in long_streams():
        ends, held = [], []
        for row in filter(streams.one_thread, stream.rows):
            rounds = stream.rows[row]
            runs = [run for at in range(len(rounds)) if (run := settled_run(row, rounds, at))]
            ends += [end - at for at, end, _ in runs]
            held += [
                low <= other[0] <= high
                for at, end, (_, (low, high), _) in runs
                for start, stop, other in runs
                if start >= end or stop <= at
            ]

        assert statistics.mean(ends) < 9, stream.name
        assert statistics.mean(held) > 0.94, stream.name


def settled_run(
    row: str, rounds: streams.Rounds, at: int
) -> tuple[int, int, streams.Estimate] | None:
    """Return the run that begins at a round and has settled after six or more, up to sixteen."""
    for end in range(at + 6, min(at + 16, len(rounds)) + 1):
        found = streams.bound(row, rounds[at:end])
        if found[2] <= streams.SETTLED:
            return at, end, found
    return None


def test_a_stream_that_is_recorded_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STREAMS", tmp_path)
    monkeypatch.setattr(streams, "PROBLEMS", (("matmul", 16),))
    streams.read_streams.cache_clear()
    try:
        streams.record("short", 0.0, "none")
        (found,) = streams.read_streams()
    finally:
        streams.read_streams.cache_clear()

    assert (found.name, found.load) == ("short", "none")
    for ((walls, cpus),) in found.rows.values():
        assert 1 <= len(walls) == len(cpus) <= streams.ROUND_SAMPLES
        assert all(seconds > 0 for seconds in (*walls, *cpus))
