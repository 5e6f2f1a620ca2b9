"""Statistics of samples and rounds: median and bound, 95 % intervals, quantiles, outliers.

Everything is pure arithmetic on lists of seconds; nothing is dropped or smoothed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from gpucheck.bench.model import SampleSummary

#: Half-width of a good enough interval, as a share of the figure.
PRECISION = 0.01
#: Two rounds show too little of how much rounds differ.
FEWEST_FOR_INTERVAL = 3
#: Largest correlation of rounds that widens the interval; beyond it they are a trend.
_MOST_ALIKE = 0.8
#: Fewer rounds are divided into so many parts in all.
_FEWEST_PARTS = 12
#: Neighbouring rounds are alike: so many of them show as much as one. Other machines' use of caches
#: moves the bound itself by so much between runs (docs/measurements/estimators.md).
_ALIKE_ROUNDS, _BETWEEN_RUNS = 2.0, 0.02
#: The same for two runs, of which either may have met a rare moment that the other did not.
_ALIKE_IN_TWO_RUNS = 3.2
#: Samples of each round.
Rounds = Sequence[Sequence[float]]


def median(samples: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two middle ones."""
    return quantile(samples, 0.5)


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the samples lie, interpolated linearly."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    # Not a*(1-w) + b*w: rounding can take that outside its two ends.
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def student_tail(t: float, freedom: int) -> float:
    """Return P(T > t) of Student's t, t at least 0 (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, (1 - within) / 2)


@lru_cache(maxsize=4096)
def student_quantile(share: float, freedom: int) -> float:
    """Return the t that a share of Student's distribution lies beyond; the share is below 0.5."""
    low, high = 0.0, 1.0
    while student_tail(high, freedom) > share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > share else (low, middle)
    return high


