"""Gates of a run: those of a profile's checks, those that hold GPUs against each other, and all.

Everything here is computed from what the processes returned; nothing is measured or read.

A GPU is a straggler if it is below the median of the others by more than the tolerance, and by more
than healthy GPUs differ; the mean would follow the straggler. How much they differ is known from
the profile (usually 8 % from the slowest to the fastest of a cluster; Sinha et al., SC22,
arXiv:2208.11035) and from the others: Student's test takes both together (Smyth, 2004). It is made
in the mean of all checks, which shows a slow GPU best, and in each check. Of two GPUs it is unknown
which is off, so both are named. A single GPU can only be compared with a number.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean
from typing import Any

from gpucheck.bench import stats
from gpucheck.bench.ci.baseline import (
    advice_on,
    counterpart_of,
    fingerprints_of,
    not_allowed,
    profile_key,
    renewal,
)
from gpucheck.bench.ci.decision import (
    FEWEST_PROCESSES,
    Decision,
    corrected,
    decide,
    deviation,
    finite,
    limit_of,
    slow_since,
    typical,
    worse_percent,
)
from gpucheck.bench.ci.diagnosis import (
    FURTHER_SESSIONS,
    class_of_failure,
    decisive,
    diagnose,
    explained,
    leaves_open,
    ruling,
)
from gpucheck.bench.ci.limits import expected_of, is_computed, number, why_no_peak
from gpucheck.bench.ci.machine_gates import (
    inventory_gates,
    match_gates,
    result_gates,
    stability_gates,
)
from gpucheck.bench.ci.model import SavedDevice, Series
from gpucheck.bench.ci.profile_model import Aggregate, Check, MissingPolicy, Target
from gpucheck.bench.ci.profiles import option_of
from gpucheck.bench.ci.run_data import MetricValues, RunData
from gpucheck.bench.ci.verdicts import PLAIN_UNITS
from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.model import Direction, Gate, GateClass, GateStatus, Severity, shared_fields
from gpucheck.report.text import count_of, group_by, rate


def judge_machine(data: RunData) -> tuple[Gate, ...]:
    """Return the gates that need no measurement: whether the profile is for this machine."""
    return data.identify(match_gates(data))


def judge(data: RunData) -> tuple[Gate, ...]:
    """Return all gates of a run, in the order of the profile."""
    parts = (match_gates, result_gates, check_gates, peer_gates, inventory_gates, stability_gates)
    return data.identify(gate for part in parts for gate in part(data))


def settled(gates: Sequence[Gate]) -> bool:
    """Return whether more processes would change nothing."""
    return not any(gate.repeat_helps for gate in gates)


def series_of(data: RunData) -> tuple[Series, ...]:
    """Return every check's figures, as they are saved for the next run."""
    return tuple(
        Series(
            **shared_fields(check, Series),
            device=device,
            gpu_uuid=figures.gpu_uuid or data.uuid_of(device),
            values=figures.values,
            doubts=figures.doubts,
        )
        for check in data.profile.checks
        for device, figures in data.figures(check).items()
        if figures.values
    )


#: A saved device, how it differs from the one of this run, and its series.
_Counterpart = tuple[SavedDevice | None, dict[str, str], list[Series]]

#: The order in which the statuses of its devices decide a node's.
_WORST_FIRST = (GateStatus.FAIL, GateStatus.INCONCLUSIVE, GateStatus.PASS, GateStatus.SKIP)


def check_gates(data: RunData) -> Iterator[Gate]:
    """Yield the gates of every check; the risk of a wrong fail is that of all of them together."""
    judging = []
    counterparts: dict[str, _Counterpart] = {}
    if data.reference is not None:
        marks = fingerprints_of(data.runs, profile_key(data.profile))
        counterparts = {
            device: counterpart_of(data.reference.run, device, mark)
            for device, mark in marks.items()
        }
    for check in data.profile.checks:
        values = data.figures(check)
        for device, figures in values.items():
            peers = [other for name, other in values.items() if name != device]
            judging.append(_Judging(check, figures, data, peers, counterparts.get(device)))
    outcomes = [judged.outcome() for judged in judging]
    # Checks that only warn take no share of the risk.
    family = {
        at: outcome
        for at, outcome in enumerate(outcomes)
        if isinstance(outcome, Decision) and judging[at].check.severity is Severity.ERROR
    }
    held = dict(zip(family, corrected(list(family.values())), strict=True))
    by_check: dict[str, list[Gate]] = {}
    for at, (judged, outcome) in enumerate(zip(judging, outcomes, strict=True)):
        by_check.setdefault(judged.check.id, []).append(judged.gate(held.get(at, outcome)))
    for check in data.profile.checks:
        gates = by_check.get(check.id, [])
        yield from [_slowest(gates)] if check.per is Aggregate.NODE and gates else gates


