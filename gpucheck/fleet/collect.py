"""Collection of documents by host and GPU: what each node answered last, and every speed measured.

The same host twice is several runs of one node, in the order of their own clock; the newest of each
command decides, and the others are counted. A document that was read twice counts once. Speeds are
kept as columns of numbers, so that memory grows with the figures, not with the documents.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from gpucheck.fleet.documents import SUFFIXES, Found
from gpucheck.fleet.model import SILENT, UNDECIDED, DocumentProblem, Outcome
from gpucheck.fleet.node_facts import Config, GpuFacts, NodeFacts, facts_of

#: So many places of damaged documents are named; the others are counted.
MOST_PROBLEMS = 1000
#: The worst outcome decides about a node with several.
_WORST_FIRST = (
    Outcome.FAILED,
    Outcome.LOST,
    Outcome.TIMEOUT,
    Outcome.NO_ANSWER,
    Outcome.NOT_INSTALLED,
    Outcome.UNREADABLE,
    Outcome.INCOMPATIBLE,
    Outcome.BUSY,
    Outcome.INCONCLUSIVE,
    Outcome.OK,
)
#: A damaged document does not say which command wrote it.
_ANY = "?"


class Run(NamedTuple):
    """One document of a node, in the order of its time and then of reading."""

    time: float
    order: int
    command: str
    outcome: Outcome
    reasons: tuple[str, ...]
    uuids: frozenset[str]


@dataclass(slots=True)
class Node:
    """A node as it is collected."""

    host: str
    runs: list[Run] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    inventory: dict[str, str] = field(default_factory=dict)
    gpucheck_version: str | None = None
    time: float | None = None
    recorded: bool = False

    def latest(self) -> list[Run]:
        """Return the newest run of each command; damaged ones only if nothing good came later."""
        newest: dict[str, Run] = {}
        for run in sorted(self.runs, key=lambda one: (one.time, one.order)):
            newest[run.command] = run
        good = [run.order for run in self.runs if run.command != _ANY]
        broken = newest.get(_ANY)
        if broken is not None and good and max(good) > broken.order:
            del newest[_ANY]
        return list(newest.values())

    def outcome(self) -> Outcome:
        """Return the worst outcome of the newest runs."""
        return min((run.outcome for run in self.latest()), key=_WORST_FIRST.index)

    def answered(self) -> bool:
        """Return whether any of its documents is an answer."""
        return any(run.outcome not in SILENT for run in self.runs)

    def has_other_gpus(self) -> bool:
        """Return whether two of its documents have no GPU in common."""
        sets = [run.uuids for run in self.runs if run.uuids]
        return any(not one & sets[0] for one in sets)

    def repeats(self) -> tuple[int, int]:
        """Return the most runs of one command, and how many of these failed."""
        by_command: dict[str, list[bool]] = {}
        for run in self.runs:
            if run.outcome not in UNDECIDED:
                by_command.setdefault(run.command, []).append(run.outcome is Outcome.FAILED)
        counts = [(len(failed), sum(failed)) for failed in by_command.values()]
        return max(counts, key=lambda one: (one[1], one[0]), default=(0, 0))


@dataclass(slots=True)
class Gpu:
    """A GPU as it is collected; `hosts` are all that reported it, the newest last."""

    uuid: str
    hosts: list[str]
    index: int | None = None
    name: str | None = None
    state: str | None = None
    time: float = 0.0
    inventory: dict[str, str] = field(default_factory=dict)
    facts: tuple[str, ...] = ()
    busy: bool = False


class Column:
    """Speeds in one test, as three columns: the GPU, its configuration, the speed."""

    __slots__ = ("configs", "gpus", "values")

    def __init__(self) -> None:
        self.gpus, self.configs, self.values = array("I"), array("I"), array("d")


class Test(NamedTuple):
    """What was measured: the row's id, the unit, and the GPU's number where that matters."""

    test: str
    unit: str
    position: int | None


class Collected:
    """Everything that was read, by host and GPU.

    `expected` are the hosts that should be there; with them, `node1.cluster` is `node1`, and a
    document belongs to the host that its file is named after, if there is one.
    """

    def __init__(self, expected: Collection[str] = ()) -> None:
        self.nodes: dict[str, Node] = {}
        self.gpus: dict[str, Gpu] = {}
        self.gpu_numbers: dict[str, int] = {}
        self.configs: dict[Config, int] = {}
        self.columns: dict[Test, Column] = {}
        self.problems: list[DocumentProblem] = []
        self.problem_count = 0
        self.documents = 0
        self.ignored: dict[str, int] = {}
        self._expected = frozenset(expected)
        self._short = _by_short_name(expected)
        self._words: dict[str, str] = {}

    def add(self, found: Found) -> None:
        """Take one document, or what is wrong with it."""
        self.documents += 1
        if found.document is None:
            problem = found.problem or "it is damaged"
            facts = NodeFacts(found.host, _ANY, Outcome.UNREADABLE, (problem,))
        else:
            facts = facts_of(found.document)
        if facts.ignored is not None:
            self.ignored[facts.ignored] = self.ignored.get(facts.ignored, 0) + 1
            return
        host = self._host(facts.host, found)
        if host is None:
            self._problem(found, facts)
            return
        node = self.nodes.setdefault(host, Node(host))
        if facts.time is not None and facts.command != _ANY:
            # The same document, read twice: once as a file and once in a collection of them.
            mark = (facts.command, facts.time, tuple(gpu.uuid for gpu in facts.gpus))
            if hash(mark) in node.seen:
                return
            node.seen.add(hash(mark))
        self._take(node, facts)

    def _problem(self, found: Found, facts: NodeFacts) -> None:
        self.problem_count += 1
        if len(self.problems) < MOST_PROBLEMS:
            place = found.place
            problem = "; ".join(facts.reasons) or "it names no host"
            self.problems.append(DocumentProblem(self._word(place.file), place.line, problem))

    def _host(self, said: str | None, found: Found) -> str | None:
        """Return the name under which a document's node is known."""
        stem = _stem(found.place.file)
        # Who gathered the documents named the file. The document itself may say anything: in a
        # container the machine has another name than outside, or it bears another's.
        if stem in self._expected:
            return stem
        if said is not None:
            return self._known(said)
        lone = found.document is not None and not self._expected and found.place.line is None
        return stem if lone and stem else None

    def _known(self, said: str) -> str:
        if said in self._expected:
            return said
        name = self._short.get(_short_name(said))
        return self._word(said if name is None else name)

    def _take(self, node: Node, facts: NodeFacts) -> None:
        order = self.documents
        time = facts.time if facts.time is not None else node.time or 0.0
        newest = node.time is None or time >= node.time
        uuids = frozenset(self._word(gpu.uuid) for gpu in facts.gpus)
        node.runs.append(Run(time, order, facts.command, facts.outcome, facts.reasons, uuids))
        node.recorded |= facts.recorded
        if newest:
            node.time = facts.time if facts.time is not None else node.time
            node.gpucheck_version = facts.gpucheck_version or node.gpucheck_version
        for key, value in facts.inventory.items():
            if newest or key not in node.inventory:
                node.inventory[key] = self._word(value)
        configs: dict[str, int] = {}
        for gpu in facts.gpus:
            self._take_gpu(node, gpu, facts, time)
            if gpu.config is not None:
                configs[gpu.uuid] = self.configs.setdefault(gpu.config, len(self.configs))
        self._take_speeds(facts, configs)

    def _take_gpu(self, node: Node, facts: GpuFacts, document: NodeFacts, time: float) -> None:
        gpu = self.gpus.get(facts.uuid)
        if gpu is None:
            uuid = self._word(facts.uuid)
            gpu = self.gpus[uuid] = Gpu(uuid, [node.host])
            self.gpu_numbers[uuid] = len(self.gpu_numbers)
        elif node.host not in gpu.hosts:
            gpu.hosts.append(node.host)
        newest = time >= gpu.time
        gpu.time = max(gpu.time, time)
        gpu.busy |= facts.uuid in document.busy
        # NVML's number, which list and detect have, comes before CUDA's.
        if gpu.index is None or document.command in ("list", "detect"):
            gpu.index = facts.index if facts.index is not None else gpu.index
        if facts.name is not None:
            gpu.name = self._word(facts.name)
        if facts.state is not None and newest:
            gpu.state = self._word(facts.state)
        for key, value in facts.inventory.items():
            if newest or key not in gpu.inventory:
                gpu.inventory[key] = self._word(value)
        if facts.facts and newest:
            gpu.facts = facts.facts

    def _take_speeds(self, facts: NodeFacts, configs: Mapping[str, int]) -> None:
        for speed in facts.speeds:
            config = configs.get(speed.uuid)
            if config is None:
                continue
            test = Test(self._word(speed.test), self._word(speed.unit), speed.position)
            column = self.columns.get(test)
            if column is None:
                column = self.columns[test] = Column()
            column.gpus.append(self.gpu_numbers[speed.uuid])
            column.configs.append(config)
            column.values.append(speed.value)

    def _word(self, text: str) -> str:
        """Return the one copy of a text: thousands of documents say the same."""
        return self._words.setdefault(text, text)


def gpus_by_host(collected: Collected) -> Mapping[str, list[Gpu]]:
    """Return the GPUs of each host that reported them last, by their numbers."""
    found: dict[str, list[Gpu]] = {}
    for gpu in collected.gpus.values():
        found.setdefault(gpu.hosts[-1], []).append(gpu)
    for gpus in found.values():
        gpus.sort(key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid))
    return found


def _stem(file: str) -> str:
    """Return a file's name without what says that it is a document."""
    name = PurePath(file).name
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        name = name.removesuffix(suffix)
    return name


def _short_name(host: str) -> str:
    first, _, rest = host.partition(".")
    return host if first.isdecimal() and rest else first


def _by_short_name(hosts: Collection[str]) -> dict[str, str]:
    """Return the expected hosts by their short names, where these are one host's alone."""
    found: dict[str, str] = {}
    doubled = set()
    for host in hosts:
        short = _short_name(host)
        if found.setdefault(short, host) != host:
            doubled.add(short)
    return {short: host for short, host in found.items() if short not in doubled}