def interval(medians: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median from the rounds' medians, None from too few.

    It is Student's interval for the mean of their logarithms: medians of rounds are close to normal
    whatever the samples are, and times vary by a factor in either direction. Correlated rounds, as
    in a slow drift, carry less information than independent ones. With the correlation r of
    neighbours the interval is wider by the root of (1 + r) / (1 - r) (Bartlett 1946). It always
    contains the median of the medians.
    """
    spread = _spread(medians)
    if spread is None:
        return None
    centre, of_mean, _, quantile_95 = spread
    middle, reach = median(medians), quantile_95 * math.sqrt(of_mean)
    return min(math.exp(centre - reach), middle), max(math.exp(centre + reach), middle)


def repeat_interval(medians: Sequence[float]) -> tuple[float, float] | None:
    """Return the range of the median for 19 in 20 further runs, None from too few rounds.

    The interval of the median covers what the rounds of this run show. A further run also has
    other load, temperatures and memory placement, which no round of this run saw. That part is
    assumed to scatter as much as one round: on shared virtual machines it was half to twice as
    much, whatever the kernel (`python -m benchmarks.repeatability`). So this is the prediction
    interval of a random effect: both runs scatter like one round, plus like the mean of their
    rounds.
    """
    spread = _spread(medians)
    if spread is None:
        return None
    _, of_mean, of_round, quantile_95 = spread
    middle = median(medians)
    factor = math.exp(quantile_95 * math.sqrt(2 * (of_round + of_mean)))
    return middle / factor, middle * factor


def _spread(medians: Sequence[float]) -> tuple[float, float, float, float] | None:
    """Return the logarithms' centre, variance of their mean, of one round, Student's quantile."""
    count = len(medians)
    if count < FEWEST_FOR_INTERVAL or min(medians) <= 0:
        return None
    logarithms = [math.log(median) for median in medians]
    centre = sum(logarithms) / count
    offsets = [value - centre for value in logarithms]
    square = sum(offset * offset for offset in offsets)
    alike = sum(this * other for this, other in pairwise(offsets)) / square if square else 0.0
    # For independent rounds it is -1 / n on average.
    alike = min(_MOST_ALIKE, max(0.0, alike + 1 / count))
    of_round = square / (count - 1)
    of_mean = of_round / count * (1 + alike) / (1 - alike)
    return centre, of_mean, of_round, student_quantile(0.025, count - 1)


def bound_interval(rounds: Rounds) -> tuple[float, float] | None:
    """Return the 95 % interval of the bound below which no time can fall, None from too few rounds.

    It reaches from the fastest sample downwards.
    """
    reach = _bound_reach(rounds, _ALIKE_ROUNDS)
    fastest = min(map(min, rounds), default=0.0)
    return None if reach is None else (fastest * math.exp(-reach), fastest)


def bound_repeat_interval(rounds: Rounds) -> tuple[float, float] | None:
    """Return the range of the fastest sample for 19 in 20 further runs."""
    reach = _bound_reach(rounds, _ALIKE_IN_TWO_RUNS)
    if reach is None:
        return None
    fastest, factor = min(map(min, rounds)), math.exp(reach + _BETWEEN_RUNS)
    return fastest / factor, fastest * factor


def _bound_reach(rounds: Rounds, alike: float) -> float | None:
    """Return how far, in logarithms, the bound may lie below the fastest of all samples.

    A program can only be slowed down. So the fastest sample of a round, or of part of it where
    there are few rounds, is the bound plus an excess. The lower half of these is close to
    exponential on recorded streams, and the rest was disturbed (docs/measurements/estimators.md).
    For the lowest r of n such values, n (r - 1) times the distance of the fastest from the bound,
    over the excess that they show together, follows F(2, 2 r - 2), whose 95 % quantile is
    (r - 1) (20^(1 / (r - 1)) - 1) (Epstein and Sobel 1954; Johnson, Kotz and Balakrishnan 1994,
    Continuous Univariate Distributions 1, 19.7). Parts of a round are more alike than rounds.
    """
    count = len(rounds)
    if count < FEWEST_FOR_INTERVAL or min(map(min, rounds)) <= 0:
        return None
    parts = math.ceil(_FEWEST_PARTS / count)
    logs = sorted(
        math.log(min(samples[start::parts]))
        for samples in rounds
        for start in range(min(parts, len(samples)))
    )
    lowest = logs[: max(FEWEST_FOR_INTERVAL, len(logs) // 2 + 1)]
    excess = sum(lowest) - len(logs) * logs[0] + (len(logs) - len(lowest)) * lowest[-1]
    alike *= math.sqrt(len(logs) / count)
    return alike * (20 ** (1 / (len(lowest) - 1)) - 1) * excess / len(logs)


@dataclass(frozen=True, slots=True)
class Estimator:
    """How a figure follows from samples, and from those of rounds, and its two intervals."""

    figure: Callable[[Sequence[float]], float]
    interval: Callable[[Rounds], tuple[float, float] | None]
    repeat_interval: Callable[[Rounds], tuple[float, float] | None]

    def run_figure(self, rounds: Rounds) -> float:
        """Return the figure of a run from the samples of its rounds, which count the same."""
        return self.figure([self.figure(samples) for samples in rounds])

    def half_width_share(self, rounds: Rounds) -> float | None:
        """Return half the interval's width as a share of the figure, None from too few rounds."""
        ends = self.interval(rounds)
        return None if ends is None else (ends[1] - ends[0]) / 2 / self.run_figure(rounds)


#: Median of rounds' medians: what a device takes that does one thing at a time.
MEDIAN = Estimator(
    median,
    lambda rounds: interval([median(samples) for samples in rounds]),
    lambda rounds: repeat_interval([median(samples) for samples in rounds]),
)
#: Fastest sample: what a processor can do, which its other work only hides.
BOUND = Estimator(min, bound_interval, bound_repeat_interval)


def outlier_count(samples: Sequence[float]) -> int:
    """Return how many samples lie outside Tukey's fences (1.5 interquartile ranges)."""
    low, high = quantile(samples, 0.25), quantile(samples, 0.75)
    reach = 1.5 * (high - low)
    return sum(1 for sample in samples if sample < low - reach or sample > high + reach)


def mode_gap(samples: Sequence[float]) -> float:
    """Return the widest gap with a fifth of the samples on either side, as share of the median.

    Samples from one group have no gap that is wide compared with their spread.
    """
    ordered = sorted(samples)
    fifth = max(1, len(ordered) // 5)
    gaps = [high - low for low, high in pairwise(ordered[fifth - 1 : len(ordered) - fifth + 1])]
    middle = median(samples)
    return max(gaps, default=0.0) / middle if middle > 0 else 0.0


def summarise(samples: Sequence[float]) -> SampleSummary:
    """Return count, extremes, quantiles and outliers of at least one sample."""
    return SampleSummary(
        count=len(samples),
        min_s=min(samples),
        p10_s=quantile(samples, 0.1),
        median_s=median(samples),
        p90_s=quantile(samples, 0.9),
        max_s=max(samples),
        iqr_s=quantile(samples, 0.75) - quantile(samples, 0.25),
        outlier_count=outlier_count(samples),
    )
