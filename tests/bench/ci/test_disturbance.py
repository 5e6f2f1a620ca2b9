"""What makes a figure useless as a baseline: others on the machine, or processes that differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.bench.ci.diagnosis import disturbed_gates, marked
from gpucheck.bench.ci.model import CarriedDoubt, Series
from gpucheck.bench.model import Direction, GateClass, GateStatus
from tests.fakes.bench_results import doubt

GOOD = (1.0, 1.01, 0.99, 1.005, 0.995)
#: One row of five processes on a machine with a load of 50.
BUSY = (70.2, 1.4, 2.1, 53.5, 93.4)


def carried(code: str, processes: int) -> CarriedDoubt:
    return CarriedDoubt(doubt=doubt(code), processes=processes)


def series(values: tuple[float, ...] = GOOD, *doubts: CarriedDoubt) -> Series:
    return Series(
        id="copy/numpy/float32/64x64/threads=2",
        device="cpu",
        unit="B/s",
        direction=Direction.HIGHER,
        values=values,
        tolerance_percent=5.0,
        doubts=doubts,
    )


def reason(values: tuple[float, ...], *doubts: CarriedDoubt) -> str | None:
    return marked(series(values, *doubts)).disturbed


@pytest.mark.parametrize("code", ["host-busy", "quota-reached", "gpu-shared", "throttled"])
def test_half_of_the_processes_are_enough(code: str) -> None:
    assert reason(GOOD, carried(code, 3)) == f"there was {code}"
    assert reason(GOOD, carried(code, 2)) is None
    assert reason(GOOD[:4], carried(code, 2)) is not None


@pytest.mark.parametrize("code", ["unconverged", "bimodal", "power-capped", "pcie-narrow"])
def test_a_doubt_that_blames_nobody_else_disturbs_nothing(code: str) -> None:
    assert reason(GOOD, carried(code, 5)) is None


def test_processes_that_differ_by_more_than_the_tolerance_say_by_how_much() -> None:
    said = "its 5 processes differ by a factor of 7.77 (standard deviation), more than 5 %"
    assert reason(BUSY) == said
    said = "its 3 processes differ by 6.2 % (standard deviation), more than 5 %"
    assert reason((1.0, 1.06, 0.94)) == said
    assert marked(replace(series((1.0, 1.06, 0.94)), tolerance_percent=7.0)).disturbed is None
    # One in five may be a stray, as in every verdict.
    assert reason((*GOOD[:4], 0.6)) is None
    assert reason((1.0,)) is None


def test_sessions_may_differ_by_more_than_their_processes() -> None:
    def of_two(second: tuple[float, ...]) -> str | None:
        return marked(replace(series((*GOOD, *second)), sessions=(5, 5))).disturbed

    apart = tuple(1.2 * value for value in GOOD)
    assert reason((*GOOD, *apart)) is not None
    assert of_two(apart) is None
    assert of_two(BUSY) is not None


def test_a_mark_stays_as_it_was_made() -> None:
    found = marked(series(BUSY))

    assert found.disturbed is not None
    assert marked(found) is found
    assert marked(series()).disturbed is None


def test_a_disturbed_series_is_an_undecided_gate() -> None:
    busy = marked(series(GOOD, carried("host-busy", 5)))

    (gate,) = disturbed_gates([marked(series()), busy])

    assert (gate.id, gate.device, gate.unit) == (busy.id, "cpu", "B/s")
    assert (gate.status, gate.class_) == (GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT)
    assert gate.reason == "there was host-busy"
    assert gate.next == ("run it again",)
    assert gate.measured == pytest.approx(1.0, rel=1e-3)
    assert not gate.repeat_helps