def _slowest(gates: Sequence[Gate]) -> Gate:
    """Return the gate of the slowest device as the node's, since joint work waits for it."""

    def rank(gate: Gate) -> tuple[int, float]:
        measured = gate.measured if gate.measured is not None else math.inf
        return (
            _WORST_FIRST.index(gate.status),
            measured if gate.direction is Direction.HIGHER else -measured,
        )

    worst = min(gates, key=rank)
    reason = f"{worst.device} is the slowest" + (f": {worst.reason}" if worst.reason else "")
    return replace(worst, device="node", reason=reason)


class _Judging:
    """One check on one device, and the device of the saved run that it is compared with."""

    def __init__(
        self,
        check: Check,
        figures: MetricValues,
        data: RunData,
        peers: Sequence[MetricValues],
        counterpart: _Counterpart | None,
    ) -> None:
        self.check = check
        self._figures = figures
        self._data = data
        self._peers = peers
        self._counterpart = counterpart
        #: Whether the figure is compared with a run of one session.
        self._is_of_one_session = False

    def outcome(self) -> Decision | Gate:
        """Return the decision on the figure, or the gate of a device without one."""
        check, figures = self.check, self._figures
        sessions: tuple[int, ...] = ()
        if not figures.values:
            return self._missing()
        if check.baseline:
            decision = self._from_baseline()
            if isinstance(decision, Gate):
                return decision
            expected, sessions = decision.values, decision.sessions
            self._is_of_one_session = len(sessions) < 2
        else:
            board = figures.gpu.board if figures.gpu is not None else None
            number_expected = expected_of(check, board)
            if number_expected is None:
                name = board.name if board is not None else figures.device
                why = why_no_peak(check, figures.gpu)
                why = why or "its peak, or the share to expect, is unknown"
                reason = f"nothing is expected of {name}: {why}"
                return self._plain(GateStatus.SKIP, reason=reason)
            expected = (number_expected,)
        return decide(
            figures.values, expected, check.tolerance_percent, check.direction, sessions=sessions
        )

    def gate(self, decision: Decision | Gate) -> Gate:
        """Return the verdict on an outcome."""
        if isinstance(decision, Gate):
            return decision
        check, status = self.check, decision.status
        limit = limit_of(decision.expected, check.tolerance_percent, check.direction)
        gate = self._plain(
            status,
            measured=decision.measured,
            limit=limit,
            expected=decision.expected,
            tolerance_percent=check.tolerance_percent,
            interval=finite(decision.measured_interval),
        )
        if status is GateStatus.PASS:
            return self._passed(gate, decision)
        shortfall = _shortfall(decision, check.unit)
        if decision.since is not None:
            shortfall += f", {slow_since(decision)}"
        if decision.one_of is not None:
            shortfall += f", but one of {decision.one_of} figures may miss its limit by chance"
        elif status is GateStatus.INCONCLUSIVE and not decision.since and gate.interval:
            count = len(self._figures.values)
            shortfall += (
                f", from only {count_of(count, 'process')}"
                if count < FEWEST_PROCESSES
                else ", an interval that includes the limit"
            )
        judged = self._figures
        if status is GateStatus.FAIL:
            judged = judged.since(decision.since)
        diagnosis = ruling(status, judged, limit, self._peers)
        board = self._figures.gpu.board if self._figures.gpu is not None else None
        if diagnosis.status is GateStatus.FAIL and is_computed(check, board):
            diagnosis = replace(diagnose("computed-peak"), status=GateStatus.INCONCLUSIVE)
        gate = explained(gate, diagnosis, f"{shortfall}: ")
        if gate.status is GateStatus.FAIL and self._is_of_one_session:
            return replace(gate, next=(*gate.next, FURTHER_SESSIONS))
        return gate

    def _passed(self, gate: Gate, decision: Decision) -> Gate:
        check, worse = self.check, worse_percent(decision.ratio, self.check.direction)
        if check.warn_percent is not None and worse > check.warn_percent:
            reason = (
                f"{worse:.1f} % worse than expected; the warning level is {check.warn_percent:g} %"
            )
            return replace(gate, warning=True, reason=reason)
        # The whole interval must be better by more than the tolerance.
        least = max(worse_percent(end, check.direction) for end in decision.interval)
        if check.baseline and least < -check.tolerance_percent:
            return replace(gate, reason=f"{-worse:.1f} % better than the baseline: save a new one")
        return gate

    def _missing(self) -> Gate:
        """Return the gate of a device without a figure, with the reason."""
        check, figures = self.check, self._figures
        if figures.gpu is not None:
            refusal = KERNELS[check.kernel].gpu_refusal(check.dtype, figures.gpu)
            if refusal is not None:
                return self._unjudged(check.on_unsupported, refusal, GateClass.CONFIG, ())
        if not figures.failures:
            made_by = (check.variant, check.framework, check.form)
            work = " ".join(filter(None, (check.kernel, check.dtype, *made_by)))
            reason = f"no process measured {work} on {figures.device}"
            steps = (
                "run it again with -v and look at the rows",
                "gpucheck profile explain shows the checks",
            )
            return self._unjudged(check.on_missing, reason, GateClass.SOFTWARE, steps)
        first = decisive(figures.failures)
        gate = self._unjudged(
            check.on_missing, first.message, class_of_failure(first), first.remedy
        )
        if gate.status is GateStatus.FAIL and leaves_open(first):
            return replace(gate, status=GateStatus.INCONCLUSIVE)
        return gate

    def _unjudged(
        self, policy: MissingPolicy, reason: str, class_: GateClass, steps: tuple[str, ...]
    ) -> Gate:
        """Return the gate of a missing figure; a skipped one has no cause."""
        gate = self._plain(GateStatus(policy.value), reason=reason)
        return gate if gate.status is GateStatus.SKIP else replace(gate, class_=class_, next=steps)

    def _from_baseline(self) -> Series | Gate:
        """Return an earlier run's figures, or the gate that says why there are none."""
        check, device, reference = self.check, self._figures.device, self._data.reference
        middle, profile = math.exp(typical(self._figures.values)), option_of(self._data.profile)
        if reference is None or self._counterpart is None:
            reason = "there is no baseline to compare it with"
            how = "with" if profile is None else f"with --profile {shlex.quote(profile)}"
            steps = (f"save a run {how} --save FILE, then pass it with --baseline FILE",)
            return self._plain(GateStatus.SKIP, reason=reason, measured=middle, next=steps)
        counterpart, differing, old = self._counterpart
        differences = not_allowed(differing, reference.allowed)
        if counterpart is None:
            differences = (f"{device} is not in it",)
        if differences:
            return self._plain(
                GateStatus.INCONCLUSIVE,
                reason=f"the baseline does not match: {'; '.join(differences)}",
                measured=middle,
                class_=GateClass.CONFIG,
                next=(advice_on(differences, profile),),
            )
        saved = [item for item in old if item.id == check.id]
        renew = (renewal(profile),)
        if not saved or saved[0].unit != check.unit:
            reason = f"the baseline {reference.path} has no figure for this check in {check.unit}"
            return self._unjudged(check.on_missing, reason, GateClass.CONFIG, renew)
        if saved[0].disturbed is not None:
            return self._plain(
                GateStatus.INCONCLUSIVE,
                reason=f"the baseline was disturbed: {saved[0].disturbed}",
                measured=middle,
                class_=GateClass.ENVIRONMENT,
                next=renew,
            )
        return saved[0]

    def _plain(self, status: GateStatus, **more: Any) -> Gate:
        """Return a gate with what is known of every figure, and these fields."""
        check, figures = self.check, self._figures
        return Gate(
            id=check.id,
            device=figures.device,
            gpu_uuid=figures.gpu_uuid or self._data.uuid_of(figures.device),
            status=status,
            direction=check.direction,
            unit=check.unit,
            severity=check.severity,
            values=figures.values,
            **more,
        )


