"""The live table of `gpucheck bench`: what it shows, and where it shows nothing."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest

from gpucheck.bench.sampler import CaseState
from gpucheck.cli import bench_live
from gpucheck.cli.bench_live import live_rows
from gpucheck.report.envelope import Failure
from tests.fakes.bench import FakeCase, label


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("TERM", "xterm")
    return monkeypatch


def watched(patch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in the place of stderr; a fixture cannot, as pytest replaces it after."""
    found = Terminal()
    patch.setattr(sys, "stderr", found)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time that the drawing sees, in a list to change it."""
    now = [100.0]
    monkeypatch.setattr(bench_live, "monotonic_s", lambda: now[0])
    return now


def state(variant: str, *rounds: list[float], limit: bool = False, **changes: Any) -> CaseState:
    case = FakeCase([])
    case.label = replace(label(variant=variant), **changes)
    return CaseState(case=case, rounds=list(rounds), limit=limit)


def frames(screen: Terminal) -> list[list[str]]:
    """Return the lines of each drawing."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    drawn = re.split(r"(?:\r?\x1b\[(?:\?25[lh]|2K|1A)\r?)+", text)
    return [[line.rstrip() for line in one.splitlines() if line.strip()] for one in drawn]


def test_the_rows_so_far_stand_below_what_is_measured_now(
    patch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    screen = watched(patch)
    first = state("first", [0.010, 0.012, 0.014])
    states = [first, state("limit", [0.1], limit=True), state("second"), state("third", [0.5])]
    states[3].error = Failure(code="gpu-lost", message="lost")

    with live_rows(shown=True) as (progress, watch):
        assert watch is not None
        watch(states)
        progress(states[2].case.label.text, 0.2, 12.0)
        first.rounds.append([0.009])
        states[2].rounds.append([0.001])
        clock[0] += 1
        progress(first.case.label.text, 0.2, 12.0)

    drawn = [one for one in frames(screen) if one]
    assert drawn[0] == ["preparing"]
    assert drawn[1][0] == "1 of 3 rows, at most 12 s left: fake float32 8 second on cpu"
    assert drawn[1][1].split() == ["SO", "FAR", "TIME", "SPEED", "ROUNDS"]
    assert drawn[1][2].startswith("fake float32 cpu first  10.0 ms")
    assert drawn[1][2].endswith(" 1")
    assert drawn[2][2].startswith("fake float32 cpu first   9.00 ms")
    assert drawn[2][3].startswith("fake float32 cpu second  1.00 ms")


def test_gpus_that_do_the_same_are_one_row(patch: pytest.MonkeyPatch, clock: list[float]) -> None:
    screen = watched(patch)
    states = [state("cublas", [time], device=f"gpu:{at}") for at, time in enumerate((1, 2, 9))]
    states[0].rounds.append([1.0])
    states += [state("cublas", [0.5], device="gpu:0", shape=(16,))]

    with live_rows(shown=True) as (progress, watch):
        assert watch is not None
        watch(states)
        progress(states[1].case.label.text, 0.2, 12.0)

    first, second = [one for one in frames(screen) if one][1][2:]
    assert first.startswith("fake float32 gpu:0-2 cublas, 8")
    assert (first.split()[-5:-3], first.split()[-1]) == (["2.00", "s"], "1")
    assert second.startswith("fake float32 gpu:0 cublas, 16")


def test_it_is_drawn_a_few_times_per_second_at_most(
    patch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    screen = watched(patch)
    with live_rows(shown=True) as (progress, _):
        for number in range(100):
            clock[0] += 0.01
            progress(f"row {number}", 0.1, 9.0)

    assert screen.getvalue().count("at most 9 s left") <= 5


def test_of_more_rows_than_lines_the_present_one_is_shown(
    patch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    screen = watched(patch)
    states = [state(f"v{number:02}", [0.01]) for number in range(40)]

    with live_rows(shown=True) as (progress, watch):
        assert watch is not None
        watch(states)
        progress(states[20].case.label.text, 0.2, 12.0)

    drawn = [one for one in frames(screen) if one][1]
    assert len(drawn) <= 8
    assert any("v20" in line for line in drawn[2:])


def test_a_narrow_terminal_has_one_line(patch: pytest.MonkeyPatch) -> None:
    screen = watched(patch)
    patch.setenv("COLUMNS", "50")

    with live_rows(shown=True) as (progress, watch):
        assert watch is None
        progress("fake 8 on cpu", 0.5, 9.0)

    assert "SO FAR" not in screen.getvalue()
    assert "at most 9 s left" in screen.getvalue()


@pytest.mark.parametrize(("stream", "shown"), [(StringIO(), True), (Terminal(), False)])
def test_nothing_is_drawn_where_nobody_watches(
    stream: StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)

    with live_rows(shown=shown) as (progress, _):
        progress("fake", 0.5, 3.0)

    assert stream.getvalue() == ""
