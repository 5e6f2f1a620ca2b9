"""Whether a figure keeps its limit: the 90 % interval of a log ratio over per-process medians.

Samples of one process are not independent of that process, so each process counts once. The
interval is Welch's (1947) for the difference of two means of logarithms, or Student's where the
expectation is a number without noise. Wholly beyond the tolerance is a fail, wholly within a pass;
in between more processes are needed. Each side is thus wrong in at most 5 % of the cases that lie
exactly on the limit, and hardly ever where they lie clearly on one side (benchmarks/decision.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpucheck.models.gate import Direction, GateStatus

#: Two processes say how far they differ, but hardly how far others would.
FEWEST_PROCESSES = 3
#: Student's t at 0.95 for 1, 2, ... degrees of freedom; from the last on that value, the wider one.
_STUDENT = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771,
    1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706,
    1.703, 1.701, 1.699, 1.697,
)  # fmt: skip
#: Least standard deviation between processes: a few may agree better than this only by chance.
LEAST_NOISE = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict, with the ratio to what is expected and its interval.

    The ratio is measured / expected, whatever the direction; `measured` is the geometric mean of
    the processes.
    """

    status: GateStatus
    measured: float
    expected: float
    ratio: float
    interval: tuple[float, float]

    @property
    def measured_interval(self) -> tuple[float, float]:
        """Return the interval in the unit of the figure."""
        return self.interval[0] * self.expected, self.interval[1] * self.expected


@dataclass(frozen=True, slots=True)
class _Sample:
    """Mean, variance of the mean, and degrees of freedom of logarithms."""

    mean: float
    variance: float
    freedom: int


def limit_of(expected: float, tolerance_percent: float, direction: Direction) -> float:
    """Return the worst value that still counts as the expected one."""
    share = tolerance_percent / 100
    return expected * (1 - share if direction is Direction.HIGHER else 1 + share)


def decide(
    values: Sequence[float],
    expected: Sequence[float],
    tolerance_percent: float,
    direction: Direction = Direction.HIGHER,
) -> Decision:
    """Hold the figures of several processes against an expectation.

    `expected` is one number, taken as exact, or an earlier run's figures, one for each process.
    Figures are positive. A change for the better is a pass, however large.

    Raises:
        ValueError: no figures, or one that is not positive and finite.
    """
    if not values or not expected or not all(0 < x < math.inf for x in (*values, *expected)):
        message = "figures must be positive numbers, and at least one of them"
        raise ValueError(message)
    now = _summary(values)
    before = _summary(expected) if len(expected) > 1 else _Sample(math.log(expected[0]), 0.0, 0)
    found = _decided(now.mean, before.mean, _half_width(now, before), tolerance_percent, direction)
    if len(values) < FEWEST_PROCESSES:
        return replace(found, status=GateStatus.INCONCLUSIVE)
    return found


def decide_between(
    value: float,
    expected: float,
    repeat_factor: float,
    tolerance_percent: float,
    direction: Direction = Direction.HIGHER,
) -> Decision:
    """Hold one run's figure against another's, by how far two runs of the same may be apart.

    `repeat_factor` is that, above 1: 19 of 20 pairs of runs are nearer than it to each other.
    """
    reach = math.log(repeat_factor)
    return _decided(math.log(value), math.log(expected), reach, tolerance_percent, direction)


def _decided(
    now: float, before: float, half: float, tolerance_percent: float, direction: Direction
) -> Decision:
    """Return the verdict on the difference of two logarithms that is known to within `half`."""
    low, high = now - before - half, now - before + half
    line = math.log(limit_of(1.0, tolerance_percent, direction))
    good, bad = (low, high)
    if direction is Direction.LOWER:
        good, bad, line = -high, -low, -line
    status = GateStatus.INCONCLUSIVE
    if good >= line:
        status = GateStatus.PASS
    elif bad < line:
        status = GateStatus.FAIL
    return Decision(
        status=status,
        measured=math.exp(now),
        expected=math.exp(before),
        ratio=math.exp(now - before),
        interval=(math.exp(low), math.exp(high)),
    )


def _summary(values: Sequence[float]) -> _Sample:
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    freedom = len(logs) - 1
    spread = math.fsum((one - mean) ** 2 for one in logs) / freedom if freedom else 0.0
    return _Sample(mean, max(spread, LEAST_NOISE**2) / len(logs), freedom)


def _half_width(one: _Sample, other: _Sample) -> float:
    """Return half the 90 % interval; infinite where one process says nothing of its noise."""
    variance = one.variance + other.variance
    parts = [part for part in (one, other) if part.variance > 0]
    if any(part.freedom == 0 for part in parts):
        return math.inf
    # Welch and Satterthwaite: fewer degrees of freedom where one side has most of the variance.
    freedom = variance**2 / sum(part.variance**2 / part.freedom for part in parts)
    return _STUDENT[min(int(freedom + 1e-9), len(_STUDENT)) - 1] * math.sqrt(variance)
