"""Decision on a figure: the 90 % interval of a log ratio over per-process medians.

The samples of one process are not independent, so each process counts once, with the logarithm of
its median. Outlying processes are left out, at most one in five (Rosner's generalised extreme
deviate, 1983). The interval of the rest is Welch's (1947) for the difference of two means, or
Student's if the expectation is a number without noise. If a baseline has several sessions, the
interval includes how much they differ (Satterthwaite, 1946). An interval wholly beyond the
tolerance is a fail, one wholly within it a pass; otherwise more processes are needed. A fail also
needs two thirds of the processes beyond the limit, so that a few disturbed ones cannot cause it. If
only the last ones are beyond it, and apart from the rest, the device may have slowed down for good:
they are not left out, and from the second on they decide alone. Of many figures some miss their
limit by chance: Holm's correction (1979) holds the risk for all of them together.
`python -m benchmarks.decision` counts how often the decisions are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from statistics import NormalDist

from gpucheck.bench.model import Direction, GateStatus
from gpucheck.bench.stats import student_quantile, student_tail

#: Two processes show how far they differ, but hardly how far others would.
FEWEST_PROCESSES = 3
#: Chance that a figure exactly at its limit fails, for all figures judged at once.
RISK = 0.05
#: Least standard deviation between processes: a few may agree better only by chance.
LEAST_NOISE = 0.003
#: One process in so many may be left out, if its value is this unlikely.
_LEFT_OUT, _UNLIKELY = 5, 0.05
#: Share of the processes that must be beyond the limit for a fail.
_MOST = 2 / 3
#: Standard deviations within which 19 of 20 normal differences are.
_OF_95 = NormalDist().inv_cdf(0.975)
#: exp() of more overflows.
_LARGEST_LOGARITHM = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict, with the ratio to what is expected and its interval.

    The ratio is measured / expected, whatever the direction; `measured` is the geometric mean of
    the processes. The interval of a single process ends at infinity. `chance` is how likely a
    figure that lies just at the limit looks as bad as this one. `one_of` is the number of figures
    of which one may look as bad by chance, where that alone keeps this one from failing. `since` is
    the process, counted from 1, from which on all are slow, if those before it are not.
    """

    status: GateStatus
    measured: float
    expected: float
    ratio: float
    interval: tuple[float, float]
    chance: float = 1.0
    one_of: int | None = None
    since: int | None = None

    @property
    def measured_interval(self) -> tuple[float, float]:
        """Return the interval in the unit of the figure."""
        return self.interval[0] * self.expected, self.interval[1] * self.expected


#: A variance of a mean, and the degrees of freedom that it is known with.
_Variance = tuple[float, int]


@dataclass(frozen=True, slots=True)
class _Side:
    """Logarithms of one side: their mean, all of them, and how sure the mean is by its processes.

    `next_session` is how far another session's mean may be from this one by what sessions differ
    by, None where one session alone says nothing of others.
    """

    mean: float
    logs: tuple[float, ...]
    variances: tuple[_Variance, ...]
    next_session: _Variance | None = None


def limit_of(expected: float, tolerance_percent: float, direction: Direction) -> float:
    """Return the worst value that still counts as the expected one."""
    share = tolerance_percent / 100
    return expected * (1 - share if direction is Direction.HIGHER else 1 + share)


def worse_percent(ratio: float, direction: Direction) -> float:
    """Return how much worse than expected a ratio is, in percent; negative if better."""
    change = 100 * (ratio - 1)
    return -change if direction is Direction.HIGHER else change


def slow_since(decision: Decision) -> str:
    """Return from which process on a figure is slow, and whether that is enough to judge it."""
    text = f"slow from process {decision.since} on"
    open_ = decision.status is GateStatus.INCONCLUSIVE and decision.one_of is None
    return f"{text}, and more must show whether for good" if open_ else text


def finite(interval: tuple[float, float]) -> tuple[float, float] | None:
    """Return an interval, None if it has no end."""
    return interval if all(map(math.isfinite, interval)) else None


def decide(
    values: Sequence[float],
    expected: Sequence[float],
    tolerance_percent: float,
    direction: Direction = Direction.HIGHER,
    *,
    sessions: Sequence[int] = (),
) -> Decision:
    """Compare the figures of several processes with an expectation.

    `expected` is one number, taken as exact, or an earlier run's figures, one for each process;
    `sessions` says how many of them are of each session, none that all are of one. Figures are
    positive. A change for the better is a pass, however large.

    Raises:
        ValueError: no figures, or one that is not positive and finite.
    """
    if not values or not expected or not all(0 < x < math.inf for x in (*values, *expected)):
        message = "figures must be positive numbers, and at least one of them"
        raise ValueError(message)
    now = [math.log(value) for value in values]
    before = _expectation([math.log(value) for value in expected], sessions)
    decision = _decided(_one_session(now), before, tolerance_percent, direction)
    if decision.status is not GateStatus.FAIL:
        decision = _slowed_down(now, before, tolerance_percent, direction) or decision
    if len(values) < FEWEST_PROCESSES:
        return replace(decision, status=GateStatus.INCONCLUSIVE, chance=1.0)
    return decision


