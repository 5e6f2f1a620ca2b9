"""GPUs held against each other: the straggler, and the spread from the slowest to the fastest.

A GPU is a straggler if it lies below the median of the others by more than the tolerance; the mean
would follow the straggler, and the deviation of eight values is too noisy to judge by. Of two GPUs
nobody can say which is off: the pair is named. One alone can only be held against a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpucheck.core.bench import stats
from gpucheck.core.bench.gates.causes import cause_of, doubt_of, environment_of
from gpucheck.core.bench.gates.decision import Decision, decide, limit_of
from gpucheck.core.bench.gates.facts import Facts
from gpucheck.core.bench.gates.figures import Figures
from gpucheck.models.gate import Direction, Gate, GateClass, GateStatus
from gpucheck.models.profile import Check, Target


def company_gates(facts: Facts) -> Iterator[Gate]:
    """Yield the gates that compare GPUs, for every check that each of them has figures of."""
    demands = facts.profile.stability
    for check in facts.profile.checks:
        if check.target is Target.CPU:
            continue
        found = {name: one for name, one in facts.figures(check).items() if one.values}
        if len(found) < 2:
            continue
        if demands.straggler_percent is not None:
            for device in found:
                yield _straggler(facts, check, device, found, demands.straggler_percent)
        if demands.spread_percent is not None:
            yield _spread(facts, check, found, demands.spread_percent)


def _straggler(
    facts: Facts, check: Check, device: str, found: Mapping[str, Figures], tolerance: float
) -> Gate:
    own = found[device]
    others = [one for name, one in found.items() if name != device]
    usual = medians_of(others)
    decision = decide(own.values, usual, tolerance, check.direction)
    gate = _gate(facts, check, f"{check.id}-straggler", decision, tolerance, own)
    if gate.status is GateStatus.PASS:
        return gate
    what = "the median of the others" if len(others) > 1 else f"{others[0].device}, its only peer"
    change = 100 * (decision.ratio - 1)
    text = f"{abs(change):.1f} % {'below' if change < 0 else 'above'} {what}"
    if len(others) == 1:
        text += ": which of the two is off cannot be told"
    return _explained(gate, text, own, others)


def medians_of(others: list[Figures]) -> tuple[float, ...]:
    """Return the median of the others in each repeat, as far as all of them have one."""
    least = min(len(one.values) for one in others)
    return tuple(stats.median([one.values[at] for one in others]) for at in range(least))


def _spread(facts: Facts, check: Check, found: Mapping[str, Figures], tolerance: float) -> Gate:
    """Return how far the slowest lies from the fastest: who work together wait for the slowest."""
    ordered = sorted(found.values(), key=lambda one: stats.median(one.values))
    if check.direction is Direction.LOWER:
        ordered.reverse()
    slowest, fastest = ordered[0], ordered[-1]
    decision = decide(slowest.values, fastest.values, tolerance, check.direction)
    gate = _gate(facts, check, f"{check.id}-spread", decision, tolerance, slowest)
    gate = replace(gate, device="node", gpu_uuid=None)
    if gate.status is GateStatus.PASS:
        return gate
    change = abs(100 * (decision.ratio - 1))
    text = f"{slowest.device} is {change:.1f} % slower than {fastest.device}"
    return _explained(gate, text, slowest, [one for one in ordered if one is not slowest])


def _gate(
    facts: Facts, check: Check, name: str, decision: Decision, tolerance: float, own: Figures
) -> Gate:
    return Gate(
        id=name,
        device=own.device,
        gpu_uuid=own.gpu_uuid or facts.uuid_of(own.device),
        status=decision.status,
        direction=check.direction,
        unit=check.unit,
        severity=check.severity,
        measured=decision.measured,
        limit=limit_of(decision.expected, tolerance, check.direction),
        interval=decision.measured_interval,
        values=own.values,
    )


def _explained(gate: Gate, text: str, own: Figures, others: list[Figures]) -> Gate:
    if gate.status is GateStatus.INCONCLUSIVE:
        cause = doubt_of(own)
    else:
        cause = cause_of(own, gate.limit or 0.0, others)
        if cause.class_ is GateClass.ENVIRONMENT and environment_of(own) is not None:
            gate = replace(gate, status=GateStatus.INCONCLUSIVE)
    return replace(
        gate,
        class_=cause.class_,
        reason=f"{text}; {cause.sentence}",
        evidence=cause.evidence,
        next=cause.next,
    )
