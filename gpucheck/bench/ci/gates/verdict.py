"""Verdict of a profile's run: all of its gates, what they mean together, and what is saved.

Everything here is computed from what the processes returned; nothing is measured or read.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.bench.ci.gate_model import Gate, GateStatus, Severity
from gpucheck.bench.ci.gates.checks import check_gates
from gpucheck.bench.ci.gates.company import company_gates
from gpucheck.bench.ci.gates.facts import Facts
from gpucheck.bench.ci.gates.machine import inventory_gates, match_gates
from gpucheck.bench.ci.gates.stability import result_gates, stability_gates
from gpucheck.bench.ci.run_model import Series
from gpucheck.report.envelope import Failure, Notice
from gpucheck.report.errors import ExitCode


def judge_machine(facts: Facts) -> tuple[Gate, ...]:
    """Return the gates that need no measurement: whether the profile is for this machine."""
    return tuple(match_gates(facts))


def judge(facts: Facts) -> tuple[Gate, ...]:
    """Return all gates of a run, in the order of the profile."""
    return (
        *match_gates(facts),
        *result_gates(facts),
        *check_gates(facts),
        *company_gates(facts),
        *inventory_gates(facts),
        *stability_gates(facts),
    )


def settled(gates: Sequence[Gate]) -> bool:
    """Return whether more processes would change nothing."""
    return not any(gate.repeat_helps for gate in gates)


def verdict(gates: Sequence[Gate]) -> tuple[ExitCode, Failure | None]:
    """Return the exit code of the gates: 1 if one failed, else 3 if one is undecided, else 0.

    Without any gate that passed, it is 3 as well.
    """
    counted = [gate for gate in gates if gate.severity is Severity.ERROR]
    failed = [gate for gate in counted if gate.status is GateStatus.FAIL]
    undecided = [gate for gate in counted if gate.status is GateStatus.INCONCLUSIVE]
    passed = [gate for gate in gates if gate.status is GateStatus.PASS]
    if failed:
        return ExitCode.BAD, failure_of("gate-failed", failed, "failed")
    if undecided:
        return ExitCode.INCONCLUSIVE, failure_of("gate-undecided", undecided, "cannot be decided")
    if not passed:
        message = "Nothing that the profile asks for was measured, so no gate passed."
        return ExitCode.INCONCLUSIVE, Failure(code="nothing-measured", message=message)
    return ExitCode.OK, None


def failure_of(code: str, gates: Sequence[Gate], what: str) -> Failure:
    """Return the error that names the first of some gates."""
    first = gates[0]
    where = f"{first.id} on {first.device}"
    head = (
        f"{where} {what}" if len(gates) == 1 else f"{len(gates)} gates {what}; the first is {where}"
    )
    class_ = f" ({first.class_})" if first.class_ is not None else ""
    message = f"{head}{class_}: {_said(first)}."
    return Failure(code=code, message=message, remedy=first.next)


def warnings(gates: Sequence[Gate]) -> tuple[Notice, ...]:
    """Return the warnings, which do not decide the exit code."""
    return tuple(
        Notice(code="gate-warning", message=f"{gate.id} on {gate.device}: {_said(gate)}.")
        for gate in gates
        if gate.warning or (gate.severity is Severity.WARN and gate.status is GateStatus.FAIL)
    )


def _said(gate: Gate) -> str:
    return (gate.reason or gate.status).rstrip(".")


def series_of(facts: Facts) -> tuple[Series, ...]:
    """Return every check's figures, as they are saved for the next run."""
    return tuple(
        Series(
            id=check.id,
            device=device,
            gpu_uuid=figures.gpu_uuid or facts.uuid_of(device),
            unit=check.unit,
            direction=check.direction,
            values=figures.values,
            tolerance_percent=check.tolerance_percent,
            doubts=figures.doubts,
        )
        for check in facts.profile.checks
        for device, figures in facts.figures(check).items()
        if figures.values
    )