def _shortfall(decision: Decision, unit: str) -> str:
    """Return how far a figure is from what is expected, with the interval."""
    change = 100 * (decision.ratio - 1)
    low, high = (100 * (bound - 1) for bound in decision.interval)
    side = "below" if change < 0 else "above"
    expected = f"{number(decision.expected)} {unit}".rstrip()
    if unit in PLAIN_UNITS:  # as the figure beside it is shown
        expected = rate(decision.expected, unit)
    against = f"{abs(change):.1f} % {side} {expected}"
    if not math.isfinite(low) or not math.isfinite(high):
        return f"{against}, and one process gives no interval"
    return f"{against} ({low:+.1f} to {high:+.1f} %)"


# ------------------------------------------------------------------------------ stragglers

#: Chances that a healthy node has a GPU so far below the others that it is warned about, or fails.
_WARNING_RISK, _FAILING_RISK = 1 / 25, 1 / 100
#: Degrees of freedom that the expected spread counts for, beside those of the node's own.
_PRIOR_FREEDOM = 12
#: The node's own spread counts as at most so many times the expected: stragglers widen it.
_MOST_SPREAD = 3.0
#: Of two GPUs neither was ever seen so far below the other while both were healthy, in percent.
_NEVER_HEALTHY_PERCENT = 25.0