def decide_between(
    value: float,
    expected: float,
    repeat_factor: float,
    tolerance_percent: float,
    direction: Direction = Direction.HIGHER,
) -> Decision:
    """Compare one run's figure with another's, by how far apart two identical runs may be.

    `repeat_factor` is that, above 1: 19 of 20 pairs of runs are nearer than it to each other.
    """
    reach = math.log(repeat_factor)
    now, before = math.log(value), math.log(expected)
    beyond = _line(tolerance_percent, direction) - _sign(direction) * (now - before)
    chance = 1.0 if beyond <= 0 else 0.0
    if reach > 0:
        chance = 1 - NormalDist().cdf(_OF_95 * beyond / reach)
    return _verdict(now, before, reach, beyond, chance)


def corrected(decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """Return the decisions of one run with the risk of a wrong fail held for all of them (Holm).

    A fail that one of so many figures may be by chance is undecided.
    """
    believed = holm([decision.chance for decision in decisions], RISK)
    return tuple(
        replace(decision, status=GateStatus.INCONCLUSIVE, one_of=len(decisions))
        if decision.status is GateStatus.FAIL and not sure
        else decision
        for decision, sure in zip(decisions, believed, strict=True)
    )


def holm(chances: Sequence[float], risk: float) -> list[bool]:
    """Return which of several findings stand, if any of them may be chance with this risk.

    From the least likely one on each is asked for less; the first that fails ends it (Holm, 1979).
    """
    stands = [False] * len(chances)
    for rank, at in enumerate(sorted(range(len(chances)), key=lambda at: chances[at])):
        if chances[at] > risk / (len(chances) - rank):
            break
        stands[at] = True
    return stands


def split_sessions(values: Sequence[float], sizes: Sequence[int]) -> list[tuple[float, ...]]:
    """Return the values of each session; without sizes they are those of one."""
    rest = iter(values)
    return [tuple(islice(rest, size)) for size in sizes or (len(values),)]


def typical(values: Sequence[float]) -> float:
    """Return the mean logarithm of several processes' figures, without strays."""
    return _one_session([math.log(value) for value in values]).mean


def scatter(values: Sequence[float]) -> float:
    """Return by which share several processes' figures differ, without strays: 0.02 is 2 %."""
    kept = _without_strays([math.log(value) for value in values])
    return _exp(deviation(kept, math.fsum(kept) / len(kept))) - 1


def _without_strays(logs: Sequence[float]) -> list[float]:
    """Return the values without outliers, at most one in five.

    Rosner's test: the farthest value from the mean is taken away, again and again; the last of
    these that is too far from the rest to be one of them makes those before it strays as well.
    """
    kept = list(logs)
    strays = kept
    for _ in range(len(logs) // _LEFT_OUT):
        mean = math.fsum(kept) / len(kept)
        spread = max(deviation(kept, mean), LEAST_NOISE)
        farthest = max(range(len(kept)), key=lambda at: abs(kept[at] - mean))
        apart = abs(kept[farthest] - mean) / spread
        rest = kept[:farthest] + kept[farthest + 1 :]
        if apart > _farthest(len(kept)):
            strays = rest
        kept = rest
    return strays


def _slowed_down(
    now: Sequence[float], before: _Side, tolerance_percent: float, direction: Direction
) -> Decision | None:
    """Return the decision on a device that may have slowed down for good, None if it did not.

    Its last processes are all beyond the limit, and the first of them is a stray as far as it is
    the last. A single one decides nothing.
    """
    line, sign, start = _line(tolerance_percent, direction), _sign(direction), len(now)
    starts: list[int] = []
    while start > 0 and sign * (now[start - 1] - before.mean) < line:
        start -= 1
        until = now[: start + 1]
        is_worst = now[start] == (min(until) if sign > 0 else max(until))
        if is_worst and now[start] not in _without_strays(until):
            starts.insert(0, start)
    for start in starts:
        decision = _decided(_one_session(now[start:]), before, tolerance_percent, direction)
        if decision.status is GateStatus.FAIL:
            return replace(decision, since=start + 1)
    if not starts:
        return None
    decision = _decided(_side(now, now), before, tolerance_percent, direction)
    return replace(decision, status=GateStatus.INCONCLUSIVE, chance=1.0, since=starts[0] + 1)


@lru_cache(maxsize=256)
def _farthest(count: int) -> float:
    """Return how far one of so many normal values may lie from their mean (Grubbs, 1950)."""
    t = student_quantile(_UNLIKELY / (2 * count), count - 2)
    return (count - 1) / math.sqrt(count) * math.sqrt(t * t / (count - 2 + t * t))


def deviation(values: Sequence[float], mean: float) -> float:
    """Return the standard deviation of values with this mean, 0 of a single one."""
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0


def _one_session(logs: Sequence[float]) -> _Side:
    """Return the side of one session's processes, without strays."""
    return _side(logs, _without_strays(logs))


def _side(logs: Sequence[float], kept: Sequence[float]) -> _Side:
    """Return the side of the processes that are kept."""
    mean = math.fsum(kept) / len(kept)
    spread = max(deviation(kept, mean), LEAST_NOISE)
    return _Side(mean, tuple(logs), ((spread * spread / len(kept), len(kept) - 1),))


def _expectation(logs: Sequence[float], sessions: Sequence[int]) -> _Side:
    """Return the expected side: one number, one session, or the mean of several sessions."""
    if len(logs) == 1:
        return _Side(logs[0], tuple(logs), ())
    sides = list(map(_one_session, split_sessions(logs, sessions)))
    count = len(sides)
    if count < 2:
        return sides[0]
    mean = math.fsum(side.mean for side in sides) / count
    variances = [item for side in sides for item in side.variances]
    within = math.fsum(variance for variance, _ in variances) / count
    between = max(0.0, deviation([side.mean for side in sides], mean) ** 2 - within)
    return _Side(
        mean,
        tuple(logs),
        tuple((variance / count**2, freedom) for variance, freedom in variances),
        (between * (1 + 1 / count), count - 1),
    )


def _decided(now: _Side, before: _Side, tolerance_percent: float, direction: Direction) -> Decision:
    """Return the verdict on two sides."""
    sessions = (before.next_session,) if before.next_session is not None else ()
    variance, freedom = _together((*now.variances, *before.variances, *sessions))
    line = _line(tolerance_percent, direction)
    beyond = line - _sign(direction) * (now.mean - before.mean)
    if freedom == 0:
        return _verdict(now.mean, before.mean, math.inf, beyond, 1.0)
    deviation = math.sqrt(variance)
    half = student_quantile(RISK, freedom) * deviation
    tail = student_tail(abs(beyond) / deviation, freedom)
    chance = tail if beyond > 0 else 1 - tail
    decision = _verdict(now.mean, before.mean, half, beyond, chance)
    slow = sum(_sign(direction) * (log - before.mean) < line for log in now.logs)
    if decision.status is GateStatus.FAIL and slow < _MOST * len(now.logs):
        return replace(decision, status=GateStatus.INCONCLUSIVE, chance=1.0)
    return decision


def _together(variances: Sequence[_Variance]) -> _Variance:
    """Return the sum of variances and its degrees of freedom, 0 where one process says nothing.

    Welch's and Satterthwaite's: fewer where one has most of the sum.
    """
    if any(freedom == 0 for _, freedom in variances):
        return math.inf, 0
    total = math.fsum(variance for variance, _ in variances)
    freedom = total**2 / math.fsum(variance**2 / freedom for variance, freedom in variances)
    return total, int(freedom + 1e-9)


def _sign(direction: Direction) -> int:
    """Return 1 where more is better, else -1."""
    return 1 if direction is Direction.HIGHER else -1


def _line(tolerance_percent: float, direction: Direction) -> float:
    """Return the least that a figure's logarithm may lie on the better side of what is expected."""
    return _sign(direction) * math.log(limit_of(1.0, tolerance_percent, direction))


def _verdict(now: float, before: float, half: float, beyond: float, chance: float) -> Decision:
    """Return the verdict on a difference of logarithms that is known to within `half`.

    `beyond` is how far it lies beyond the limit, negative on the good side.
    """
    status = GateStatus.INCONCLUSIVE
    if beyond + half <= 0:
        status = GateStatus.PASS
    elif beyond - half > 0:
        status = GateStatus.FAIL
    difference = now - before
    return Decision(
        status=status,
        measured=_exp(now),
        expected=_exp(before),
        ratio=_exp(difference),
        interval=(
            _exp(difference - half),
            _exp(difference + half) if half < math.inf else math.inf,
        ),
        chance=chance,
    )


def _exp(logarithm: float) -> float:
    """Return the number of a logarithm, the largest there is for what lies beyond that."""
    return math.exp(min(logarithm, _LARGEST_LOGARITHM))
