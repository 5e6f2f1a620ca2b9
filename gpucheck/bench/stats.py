"""Statistics of samples and rounds: median, 95 % interval, quantiles, outliers, drift.

Everything is pure arithmetic on lists of seconds; nothing is dropped or smoothed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gpucheck.bench.model import SampleSummary

#: Half-width of a good enough interval, as a share of the median.
PRECISION = 0.01
#: Two rounds show too little of how much rounds differ.
FEWEST_FOR_INTERVAL = 3
#: Quantiles of Student's t for 95 %, by degrees of freedom; beyond them the series is exact enough.
_STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
_NORMAL = 1.959964
#: Largest correlation of rounds that widens the interval; beyond it they are a trend.
_MOST_ALIKE = 0.8


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


def student_quantile(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t, accurate to 0.2 %.

    Beyond four degrees of freedom by the expansion about the normal quantile (Fisher and Cornish
    1960; Abramowitz and Stegun 26.7.5).
    """
    if freedom in _STUDENT:
        return _STUDENT[freedom]
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def interval(medians: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median from the rounds' medians, None from too few.

    It is Student's interval for the mean of their logarithms: medians of rounds are close to normal
    whatever the samples are, and times vary by a factor in either direction. Correlated rounds, as
    in a slow drift, carry less information than independent ones. With the correlation r of
    neighbours the interval is wider by the root of (1 + r) / (1 - r) (Bartlett 1946). It always
    contains the median of the medians.
    """
    found = _spread(medians)
    if found is None:
        return None
    centre, of_mean, _, quantile_95 = found
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
    found = _spread(medians)
    if found is None:
        return None
    _, of_mean, of_round, quantile_95 = found
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
    alike = sum(one * other for one, other in pairwise(offsets)) / square if square else 0.0
    # For independent rounds it is -1 / n on average.
    alike = min(_MOST_ALIKE, max(0.0, alike + 1 / count))
    of_round = square / (count - 1)
    of_mean = of_round / count * (1 + alike) / (1 - alike)
    return centre, of_mean, of_round, student_quantile(count - 1)


def half_width_share(medians: Sequence[float]) -> float | None:
    """Return half the interval's width as a share of the median, or None from too few rounds."""
    found = interval(medians)
    if found is None:
        return None
    return (found[1] - found[0]) / 2 / median(medians)


def spread_of_rounds(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return how much rounds differ, and how much the noise of their samples explains.

    Both are standard deviations of a round's median as shares of the median. The median of n
    samples scatters by 1.2533 s / sqrt(n), and s is the interquartile range / 1.349.
    """
    full = [samples for samples in rounds if samples]
    middles = [median(samples) for samples in full]
    centre = sum(middles) / len(middles)
    found = math.sqrt(sum((middle - centre) ** 2 for middle in middles) / max(1, len(full) - 1))
    noise = sum(
        (1.2533 / 1.349 * (quantile(samples, 0.75) - quantile(samples, 0.25))) ** 2 / len(samples)
        for samples in full
    )
    expected = math.sqrt(noise / len(full))
    return (found / centre, expected / centre) if centre > 0 else (0.0, 0.0)


def outlier_count(samples: Sequence[float]) -> int:
    """Return how many samples lie outside Tukey's fences (1.5 interquartile ranges)."""
    low, high = quantile(samples, 0.25), quantile(samples, 0.75)
    reach = 1.5 * (high - low)
    return sum(1 for sample in samples if sample < low - reach or sample > high + reach)


def autocorrelation(rounds: Sequence[Sequence[float]]) -> float:
    """Return the correlation of neighbouring samples within their rounds, -1 to 1.

    It uses ranks within each round, so that neither an outlier nor a slow round dominates. A round
    of n independent samples has -1 / n on average, which is corrected.
    """
    shared = spread = expected = 0.0
    for samples in rounds:
        count = len(samples)
        if count < 3:
            continue
        places = {value: place for place, value in enumerate(sorted(samples))}
        centre = sum(places[sample] for sample in samples) / count
        ranks = [places[sample] - centre for sample in samples]
        own = sum(rank * rank for rank in ranks)
        shared += sum(a * b for a, b in pairwise(ranks))
        spread += own
        expected -= own / count
    return min(1.0, (shared - expected) / spread) if spread else 0.0


def trend(values: Sequence[float]) -> float:
    """Return Kendall's tau of values against their order: 1 always rising, -1 always falling."""
    count = len(values)
    pairs = count * (count - 1) / 2
    signs = [
        (later > earlier) - (later < earlier)
        for place, earlier in enumerate(values)
        for later in values[place + 1 :]
    ]
    return sum(signs) / pairs if pairs else 0.0


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
