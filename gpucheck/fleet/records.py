"""Report of a fleet for other systems: JSON lines, verdicts for CI, metrics for Prometheus.

Healthy nodes and GPUs are many, so only those that are not well are named one by one there.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.fleet.model import (
    HEALTHY,
    SILENT,
    UNDECIDED,
    FleetNode,
    FleetReport,
    Outcome,
)
from gpucheck.report.envelope import Report
from gpucheck.report.formats.prometheus import Metric, gauge, gpu_labels, ratio
from gpucheck.report.verdicts import Kind, Verdict


def records(result: object) -> Iterator[tuple[str, object]]:
    """Yield a word and a record for each node, GPU that is not well, place, and difference."""
    if not isinstance(result, FleetReport):
        return
    for kind, found in (
        ("node", result.nodes),
        ("slow", result.slow),
        ("attribution", result.attributions),
        ("difference", result.differences),
        ("problem", result.problems),
    ):
        for record in found:
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
            message="; ".join(node.reasons) or _word(node),
            class_=_word(node),
        )
        for node in result.nodes
    ]


def _word(node: FleetNode) -> str:
    """Return what a node is, in a word: slow only if nothing worse."""
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
    """Yield how many nodes have each outcome, and the nodes and GPUs that are not well."""
    found = report.result
    if not isinstance(found, FleetReport):
        return
    yield gauge(
        "gpucheck_fleet_nodes",
        "Number of nodes with each outcome.",
        [({"outcome": each.value}, found.outcomes.get(each.value, 0)) for each in Outcome],
    )
    yield gauge(
        "gpucheck_fleet_node_unhealthy",
        "Node that failed, is slow, or gave no answer that decides; healthy nodes are absent.",
        [
            ({"hostname": node.host, "rack": node.rack, "outcome": _word(node)}, 1)
            for node in found.nodes
            if node.slow or node.outcome not in HEALTHY
        ],
    )
    yield gauge(
        "gpucheck_fleet_node_different",
        "Node that is set up unlike most of its kind; the others are absent.",
        [({"hostname": node.host, "rack": node.rack}, 1) for node in found.nodes if node.different],
    )
    yield gauge(
        "gpucheck_fleet_gpu_slower_ratio",
        "How much slower than its group a slow, unstable or watched GPU is in its worst test.",
        [
            (
                {
                    **gpu_labels(index=one.index, uuid=one.gpu_uuid),
                    "hostname": one.host,
                    "speed": one.speed.value,
                },
                ratio(one.slower_percent),
            )
            for one in found.slow
        ],
    )