_Group = Sequence[MetricValues]


@dataclass(frozen=True, slots=True)
class _Held:
    """One GPU's speeds compared with the others', in one check or in the mean of all.

    Few healthy ones are more than `limit_percent` below the others; hardly any would fail.
    """

    where: str
    own: MetricValues
    others: _Group
    decision: Decision
    below_percent: float
    limit_percent: float
    fails: bool


def peer_gates(data: RunData) -> Iterator[Gate]:
    """Yield the gates that compare GPUs: one for each GPU, and the spread of each check."""
    demands, checks = data.profile.stability, data.profile.checks
    groups = [
        (check, group)
        for check in checks
        if check.target is not Target.CPU and check.per is not Aggregate.NODE
        if len(group := [item for item in data.figures(check).values() if item.values]) > 1
    ]
    if demands.straggler_percent is not None:
        tolerance, spread = demands.straggler_percent, demands.healthy_spread_percent / 100
        speeds = {check.id: _speeds(group, check.direction) for check, group in groups}
        held = [*_held(speeds, tolerance, spread), *_held(_mean_of(speeds), tolerance, spread)]
        for compared in group_by(held, lambda item: item.own.device).values():
            yield _straggler(compared, tolerance)
    if demands.spread_percent is not None:
        for check, group in groups:
            yield _spread(check, group, demands.spread_percent)


def _speeds(group: _Group, direction: Direction) -> _Group:
    """Return figures of which more is better."""
    if direction is Direction.HIGHER:
        return group
    return [replace(item, values=tuple(1 / value for value in item.values)) for item in group]


def _mean_of(checks: Mapping[str, _Group]) -> Mapping[str, _Group]:
    """Return the geometric mean of several checks, on the GPUs that have figures for all."""
    means: list[MetricValues] = []
    figures = [item for group in checks.values() for item in group]
    for own in group_by(figures, lambda item: item.device).values():
        if len(own) == len(checks) > 1:
            values = map(geometric_mean, zip(*(item.values for item in own), strict=False))
            doubts = tuple(doubt for item in own for doubt in item.doubts)
            means.append(replace(own[0], values=tuple(values), doubts=doubts))
    return {f"the mean of {len(checks)} checks": means} if len(means) > 1 else {}


def _held(checks: Mapping[str, _Group], tolerance: float, spread: float) -> Iterator[_Held]:
    """Yield each GPU compared with the others in each of these checks."""
    logs = [{item.device: typical(item.values) for item in group} for group in checks.values()]
    # All checks together have only a part of the risk that their mean has.
    tests = sum(map(len, logs)) * len(checks)
    for where, group in checks.items():
        for own in group:
            others = [item for item in group if item is not own]
            apart = [
                [log for device, log in speeds.items() if device != own.device]
                for speeds in logs
                if own.device in speeds
            ]
            # In each repeat, as far as all of them have one.
            medians = [*map(stats.median, zip(*(item.values for item in others), strict=False))]
            decision = decide(own.values, medians, tolerance)
            # By all processes, even where the last ones decide whether it got slower.
            below = 100 * (1 - math.exp(typical(own.values) - typical(medians)))
            limit, failing = _healthy_percents(apart, len(others), spread, tests)
            fails = decision.status is GateStatus.FAIL and below > failing
            yield _Held(where, own, others, decision, below, max(tolerance, limit), fails)


