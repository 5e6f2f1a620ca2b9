"""Report over all documents: each node's outcome, what differs, who is slow, and the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from gpucheck.fleet.collect import Collected, Node
from gpucheck.fleet.hostlist import Expected, fold
from gpucheck.fleet.model import (
    HEALTHY,
    SILENT,
    UNDECIDED,
    Difference,
    FleetGpu,
    FleetNode,
    FleetReport,
    GpuSpeed,
    JudgementRule,
    Outcome,
    Scope,
)
from gpucheck.fleet.node_facts import MOST_REASONS
from gpucheck.fleet.speeds import Baseline, describe_slow_nodes, judge_speeds
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from gpucheck.report.text import count_of

#: A majority needs so many of a kind; of two that differ nobody knows which is right.
LEAST_OF_A_KIND = 3
#: So many values of a fact are rows, the most frequent; one that all have differently is none.
MOST_VALUES = 20
#: So many other hosts of one GPU are named.
MOST_NAMED = 3
#: A host's GPUs that others report too, by the host and the names of the others.
SharedGpus = Mapping[tuple[str, str], list[str]]


def report(
    collected: Collected,
    expected: Expected | None,
    host: Host,
    *,
    max_missing: int = 0,
    rule: JudgementRule | None = None,
    baseline: Baseline | None = None,
) -> Answer:
    """Return the answer over everything that was read."""
    rule = rule or JudgementRule()
    groups, slow, attributions = judge_speeds(collected, expected or {}, rule, baseline)
    rows = tuple(_differences(collected, rule))
    shared = _shared_gpus(collected)
    reasons, differing = _oddities(collected, shared, rows, rule)
    sharing = {host for host, _ in shared}
    nodes = tuple(_nodes(collected, expected, rule, describe_slow_nodes(slow), reasons))
    silent = sum(1 for node in nodes if node.outcome in SILENT)
    result = FleetReport(
        conclusion="",
        nodes_expected=None if expected is None else len(expected),
        nodes_answered=len(nodes) - silent,
        max_missing=max_missing,
        documents=collected.documents,
        outcomes=_counted(nodes),
        nodes=nodes,
        groups=groups,
        slow=slow,
        attributions=attributions,
        differences=rows,
        problems=tuple(collected.problems),
        rule=rule,
        baseline=baseline and baseline[0],
    )
    result = result._replace(
        conclusion=_conclusion(result, collected.problem_count, differing, sharing)
    )
    return Answer(
        result=result,
        exit_code=_exit_code(result, collected.problem_count),
        host=host,
        warnings=tuple(_warnings(result, collected, differing, sharing)),
    )


# ----------------------------------------------------------------------------- what differs


def _differences(collected: Collected, rule: JudgementRule) -> Iterator[Difference]:
    """Yield the differences between nodes with GPUs of one model, then between GPUs."""
    nodes = collected.nodes.values()
    models = (gpus[0].name if gpus else None for gpus in (node.ordered_gpus() for node in nodes))
    yield from differences(
        ((of, node.host, node.inventory) for of, node in zip(models, nodes, strict=True)), rule
    )
    gpus = collected.gpus
    yield from differences(((gpu.name, gpu.host, gpu.inventory) for gpu in gpus), rule)


def differences(
    described: Iterable[tuple[str | None, str, Mapping[str, str]]], rule: JudgementRule
) -> Iterator[Difference]:
    """Yield the differences from the majority of a kind, by kind and fact.

    Each that is described has its kind, its host, and the facts about it. A kind is the GPUs of one
    model, or the nodes with GPUs of one model. What most of a kind have is right by assumption;
    where no value has a majority, each value is a row and nobody is accused.
    """
    hosts: dict[tuple[str, str | None], dict[str, dict[str, int]]] = {}
    for of, host, facts in described:
        for name, value in facts.items():
            of_value = hosts.setdefault((name, of), {}).setdefault(value, {})
            of_value[host] = of_value.get(host, 0) + 1
    for (name, of), values in sorted(hosts.items(), key=lambda item: (item[0][1] or "", item[0])):
        counts = {value: sum(by_host.values()) for value, by_host in values.items()}
        total = sum(counts.values())
        if len(counts) < 2 or total < LEAST_OF_A_KIND:
            continue
        ordered = sorted(counts, key=lambda value: (-counts[value], value))
        first = ordered[0]
        agreed = first if counts[first] >= rule.majority_share * total else None
        if agreed is None and len(counts) > MOST_VALUES:
            continue
        for value in ordered[agreed is not None :][:MOST_VALUES]:
            yield Difference(
                field=name,
                of=of,
                value=value,
                majority=agreed,
                count=counts[value],
                majority_count=counts[first] if agreed is not None else 0,
                total=total,
                hosts=tuple(sorted(values[value])),
            )


# ------------------------------------------------------------------------------- each node


def _nodes(
    collected: Collected,
    expected: Expected | None,
    rule: JudgementRule,
    slow: Mapping[str, Sequence[str]],
    odd: Mapping[str, Sequence[str]],
) -> Iterator[FleetNode]:
    """Yield the expected nodes in their order, then the others."""
    hosts = expected or {}
    for host in (*hosts, *sorted(name for name in collected.nodes if name not in hosts)):
        node = collected.nodes.get(host)
        rack = hosts.get(host)
        known = None if expected is None else host in hosts
        if node is None:
            yield FleetNode(host, Outcome.MISSING, rack=rack, expected=known)
            continue
        judged = _node(node, rule)
        unexpected = judged.outcome is Outcome.OK and known is False
        more = (*slow.get(host, ()), *odd.get(host, ()))
        told = (judged.conclusion,) if judged.conclusion else ()
        yield judged._replace(
            outcome=Outcome.UNEXPECTED if unexpected else judged.outcome,
            reasons=(*judged.reasons, *more)[:MOST_REASONS],
            conclusion="; ".join((*told, *more[:MOST_REASONS])) or None,
            rack=rack,
            expected=known,
            slow=host in slow,
            different=host in odd,
            gpus=tuple(
                FleetGpu(gpu.uuid, gpu.index, gpu.name, gpu.state, gpu.speed, gpu.slower_percent)
                for gpu in node.ordered_gpus()
            ),
        )


def _node(node: Node, rule: JudgementRule) -> FleetNode:
    """Return the row of a node from its documents."""
    outcome = node.outcome()
    # Of several commands with the same outcome, detect knows the cause.
    latest = sorted(
        node.latest(), key=lambda run: (run.outcome is not outcome, run.command != "detect")
    )
    reasons = dict.fromkeys(reason.rstrip(".") for run in latest for reason in run.reasons)
    told = dict.fromkeys(sentence.rstrip(".") for run in latest for sentence in run.sentences)
    runs, failed_in = node.repeats()
    if runs > 1 and 0 < failed_in < runs:
        reasons[f"failed in {failed_in} of {runs} runs"] = None
        told[f"failed in {failed_in} of {runs} runs"] = None
        if failed_in >= max(2, rule.confirmed_share * runs):
            outcome = Outcome.FAILED
    return FleetNode(
        host=node.host,
        outcome=outcome,
        reasons=tuple(reasons),
        documents=node.documents,
        runs=runs,
        failed_in=failed_in,
        time=_time(node.time),
        gpucheck_version=node.gpucheck_version,
        driver_version=node.inventory.get("driver_version"),
        conclusion="; ".join(told) or None,
        file=latest[0].file,
    )


def _oddities(
    collected: Collected, shared: SharedGpus, rows: Sequence[Difference], rule: JudgementRule
) -> tuple[Mapping[str, list[str]], Collection[str]]:
    """Return each node's oddities (set-up, shared GPUs, clock), and the nodes unlike most."""
    oddities: dict[str, list[str]] = {}
    for row in rows:
        if row.majority is not None:
            for host in row.hosts:
                oddities.setdefault(host, []).append(row.reason)
    differing = set(oddities)
    for (host, named), uuids in shared.items():
        if len(reasons := oddities.setdefault(host, [])) < MOST_REASONS:
            more = len(uuids) - 1
            which = f"{len(uuids)} of its GPUs are" if more else "one of its GPUs is"
            first = f"{uuids[0]} and {more} more" if more else uuids[0]
            reasons.append(f"{which} also reported by {named}: {first}")
    times = sorted(node.time for node in collected.nodes.values() if node.time is not None)
    middle = times[len(times) // 2] if times else 0.0
    for node in collected.nodes.values():
        if node.has_other_gpus:
            text = "its documents name different GPUs: exchanged, or two machines of one name"
            oddities.setdefault(node.host, []).append(text)
            differing.add(node.host)
        if node.time is not None and abs(node.time - middle) > rule.most_age_s:
            days = (middle - node.time) / 86400
            word = "older" if days > 0 else "newer"
            text = f"its documents are {abs(days):.1f} days {word} than most, or its clock is wrong"
            oddities.setdefault(node.host, []).append(text)
            differing.add(node.host)
    return oddities, differing


def _shared_gpus(collected: Collected) -> SharedGpus:
    """Return a host's GPUs that others report too, by the host and the names of the others.

    Workers of one machine share its GPUs, and nothing is wrong with that.
    """
    hosts: dict[str, list[str]] = {}
    for gpu in () if collected.one_machine else collected.gpus:
        hosts.setdefault(gpu.uuid, []).append(gpu.host)
    shared: dict[tuple[str, str], list[str]] = {}
    for uuid, here in hosts.items():
        for host in here if len(here) > 1 else ():
            others = [other for other in here[: MOST_NAMED + 1] if other != host][:MOST_NAMED]
            more = len(here) - 1 - len(others)
            named = ", ".join(others) + (f" and {more} more" if more else "")
            shared.setdefault((host, named), []).append(uuid)
    return shared


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    # strftime writes no zeros before a year such as 1.
    when = datetime.fromtimestamp(int(seconds), UTC).replace(tzinfo=None)
    return f"{when.isoformat()}Z"


def _counted(nodes: Sequence[FleetNode]) -> Mapping[str, int]:
    counts = Counter(node.outcome for node in nodes)
    return {outcome.value: counts[outcome] for outcome in Outcome if outcome in counts}


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


def _conclusion(
    result: FleetReport, problems: int, differing: Collection[str], sharing: Collection[str]
) -> str:
    """Return the sentence over all: how many nodes there are, healthy and not."""
    total = len(result.nodes)
    if total == 0:
        return "no node: nothing was judged"
    healthy = sum(1 for node in result.nodes if node.outcome in HEALTHY and not node.slow)
    parts = [
        (sum(1 for node in result.nodes if node.outcome in SILENT), "missing"),
        (sum(1 for node in result.nodes if node.outcome is Outcome.FAILED), "failed"),
        (sum(1 for node in result.nodes if node.slow), "slow"),
        (sum(1 for node in result.nodes if node.outcome in UNDECIDED), "not judged"),
        (len(differing), "different"),
        (len(sharing), "with the same GPUs"),
        (sum(1 for node in result.nodes if node.expected is False), "unexpected"),
    ]
    counts = [f"{number} {word}" for number, word in parts if number]
    if problems:
        counts.append(f"{count_of(problems, 'document')} of no node")
    return f"{count_of(total, 'node')}: {', '.join((f'{healthy} ok', *counts))}"


def _warnings(
    result: FleetReport,
    collected: Collected,
    differing: Collection[str],
    sharing: Collection[str],
) -> Iterator[Notice]:
    yield from _warnings_of_speeds(result)
    if differing:
        hosts = sorted(differing)
        text = f"{count_of(len(hosts), 'node')} different from most: {shortened(hosts)}."
        yield Notice("different-nodes", text)
    if sharing:
        text = f"The same GPUs answer under several hosts: {shortened(sorted(sharing))}."
        yield Notice("same-gpus", text)
    unexpected = [node.host for node in result.nodes if node.expected is False]
    if unexpected:
        text = f"{count_of(len(unexpected), 'node')} not expected: {shortened(unexpected)}."
        yield Notice("unexpected-nodes", text)
    silent = [node.host for node in result.nodes if node.outcome in SILENT]
    if silent and len(silent) <= result.max_missing:
        text = f"{count_of(len(silent), 'node')} missing: {shortened(silent)}."
        yield Notice("missing-nodes", text)
    if collected.problem_count:
        documents = count_of(collected.problem_count, "document")
        text = f"{documents} without a host cannot be read."
        yield Notice("unreadable-documents", text)
    for why, number in collected.ignored.items():
        yield Notice("documents-passed-over", f"{count_of(number, 'document')} left out: {why}.")
    recorded = sum(1 for node in collected.nodes.values() if node.recorded)
    if recorded:
        now = "it is" if recorded == 1 else "they are"
        text = f"{count_of(recorded, 'node')} answered from a recording, not as {now} now."
        yield Notice("recorded-nodes", text)


def _warnings_of_speeds(result: FleetReport) -> Iterator[Notice]:
    counts = {
        speed: sum(1 for gpu in result.slow if gpu.speed is speed)
        for speed in (GpuSpeed.UNSTABLE, GpuSpeed.WATCH)
    }
    if counts[GpuSpeed.UNSTABLE]:
        text = f"{count_of(counts[GpuSpeed.UNSTABLE])} slow in some runs, but not in enough."
        yield Notice("unstable-gpus", text)
    if counts[GpuSpeed.WATCH]:
        text = f"{count_of(counts[GpuSpeed.WATCH])} to watch: slower than most, not surely slow."
        yield Notice("gpus-to-watch", text)
    for attribution in result.attributions:
        if attribution.scope is Scope.GROUP:
            yield Notice("group-slower-than-baseline", f"{attribution.sentence}.")
    silent = sum(
        1 for node in result.nodes for gpu in node.gpus if gpu.speed is GpuSpeed.NOT_JUDGED
    )
    reasons = [group.reason for group in result.groups if group.reason]
    if silent and reasons:
        text = f"The speed of {count_of(silent)} was not judged: {reasons[0]}."
        yield Notice("speed-not-judged", text)


def shortened(hosts: Sequence[str], most: int = 60) -> str:
    """Return hosts as a folded list that is cut if it is long."""
    text = fold(hosts)
    return text if len(text) <= most else f"{text[:most].rpartition(',')[0] or text[:most]}, …"
