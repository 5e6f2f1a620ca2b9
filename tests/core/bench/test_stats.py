from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.core.bench import stats

SECONDS = st.floats(min_value=1e-9, max_value=1e3, allow_nan=False)


def test_median_of_an_even_count_lies_between_the_middle_two() -> None:
    assert stats.median([4.0, 1.0, 3.0, 2.0]) == 2.5


@pytest.mark.parametrize("count", range(6))
def test_no_interval_from_so_few_samples_that_their_range_misses_too_often(count: int) -> None:
    assert stats.median_interval([1.0] * count) is None


def test_interval_of_ten_lies_between_the_published_ranks() -> None:
    # Ranks 2 and 9 hold the median 97.9 % of the time, ranks 3 and 8 only 89.1 %.
    low, high = stats.median_interval([float(n) for n in range(1, 11)]) or (0, 0)

    assert 2 < low < 3
    assert 8 < high < 9


@given(st.lists(SECONDS, min_size=6, max_size=300))
def test_interval_holds_the_sample_median_and_stays_in_the_range(samples: list[float]) -> None:
    low, high = stats.median_interval(samples) or (math.nan, math.nan)

    assert min(samples) <= low <= stats.median(samples) <= high <= max(samples)


@given(st.lists(SECONDS, min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_stay_in_the_range(samples: list[float], share: float) -> None:
    assert min(samples) <= stats.quantile(samples, share) <= max(samples)


def _heavy(source: random.Random) -> float:
    """Return Student's t with two degrees of freedom: its variance is infinite."""
    return source.gauss(0, 1) / math.sqrt((source.gauss(0, 1) ** 2 + source.gauss(0, 1) ** 2) / 2)


@pytest.mark.parametrize("count", [6, 10, 15, 40])
@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda source: source.gauss(0, 1), id="normal"),
        pytest.param(lambda source: math.exp(source.gauss(0, 1)) - 1, id="log-normal"),
        pytest.param(_heavy, id="heavy-tailed"),
    ],
)
def test_interval_holds_the_true_median_about_95_times_in_100(
    draw: Callable[[random.Random], float], count: int
) -> None:
    source, runs = random.Random(20), 4000

    held = 0
    for _ in range(runs):
        low, high = stats.median_interval([draw(source) for _ in range(count)]) or (0, 0)
        held += low <= 0 <= high

    assert 0.93 <= held / runs <= 0.97


def test_outliers_are_counted_and_change_no_sample() -> None:
    samples = [1.0] * 10 + [1.1] * 10 + [9.0]

    assert stats.outlier_count(samples) == 1
    assert stats.summarise(samples).max_s == 9.0
    assert stats.summarise(samples).count == 21


def test_autocorrelation_tells_drift_from_noise() -> None:
    source = random.Random(3)
    noise = [source.random() for _ in range(200)]

    assert stats.autocorrelation(sorted(noise)) > 0.9
    assert abs(stats.autocorrelation(noise)) < 0.2
    assert stats.autocorrelation([1.0] * 50) == 0.0
    assert stats.autocorrelation([]) == 0.0


@given(st.lists(SECONDS, min_size=6, max_size=100))
def test_the_lasting_interval_is_never_narrower(samples: list[float]) -> None:
    low, high = stats.median_interval(samples) or (math.nan, math.nan)
    wide_low, wide_high = stats.lasting_interval(samples) or (math.nan, math.nan)

    slack = 1e-9 * high
    assert 0 <= wide_low <= low + slack
    assert wide_high >= high - slack


def test_the_lasting_interval_widens_a_drift_and_leaves_noise_alone() -> None:
    source = random.Random(3)
    samples = [source.random() for _ in range(200)]

    def width(interval: tuple[float, float] | None) -> float:
        low, high = interval or (math.nan, math.nan)
        return high - low

    plain = width(stats.median_interval(samples))
    assert width(stats.lasting_interval(samples)) < 1.2 * plain
    assert width(stats.lasting_interval(sorted(samples))) > 5 * plain
    assert stats.lasting_interval([1.0] * 5) is None
