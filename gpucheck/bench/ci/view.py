"""Gates, comparisons and profiles on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gpucheck.bench.ci.model import ComparedRow, ComparedRun, RunComparison
from gpucheck.bench.ci.profile_model import (
    Limit,
    Problem,
    ProfileAction,
    ProfileFile,
    ProfileResult,
)
from gpucheck.bench.ci.verdicts import PLAIN_UNITS, in_own_unit, with_unit
from gpucheck.bench.model import Direction, Gate, GateStatus, ProfileUse, Severity
from gpucheck.report.envelope import Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.grid import Heading, Row, grid
from gpucheck.report.text import View, duration, printable, rate


def build(report: Report, view: View) -> RenderableType:
    """Return a comparison or the answer of `gpucheck profile` as one renderable."""
    if isinstance(report.result, RunComparison):
        return render_comparison(report.result, view)
    if not isinstance(report.result, ProfileResult):
        raise TypeError(type(report.result).__name__)
    return render_profile(report.result, width=view.width)


#: Further lines of a gate begin below its name.
_INDENT = 8


#: Sign, its plain form, word and colour of each verdict; None stands for a warning.
_MARKS = {
    GateStatus.FAIL: ("✗", "x", "FAIL", "bold red"),
    GateStatus.INCONCLUSIVE: ("?", "?", "open", "yellow"),
    GateStatus.PASS: ("✓", "+", "pass", "green"),
    GateStatus.SKIP: ("\N{EN DASH}", "-", "skip", "dim"),
    None: ("!", "!", "warn", "yellow"),
}
_COUNTED = {
    GateStatus.FAIL: "failed",
    GateStatus.INCONCLUSIVE: "undecided",
    GateStatus.PASS: "passed",
    GateStatus.SKIP: "skipped",
}


def render_gates(
    gates: Sequence[Gate], use: ProfileUse | None, *, ascii_only: bool, verbosity: int
) -> RenderableType:
    """Return the gates: those that need attention in full, the others a line for each demand.

    `verbosity` -1 leaves out what passed, 1 shows every gate with its figures.
    """
    lines: list[RenderableType] = []
    if use is not None:
        count = "1 process" if use.processes == 1 else f"{use.processes} processes"
        head = f"profile {use.name} version {use.version}, {count} of each device"
        lines.append(Text(printable(head), style="bold"))
    loud = [gate for gate in gates if _is_loud(gate)]
    quiet = [gate for gate in gates if not _is_loud(gate)]
    order = (GateStatus.FAIL, GateStatus.INCONCLUSIVE, GateStatus.PASS)
    for found in _alike(sorted(loud, key=lambda one: order.index(one.status))):
        lines.extend(_in_full(found, verbosity, ascii_only=ascii_only))
    if verbosity >= 0:
        lines.extend(_in_brief(quiet, each=verbosity > 0, ascii_only=ascii_only))
    lines.append(_total(gates))
    return Group(*lines)


def _alike(gates: Sequence[Gate]) -> list[list[Gate]]:
    """Return gates grouped by what they say: eight GPUs may all lack the same thing."""
    groups: dict[object, list[Gate]] = {}
    for at, gate in enumerate(gates):
        said = (gate.status, gate.class_, gate.reason, gate.next)
        groups.setdefault(said if gate.reason is not None else at, []).append(gate)
    return list(groups.values())


def _is_loud(gate: Gate) -> bool:
    return gate.status in (GateStatus.FAIL, GateStatus.INCONCLUSIVE) or gate.warning


def _in_full(
    gates: Sequence[Gate], verbosity: int, *, ascii_only: bool
) -> Iterator[RenderableType]:
    """Yield gates that say the same with their reason, what was seen, and what to do."""
    first, (sign, style) = gates[0], _mark(gates[0], ascii_only)
    class_ = f"  {first.class_}" if first.class_ is not None else ""
    by_id: dict[str, list[Gate]] = {}
    for gate in gates:
        by_id.setdefault(gate.id, []).append(gate)
    for name, found in by_id.items():
        where = printable(f"{name} on {_devices(found)}")
        yield Text.assemble((sign, style), (where, "bold"), _figures(found), (class_, style))
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


def _in_brief(gates: Sequence[Gate], *, each: bool, ascii_only: bool) -> Iterator[RenderableType]:
    """Yield what passed or was skipped: one line for each demand, or for each gate."""
    groups: dict[tuple[str, GateStatus, str | None], list[Gate]] = {}
    for gate in gates:
        key = gate.device if each else None
        groups.setdefault((gate.id, gate.status, key), []).append(gate)
    said: set[str] = set()
    for found in groups.values():
        first, mark = found[0], _mark(found[0], ascii_only)
        where = printable(f"{first.id} on {_devices(found)}")
        yield Text.assemble(mark, where, _figures(found))
        for reason in dict.fromkeys(gate.reason for gate in found if gate.reason is not None):
            yield _hanging(printable(reason), style="dim")
        steps = first.next if first.status is GateStatus.SKIP else ()
        yield from (_next(step) for step in steps if step not in said)
        said.update(steps)


def _total(gates: Sequence[Gate]) -> RenderableType:
    """Return the verdict in one line, its word as the exit code says it."""
    # A list of profiles needs no gates, and they take 20 ms to import.
    from gpucheck.bench.ci.gates import exit_status

    statuses = [gate.status for gate in gates]
    counted = [f"{statuses.count(one)} {word}" for one, word in _COUNTED.items() if one in statuses]
    warned = sum(gate.warning for gate in gates)
    counted.extend([f"{warned} with a warning"] if warned else [])
    words = {ExitCode.BAD: ("FAIL", "bold red"), ExitCode.OK: ("PASS", "bold green")}
    word, style = words.get(exit_status(gates)[0], ("INCONCLUSIVE", "bold yellow"))
    return Text.assemble((f"{word}: ", style), ", ".join(counted) or "no gate")


def _mark(gate: Gate, ascii_only: bool) -> tuple[str, str]:
    """Return the beginning of a gate's line, and its colour."""
    warns = gate.warning or (gate.severity is Severity.WARN and gate.status is not GateStatus.PASS)
    is_warning = warns and gate.status is not GateStatus.SKIP
    sign, plain, word, style = _MARKS[None if is_warning else gate.status]
    return f"{plain if ascii_only else sign} {word:<5} ", style


