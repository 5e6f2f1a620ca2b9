"""View of `gpucheck fleet report`: the nodes that are not well, and why."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from gpucheck.fleet.hostlist import fold
from gpucheck.fleet.model import (
    HEALTHY,
    SILENT,
    UNDECIDED,
    FleetNode,
    FleetReport,
    GpuSpeed,
    JudgedBy,
    Outcome,
    SlowGpu,
)
from gpucheck.report.blocks import (
    Block,
    Column,
    Fitting,
    Gap,
    Inline,
    Line,
    Row,
    Span,
    Table,
    limited,
    limited_rows,
    opening,
    verdict,
)
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import View, count_of, printable

#: So many nodes of one kind stand in a report; `-v` shows the others.
MOST_NODES = 20
#: Slurm keeps a reason in one line; longer ones are cut in its listings.
LONGEST_REASON = 120
_MARKS = {
    ExitCode.OK: CheckStatus.OK,
    ExitCode.BAD: CheckStatus.FAIL,
}
#: The order of the kinds in the report, the worst first.
_ORDER = (
    Outcome.FAILED,
    Outcome.LOST,
    Outcome.TIMEOUT,
    Outcome.NO_ANSWER,
    Outcome.NOT_INSTALLED,
    Outcome.MISSING,
    Outcome.UNREADABLE,
    Outcome.INCOMPATIBLE,
    Outcome.BUSY,
    Outcome.INCONCLUSIVE,
    Outcome.UNEXPECTED,
    Outcome.OK,
)


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the conclusion, nodes that are not well, slow GPUs, where they are, what differs."""
    found = report.result_as(FleetReport)
    yield from opening(report, view, count_of(found.documents, "document"))
    yield verdict(found.conclusion, _MARKS.get(report.exit_code, CheckStatus.UNKNOWN))
    if view.verbosity < 0:
        return
    yield from _nodes(found, view)
    yield from _slow(found, view)
    yield from _attributions(found, view)
    yield from _differences(found, view)
    yield from _problems(found, view)
    yield from _judged(found, view)


def line(found: FleetReport) -> str:
    """Return the sentence of --format line."""
    return found.conclusion


def _nodes(found: FleetReport, view: View) -> Iterator[Block]:
    bad = sorted(unhealthy(found.nodes), key=lambda node: _ORDER.index(node.outcome))
    bad += _different(found, but=bad)
    if not bad:
        return
    yield Gap()
    racks = any(node.rack for node in bad)
    columns = [Column("node", least=12), Column("outcome")]
    columns += [Column("rack", least=4)] if racks else []
    alike = _alike(bad, view)
    wide, narrow = [], []
    for nodes in alike:
        first = nodes[0]
        cells: list[Inline] = [fold(node.host for node in nodes), _word(first)]
        cells += [first.rack or "-"] if racks else []
        reason, below = first.conclusion or "", tuple(_below(first, view))
        wide.append(Row((*cells, reason), below=below))
        narrow.append(Row(cells, below=(*((Line(reason, indent=4),) if reason else ()), *below)))
    # Where a reason would be cut, each stands below its node.
    tables = Table((*columns, Column("reason")), wide), Table(columns, narrow)
    yield from limited_rows(Fitting(tables), view, most=MOST_NODES)
    if len(alike) > MOST_NODES and view.verbosity <= 0:
        hosts = (node.host for nodes in alike[MOST_NODES:] for node in nodes)
        yield Line(fold(hosts), style="dim")


def _alike(nodes: Sequence[FleetNode], view: View) -> list[list[FleetNode]]:
    """Return the nodes of which the report says the same, together."""
    found: dict[object, list[FleetNode]] = {}
    for node in nodes:
        said = (_word(node), node.rack, node.conclusion, node.reasons if view.verbosity > 0 else ())
        found.setdefault(said, []).append(node)
    return list(found.values())


def _below(node: FleetNode, view: View) -> Iterator[Line]:
    """Yield the identifiers of the reasons with `-v`, and the command that shows the document."""
    told = node.conclusion or ""
    named = [reason for reason in node.reasons if reason not in told]
    if named and view.verbosity > 0:
        yield Line("; ".join(named), indent=4, style="dim")
    if node.file is not None:
        yield Line(f"gpucheck show {shlex.quote(node.file)}", lead="→", indent=4)


def _different(found: FleetReport, *, but: Sequence[FleetNode]) -> list[FleetNode]:
    """Return the other nodes that are different, with what no row of the differences says.

    That stands in a node's reasons after what the rows say of it.
    """
    in_rows = {row.reason for row in found.differences}
    shown = {node.host for node in but}
    told = []
    for node in found.nodes:
        if node.different and node.host not in shown:
            said = [at for at, reason in enumerate(node.reasons) if reason in in_rows]
            reasons = node.reasons[said[-1] + 1 if said else 0 :]
            told.append(node._replace(reasons=reasons, conclusion="; ".join(reasons), file=None))
    return [node for node in told if node.reasons]


def _word(node: FleetNode) -> Inline:
    if node.outcome is Outcome.FAILED or node.outcome in SILENT:
        return (Span(node.outcome.value, "red"),)
    if node.slow:
        return (Span("slow", "red"),)
    if node.outcome in UNDECIDED:
        return (Span(node.outcome.value, "yellow"),)
    return (Span("different", "yellow"),) if node.different else node.outcome.value


