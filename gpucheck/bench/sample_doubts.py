"""Doubts about a median that come from its own samples and rounds.

Each is raised only if the effect can move the median by more than the precision that the row must
reach. A figure that is known well enough raises no doubt.
"""

from __future__ import annotations

import math

from gpucheck.bench import stats
from gpucheck.bench.model import Doubt, Fact
from gpucheck.bench.record import Record

#: With fewer samples than this the interval is wide in any case.
_FEWEST = 10
#: Rounds shorter than this many correlation lengths are not independent of each other. Converged
#: intervals then cover less than 95 % (`python -m benchmarks.coverage`, the stream with an
#: autocorrelation of 0.9).
_LENGTHS_IN_A_ROUND, _FEWEST_FOR_CORRELATION = 8.0, 12
_FEWEST_FOR_TREND = 6
#: Rounds differ if they are further apart than this, and than this multiple of their noise.
_ROUNDS_APART, _TIMES_NOISE, _FEWEST_IN_A_ROUND = 0.01, 2.0, 3
#: Leaving out half of the operations gives a factor of two, a cold start much less.
_FEWER_LOOPS = 1.6
#: Seconds to start an operation, and to wake a thread for it and wait for that thread.
_STARTING_S, _MEETING_S = 20e-6, 50e-6
#: Standard deviations of Kendall's tau that show a trend with 99 % confidence.
_TREND = 2.576
#: A gap between two groups of samples, as a share of the median.
_MODE_GAP = 0.05
#: The same in interquartile ranges: `_FEW_GAP` / n for few samples, at least `_LEAST_GAP`. At most
#: one row in a hundred exceeds it by chance.
_LEAST_GAP, _FEW_GAP = 0.5, 27.0


def too_few_samples(record: Record) -> Doubt | None:
    """Doubt a median of few samples, unless their rounds agree well enough."""
    count = len(record.samples_s)
    if count >= _FEWEST or record.converged:
        return None
    return Doubt(
        code="too-few-samples",
        message=f"only {count} {'sample' if count == 1 else 'samples'} fitted into the time",
        next="give more time with --budget; choose a smaller --size",
        facts={"samples": count, "wanted": _FEWEST},
    )


def unconverged(record: Record) -> Doubt | None:
    """Doubt a median that was not known well enough when the time ended."""
    rounds = len(record.medians_s)
    width = stats.half_width_share(record.medians_s)
    if record.converged:
        return None
    facts: dict[str, Fact] = {"rounds": rounds}
    if width is None:
        counted = "only one round" if rounds == 1 else f"only {rounds} rounds"
        message = f"{counted} fitted into the time: how much rounds differ is unknown"
    else:
        message = f"the median is known only to ±{width:.1%}; the target is ±{record.precision:.0%}"
        if width <= record.precision:
            message = f"its {rounds} rounds agree to ±{width:.1%}, but are too few to be sure"
        facts["half_width_share"] = width
    return Doubt(
        code="unconverged",
        message=message,
        next="give more time with --budget; run it again when the machine is idle",
        facts=facts,
    )


def rounds_differ(record: Record) -> Doubt | None:
    """Doubt an unconverged row whose rounds differ by more than their noise.

    The median of a converged row is known despite such differences.
    """
    rounds = len(record.medians_s)
    # One or two samples do not show the noise within a round.
    if rounds < stats.FEWEST_FOR_INTERVAL or len(record.samples_s) < _FEWEST_IN_A_ROUND * rounds:
        return None
    apart, noise = stats.spread_of_rounds(record.rounds)
    if record.converged or apart < max(_ROUNDS_APART, _TIMES_NOISE * noise):
        return None
    return Doubt(
        code="rounds-differ",
        message=f"its rounds differ by {apart:.1%}, and their noise explains {noise:.1%}: the rest "
        "comes from memory placement, the clock or other programs",
        next="run it again when the machine is idle",
        facts={"between_rounds_share": apart, "noise_share": noise},
    )


