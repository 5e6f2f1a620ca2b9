"""Gates on a terminal: what failed and why, what to do, and briefly what passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucheck.bench.ci.gate_model import Direction, Gate, GateStatus, ProfileUse, Severity
from gpucheck.bench.ci.verdicts import PLAIN_UNITS, with_unit
from gpucheck.report.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Further lines of a gate begin below its name.
_INDENT = 8


@dataclass(frozen=True, slots=True)
class _Mark:
    """Look of a verdict: a sign, a word, a colour."""

    sign: str
    plain: str
    word: str
    style: str


_MARKS = {
    GateStatus.FAIL: _Mark("✗", "x", "FAIL", "bold red"),
    GateStatus.INCONCLUSIVE: _Mark("?", "?", "open", "yellow"),
    GateStatus.PASS: _Mark("✓", "+", "pass", "green"),
    GateStatus.SKIP: _Mark("\N{EN DASH}", "-", "skip", "dim"),
}
_WARNING = _Mark("!", "!", "warn", "yellow")


def render_gates(
    gates: Sequence[Gate], use: ProfileUse | None, *, ascii_only: bool, verbosity: int = 0
) -> RenderableType:
    """Return the gates: those that need attention in full, the others a line for each demand.

    `verbosity` -1 leaves out what passed, 1 shows every gate with its figures.
    """
    from rich.console import Group
    from rich.text import Text

    drawing = _Drawing(ascii_only)
    lines: list[RenderableType] = []
    if use is not None:
        lines.append(Text(_headline(use), style="bold"))
    loud = [gate for gate in gates if _is_loud(gate)]
    quiet = [gate for gate in gates if not _is_loud(gate)]
    order = (GateStatus.FAIL, GateStatus.INCONCLUSIVE, GateStatus.PASS)
    for found in _alike(sorted(loud, key=lambda one: order.index(one.status))):
        lines.extend(drawing.in_full(found, verbosity))
    if verbosity >= 0:
        lines.extend(drawing.in_brief(quiet, each=verbosity > 0))
    lines.append(drawing.total(gates))
    return Group(*lines)


def _headline(use: ProfileUse) -> str:
    count = "1 process" if use.processes == 1 else f"{use.processes} processes"
    return printable(f"profile {use.name} version {use.version}, {count} of each device")


def _alike(gates: Sequence[Gate]) -> list[list[Gate]]:
    """Return gates grouped by what they say: eight GPUs may all lack the same thing."""
    groups: dict[object, list[Gate]] = {}
    for at, gate in enumerate(gates):
        said = (gate.status, gate.class_, gate.reason, gate.next)
        groups.setdefault(said if gate.reason is not None else at, []).append(gate)
    return list(groups.values())


def _is_loud(gate: Gate) -> bool:
    return gate.status in (GateStatus.FAIL, GateStatus.INCONCLUSIVE) or gate.warning


class _Drawing:
    """Draws gates with one set of characters."""

    def __init__(self, ascii_only: bool) -> None:
        self._ascii_only = ascii_only

    def in_full(self, gates: Sequence[Gate], verbosity: int) -> Iterator[RenderableType]:
        """Yield gates that say the same with their reason, what was seen, and what to do."""
        from rich.text import Text

        first, mark = gates[0], self._mark(gates[0])
        class_ = f"  {first.class_}" if first.class_ is not None else ""
        by_id: dict[str, list[Gate]] = {}
        for gate in gates:
            by_id.setdefault(gate.id, []).append(gate)
        for name, found in by_id.items():
            figures = _figures(found[0]) if len(found) == 1 else _range(found)
            yield Text.assemble(
                (f"{mark.plain if self._ascii_only else mark.sign} {mark.word:<5} ", mark.style),
                (printable(f"{name} on {_devices(found)}"), "bold"),
                f"  {figures}".rstrip(),
                (class_, mark.style),
            )
        if first.reason is not None:
            yield _hanging(printable(first.reason))
        if first.evidence and verbosity >= 0:
            seen = ", ".join(f"{one.source} {one.value}" for one in first.evidence)
            yield _hanging(f"seen: {printable(seen)}", style="dim")
        if verbosity > 0:
            for gate in gates:
                if gate.values:
                    yield _hanging(f"processes on {gate.device}: {_list(gate)}", style="dim")
        yield from map(_next, first.next)

    def in_brief(self, gates: Sequence[Gate], *, each: bool) -> Iterator[RenderableType]:
        """Yield what is well or was not asked: one line for each demand, or for each gate."""
        groups: dict[tuple[str, GateStatus, str | None], list[Gate]] = {}
        for gate in gates:
            key = gate.device if each else None
            groups.setdefault((gate.id, gate.status, key), []).append(gate)
        said: set[str] = set()
        for found in groups.values():
            yield from self._one_line(found)
            steps = found[0].next if found[0].status is GateStatus.SKIP else ()
            yield from (_next(step) for step in steps if step not in said)
            said.update(steps)

    def _one_line(self, gates: Sequence[Gate]) -> Iterator[RenderableType]:
        from rich.text import Text

        first, mark = gates[0], self._mark(gates[0])
        sign = mark.plain if self._ascii_only else mark.sign
        where = printable(f"{first.id} on {_devices(gates)}")
        head = Text.assemble((f"{sign} {mark.word:<5} ", mark.style), where)
        figures = _figures(first) if len(gates) == 1 else _range(gates)
        yield Text.assemble(head, f"  {figures}".rstrip())
        reasons = dict.fromkeys(gate.reason for gate in gates if gate.reason is not None)
        for reason in reasons:
            yield _hanging(printable(reason), style="dim")

    def total(self, gates: Sequence[Gate]) -> RenderableType:
        """Return the verdict in one line."""
        from rich.text import Text

        counts = {status: sum(gate.status is status for gate in gates) for status in GateStatus}
        words = {
            GateStatus.FAIL: "failed",
            GateStatus.INCONCLUSIVE: "undecided",
            GateStatus.PASS: "passed",
            GateStatus.SKIP: "skipped",
        }
        told = [f"{counts[status]} {word}" for status, word in words.items() if counts[status]]
        warned = sum(gate.warning for gate in gates)
        told.extend([f"{warned} with a warning"] if warned else [])
        word, style = _verdict(gates)
        return Text.assemble((f"{word}: ", style), ", ".join(told) or "no gate")

    def _mark(self, gate: Gate) -> _Mark:
        warns = gate.warning or (
            gate.severity is Severity.WARN and gate.status is not GateStatus.PASS
        )
        if warns and gate.status is not GateStatus.SKIP:
            return _WARNING
        return _MARKS[gate.status]


def _verdict(gates: Sequence[Gate]) -> tuple[str, str]:
    """Return the word for all gates together, as their exit code says it."""
    counted = [gate for gate in gates if gate.severity is Severity.ERROR]
    if any(gate.status is GateStatus.FAIL for gate in counted):
        return "FAIL", "bold red"
    if any(gate.status is GateStatus.INCONCLUSIVE for gate in counted):
        return "INCONCLUSIVE", "bold yellow"
    if not any(gate.status is GateStatus.PASS for gate in gates):
        return "INCONCLUSIVE", "bold yellow"
    return "PASS", "bold green"


def _devices(gates: Sequence[Gate]) -> str:
    """Return the devices by name, many of them by their first and last."""
    names = list(dict.fromkeys(gate.device for gate in gates))
    if len(names) <= 3:
        return ", ".join(names)
    return f"{names[0]} to {names[-1]} ({len(names)} devices)"


def _figures(gate: Gate) -> str:
    """Return what was measured against the limit."""
    if gate.unit in ("match", "on"):
        return ""  # the reason says it in words
    if gate.measured is None:
        return "not measured"
    side = "at least" if gate.direction is Direction.HIGHER else "at most"
    if gate.unit in PLAIN_UNITS:
        limit = f", {side} {with_unit(gate.limit, gate.unit)}" if gate.limit is not None else ""
        return printable(f"{with_unit(gate.measured, gate.unit)}{limit}")
    limit = f", {side} {_number(gate.limit)}" if gate.limit is not None else ""
    return printable(f"{_number(gate.measured)} {gate.unit}{limit}")


def _range(gates: Sequence[Gate]) -> str:
    """Return the lowest and the highest of several devices."""
    known = [gate.measured for gate in gates if gate.measured is not None]
    if gates[0].unit in ("match", "on") or not known:
        return ""
    if gates[0].unit in PLAIN_UNITS:
        low, high = (with_unit(value, gates[0].unit) for value in (min(known), max(known)))
        return printable(low if low == high else f"{low} to {high}")
    low, high = _number(min(known)), _number(max(known))
    span = low if low == high else f"{low} to {high}"
    limits = {gate.limit for gate in gates}
    side = "at least" if gates[0].direction is Direction.HIGHER else "at most"
    has_one = len(limits) == 1 and None not in limits
    limit = f", {side} {_number(gates[0].limit)}" if has_one else ""
    return printable(f"{span} {gates[0].unit}{limit}")


def _list(gate: Gate) -> str:
    if gate.unit in PLAIN_UNITS:
        return ", ".join(with_unit(value, gate.unit) for value in gate.values)
    return f"{', '.join(_number(value) for value in gate.values)} {printable(gate.unit)}"


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _next(step: str) -> RenderableType:
    """Return what to do; it may hold a command to copy, and is never broken."""
    from rich.text import Text

    line = f"{' ' * _INDENT}next: {printable(step)}"
    return Text(line, no_wrap=True, overflow="ignore")


def _hanging(text: str, style: str = "") -> RenderableType:
    """Return a text that is indented below a gate's name, on every line."""
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, style=style), (0, 0, 0, _INDENT))
