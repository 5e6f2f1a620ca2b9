from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench import stats

SECONDS = st.floats(min_value=1e-9, max_value=1e3, allow_nan=False)


def test_median_of_an_even_count_lies_between_the_middle_two() -> None:
    assert stats.median([4.0, 1.0, 3.0, 2.0]) == 2.5


@pytest.mark.parametrize("count", range(stats.FEWEST_FOR_INTERVAL))
def test_no_interval_from_too_few_rounds(count: int) -> None:
    for estimator in (stats.MEDIAN, stats.BOUND):
        assert estimator.interval([[1.0]] * count) is None
        assert estimator.repeat_interval([[1.0]] * count) is None
        assert estimator.half_width_share([[1.0]] * count) is None


@pytest.mark.parametrize(
    ("freedom", "published"),
    [(1, 12.706), (2, 4.303), (4, 2.776), (5, 2.571), (7, 2.365), (10, 2.228), (30, 2.042)],
)
def test_students_quantiles_are_the_published_ones(freedom: int, published: float) -> None:
    assert stats.student_quantile(0.025, freedom) == pytest.approx(published, abs=5e-4)


@pytest.mark.parametrize(
    ("samples", "gap"),
    [
        ([1.0] * 4 + [5.0], 4.0),  # one of five is a fifth
        ([1.0] * 9 + [5.0], 0.0),
        ([1.0] * 8 + [5.0] * 2, 4.0),
        ([1.0] + [5.0] * 9, 0.0),
        ([1.0] * 2 + [4.0, 5.0] + [5.0] * 6, 0.6),
        ([1.0], 0.0),
        ([0.0, 0.0, 0.0, 4.0], 0.0),
    ],
)
def test_a_gap_has_a_fifth_of_the_samples_on_either_side(samples: list[float], gap: float) -> None:
    assert stats.mode_gap(samples) == pytest.approx(gap)


def test_the_interval_of_rounds_that_do_not_follow_each_other_is_students() -> None:
    medians = [math.exp(value) for value in (-0.02, 0.01, -0.01, 0.02, 0.0)]

    low, high = stats.interval(medians) or (0, 0)

    # s = 0.0158114, t(4) = 2.776: 2.776 s / sqrt(5) = 0.019629.
    assert (math.log(low), math.log(high)) == pytest.approx((-0.019629, 0.019629), rel=1e-3)


def test_the_interval_of_rounds_that_drift_is_wider() -> None:
    mixed = [1.0, 1.04, 1.01, 1.05, 1.02, 1.03]

    def width(medians: list[float]) -> float:
        low, high = stats.interval(medians) or (math.nan, math.nan)
        return high - low

    assert width(sorted(mixed)) > 1.5 * width(mixed)
    assert width([1.0] * 6) == pytest.approx(0.0, abs=1e-12)


@given(st.lists(SECONDS, min_size=3, max_size=60))
def test_the_interval_holds_the_median_of_the_rounds(medians: list[float]) -> None:
    low, high = stats.interval(medians) or (math.nan, math.nan)

    assert 0 < low <= stats.median(medians) <= high


@given(st.lists(SECONDS, min_size=3, max_size=60))
def test_a_further_run_is_known_less_well_than_the_median_of_this_one(medians: list[float]) -> None:
    low, high = stats.repeat_interval(medians) or (math.nan, math.nan)
    narrow_low, narrow_high = stats.interval(medians) or (math.nan, math.nan)

    assert 0 < low <= narrow_low * (1 + 1e-9)
    assert narrow_high * (1 - 1e-9) <= high < math.inf


@pytest.mark.parametrize(("own", "least", "most"), [(0.0, 0.99, 1.0), (0.01, 0.93, 0.97)])
def test_a_further_run_is_where_it_is_expected(own: float, least: float, most: float) -> None:
    """Rounds scatter by 1 %, and each run is off by `own` besides: as much as one round, at most.

    Where runs differ by nothing but their rounds the interval is too wide, never too narrow.
    """
    source, pairs = random.Random(11), 4000

    def run() -> list[float]:
        weather = own * source.gauss(0, 1)
        return [math.exp(weather + 0.01 * source.gauss(0, 1)) for _ in range(9)]

    held = 0
    for _ in range(pairs):
        low, high = stats.repeat_interval(run()) or (math.nan, math.nan)
        held += low <= stats.median(run()) <= high

    assert least <= held / pairs <= most


