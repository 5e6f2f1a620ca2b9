"""Peer comparison of GPUs: stragglers, and the spread from the slowest to the fastest.

A GPU is a straggler if it is below the median of the others by more than the tolerance; the mean
would follow the straggler. Healthy GPUs of one kind differ too: usually by 8 % from the slowest to
the fastest of a cluster, and by 22 % at most (Sinha et al., SC22, arXiv:2208.11035). So one fails
only if it is outside the range of the others (Student's prediction for one more of them, over all
GPUs and checks by Holm), or further off than any healthy one; otherwise it is a warning. It counts
once, with its worst check. Of two GPUs it is unknown which is off, so both are named. A single GPU
can only be compared with a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpucheck.bench import stats
from gpucheck.bench.ci.decision import (
    Decision,
    decide,
    deviation,
    finite,
    holm,
    limit_of,
    student_tail,
    typical,
    worse_percent,
)
from gpucheck.bench.ci.diagnosis import ruled, ruling
from gpucheck.bench.ci.profile_model import Aggregate, Check, Target
from gpucheck.bench.ci.run_data import MetricValues, RunData
from gpucheck.bench.model import Direction, Gate, GateStatus, Severity

#: Chance that any GPU of a healthy node is taken for a straggler that fails.
_RISK = 0.005
#: Least difference assumed between healthy GPUs: a few may agree better only by chance.
_LEAST_SCATTER = 0.005
#: No healthy GPU was ever seen so far below the others, in percent.
_NEVER_HEALTHY_PERCENT = 25.0

_Group = Mapping[str, MetricValues]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """One GPU compared with the others in one check.

    `chance` is how likely one more GPU like the others would lie as far below them.
    """

    check: Check
    own: MetricValues
    others: Sequence[MetricValues]
    decision: Decision
    chance: float

    @property
    def below_percent(self) -> float:
        """Return how much worse than the median of the others it is."""
        return worse_percent(self.decision.ratio, self.check.direction)


def peer_gates(data: RunData) -> Iterator[Gate]:
    """Yield the gates that compare GPUs: one for each GPU, and the spread of each check."""
    demands = data.profile.stability
    groups = _compared_checks(data)
    if demands.straggler_percent is not None:
        yield from _stragglers(data, groups, demands.straggler_percent)
    if demands.spread_percent is not None:
        for check, found in groups:
            yield _spread(check, found, demands.spread_percent)


def _compared_checks(data: RunData) -> list[tuple[Check, _Group]]:
    """Return the checks that several GPUs have figures for, except repeats of another check."""
    found: list[tuple[Check, _Group]] = []
    for check in data.profile.checks:
        if check.target is Target.CPU or check.per is Aggregate.NODE:
            continue
        group = {name: one for name, one in data.figures(check).items() if one.values}
        if len(group) > 1:
            found.append((check, group))
    return found


def _stragglers(
    data: RunData, groups: Sequence[tuple[Check, _Group]], tolerance: float
) -> Iterator[Gate]:
    """Yield for each GPU whether it lags behind the others in any check."""
    held: dict[str, list[_Held]] = {}
    for check, group in groups:
        for device in group:
            held.setdefault(device, []).append(_held(check, device, group, tolerance))
    # Each GPU is one hypothesis, however many checks it takes part in.
    least = [len(ones) * min(one.chance for one in ones) for ones in held.values()]
    for (device, ones), outside in zip(held.items(), holm(least, _RISK), strict=True):
        # Holm decides on the least likely check; Bonferroni holds for the others.
        most = max(min(one.chance for one in ones), _RISK / len(held) / len(ones))
        failing = [
            one
            for one in ones
            if one.decision.status is GateStatus.FAIL
            and ((outside and one.chance <= most) or _is_far_below(one))
        ]
        worst = max(failing or ones, key=lambda one: one.below_percent)
        yield _straggler(data, device, worst, ones, tolerance, fails=bool(failing))


def _held(check: Check, device: str, group: _Group, tolerance: float) -> _Held:
    own = group[device]
    others = [one for name, one in group.items() if name != device]
    decision = decide(own.values, _medians_of(others), tolerance, check.direction)
    return _Held(
        check=check,
        own=own,
        others=others,
        decision=decision,
        chance=_chance(own, others, check.direction),
    )


def _is_far_below(held: _Held) -> bool:
    """Return whether a GPU is further below the others than any healthy one was."""
    others = _medians_of(held.others)
    far = decide(held.own.values, others, _NEVER_HEALTHY_PERCENT, held.check.direction)
    return far.status is GateStatus.FAIL


def _medians_of(others: Sequence[MetricValues]) -> tuple[float, ...]:
    """Return the median of the others in each repeat, as far as all of them have one."""
    least = min(len(one.values) for one in others)
    return tuple(stats.median([one.values[at] for one in others]) for at in range(least))


def _chance(own: MetricValues, others: Sequence[MetricValues], direction: Direction) -> float:
    """Return how likely one more GPU like the others is so far on the bad side of their median.

    It takes two others to know how much GPUs differ. The variance of a median is pi / 2 times that
    of a mean.
    """
    if len(others) < 2:
        return 1.0
    logs = [typical(one.values) for one in others]
    mean = math.fsum(logs) / len(logs)
    below = stats.median(logs) - typical(own.values)
    if direction is Direction.LOWER:
        below = -below
    if below <= 0:
        return 1.0
    scatter = max(deviation(logs, mean), _LEAST_SCATTER)
    return student_tail(below / (scatter * math.sqrt(1 + math.pi / 2 / len(logs))), len(logs) - 1)


def _straggler(
    data: RunData,
    device: str,
    worst: _Held,
    ones: Sequence[_Held],
    tolerance: float,
    *,
    fails: bool,
) -> Gate:
    decision = worst.decision
    low, high = sorted(worse_percent(end, worst.check.direction) for end in decision.interval)
    gate = Gate(
        id="straggler",
        device=device,
        gpu_uuid=worst.own.gpu_uuid or data.uuid_of(device),
        status=GateStatus.PASS,
        direction=Direction.LOWER,
        unit="%",
        measured=worst.below_percent,
        limit=tolerance,
        interval=finite((low, high)),
    )
    if worst.below_percent <= tolerance:
        blurred = next((one for one in ones if _is_blurred(one, tolerance)), None)
        if blurred is None:
            return gate
        text = f"the noise in {blurred.check.id} hides a difference of {tolerance:g} %"
        found = ruling(GateStatus.INCONCLUSIVE, blurred.own, 0.0)
        return ruled(gate, f"{text}; {found.diagnosis.sentence}", found)
    limit = limit_of(decision.expected, tolerance, worst.check.direction)
    found = ruling(GateStatus.FAIL, worst.own, limit, worst.others)
    text = _text(worst, ones, tolerance)
    if not fails:
        gate = replace(gate, severity=Severity.WARN)
        text += ", but healthy GPUs can differ by as much"
    return ruled(gate, f"{text}; {found.diagnosis.sentence}", found)


def _is_blurred(held: _Held, tolerance: float) -> bool:
    """Return whether the noise is too large to see a GPU that lags by twice the tolerance."""
    low, high = held.decision.interval
    return not high < low * (1 - tolerance / 100) ** -2


def _text(worst: _Held, ones: Sequence[_Held], tolerance: float) -> str:
    """Return how far behind the others a GPU is, and in which checks."""
    what = "the median of the others"
    if len(worst.others) == 1:
        what = f"{worst.others[0].device}, its only peer"
    text = f"{worst.below_percent:.1f} % worse than {what} in {worst.check.id}"
    more = [one for one in ones if one is not worst and one.below_percent > tolerance]
    if more:
        text += f" ({', '.join(f'{one.below_percent:.1f} % in {one.check.id}' for one in more)})"
    if len(worst.others) == 1:
        text += ": it is unknown which of the two is off"
    return text


def _spread(check: Check, found: _Group, tolerance: float) -> Gate:
    """Return how far the slowest lies from the fastest, as a warning.

    Who work together wait for the slowest; yet no single GPU need be at fault.
    """
    ordered = sorted(found.values(), key=lambda one: stats.median(one.values))
    if check.direction is Direction.LOWER:
        ordered.reverse()
    slowest, fastest = ordered[0], ordered[-1]
    decision = decide(slowest.values, fastest.values, tolerance, check.direction)
    gate = Gate(
        id=f"{check.id}-spread",
        device="node",
        status=decision.status,
        direction=check.direction,
        unit=check.unit,
        severity=Severity.WARN,
        measured=decision.measured,
        limit=limit_of(decision.expected, tolerance, check.direction),
        interval=finite(decision.measured_interval),
        values=slowest.values,
    )
    if gate.status is GateStatus.PASS:
        return gate
    change = abs(100 * (decision.ratio - 1))
    text = f"{slowest.device} is {change:.1f} % slower than {fastest.device}"
    others = [one for one in ordered if one is not slowest]
    decided = ruling(gate.status, slowest, gate.limit or 0.0, others)
    gate = ruled(gate, f"{text}; {decided.diagnosis.sentence}", decided)
    # No more processes are started for the sake of a warning.
    return replace(gate, repeat_helps=False)
