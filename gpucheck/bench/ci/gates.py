"""Gates of a run: those of a profile's checks, and all together.

Everything here is computed from what the processes returned; nothing is measured or read.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.bench.ci.baseline import advice_on, renewal
from gpucheck.bench.ci.decision import (
    FEWEST_PROCESSES,
    Decision,
    corrected,
    decide,
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
from gpucheck.bench.ci.model import Baseline, Series
from gpucheck.bench.ci.peers import peer_gates
from gpucheck.bench.ci.profile_model import Aggregate, Check, MissingPolicy
from gpucheck.bench.ci.profiles import option_of
from gpucheck.bench.ci.run_data import MetricValues, RunData
from gpucheck.bench.ci.verdicts import PLAIN_UNITS
from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.model import Direction, Gate, GateClass, GateStatus, Severity, shared_fields
from gpucheck.report.text import count_of, rate


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


_STATUS_WITHOUT = {
    MissingPolicy.FAIL: GateStatus.FAIL,
    MissingPolicy.INCONCLUSIVE: GateStatus.INCONCLUSIVE,
    MissingPolicy.SKIP: GateStatus.SKIP,
}
#: The order in which the statuses of its devices decide a node's.
_WORST_FIRST = (GateStatus.FAIL, GateStatus.INCONCLUSIVE, GateStatus.PASS, GateStatus.SKIP)


def check_gates(data: RunData) -> Iterator[Gate]:
    """Yield the gates of every check; the risk of a wrong fail is that of all of them together."""
    judging = []
    for check in data.profile.checks:
        found = data.figures(check)
        for device, figures in found.items():
            peers = [other for name, other in found.items() if name != device]
            judging.append(_Judging(check, figures, data, peers))
    outcomes = [one.outcome() for one in judging]
    # Checks that only warn take no share of the risk.
    family = {
        at: outcome
        for at, outcome in enumerate(outcomes)
        if isinstance(outcome, Decision) and judging[at].check.severity is Severity.ERROR
    }
    held = dict(zip(family, corrected(list(family.values())), strict=True))
    by_check: dict[str, list[Gate]] = {}
    for at, (one, outcome) in enumerate(zip(judging, outcomes, strict=True)):
        by_check.setdefault(one.check.id, []).append(one.gate(held.get(at, outcome)))
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
    """One check on one device."""

    def __init__(
        self, check: Check, figures: MetricValues, data: RunData, peers: Sequence[MetricValues]
    ) -> None:
        self.check = check
        self._figures = figures
        self._data = data
        self._peers = peers
        #: Whether the figure is compared with a run of one session.
        self._is_of_one_session = False

    def outcome(self) -> Decision | Gate:
        """Return the decision on the figure, or the gate of a device without one."""
        check, figures = self.check, self._figures
        sessions: tuple[int, ...] = ()
        if not figures.values:
            return self._missing()
        if check.baseline:
            found = self._from_baseline(self._data.baseline)
            if isinstance(found, Gate):
                return found
            expected, sessions = found.values, found.sessions
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
        found = ruling(status, judged, limit, self._peers)
        board = self._figures.gpu.board if self._figures.gpu is not None else None
        if found.status is GateStatus.FAIL and is_computed(check, board):
            found = replace(diagnose("computed-peak"), status=GateStatus.INCONCLUSIVE)
        gate = explained(gate, found, f"{shortfall}: ")
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
                return self._without_figure(check.on_unsupported, refusal, GateClass.CONFIG, ())
        if not figures.failures:
            made_by = (check.variant, check.framework, check.form)
            what = " ".join(filter(None, (check.kernel, check.dtype, *made_by)))
            reason = f"no process measured {what} on {figures.device}"
            steps = (
                "run it again with -v and look at the rows",
                "gpucheck profile explain shows the checks",
            )
            return self._without_figure(check.on_missing, reason, GateClass.SOFTWARE, steps)
        first = decisive(figures.failures)
        gate = self._without_figure(
            check.on_missing, first.message, class_of_failure(first), first.remedy
        )
        if gate.status is GateStatus.FAIL and leaves_open(first):
            return replace(gate, status=GateStatus.INCONCLUSIVE)
        return gate

    def _without_figure(
        self, policy: MissingPolicy, reason: str, class_: GateClass, steps: tuple[str, ...]
    ) -> Gate:
        """Return the gate of a missing figure; a skipped one has no cause."""
        gate = self._plain(_STATUS_WITHOUT[policy], reason=reason)
        return gate if gate.status is GateStatus.SKIP else replace(gate, class_=class_, next=steps)

    def _from_baseline(self, baseline: Baseline | None) -> Series | Gate:
        """Return an earlier run's figures, or the gate that says why there are none."""
        check, device = self.check, self._figures.device
        middle, profile = math.exp(typical(self._figures.values)), option_of(self._data.profile)
        if baseline is None:
            reason = "there is no baseline to compare it with"
            how = "with" if profile is None else f"with --profile {shlex.quote(profile)}"
            steps = (f"save a run {how} --save FILE, then pass it with --baseline FILE",)
            return self._plain(GateStatus.SKIP, reason=reason, measured=middle, next=steps)
        if differences := baseline.differences.get(device):
            return self._plain(
                GateStatus.INCONCLUSIVE,
                reason=f"the baseline does not match: {'; '.join(differences)}",
                measured=middle,
                class_=GateClass.CONFIG,
                next=(advice_on(differences, profile),),
            )
        found = [one for one in baseline.series if (one.id, one.device) == (check.id, device)]
        renew = (renewal(profile),)
        if not found or found[0].unit != check.unit:
            reason = f"the baseline {baseline.path} has no figure for this check in {check.unit}"
            return self._without_figure(check.on_missing, reason, GateClass.CONFIG, renew)
        if found[0].disturbed is not None:
            return self._plain(
                GateStatus.INCONCLUSIVE,
                reason=f"the baseline was disturbed: {found[0].disturbed}",
                measured=middle,
                class_=GateClass.ENVIRONMENT,
                next=renew,
            )
        return found[0]

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
