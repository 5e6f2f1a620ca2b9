"""Reasons to distrust a median that its own samples and rounds give.

Each fires only where what it names is large enough to move the median by more than the precision
that a row is held to: a figure that is known well enough raises no doubt.
"""

from __future__ import annotations

import math

from gpucheck.core.bench import stats
from gpucheck.core.bench.record import Record
from gpucheck.models.bench import Doubt, Fact

#: Fewer samples than this and the interval is wide whatever they say.
_FEWEST = 10
#: Rounds whose length is less than so many times that over which samples are alike are not
#: independent of each other, and the interval of those that converge holds less than 95 %
#: (`python -m benchmarks.coverage`, the stream that is autocorrelated by 0.9).
_LENGTHS_IN_A_ROUND, _FEWEST_FOR_CORRELATION = 8.0, 12
_FEWEST_FOR_TREND = 6
#: Rounds that differ by more than this, and by so many times what their noise explains.
_ROUNDS_APART, _TIMES_NOISE, _FEWEST_IN_A_ROUND = 0.01, 2.0, 3
#: Half of the operations left out makes a factor of two, a colder start much less.
_FEWER_LOOPS = 1.6
#: What it takes to start an operation, and to wake a thread for it and wait for it.
_STARTING_S, _MEETING_S = 20e-6, 50e-6
#: Standard deviations of Kendall's tau from which rounds have a trend, with 99 % certainty.
_TREND = 2.576
#: A gap between two groups of samples, as a share of the median.
_MODE_GAP = 0.05
#: The same in interquartile ranges, so that chance leaves it in one of a hundred rows of one kind
#: at most: `_FEW_GAP` / n for few samples, never less than `_LEAST_GAP`.
_LEAST_GAP, _FEW_GAP = 0.5, 27.0


def too_few_samples(record: Record) -> Doubt | None:
    """Doubt a median of a handful of samples, unless their rounds agree well enough."""
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
        message = f"{counted} fitted into the time: nothing is known of how much rounds differ"
    else:
        message = f"the median is known to ±{width:.1%} only, and ±{record.precision:.0%} is wanted"
        if width <= record.precision:
            message = f"its {rounds} rounds agree to ±{width:.1%}, and are too few to be sure of it"
        facts["half_width_share"] = width
    return Doubt(
        code="unconverged",
        message=message,
        next="give more time with --budget; run it again when the machine is idle",
        facts=facts,
    )


def rounds_differ(record: Record) -> Doubt | None:
    """Say of an unconverged row that its rounds differ by more than the noise in them.

    Where the row converged the median of its rounds is known all the same.
    """
    rounds = len(record.medians_s)
    # One or two samples say nothing of the noise within their round.
    if rounds < stats.FEWEST_FOR_INTERVAL or len(record.samples_s) < _FEWEST_IN_A_ROUND * rounds:
        return None
    apart, noise = stats.spread_of_rounds(record.rounds)
    if record.converged or apart < max(_ROUNDS_APART, _TIMES_NOISE * noise):
        return None
    return Doubt(
        code="rounds-differ",
        message=f"its rounds differ by {apart:.1%}, and the noise in them explains {noise:.1%}: "
        "where the memory lay, the clock or other programs made the rest",
        next="run it again when the machine is idle",
        facts={"between_rounds_share": apart, "noise_share": noise},
    )


def loops_missing(record: Record) -> Doubt | None:
    """Doubt a batch of operations that takes much less than as many single ones.

    Nothing else tells that a batch does less than it should: its result is right all the same.
    Starting one operation takes its time too, on threads for each of them.
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
        f"batch of {record.loops}: the batch may do less than it should",
        next="run it again when the machine is idle; if it stays, do not trust this row",
        facts={"single_s": record.single_s, "batched_s": batched_s, "loops": record.loops},
    )


def drifting(record: Record) -> Doubt | None:
    """Doubt a median of rounds that get slower, or faster, one after the other."""
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
        message=f"its rounds get {'slower' if tau > 0 else 'faster'} one after the other, the last "
        f"third by {abs(change):.1%} than the first: it is not at its steady state yet",
        next="give more time with --budget; run it again now that the machine is warm",
        facts={"trend": tau, "change_share": change},
    )


def autocorrelated(record: Record) -> Doubt | None:
    """Doubt an interval over rounds that may resemble each other, as their samples do.

    In a drift they do too: that is said once.
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
    # A process that forgets by the factor r with each sample is alike over (1 + r) / (1 - r).
    length = (1 + alike) / max(1e-9, 1 - alike)
    in_a_round = count / len(record.medians_s)
    if length * _LENGTHS_IN_A_ROUND < in_a_round:
        return None
    return Doubt(
        code="autocorrelated",
        message=f"its samples are alike over {min(length, count):.0f} of them, and a round has "
        f"{in_a_round:.0f}: the interval may be too narrow",
        next="give more time with --budget",
        facts={"autocorrelation": alike, "samples_in_a_round": in_a_round},
    )


def bimodal(record: Record) -> Doubt | None:
    """Doubt a median between two groups of samples, unless those are rounds that differ."""
    samples = record.samples_s
    count = len(samples)
    if count < _FEWEST or rounds_differ(record) is not None:
        return None
    gap = stats.mode_gap(samples)
    noise = stats.quantile(samples, 0.75) - stats.quantile(samples, 0.25)
    needed = max(_LEAST_GAP, _FEW_GAP / count)
    if gap < _MODE_GAP or gap * stats.median(samples) < needed * noise:
        return None
    # As a share of what is small, a large distance says nothing.
    apart = f"{gap:.0%} apart" if gap < 1 else f"a factor of {1 + gap:.2g} apart"
    return Doubt(
        code="bimodal",
        message=f"the samples fall into two groups {apart}: the median is one of them",
        next="look at p10 and p90 (-v); run it again when the machine is idle",
        facts={"gap_share": gap},
    )