def _devices(gates: Sequence[Gate]) -> str:
    """Return the devices by name, many of them by their first and last."""
    names = list(dict.fromkeys(gate.device for gate in gates))
    if len(names) <= 3:
        return ", ".join(names)
    return f"{names[0]} to {names[-1]} ({len(names)} devices)"


def _figures(gates: Sequence[Gate]) -> str:
    """Return what was measured against the limit, of several devices the lowest and highest."""
    if gates[0].unit in ("match", "on"):
        return ""  # the reason says it in words
    text = _figure(gates[0]) if len(gates) == 1 else _range(gates)
    return f"  {text}".rstrip()


def _figure(gate: Gate) -> str:
    if gate.measured is None:
        return "not measured"
    side = "at least" if gate.direction is Direction.HIGHER else "at most"
    if gate.unit in PLAIN_UNITS:
        limit = f", {side} {with_unit(gate.limit, gate.unit)}" if gate.limit is not None else ""
        return printable(f"{with_unit(gate.measured, gate.unit)}{limit}")
    limit = f", {side} {_number(gate.limit)}" if gate.limit is not None else ""
    return printable(f"{_number(gate.measured)} {gate.unit}{limit}")


def _range(gates: Sequence[Gate]) -> str:
    known = [gate.measured for gate in gates if gate.measured is not None]
    if not known:
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
    line = f"{' ' * _INDENT}next: {printable(step)}"
    return Text(line, no_wrap=True, overflow="ignore")


def _hanging(text: str, style: str = "") -> RenderableType:
    """Return a text that is indented below a gate's name, on every line."""
    return Padding(Text(text, style=style), (0, 0, 0, _INDENT))


_ROW_STYLES = {
    GateStatus.PASS: "green",
    GateStatus.FAIL: "bold red",
    GateStatus.INCONCLUSIVE: "yellow",
    GateStatus.SKIP: "dim",
}
#: Beyond this, the end of an interval means nothing.
_WIDE_PERCENT = 1000
_HEADINGS = (
    Heading("DEVICE"),
    Heading("ROW"),
    Heading("FIRST", right=True),
    Heading("SECOND", right=True),
    Heading("CHANGE", right=True),
    Heading("INTERVAL", right=True),
    Heading("VERDICT"),
)


def render_comparison(found: RunComparison, view: View) -> RenderableType:
    """Return both files, the table, the reasons, and how the two runs differ."""
    micro = "µ" if view.unicode else "u"
    parts: list[RenderableType] = []
    if view.verbosity >= 0:
        parts += [_run_line("first ", found.first), _run_line("second", found.second), Text()]
    parts.extend(_rows(found, view, micro))
    for device, texts in found.differences.items():
        parts.append(Text(f"{device} differs:"))
        for text in texts:
            key = text.partition(":")[0]
            allowed = " (allowed)" if key in found.allowed else ""
            parts.append(Text(f"  {printable(text)}{allowed}", overflow="fold"))
    if view.verbosity >= 0:
        statuses = [row.status for row in found.rows]
        counts = [f"{statuses.count(one)} {one.value}" for one in GateStatus if one in statuses]
        parts.append(Text(", ".join(counts) or "The two runs have no row in common."))
    return Group(*parts)


def _run_line(which: str, run: ComparedRun) -> RenderableType:
    said = [run.host or "unknown host", run.time, f"gpucheck {run.gpucheck}"]
    said += [f"profile {run.profile}"] if run.profile else []
    text = f"{which} {printable(run.file)}  ({printable(', '.join(said))})"
    return Text(text, style="dim", overflow="fold")


