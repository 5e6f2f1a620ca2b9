"""View of `gpucheck fleet report`: the unhealthy nodes, and why.

Below it the report for other systems: JSON lines, verdicts for CI, metrics for Prometheus. Healthy
nodes and GPUs are many, so only the unhealthy ones are named one by one there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from gpucheck.fleet.hostlist import fold
from gpucheck.fleet.model import (
    HEALTHY,
    SILENT,
    UNDECIDED,
    WORST_FIRST,
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
from gpucheck.report.formats.prometheus import Metric, gauge, gpu_labels, ratio
from gpucheck.report.text import View, count_of, group_by, printable
from gpucheck.report.verdicts import Kind, Verdict

#: So many nodes of one kind stand in a report; `-v` shows the others.
MOST_NODES = 20
#: Slurm keeps a reason in one line; longer ones are cut in its listings.
LONGEST_REASON = 120
_MARKS = {
    ExitCode.OK: CheckStatus.OK,
    ExitCode.BAD: CheckStatus.FAIL,
}


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the conclusion, unhealthy nodes, slow GPUs, where they are, what differs."""
    result = report.result_as(FleetReport)
    yield from opening(report, view, count_of(result.documents, "document"))
    yield verdict(result.conclusion, _MARKS.get(report.exit_code, CheckStatus.UNKNOWN))
    if view.verbosity < 0:
        return
    yield from _nodes(result, view)
    yield from _slow(result, view)
    yield from _attributions(result, view)
    yield from _differences(result, view)
    yield from _problems(result, view)
    yield from _judged(result, view)


def line(result: FleetReport) -> str:
    """Return the sentence of --format line."""
    return result.conclusion


def _nodes(result: FleetReport, view: View) -> Iterator[Block]:
    bad = sorted(unhealthy(result.nodes), key=lambda node: WORST_FIRST.index(node.outcome))
    bad += _different(result, but=bad)
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

    def said(node: FleetNode) -> tuple[object, ...]:
        reasons = node.reasons if view.verbosity > 0 else ()
        return (_word(node), node.rack, node.conclusion, reasons)

    return list(group_by(nodes, said).values())


def _below(node: FleetNode, view: View) -> Iterator[Line]:
    """Yield the identifiers of the reasons with `-v`, and the command that shows the document."""
    told = node.conclusion or ""
    named = [reason for reason in node.reasons if reason not in told]
    if named and view.verbosity > 0:
        yield Line("; ".join(named), indent=4, style="dim")
    if node.file is not None:
        yield Line(f"gpucheck show {shlex.quote(node.file)}", lead="→", indent=4)


def _different(result: FleetReport, *, but: Sequence[FleetNode]) -> list[FleetNode]:
    """Return the other nodes that are different, with what no row of the differences says.

    That stands in a node's reasons after what the rows say of it.
    """
    in_rows = {row.reason for row in result.differences}
    shown = {node.host for node in but}
    told = []
    for node in result.nodes:
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


def _slow(result: FleetReport, view: View) -> Iterator[Block]:
    """Yield the GPUs that are slow, unstable or to watch, with what may explain it."""
    if not result.slow:
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
    rows = [_slow_cells(gpu) for gpu in result.slow]
    # Where it is narrow, what is slow comes before how sure that is.
    widths = (len(columns), 7, 5, 4)
    fitting = Fitting(
        tuple(Table(columns[:n], [Row(cells[:n]) for cells in rows], names=2) for n in widths)
    )
    yield from limited_rows(fitting, view, most=MOST_NODES)


def _slow_cells(gpu: SlowGpu) -> tuple[Inline, ...]:
    return (
        gpu.host,
        gpu.gpu_uuid[:12] if gpu.index is None else str(gpu.index),
        (Span(gpu.speed.value, _SPEED_STYLES.get(gpu.speed, "")),),
        f"{gpu.slower_percent:.1f} %",
        name_of_test(gpu.test),
        f"{gpu.z:.1f}",
        f"{gpu.slow_runs} of {gpu.runs}",
        ", ".join(gpu.facts),
    )


_SPEED_STYLES = {GpuSpeed.SLOW: "red", GpuSpeed.UNSTABLE: "yellow", GpuSpeed.WATCH: "yellow"}


def name_of_test(test: str) -> str:
    """Return a row's id without what most rows leave empty."""
    return "/".join(part for part in test.split("/") if part not in ("-", "resident"))


def _attributions(result: FleetReport, view: View) -> Iterator[Block]:
    yield Gap()
    lines = [Line(attribution.sentence, CheckStatus.WARN) for attribution in result.attributions]
    yield from limited(lines, view, most=10)


def _differences(result: FleetReport, view: View) -> Iterator[Block]:
    """Yield a row for each value that is not the majority's, or has none."""
    if not result.differences:
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
                difference.field,
                difference.value,
                "no majority" if difference.majority is None else difference.majority,
                f"{difference.count} of {difference.total}",
                fold(difference.hosts),
            )
        )
        for difference in result.differences
    ]
    yield from limited_rows(Table(columns, rows), view, most=MOST_NODES)