def loops_missing(record: Record) -> Doubt | None:
    """Doubt a batch of operations that takes much less time than as many single ones.

    No other check detects a batch that does too little, since its result is still right. Starting
    an operation also takes time, for each of its threads.
    """
    if record.single_s is None or not record.samples_s:
        return None
    batched_s = stats.median(record.samples_s)
    threads = record.case.label.threads or 1
    start_s = _STARTING_S if threads == 1 else _MEETING_S * threads
    if record.single_s - start_s < _FEWER_LOOPS * batched_s:
        return None
    return Doubt(
        code="loops-missing",
        message=f"an operation takes {record.single_s:.2g} s by itself and {batched_s:.2g} s in a "
        f"batch of {record.loops}: the batch may skip some of its work",
        next="run it again when the machine is idle; if the doubt remains, do not trust this row",
        facts={"single_s": record.single_s, "batched_s": batched_s, "loops": record.loops},
    )


def drifting(record: Record) -> Doubt | None:
    """Doubt a median whose rounds get steadily slower or faster."""
    medians = record.medians_s
    count = len(medians)
    if count < _FEWEST_FOR_TREND:
        return None
    third = count // 3
    change = stats.median(medians[-third:]) / stats.median(medians[:third]) - 1
    tau = stats.trend(medians)
    # Without a trend tau is about normal with the variance 2 (2 n + 5) / (9 n (n - 1)).
    chance = _TREND * math.sqrt(2 * (2 * count + 5) / (9 * count * (count - 1)))
    if abs(tau) < chance or abs(change) < record.precision:
        return None
    return Doubt(
        code="drifting",
        message=f"its rounds get steadily {'slower' if tau > 0 else 'faster'}, the last third by "
        f"{abs(change):.1%} compared with the first: it has not reached its steady state",
        next="give more time with --budget; run it again now that the machine is warm",
        facts={"trend": tau, "change_share": change},
    )


def autocorrelated(record: Record) -> Doubt | None:
    """Doubt an interval whose rounds may be correlated because their samples are.

    In a drift they always are; `drifting` covers that.
    """
    samples = record.samples_s
    count = len(samples)
    if count < _FEWEST_FOR_CORRELATION or drifting(record) is not None:
        return None
    alike = stats.autocorrelation(record.rounds)
    # Independent samples stay within 2.5 standard deviations of zero, each 1 / sqrt(n).
    if alike < 2.5 / math.sqrt(count):
        return None
    spread = stats.quantile(samples, 0.9) - stats.quantile(samples, 0.1)
    if spread < record.precision * stats.median(samples):
        return None
    # A process with the correlation r has a correlation length of (1 + r) / (1 - r).
    length = (1 + alike) / max(1e-9, 1 - alike)
    in_a_round = count / len(record.medians_s)
    if length * _LENGTHS_IN_A_ROUND < in_a_round:
        return None
    return Doubt(
        code="autocorrelated",
        message=f"its samples are correlated over {min(length, count):.0f} of them, and a round "
        f"has {in_a_round:.0f}: the interval may be too narrow",
        next="give more time with --budget",
        facts={"autocorrelation": alike, "samples_in_a_round": in_a_round},
    )


def bimodal(record: Record) -> Doubt | None:
    """Doubt a median of two groups of samples, unless they are rounds that differ."""
    samples = record.samples_s
    count = len(samples)
    if count < _FEWEST or rounds_differ(record) is not None:
        return None
    gap = stats.mode_gap(samples)
    noise = stats.quantile(samples, 0.75) - stats.quantile(samples, 0.25)
    needed = max(_LEAST_GAP, _FEW_GAP / count)
    if gap < _MODE_GAP or gap * stats.median(samples) < needed * noise:
        return None
    # A large gap means little as a percentage of a small value.
    apart = f"{gap:.0%} apart" if gap < 1 else f"a factor of {1 + gap:.2g} apart"
    return Doubt(
        code="bimodal",
        message=f"the samples fall into two groups {apart}: the median describes only one of them",
        next="compare p10 and p90 (-v); run it again when the machine is idle",
        facts={"gap_share": gap},
    )