def _rows(found: RunComparison, view: View, micro: str) -> Iterator[RenderableType]:
    """Yield the table, or where it does not fit a paragraph for each row."""
    rows = [Row(_cells(row, micro)) for row in found.rows]
    table = grid(_HEADINGS, rows, width=view.width, gap=2) if rows else None
    if table is not None:
        yield table
    for row in found.rows:
        verdict = Text(row.status.value, style=_ROW_STYLES[row.status])
        if table is None:
            yield Text.assemble((f"{row.device} {printable(row.id)}: ", "bold"), verdict)
            first, second = (_value(value, row.unit, micro) for value in (row.first, row.second))
            yield Text(f"  {first} -> {second}, {_change(row.ratio)} ({_interval(row)})")
        if row.status is not GateStatus.PASS or view.verbosity > 0:
            cause = f" ({row.class_.value})" if row.class_ else ""
            where = "" if table is None else f"{row.device} {printable(row.id)}: "
            yield Text(f"  {where}{printable(row.reason)}{cause}", style=_ROW_STYLES[row.status])


def _cells(row: ComparedRow, micro: str) -> list[Text]:
    texts = (
        *(row.device, printable(row.id), _value(row.first, row.unit, micro)),
        *(_value(row.second, row.unit, micro), _change(row.ratio), _interval(row)),
    )
    return [
        *(Text(text) for text in texts),
        Text(row.status.value, style=_ROW_STYLES[row.status]),
    ]


def _value(value: float | None, unit: str, micro: str) -> str:
    if value is None:
        return "none"
    if unit == "s":
        return duration(value, micro)
    return rate(value, unit) if unit in PLAIN_UNITS else in_own_unit(value, printable(unit))


def _change(ratio: float | None) -> str:
    return "?" if ratio is None else f"{_signed(100 * (ratio - 1))} %"


def _signed(percent: float) -> str:
    """Return a change with its sign, with +0.0 for zero."""
    return f"{round(percent, 1) + 0.0:+.1f}"


def _interval(row: ComparedRow) -> str:
    if row.interval is None:
        return "?"
    low, high = (100 * (end - 1) for end in row.interval)
    most = _signed(high) if high < _WIDE_PERCENT else f"over +{_WIDE_PERCENT}"
    return f"{_signed(low)} to {most} %"


def render_profile(result: ProfileResult, *, width: int) -> RenderableType:
    """Return the files with their mistakes, then the limits."""
    lines: list[RenderableType] = []
    for file in result.files:
        lines.extend(_file(file, result.action))
    lines.extend(_limits(result.limits, width))
    if result.saved is not None:
        lines.append(_unbroken(f"gpucheck bench --profile {result.saved}", "use it: "))
    return Group(*lines)


def _file(file: ProfileFile, action: ProfileAction) -> Iterator[RenderableType]:
    if action is ProfileAction.LINT:
        for problem in file.problems:
            yield from _problem(file.path, problem)
        errors = sum(one.severity is Severity.ERROR for one in file.problems)
        cautions = len(file.problems) - errors
        if not errors:
            name = f"{file.name} version {file.version}"
            more = f", {cautions} to look at" if cautions else ""
            yield _unbroken(f"{file.path}: {name} can be used{more}", "")
        return
    head = f"{file.name or '?'} version {file.version or '?'}"
    yield Text.assemble((printable(head), "bold"), f": {printable(file.description or '')}")
    if action is ProfileAction.LIST:
        yield _unbroken(file.path, "    ")


def _problem(path: str, problem: Problem) -> Iterator[RenderableType]:
    """Yield a mistake as compilers do: the place on a line of its own, to be clicked or copied."""
    place = path if problem.line is None else f"{path}:{problem.line}"
    caution = problem.severity is Severity.WARN
    word, style = ("caution", "yellow") if caution else ("mistake", "red")
    code = Text.assemble((f" {word}", style), f" {problem.code}")
    yield Text.assemble((printable(place), "bold"), code, no_wrap=True, overflow="ignore")
    where = f"{problem.where}: " if problem.where else ""
    yield Padding(Text(printable(f"{where}{problem.message}")), (0, 0, 0, 4))
    yield Padding(Text(printable(f"fix: {problem.mend}"), style="green"), (0, 0, 0, 4))


def _limits(limits: tuple[Limit, ...], width: int) -> Iterator[RenderableType]:
    """Yield the limits by demand; one line where there is one, else one for each board."""
    for name, group in groupby(limits, key=lambda limit: limit.id):
        found = list(group)
        if len(found) == 1:
            yield from _one(found[0], width)
            continue
        yield Text(printable(name), style="bold")
        longest = max(len(limit.board or "") for limit in found)
        for limit in found:
            yield _unbroken(f"{limit.board or '':<{longest}}  {limit.sentence}", "  ")


def _one(limit: Limit, width: int) -> Iterator[RenderableType]:
    board = f" on {limit.board}" if limit.board is not None else ""
    head, text = printable(f"{limit.id}{board}: "), printable(limit.sentence)
    if len(head) + len(text) <= width:
        yield Text.assemble((head, "bold"), text)
        return
    yield Text(head.rstrip(), style="bold")
    yield _unbroken(text, "  ")


def _unbroken(text: str, before: str) -> RenderableType:
    return Text(f"{before}{printable(text)}", no_wrap=True, overflow="ignore")
