"""What makes a figure useless as a baseline: others on the machine, or processes that differ."""

from __future__ import annotations

import pytest

from gpucheck.bench.ci.disturbance import disturbance, disturbed_gates, marked
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


@pytest.mark.parametrize("code", ["host-busy", "quota-reached", "gpu-shared", "throttled"])
def test_half_of_the_processes_are_enough(code: str) -> None:
    said = f"in 3 of 5 processes there was {code}"

    assert disturbance(GOOD, [carried(code, 3)], 5.0) == said
    assert disturbance(GOOD, [carried(code, 2)], 5.0) is None
    assert disturbance(GOOD[:4], [carried(code, 2)], 5.0) is not None


@pytest.mark.parametrize("code", ["unconverged", "bimodal", "power-capped", "pcie-narrow"])
def test_a_doubt_that_blames_nobody_else_disturbs_nothing(code: str) -> None:
    assert disturbance(GOOD, [carried(code, 5)], 5.0) is None


def test_processes_that_differ_by_more_than_the_tolerance_say_by_how_much() -> None:
    said = disturbance(BUSY, [], 5.0)

    assert said == "its 5 processes differ by a factor of 7.77 (standard deviation), more than 5 %"
    assert disturbance((1.0, 1.06, 0.94), [], 5.0) is not None
    assert disturbance((1.0, 1.06, 0.94), [], 7.0) is None
    # One in five may be a stray, as in every verdict.
    assert disturbance((*GOOD[:4], 0.6), [], 5.0) is None
    assert disturbance((1.0,), [], 5.0) is None


def test_sessions_may_differ_by_more_than_their_processes() -> None:
    apart = tuple(1.2 * value for value in GOOD)

    assert disturbance((*GOOD, *apart), [], 5.0) is not None
    assert disturbance((*GOOD, *apart), [], 5.0, (5, 5)) is None
    assert disturbance((*GOOD, *BUSY), [], 5.0, (5, 5)) is not None


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
    assert gate.reason == "in 5 of 5 processes there was host-busy"
    assert gate.next == ("run it again",)
    assert gate.measured == pytest.approx(1.0, rel=1e-3)
    assert not gate.repeat_helps
