"""Report over all documents: each node's outcome, what differs, who is slow, and the exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from gpucheck.fleet.collect import Collected, Gpu, Node, gpus_by_host
from gpucheck.fleet.expected import Expected
from gpucheck.fleet.hostlist import fold
from gpucheck.fleet.model import (
    SILENT,
    UNDECIDED,
    FleetGpu,
    FleetNode,
    FleetReport,
    JudgementRule,
    Outcome,
)
from gpucheck.report.envelope import Answer, Host, Notice
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import count_of

#: The reason of a node of which nothing came.
NOT_HEARD_OF = "no document"


def report(
    collected: Collected,
    expected: Expected | None,
    host: Host,
    *,
    max_missing: int = 0,
    rule: JudgementRule | None = None,
) -> Answer:
    """Return the answer over everything that was read."""
    rule = rule or JudgementRule()
    nodes = tuple(_nodes(collected, expected, rule))
    silent = sum(1 for node in nodes if node.outcome in SILENT)
    result = FleetReport(
        conclusion="",
        nodes_expected=None if expected is None else len(expected.hosts),
        nodes_answered=len(nodes) - silent,
        max_missing=max_missing,
        documents=collected.documents,
        outcomes=_counted(nodes),
        nodes=nodes,
        problems=tuple(collected.problems),
        rule=rule,
    )
    result = result._replace(conclusion=_conclusion(result, collected.problem_count))
    return Answer(
        result=result,
        exit_code=_exit_code(result, collected.problem_count),
        host=host,
        warnings=tuple(_warnings(result, collected)),
    )


def _nodes(
    collected: Collected, expected: Expected | None, rule: JudgementRule
) -> Iterator[FleetNode]:
    """Yield the expected nodes in their order, then the others."""
    gpus = gpus_by_host(collected)
    hosts = dict.fromkeys(expected.hosts if expected else ())
    for host in (*hosts, *sorted(name for name in collected.nodes if name not in hosts)):
        node = collected.nodes.get(host)
        rack = expected.racks.get(host) if expected else None
        known = None if expected is None else host in hosts
        if node is None:
            yield FleetNode(host, Outcome.MISSING, (NOT_HEARD_OF,), rack, known)
        else:
            yield _node(node, gpus.get(host, ()), rack, known, rule)


def _node(
    node: Node, gpus: Sequence[Gpu], rack: str | None, expected: bool | None, rule: JudgementRule
) -> FleetNode:
    outcome = node.outcome()
    latest = sorted(node.latest(), key=lambda run: run.outcome is not outcome)
    reasons = dict.fromkeys(reason for run in latest for reason in run.reasons)
    runs, failed_in = node.repeats()
    if runs > 1 and 0 < failed_in < runs:
        reasons[f"failed in {failed_in} of {runs} runs"] = None
        if failed_in >= max(2, rule.confirmed_share * runs):
            outcome = Outcome.FAILED
    if outcome is Outcome.OK and expected is False:
        outcome = Outcome.UNEXPECTED
    return FleetNode(
        host=node.host,
        outcome=outcome,
        reasons=tuple(reasons),
        rack=rack,
        expected=expected,
        documents=len(node.runs),
        runs=runs,
        failed_in=failed_in,
        time=_time(node.time),
        gpucheck_version=node.gpucheck_version,
        driver_version=node.inventory.get("driver_version"),
        gpus=tuple(_gpu(gpu) for gpu in gpus),
    )


def _gpu(gpu: Gpu) -> FleetGpu:
    return FleetGpu(gpu.uuid, gpu.index, gpu.name, gpu.state)


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _counted(nodes: Sequence[FleetNode]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        found[node.outcome.value] = found.get(node.outcome.value, 0) + 1
    return {each.value: found[each.value] for each in Outcome if each.value in found}


def _exit_code(result: FleetReport, problems: int) -> ExitCode:
    """Return 1 if a node is bad or too many are silent, 3 if something decides nothing."""
    silent = sum(1 for node in result.nodes if node.outcome in SILENT)
    bad = any(node.outcome is Outcome.FAILED or node.slow for node in result.nodes)
    if bad or silent > result.max_missing:
        return ExitCode.BAD
    undecided = any(node.outcome in UNDECIDED for node in result.nodes)
    if undecided or problems or not any(node.outcome not in SILENT for node in result.nodes):
        return ExitCode.INCONCLUSIVE
    return ExitCode.OK


def _conclusion(result: FleetReport, problems: int) -> str:
    """Return the sentence over all: how many nodes there are, and how many are not well."""
    total = len(result.nodes)
    if total == 0:
        return "no node: nothing was judged"
    parts = [
        (sum(1 for node in result.nodes if node.outcome in SILENT), "without an answer"),
        (sum(1 for node in result.nodes if node.outcome is Outcome.FAILED), "failed"),
        (sum(1 for node in result.nodes if node.slow), "slow"),
        (sum(1 for node in result.nodes if node.outcome in UNDECIDED), "not judged"),
        (sum(1 for node in result.nodes if node.different), "different"),
        (sum(1 for node in result.nodes if node.expected is False), "unexpected"),
    ]
    found = [f"{number} {word}" for number, word in parts if number]
    if problems:
        found.append(f"{count_of(problems, 'document')} of no node")
    return f"{count_of(total, 'node')}: {', '.join(found) or 'nothing is wrong'}"


def _warnings(result: FleetReport, collected: Collected) -> Iterator[Notice]:
    unexpected = [node.host for node in result.nodes if node.expected is False]
    if unexpected:
        text = f"{count_of(len(unexpected), 'node')} not expected: {shortened(unexpected)}."
        yield Notice("unexpected-nodes", text)
    silent = [node.host for node in result.nodes if node.outcome in SILENT]
    if silent and len(silent) <= result.max_missing:
        text = f"{count_of(len(silent), 'node')} without an answer: {shortened(silent)}."
        yield Notice("missing-nodes", text)
    if collected.problem_count:
        text = f"{count_of(collected.problem_count, 'document')} without a host cannot be read."
        yield Notice("unreadable-documents", text)
    for why, number in collected.ignored.items():
        yield Notice("documents-passed-over", f"{count_of(number, 'document')} left out: {why}.")
    recorded = sum(1 for node in collected.nodes.values() if node.recorded)
    if recorded:
        text = f"{count_of(recorded, 'node')} answered from a recording, not as it is now."
        yield Notice("recorded-nodes", text)


def shortened(hosts: Sequence[str], most: int = 60) -> str:
    """Return hosts as a folded list that is cut if it is long."""
    text = fold(hosts)
    return text if len(text) <= most else f"{text[:most].rpartition(',')[0] or text[:most]}, …"
