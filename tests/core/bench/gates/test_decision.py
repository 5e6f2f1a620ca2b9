"""The decision over processes: its table of t, its edges, and how often it is wrong."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.decision import cell, straggler_cell
from gpucheck.core.bench.gates import decision
from gpucheck.core.bench.gates.decision import decide, limit_of
from gpucheck.models.gate import Direction, GateStatus
from tests.architecture.house import ROOT

GOOD = (1.0, 1.01, 0.99, 1.005, 0.995)
FIGURES = st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=12)


def student_tail(t: float, freedom: int) -> float:
    """Return P(T > t) by Simpson's rule over the density, which ends where it is nothing."""
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    scale = math.exp(scale) / math.sqrt(freedom * math.pi)
    # x = t / u maps the tail to (0, 1].
    steps = 2000
    total = 0.0
    for at in range(1, steps + 1):
        u = at / steps
        x = t / u
        density = scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2) * t / (u * u)
        total += density * (1 if at == steps else 4 if at % 2 else 2)
    return total / (3 * steps)


@pytest.mark.parametrize("freedom", range(1, 31))
def test_every_value_of_t_has_five_percent_beyond_it(freedom: int) -> None:
    t = decision._STUDENT[freedom - 1]

    assert student_tail(t, freedom) == pytest.approx(0.05, abs=1e-4)


@pytest.mark.parametrize(
    ("ratio", "direction", "status"),
    [
        (1.0, Direction.HIGHER, GateStatus.PASS),
        (1.5, Direction.HIGHER, GateStatus.PASS),
        (0.9, Direction.HIGHER, GateStatus.FAIL),
        (0.95, Direction.HIGHER, GateStatus.INCONCLUSIVE),
        (1.0, Direction.LOWER, GateStatus.PASS),
        (0.5, Direction.LOWER, GateStatus.PASS),
        (1.1, Direction.LOWER, GateStatus.FAIL),
        (1.05, Direction.LOWER, GateStatus.INCONCLUSIVE),
    ],
)
def test_the_whole_interval_decides(ratio: float, direction: Direction, status: GateStatus) -> None:
    found = decide([ratio * value for value in GOOD], GOOD, 5.0, direction)

    assert found.status is status
    assert found.interval[0] < found.ratio < found.interval[1]
    assert found.ratio == pytest.approx(ratio)


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_processes_decide_nothing(count: int) -> None:
    assert decide([0.1] * count, [1.0], 5.0).status is GateStatus.INCONCLUSIVE


def test_one_earlier_process_is_taken_as_exact_only_if_it_is_the_expectation() -> None:
    assert decide([0.1] * 3, [1.0], 5.0).status is GateStatus.FAIL


def test_processes_that_agree_by_chance_are_not_believed_entirely() -> None:
    found = decide([1.0] * 3, [1.0], 5.0)

    half = (found.interval[1] - found.interval[0]) / 2
    assert half > decision.LEAST_NOISE


@pytest.mark.parametrize(
    "values", [[], [0.0, 1.0, 1.0], [math.nan] * 3, [-1.0] * 3, [math.inf] * 3]
)
def test_figures_that_are_none_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        decide(values, [1.0], 5.0)


def test_the_limit_is_the_one_that_explain_shows() -> None:
    assert limit_of(795, 7, Direction.HIGHER) == pytest.approx(739.35)
    assert limit_of(12, 5, Direction.LOWER) == pytest.approx(12.6)


@given(FIGURES, FIGURES, st.floats(1.0, 40.0))
def test_worse_figures_never_make_a_better_verdict(
    now: list[float], before: list[float], tolerance: float
) -> None:
    order = [GateStatus.FAIL, GateStatus.INCONCLUSIVE, GateStatus.PASS]

    verdict = decide(now, before, tolerance).status
    worse = decide([0.5 * value for value in now], before, tolerance).status

    assert order.index(worse) <= order.index(verdict)


@given(FIGURES, FIGURES)
def test_the_unit_does_not_matter(now: list[float], before: list[float]) -> None:
    one = decide(now, before, 5.0)
    other = decide([1000 * x for x in now], [1000 * x for x in before], 5.0)

    assert other.ratio == pytest.approx(one.ratio)


# ---------------------------------------------------------------------------------- how often


def documented(mark: str) -> dict[tuple[str, ...], list[float]]:
    """Return a table of docs/profiles.md: its last columns by the three that say what was tried."""
    text = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")
    (part,) = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- end -->", text, re.S)
    rows = [[item.strip() for item in line.split("|")[1:-1]] for line in part.splitlines()[2:]]
    return {tuple(row[:3]): [float(item.rstrip("% ")) for item in row[3:] if item] for row in rows}


def test_what_is_promised_is_in_the_document() -> None:
    table = documented("decision")

    assert table["5", "1%", "0 %"][0] <= 0.5
    assert table["5", "1%", "8 %"][0] >= 99.0
    assert len(table) == 30


@pytest.mark.parametrize(
    ("processes", "most", "key"),
    [(5, 5, ("5", "1%", "8 %")), (5, 5, ("5", "1%", "0 %")), (5, 10, ("5 to 10", "2%", "2 %"))],
)
def test_the_document_is_what_the_program_does(
    processes: int, most: int, key: tuple[str, ...]
) -> None:
    runs = 200
    slower, noise = float(key[2].rstrip("% ")), float(key[1].rstrip("%")) / 100

    found = cell(runs, processes, most, slower, noise, seed=7)

    for share, written in zip(found[:3], documented("decision")[key], strict=False):
        # Four standard deviations of a share of 200, and what one run is.
        deviation = 4 * math.sqrt(written * (100 - written) / runs) + 0.5
        assert share == pytest.approx(written, abs=deviation)


def test_the_straggler_is_found_as_the_document_says() -> None:
    written = documented("stragglers")["5 %", "1%", "8 %"]

    alarms, found = straggler_cell(25, 5.0, 0.01, 8.0, seed=7)

    assert found >= written[0] - 20
    assert alarms <= written[1] + 10