def _judged(result: FleetReport, view: View) -> Iterator[Block]:
    """Yield how many groups were judged, and with `-v` each of them."""
    if not result.groups:
        return
    yield Gap()
    judged = [group for group in result.groups if group.judged_by is not JudgedBy.NOTHING]
    gpus = sum(1 for node in result.nodes for gpu in node.gpus if gpu.slower_percent is not None)
    text = f"{count_of(gpus)} compared in {count_of(len(judged), 'group')} of {len(result.groups)}"
    yield Line(text, style="dim")
    for group in result.groups if view.verbosity > 0 else ():
        how = (
            group.reason
            or f"by {group.judged_by.value}, finds {group.finds_percent:.1f} % and more"
        )
        yield Line(f"{group.key}: {count_of(group.gpus)}, {how}", indent=4, style="dim")


def _problems(result: FleetReport, view: View) -> Iterator[Block]:
    yield Gap()
    lines = []
    for problem in result.problems:
        place = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
        lines.append(Line(f"{place}: {problem.problem}", CheckStatus.UNKNOWN))
    yield from limited(lines, view, most=5)


def unhealthy(nodes: Sequence[FleetNode]) -> list[FleetNode]:
    """Return the nodes that no job should get before somebody has looked."""
    return [node for node in nodes if node.slow or node.outcome not in HEALTHY]


def nodes(result: FleetReport) -> str:
    """Return the unhealthy hosts, one a line, with a tab and the reason for Slurm's `Reason=`."""
    return "".join(
        f"{_NO_NAME.sub('_', node.host)}\t{reason_of(node)}\n" for node in unhealthy(result.nodes)
    )


def reason_of(node: FleetNode) -> str:
    """Return why a node is unhealthy: one line of safe ASCII, without quotes."""
    word = "slow" if node.outcome in HEALTHY else node.outcome.value
    text = f"gpucheck: {word}: {'; '.join(node.reasons)}" if node.reasons else f"gpucheck: {word}"
    plain = printable(text).encode("ascii", "replace").decode()
    safe = "".join(char if char.isalnum() or char in _SAFE else "_" for char in plain)
    return safe if len(safe) <= LONGEST_REASON else f"{safe[: LONGEST_REASON - 3]}..."


#: What may not stand in a host's name in a command; a document may call itself anything.
_NO_NAME = re.compile(r"[^A-Za-z0-9._:-]")
#: Beside letters and digits; no quote, dollar, backslash or backtick of a shell.
_SAFE = " .,:;%()/+-_=#"

#: Formats that are lines to copy.
LINES = {"nodes": nodes}


# -------------------------------------------------------------------------- for other systems


def records(result: object) -> Iterator[tuple[str, object]]:
    """Yield a word and a record for each node, unhealthy GPU, place, and difference."""
    if not isinstance(result, FleetReport):
        return
    for kind, rows in (
        ("node", result.nodes),
        ("slow", result.slow),
        ("attribution", result.attributions),
        ("difference", result.differences),
        ("problem", result.problems),
    ):
        for record in rows:
            yield kind, record


def verdicts(result: object) -> list[Verdict]:
    """Return a verdict for each node, in one suite."""
    if not isinstance(result, FleetReport):
        return []
    silent = sum(1 for node in result.nodes if node.outcome in SILENT)
    tolerated = silent <= result.max_missing
    return [
        Verdict(
            device="nodes",
            check=node.host,
            kind=_kind(node, tolerated=tolerated),
            message="; ".join(node.reasons) or _name_state(node),
            class_=_name_state(node),
        )
        for node in result.nodes
    ]


def _name_state(node: FleetNode) -> str:
    """Return a node's state in a word: slow only if nothing worse."""
    return "slow" if node.slow and node.outcome in HEALTHY else node.outcome.value


def _kind(node: FleetNode, *, tolerated: bool) -> Kind:
    if node.outcome is Outcome.FAILED or node.slow:
        return Kind.FAILURE
    if node.outcome in SILENT:
        return Kind.WARNING if tolerated else Kind.FAILURE
    if node.outcome in UNDECIDED:
        return Kind.ERROR
    warns = node.different or node.outcome is Outcome.UNEXPECTED
    return Kind.WARNING if warns else Kind.PASS


def metrics(report: Report) -> Iterator[Metric]:
    """Yield how many nodes have each outcome, and the unhealthy nodes and GPUs."""
    result = report.result
    if not isinstance(result, FleetReport):
        return
    yield gauge(
        "gpucheck_fleet_nodes",
        "Number of nodes with each outcome.",
        [
            ({"outcome": outcome.value}, result.outcomes.get(outcome.value, 0))
            for outcome in Outcome
        ],
    )
    yield gauge(
        "gpucheck_fleet_node_unhealthy",
        "Node that failed, is slow, or gave no answer that decides; healthy nodes are absent.",
        [
            ({"hostname": node.host, "rack": node.rack, "outcome": _name_state(node)}, 1)
            for node in unhealthy(result.nodes)
        ],
    )
    yield gauge(
        "gpucheck_fleet_node_different",
        "Node that is set up unlike most of its kind; the others are absent.",
        [
            ({"hostname": node.host, "rack": node.rack}, 1)
            for node in result.nodes
            if node.different
        ],
    )
    yield gauge(
        "gpucheck_fleet_gpu_slower_ratio",
        "How much slower than its group a slow, unstable or watched GPU is in its worst test.",
        [
            (
                {
                    **gpu_labels(index=gpu.index, uuid=gpu.gpu_uuid),
                    "hostname": gpu.host,
                    "speed": gpu.speed.value,
                },
                ratio(gpu.slower_percent),
            )
            for gpu in result.slow
        ],
    )
