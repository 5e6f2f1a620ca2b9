"""Verdicts on bench's results: the exit code of gates, and one for each device and check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from gpucheck.bench.ci.model import ComparedRow, RunComparison
from gpucheck.bench.model import (
    BenchResult,
    BurnResult,
    Corruption,
    Direction,
    FrameworkUse,
    Gate,
    GateStatus,
    Measurement,
    Scope,
    Severity,
    is_wrong,
)
from gpucheck.report.envelope import Failure, Notice
from gpucheck.report.errors import ExitCode
from gpucheck.report.verdicts import Kind, Verdict

#: Units of rows, which are shown with a prefix.
PLAIN_UNITS = frozenset({"FLOP/s", "B/s", "image/s", "launch/s"})
#: The id of a row has its shape between slashes.
_SHAPE = re.compile(r"\d+(x\d+)*")
#: Error counters and scopes as people name them.
_WORDS = {
    "ecc_uncorrected": "uncorrected ECC errors",
    "ecc_corrected": "corrected ECC errors",
    "remapped_rows": "remapped rows",
    "memory_temperature": "memory temperature",
    "pcie_replays": "PCIe replays",
    Scope.END_TO_END.value: "with transfers",
    Scope.RESIDENT.value: "",
}


#: By status: the error code, and the sentence for one gate or row and for several.
Wording = Mapping[GateStatus, tuple[str, str, str]]
GATES: Wording = MappingProxyType(
    {
        GateStatus.FAIL: ("gate-failed", "failed", "gates failed"),
        GateStatus.INCONCLUSIVE: (
            "gate-undecided",
            "cannot be decided",
            "gates cannot be decided",
        ),
    }
)
#: Of a run that would have passed, but is to be saved.
ROWS_DISTURBED = "rows-disturbed"
DISTURBED: Wording = MappingProxyType(
    {**GATES, GateStatus.INCONCLUSIVE: (ROWS_DISTURBED, "was disturbed", "rows were disturbed")}
)
#: Codes of errors and warnings that the table of gates says itself.
SHOWN = frozenset({"gate-failed", "gate-undecided", "gate-warning", ROWS_DISTURBED})


def exit_status(judged: Sequence[Gate], words: Wording = GATES) -> tuple[ExitCode, Failure | None]:
    """Return the exit code of gates: 1 if one failed, else 3 if one is undecided, else 0.

    Without any that passed, it is 3 as well. Gates that only warn decide nothing.
    """
    for status, exit_code in (
        (GateStatus.FAIL, ExitCode.BAD),
        (GateStatus.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
    ):
        bad = [gate for gate in judged if (gate.status, gate.severity) == (status, Severity.ERROR)]
        if bad:
            code, sentence, several = words[status]
            where = f"{spoken(bad[0].id)} on {bad[0].device}"
            head = f"{where} {sentence}"
            if len(bad) > 1:
                head = f"{len(bad)} {several}; the first is {where}"
            class_ = f" ({bad[0].class_})" if bad[0].class_ is not None else ""
            message = f"{head}{class_}: {_reason(bad[0])}."
            return exit_code, Failure(code=code, message=message, remedy=bad[0].next)
    if not any(gate.status is GateStatus.PASS for gate in judged):
        message = "Nothing that the profile asks for was measured, so no gate passed."
        return ExitCode.INCONCLUSIVE, Failure(code="nothing-measured", message=message)
    return ExitCode.OK, None


def warnings(gates: Sequence[Gate]) -> tuple[Notice, ...]:
    """Return the warnings, which do not decide the exit code."""
    return tuple(
        Notice(code="gate-warning", message=f"{spoken(gate.id)} on {gate.device}: {_reason(gate)}.")
        for gate in gates
        if gate.warning or (gate.severity is Severity.WARN and gate.status is GateStatus.FAIL)
    )


def _reason(gate: Gate) -> str:
    return (gate.reason or gate.status).rstrip(".")


# ------------------------------------------------------------------------------ for CI systems


def verdicts(result: object) -> list[Verdict]:
    """Return the verdicts of a benchmark, a burn or a comparison."""
    if isinstance(result, BenchResult):
        gates = [_gate_verdict(gate) for gate in result.gates]
        return gates or [
            *_row_verdicts(result.measurements),
            *_corruption_verdicts(result.corruption),
        ]
    if isinstance(result, RunComparison):
        return [_comparison_verdict(row) for row in result.rows]
    return [_gate_verdict(gate) for gate in result.gates] if isinstance(result, BurnResult) else []


def seconds(result: object) -> float:
    """Return how long a benchmark took; a burn or a comparison has no such figure."""
    return result.environment.duration_s if isinstance(result, BenchResult) else 0.0


def _gate_verdict(gate: Gate) -> Verdict:
    side = "at least" if gate.direction is Direction.HIGHER else "at most"
    numbers = (("measured", gate.measured), (side, gate.limit))
    figures = [(name, with_unit(value, gate.unit)) for name, value in numbers if value is not None]
    if gate.interval is not None:
        low, high = (with_unit(value, gate.unit) for value in gate.interval)
        figures.append(("interval", f"{low} to {high}"))
    steps = gate.next if gate.status in (GateStatus.FAIL, GateStatus.INCONCLUSIVE) else ()
    return Verdict(
        device=gate.device,
        check=spoken(gate.id),
        kind=_kind(gate),
        message=gate.reason or gate.status.value,
        gpu_uuid=gate.gpu_uuid,
        class_=gate.class_.value if gate.class_ else None,
        values=tuple(figures),
        lines=(*(f"{item.source}: {item.value}" for item in gate.evidence), *steps),
    )


def _kind(gate: Gate) -> Kind:
    if gate.status is GateStatus.SKIP:
        return Kind.SKIPPED
    if gate.status is GateStatus.PASS:
        return Kind.WARNING if gate.warning else Kind.PASS
    if gate.severity is Severity.WARN:
        return Kind.WARNING
    return Kind.FAILURE if gate.status is GateStatus.FAIL else Kind.ERROR


def _row_verdicts(rows: Sequence[Measurement]) -> Iterator[Verdict]:
    """Yield a verdict for each row of a run without gates: correct, wrong or not measured."""
    for row in rows:
        shape = "x".join(str(edge) for edge in row.shape)
        made_by = row.framework.text if row.framework is not None else ""
        work = (row.kernel, made_by, row.variant, row.dtype.math_mode)
        parts = (*work, shape, spoken(row.scope.value))
        check = " ".join(part for part in parts if part)
        kind, message = Kind.PASS, "verified"
        if row.error is not None:
            kind = Kind.FAILURE if is_wrong(row.verified) else Kind.ERROR
            message = row.error.message
        elif row.time_s is None:
            kind, message = Kind.ERROR, "interrupted before it was measured"
        figures = []
        if row.throughput is not None:
            figures.append(("measured", with_unit(row.throughput.value, row.throughput.unit)))
        yield Verdict(
            device=row.device,
            check=f"{check} threads={row.threads}" if row.threads else check,
            kind=kind,
            message=message,
            gpu_uuid=row.gpu_uuid,
            class_=row.error.code if row.error else None,
            values=tuple(figures),
            lines=tuple(f"{doubt.code}: {doubt.message}" for doubt in row.doubts),
        )


def _corruption_verdicts(checks: Sequence[Corruption]) -> Iterator[Verdict]:
    for check in checks:
        wrong = check.is_corrupt
        kind = Kind.FAILURE if wrong else Kind.ERROR if check.failure else Kind.PASS
        counted = f"{check.products} products of {check.words} numbers, {check.mismatches} differ"
        message = check.failure.message if check.failure and not wrong else counted
        yield Verdict(
            device=check.device,
            check="corruption",
            kind=kind,
            message=message,
            gpu_uuid=check.gpu_uuid,
            class_="hardware" if wrong else check.failure.code if check.failure else None,
            values=(("mismatches", str(check.mismatches)), ("digest", str(check.digest))),
        )


def _comparison_verdict(row: ComparedRow) -> Verdict:
    kinds = {GateStatus.PASS: Kind.PASS, GateStatus.FAIL: Kind.FAILURE}
    sides = (("before", row.first), ("measured", row.second))
    figures = [(name, with_unit(value, row.unit)) for name, value in sides if value is not None]
    if row.ratio is not None:
        figures.append(("ratio", f"{row.ratio:.4f}"))
    if row.interval is not None:
        figures.append(("interval", f"{row.interval[0]:.4f} to {row.interval[1]:.4f}"))
    return Verdict(
        device=row.device,
        check=spoken(row.id),
        kind=kinds.get(row.status, Kind.ERROR),
        message=row.reason,
        class_=row.class_.value if row.class_ else None,
        values=tuple(figures),
    )


def made_by(parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return who made a row in words, if it was a framework, and the other parts of its id."""
    given = dict(part.split("=", 1) for part in parts if part.startswith(("framework=", "form=")))
    others = [part for part in parts if not part.startswith(("framework=", "form="))]
    if "framework" not in given:
        return [], others
    used = FrameworkUse(
        name=given["framework"], version=None, form=given.get("form", ""), python=""
    )
    return [used.text.strip()], others


def spoken(check: str) -> str:
    """Return the id of a gate or a row in words: "burn.remapped_rows" is "remapped rows"."""
    parts = check.removeprefix("burn.").split("/")
    if len(parts) > 1 and not any(map(_SHAPE.fullmatch, parts)):
        return check  # a name of the user's
    name, parts = made_by(parts)
    parts = [*parts[:1], *name, *parts[1:]]
    return " ".join(word for part in parts if (word := _WORDS.get(part, part)))


def with_unit(value: float, unit: str) -> str:
    """Return a figure with its unit, large ones with a prefix: 7.394e14 FLOP/s as 739 TFLOP/s."""
    if unit in PLAIN_UNITS:
        for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= scale:
                return f"{value / scale:.4g} {prefix}{unit}"
    return value_with_unit(value, unit)


def value_with_unit(value: float, unit: str) -> str:
    """Return a figure in its unit as it is: a profile's unit already has a prefix (GB/s)."""
    unit = "°C" if unit == "C" else unit
    return f"{value:.0f} {unit}" if 1000 <= abs(value) < 1e7 else f"{value:.4g} {unit}".strip()