@given(st.lists(SECONDS, min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_stay_in_the_range(samples: list[float], share: float) -> None:
    assert min(samples) <= stats.quantile(samples, share) <= max(samples)


def _heavy(source: random.Random) -> float:
    """Return Student's t with two degrees of freedom: its variance is infinite."""
    return source.gauss(0, 1) / math.sqrt((source.gauss(0, 1) ** 2 + source.gauss(0, 1) ** 2) / 2)


@pytest.mark.parametrize(
    ("rounds", "samples"),
    [
        (3, 9),
        (6, 5),
        pytest.param(8, 9, marks=pytest.mark.slow),
        pytest.param(20, 5, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda source: 1 + 0.03 * source.gauss(0, 1), id="normal"),
        pytest.param(lambda source: math.exp(0.3 * source.gauss(0, 1)), id="log-normal"),
        pytest.param(lambda source: max(0.1, 1 + 0.02 * _heavy(source)), id="heavy-tailed"),
    ],
)
def test_interval_holds_the_true_median_about_95_times_in_100(
    draw: Callable[[random.Random], float], rounds: int, samples: int
) -> None:
    source, runs = random.Random(20), 1000

    held = 0
    for _ in range(runs):
        medians = [stats.median([draw(source) for _ in range(samples)]) for _ in range(rounds)]
        low, high = stats.interval(medians) or (0, 0)
        held += low <= 1 <= high

    assert 0.93 <= held / runs <= 0.975


def test_the_interval_holds_what_rounds_differ_by_and_one_stretch_does_not() -> None:
    source, runs = random.Random(4), 1500
    held = 0
    for _ in range(runs):
        # Each round is 5 % off by its own memory, and its samples agree to 0.1 %.
        medians = [math.exp(0.05 * source.gauss(0, 1)) for _ in range(8)]
        low, high = stats.interval(medians) or (0, 0)
        held += low <= 1 <= high

    assert 0.93 <= held / runs <= 0.97


def test_outliers_are_counted_and_change_no_sample() -> None:
    samples = [1.0] * 10 + [1.1] * 10 + [9.0]

    assert stats.outlier_count(samples) == 1
    assert stats.summarise(samples).max_s == 9.0
    assert stats.summarise(samples).count == 21


def test_half_the_width_of_the_interval_is_a_share_of_the_median() -> None:
    medians = [1.0, 1.1, 0.9, 1.05, 0.95]
    found = stats.interval(medians)

    assert found is not None
    rounds = [[0.5, value, 2.0] for value in medians]
    assert stats.MEDIAN.half_width_share(rounds) == pytest.approx((found[1] - found[0]) / 2)


def single(*logarithms: float) -> list[list[float]]:
    """Return rounds of one sample."""
    return [[math.exp(value)] for value in logarithms]


def test_the_interval_of_a_bound_reaches_downwards_by_the_published_quantile() -> None:
    rounds = single(0.0, 0.01, 0.02, 0.03, 0.04, 0.02)

    # The lowest four of six show 0 + 0.01 + 0.02 + 0.02 + 2 * 0.02 of excess, and F(2, 6) has its
    # 95 % quantile at 5.143, a third of it 1.714.
    reach = 2 * 1.714 * 0.09 / 6
    assert stats.bound_interval(rounds) == pytest.approx((math.exp(-reach), 1.0), rel=1e-4)
    assert stats.bound_repeat_interval(rounds) == pytest.approx(
        (math.exp(-1.6 * reach - 0.02), math.exp(1.6 * reach + 0.02)), rel=1e-4
    )
    assert stats.BOUND.half_width_share(rounds) == pytest.approx(reach / 2, rel=0.03)


def test_how_far_rounds_were_disturbed_does_not_widen_the_interval_of_a_bound() -> None:
    calm, disturbed = (0.0, 0.01, 0.02, 0.02), ((0.03, 0.04), (2.0, 3.0))

    one, other = (stats.bound_interval(single(*calm, *end)) for end in disturbed)

    assert one == other


def test_samples_that_agree_narrow_the_interval_of_a_bound_from_few_rounds() -> None:
    """Four samples of the fastest round say more than one; from twelve rounds on they do not."""
    rounds = [[value] * 4 for value in (1.0, 1.2, 1.4)]

    few, single_low = (
        stats.bound_interval(each) for each in (rounds, [samples[:1] for samples in rounds])
    )

    # Seven of the twelve parts show three times log 1.2, and the other five as much each.
    reach = 2 * 2 * (20 ** (1 / 6) - 1) * 8 * math.log(1.2) / 12
    assert few == pytest.approx((math.exp(-reach), 1.0))
    assert single_low is not None
    assert single_low[0] < 0.5 < math.exp(-reach)
    many = rounds * 4
    assert stats.bound_interval(many) == stats.bound_interval([samples[:1] for samples in many])


@pytest.mark.parametrize("samples", [1, 8])
@pytest.mark.parametrize("rounds", [3, 6, 12])
def test_the_interval_of_a_bound_holds_it_wherever_samples_exceed_it_exponentially(
    rounds: int, samples: int
) -> None:
    """It is wider than for independent rounds, which would have 95 %."""
    source, runs = random.Random(8), 1000
    held = 0
    for _ in range(runs):
        low, high = stats.bound_interval(
            [[math.exp(source.expovariate(20)) for _ in range(samples)] for _ in range(rounds)]
        ) or (0, 0)
        held += low <= 1 <= high

    assert 0.97 <= held / runs <= 1


def test_outliers_lie_beyond_the_fences_and_not_on_them() -> None:
    # Quartiles 2 and 4: fences at -1 and 7.
    assert stats.outlier_count([-1.0, 2.0, 3.0, 4.0, 7.0]) == 0
    assert stats.outlier_count([-1.1, 2.0, 3.0, 4.0, 7.1]) == 2


def test_a_summary_has_the_quantiles_of_its_samples() -> None:
    found = stats.summarise([float(number) for number in range(101)])

    assert (found.min_s, found.p10_s, found.median_s, found.p90_s, found.max_s) == (
        0.0, 10.0, 50.0, 90.0, 100.0,
    )  # fmt: skip
    assert found.iqr_s == pytest.approx(50.0)
