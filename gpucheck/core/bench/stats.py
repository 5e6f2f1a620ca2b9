"""What the samples say: median, its 95 % confidence interval, quantiles, outliers, drift.

Everything here is pure arithmetic on a list of seconds; nothing is dropped or smoothed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from gpucheck.models.bench import SampleSummary

#: With fewer samples even the range from the smallest to the largest holds the median less
#: often than 95 % of the time (1 - 2 / 2**5 = 93.8 %), so no interval can be given.
FEWEST_FOR_INTERVAL = 6
_LEVEL = 0.95
#: Beyond this the samples are a drift, and no widening makes an interval of it.
_MOST_ALIKE = 0.95


def median(samples: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two middle ones."""
    return quantile(samples, 0.5)


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the samples lie, interpolated linearly."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    # Not a*(1-w) + b*w: that can leave the range of its two ends by a rounding.
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@lru_cache(maxsize=4096)
def _ranks(count: int) -> tuple[int, float]:
    """Return the rank k and the weight towards rank k+1 of the interval's lower end.

    The interval from the k-th smallest to the k-th largest holds the median with probability
    1 - 2 P(Binomial(n, 1/2) < k), whatever the distribution. Ranks are whole, so this jumps past
    95 %; Hettmansperger and Sheather (1986) interpolate between the two neighbours.
    """
    tail, rank = 1, 1
    while 1 - 2 * (tail + math.comb(count, rank)) / 2**count >= _LEVEL:
        tail += math.comb(count, rank)
        rank += 1
    wide = 1 - 2 * tail / 2**count
    narrow = 1 - 2 * (tail + math.comb(count, rank)) / 2**count
    share = (wide - _LEVEL) / (wide - narrow)
    return rank, (count - rank) * share / (rank + (count - 2 * rank) * share)


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the median, or None with too few samples."""
    count = len(samples)
    if count < FEWEST_FOR_INTERVAL:
        return None
    ordered = sorted(samples)
    rank, weight = _ranks(count)
    low, next_low = ordered[rank - 1], ordered[rank]
    high, next_high = ordered[count - rank], ordered[count - rank - 1]
    return low + weight * (next_low - low), high + weight * (next_high - high)


def lasting_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median of samples in the order in which they were taken.

    Neighbours that are alike tell less than independent ones: for a process that forgets by the
    factor r from one sample to the next, n samples are worth n (1 - r) / (1 + r), and the interval
    is widened by the root of that (Bartlett 1946). Nothing is narrowed where they alternate.
    """
    interval = median_interval(samples)
    if interval is None:
        return None
    alike = min(_MOST_ALIKE, max(0.0, autocorrelation(samples)))
    factor = math.sqrt((1 + alike) / (1 - alike))
    middle = median(samples)
    low, high = interval
    return max(0.0, middle - factor * (middle - low)), middle + factor * (high - middle)


def half_width_share(samples: Sequence[float]) -> float | None:
    """Return half the interval's width as a share of the median, or None with too few samples."""
    interval = lasting_interval(samples)
    middle = median(samples) if samples else 0.0
    if interval is None or middle <= 0:
        return None
    return (interval[1] - interval[0]) / 2 / middle


def outlier_count(samples: Sequence[float]) -> int:
    """Return how many samples lie outside Tukey's fences (1.5 interquartile ranges)."""
    low, high = quantile(samples, 0.25), quantile(samples, 0.75)
    reach = 1.5 * (high - low)
    return sum(1 for sample in samples if sample < low - reach or sample > high + reach)


def autocorrelation(samples: Sequence[float]) -> float:
    """Return how much a sample's rank predicts the next one's: -1 to 1, 0 for independent samples.

    Ranks instead of values, so that one outlier decides nothing.
    """
    count = len(samples)
    places = {value: place for place, value in enumerate(sorted(samples))}
    centre = sum(places[sample] for sample in samples) / max(count, 1)
    ranks = [places[sample] - centre for sample in samples]
    spread = sum(rank * rank for rank in ranks)
    if count < 3 or spread == 0:
        return 0.0
    return sum(a * b for a, b in pairwise(ranks)) / spread


def mode_gap(samples: Sequence[float]) -> float:
    """Return the widest gap that has a fifth of the samples on either side, as share of the median.

    Samples of one kind leave none that is wide against their own spread.
    """
    ordered = sorted(samples)
    fifth = max(1, len(ordered) // 5)
    gaps = [high - low for low, high in pairwise(ordered[fifth - 1 : len(ordered) - fifth + 1])]
    middle = median(samples)
    return max(gaps, default=0.0) / middle if middle > 0 else 0.0


def summarise(samples: Sequence[float]) -> SampleSummary:
    """Return the samples' count, extremes, quantiles and outliers (at least one sample)."""
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