def _healthy_percents(
    others: Sequence[Sequence[float]], count: int, spread: float, tests: int
) -> tuple[float, ...]:
    """Return how far below `count` others a healthy GPU is seldom, and hardly ever, in percent.

    `others` are their logarithms in each check. A GPU may be the same in all, so the variance over
    all checks is taken to be known no better than that in one.
    """
    if count < 2:
        return 0.0, _NEVER_HEALTHY_PERCENT
    known = [(_PRIOR_FREEDOM, spread)] + [
        (len(logs) - 1, min(deviation(logs, fmean(logs)), _MOST_SPREAD * spread)) for logs in others
    ]
    variance = sum(free * own**2 for free, own in known) / sum(free for free, _ in known)
    # The variance of a median is nearly pi / (2 n + pi - 2) times that of one value.
    scatter = math.sqrt(variance * (1 + math.pi / (2 * count + math.pi - 2)))
    limits = (
        scatter * stats.student_quantile(risk / tests, _PRIOR_FREEDOM + count - 1)
        for risk in (_WARNING_RISK, _FAILING_RISK)
    )
    return tuple(-100 * math.expm1(-limit) for limit in limits)


def _straggler(held: Sequence[_Held], tolerance: float) -> Gate:
    """Return whether a GPU lags behind the others, in the mean of all checks or in one."""
    worst = max(held, key=lambda item: (item.fails, item.below_percent - item.limit_percent))
    low, high = worst.decision.interval
    gate = Gate(
        id="straggler",
        device=worst.own.device,
        gpu_uuid=worst.own.gpu_uuid,
        status=GateStatus.PASS,
        direction=Direction.LOWER,
        unit="%",
        measured=worst.below_percent,
        limit=worst.limit_percent if worst.below_percent > tolerance else tolerance,
        interval=finite((100 * (1 - high), 100 * (1 - low))) if not worst.decision.since else None,
    )
    text = _text(worst, held, tolerance)
    if worst.below_percent > worst.limit_percent:
        limit = limit_of(worst.decision.expected, tolerance, Direction.HIGHER)
        diagnosis = ruling(GateStatus.FAIL, worst.own, limit, worst.others)
        gate = replace(gate, severity=Severity.ERROR if worst.fails else Severity.WARN)
        return explained(gate, diagnosis, f"{text}; ")
    blurred = next((item for item in held if _is_blurred(item.decision, tolerance)), None)
    if blurred is not None:
        text = f"the noise in {blurred.where} hides a difference of {tolerance:g} %"
        diagnosis = ruling(GateStatus.INCONCLUSIVE, blurred.own, 0.0)
        return explained(gate, diagnosis, f"{text}; ")
    return replace(gate, reason=text) if worst.below_percent > tolerance else gate


def _is_blurred(decision: Decision, tolerance: float) -> bool:
    """Return whether the noise is too large to see a GPU that lags by twice the tolerance."""
    low, high = decision.interval
    return not high < low * (1 - tolerance / 100) ** -2


def _text(worst: _Held, held: Sequence[_Held], tolerance: float) -> str:
    """Return how far behind the others a GPU is, in which checks, and how rare that is."""
    reference = "the median of the others"
    rare = "fewer" if worst.below_percent > worst.limit_percent else "more"
    nodes = 1 / (_FAILING_RISK if worst.fails else _WARNING_RISK)
    meaning = f"{rare} than 1 in {nodes:.0f} healthy nodes have such a GPU"
    if len(worst.others) == 1:
        reference = f"{worst.others[0].device}, its only peer"
        meaning = "it is unknown which of the two is off"
    more = [item for item in held if item is not worst and item.below_percent > tolerance]
    listed = ", ".join(f"{item.below_percent:.1f} % in {item.where}" for item in more)
    text = f"{worst.below_percent:.1f} % worse than {reference} in {worst.where}"
    return f"{text} ({listed}): {meaning}" if more else f"{text}: {meaning}"


def _spread(check: Check, group: _Group, tolerance: float) -> Gate:
    """Return how far the slowest lies from the fastest, as a warning.

    Who work together wait for the slowest; yet no single GPU need be at fault.
    """
    by_median = sorted(group, key=lambda item: stats.median(item.values))
    ordered = by_median if check.direction is Direction.HIGHER else by_median[::-1]
    slowest, fastest, others = ordered[0], ordered[-1], ordered[1:]
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
    decided = ruling(gate.status, slowest, gate.limit or 0.0, others)
    gate = explained(gate, decided, f"{text}; ")
    # No more processes are started for the sake of a warning.
    return replace(gate, repeat_helps=False)