def _slow(found: FleetReport, view: View) -> Iterator[Block]:
    """Yield the GPUs that are slow, unstable or to watch, with what may explain it."""
    if not found.slow:
        return
    yield Gap()
    columns = [
        Column("node", least=8),
        Column("GPU", right=True),
        Column("speed"),
        Column("slower", right=True),
        Column("worst test"),
        Column("z", right=True),
        Column("slow runs", right=True),
        Column("seen there", least=16),
    ]
    rows = [_slow_cells(one) for one in found.slow]
    # Where it is narrow, what is slow comes before how sure that is.
    widths = (len(columns), 7, 5, 4)
    fitting = Fitting(
        tuple(Table(columns[:n], [Row(cells[:n]) for cells in rows], names=2) for n in widths)
    )
    yield from limited_rows(fitting, view, most=MOST_NODES)


def _slow_cells(one: SlowGpu) -> tuple[Inline, ...]:
    return (
        one.host,
        one.gpu_uuid[:12] if one.index is None else str(one.index),
        (Span(one.speed.value, _SPEED_STYLES.get(one.speed, "")),),
        f"{one.slower_percent:.1f} %",
        name_of_test(one.test),
        f"{one.z:.1f}",
        f"{one.slow_runs} of {one.runs}",
        ", ".join(one.facts),
    )


_SPEED_STYLES = {GpuSpeed.SLOW: "red", GpuSpeed.UNSTABLE: "yellow", GpuSpeed.WATCH: "yellow"}


def name_of_test(test: str) -> str:
    """Return a row's id without what most rows leave empty."""
    return "/".join(part for part in test.split("/") if part not in ("-", "resident"))


def _attributions(found: FleetReport, view: View) -> Iterator[Block]:
    yield Gap()
    lines = [Line(one.sentence, CheckStatus.WARN) for one in found.attributions]
    yield from limited(lines, view, most=10)


def _differences(found: FleetReport, view: View) -> Iterator[Block]:
    """Yield a row for each value that is not the majority's, or has none."""
    if not found.differences:
        return
    yield Gap()
    columns = [
        Column("differs", least=10),
        Column("value", least=8),
        Column("most have", least=8),
        Column("count", right=True),
        Column("nodes", least=12),
    ]
    rows = [
        Row(
            (
                one.field,
                one.value,
                "no majority" if one.majority is None else one.majority,
                f"{one.count} of {one.total}",
                fold(one.hosts),
            )
        )
        for one in found.differences
    ]
    yield from limited_rows(Table(columns, rows), view, most=MOST_NODES)


def _judged(found: FleetReport, view: View) -> Iterator[Block]:
    """Yield how many groups were judged, and with `-v` each of them."""
    if not found.groups:
        return
    yield Gap()
    judged = [one for one in found.groups if one.judged_by is not JudgedBy.NOTHING]
    gpus = sum(1 for node in found.nodes for gpu in node.gpus if gpu.slower_percent is not None)
    text = f"{count_of(gpus)} compared in {count_of(len(judged), 'group')} of {len(found.groups)}"
    yield Line(text, style="dim")
    for one in found.groups if view.verbosity > 0 else ():
        how = one.reason or f"by {one.judged_by.value}, finds {one.finds_percent:.1f} % and more"
        yield Line(f"{one.key}: {count_of(one.gpus)}, {how}", indent=4, style="dim")


def _problems(found: FleetReport, view: View) -> Iterator[Block]:
    yield Gap()
    lines = (
        Line(
            f"{one.file if one.line is None else f'{one.file}:{one.line}'}: {one.problem}",
            CheckStatus.UNKNOWN,
        )
        for one in found.problems
    )
    yield from limited(lines, view, most=5)


def unhealthy(nodes: Sequence[FleetNode]) -> list[FleetNode]:
    """Return the nodes that no job should get before somebody has looked."""
    return [node for node in nodes if node.slow or node.outcome not in HEALTHY]


def nodes(found: FleetReport) -> str:
    """Return one unhealthy host a line, a tab, and the reason, as Slurm's `Reason=` takes it."""
    return "".join(f"{_name(node)}\t{reason_of(node)}\n" for node in unhealthy(found.nodes))


def _name(node: FleetNode) -> str:
    """Return a host as it may stand in a command; a document may call itself anything."""
    return _NO_NAME.sub("_", node.host)


def reason_of(node: FleetNode) -> str:
    """Return why a node is unhealthy: one line of safe ASCII, without quotes."""
    word = "slow" if node.outcome in HEALTHY else node.outcome.value
    text = f"gpucheck: {word}: {'; '.join(node.reasons)}" if node.reasons else f"gpucheck: {word}"
    plain = printable(text).encode("ascii", "replace").decode()
    safe = "".join(char if char.isalnum() or char in _SAFE else "_" for char in plain)
    return safe if len(safe) <= LONGEST_REASON else f"{safe[: LONGEST_REASON - 3]}..."


_NO_NAME = re.compile(r"[^A-Za-z0-9._:-]")
#: Beside letters and digits; no quote, dollar, backslash or backtick of a shell.
_SAFE = " .,:;%()/+-_=#"

#: Formats that are lines to copy.
LINES = {"nodes": nodes}
