"""Collection of documents by host and GPU: what each node answered last, and every speed measured.

The same host twice is several runs of one node, in the order of their own clock; the newest of
each command decides, and the others are counted. A document that was read twice counts once.
Speeds are kept as columns of numbers and runs as counts: memory grows with nodes and figures. A
GPU is one of its node: what another host says of the same GPU changes nothing of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from gpucheck.fleet.documents import STANDARD_INPUT, SUFFIXES, Entry
from gpucheck.fleet.hostlist import HostNames
from gpucheck.fleet.model import UNDECIDED, WORST_FIRST, DocumentProblem, GpuSpeed, Outcome
from gpucheck.fleet.node_facts import (
    ANY,
    HEALTH_VALIDATION,
    Config,
    GpuFacts,
    NodeFacts,
    Test,
    facts_of,
)

#: So many places of damaged documents are named, and kinds of those passed over.
MOST_PROBLEMS, MOST_KINDS = 1000, 20


@dataclass(slots=True)
class Gpu:
    """GPU of a node as it is collected, and then judged; `number` is its own in the fleet.

    `slower_percent` is that of its worst test, None if nothing was compared.
    """

    uuid: str
    host: str
    number: int
    index: int | None = None
    name: str | None = None
    state: str | None = None
    time: float = 0.0
    inventory: dict[str, str] = field(default_factory=dict)
    facts: tuple[str, ...] = ()
    busy: bool = False
    speed: GpuSpeed = GpuSpeed.NOT_JUDGED
    slower_percent: float | None = None


@dataclass(slots=True)
class Node:
    """A node as it is collected.

    `newest` is the newest run of each command, `counts` how many there are of each and how many of
    these failed. `has_other_gpus` says whether two of its documents have no GPU in common.
    """

    host: str
    documents: int = 0
    newest: dict[str, NodeFacts] = field(default_factory=dict)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    inventory: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, Gpu] = field(default_factory=dict)
    has_other_gpus: bool = False
    gpucheck_version: str | None = None
    time: float | None = None
    recorded: bool = False
    first_uuids: frozenset[str] = frozenset()
    last_good: int = 0

    def take(self, run: NodeFacts, uuids: frozenset[str]) -> None:
        """Take the facts of one run, and the GPUs that it names."""
        self.documents += 1
        before = self.newest.get(run.command)
        if before is None or (run.time or 0.0) >= (before.time or 0.0):
            self.newest[run.command] = run
        if run.command != ANY:
            self.last_good = run.order
        if run.outcome not in UNDECIDED:
            count, failed = self.counts.get(run.command, (0, 0))
            self.counts[run.command] = count + 1, failed + (run.outcome is Outcome.FAILED)
        self.first_uuids = self.first_uuids or uuids
        self.has_other_gpus |= bool(uuids) and not uuids & self.first_uuids

    def latest(self) -> list[NodeFacts]:
        """Return the newest run of each command; damaged ones only if nothing good came later."""
        runs = self.newest.values()
        return [run for run in runs if run.command != ANY or run.order > self.last_good]

    def outcome(self) -> Outcome:
        """Return the worst outcome of the newest runs."""
        return min((run.outcome for run in self.latest()), key=WORST_FIRST.index)

    def repeats(self) -> tuple[int, int]:
        """Return the most runs of one command, and how many of these failed."""
        return max(self.counts.values(), key=lambda counts: (counts[1], counts[0]), default=(0, 0))

    def ordered_gpus(self) -> list[Gpu]:
        """Return the node's GPUs by their numbers there."""
        return sorted(
            self.gpus.values(), key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid)
        )


class Column:
    """Speeds in one test, as three columns: the GPU, its configuration, the speed."""

    __slots__ = ("configs", "gpus", "values")

    def __init__(self) -> None:
        self.gpus, self.configs, self.values = array("I"), array("I"), array("d")


class Collected:
    """Everything that was read, by host and GPU.

    `expected` are the hosts that should be there; with them, `node1.cluster` is `node1`, and a
    document belongs to the host that its file is named after, if there is one. With `one_machine`
    the nodes are workers of one machine.
    """

    def __init__(self, expected: Collection[str] = (), *, one_machine: bool = False) -> None:
        self.one_machine = one_machine
        self.nodes: dict[str, Node] = {}
        self.gpus: list[Gpu] = []
        self.configs: dict[Config, int] = {}
        self.columns: dict[Test, Column] = {}
        self.problems: list[DocumentProblem] = []
        self.problem_count = 0
        self.documents = 0
        self.ignored: dict[str, int] = {}
        self._expected = HostNames(expected)
        self._words: dict[str, str] = {}

    def add(self, entry: Entry) -> None:
        """Take one document, or what is wrong with it."""
        self.documents += 1
        if entry.document is None:
            problem = entry.problem or "it is damaged"
            facts = NodeFacts(entry.host, ANY, Outcome.UNREADABLE, (problem,))
        else:
            facts = facts_of(entry.document)
        if facts.ignored is not None:
            many = len(self.ignored) >= MOST_KINDS and facts.ignored not in self.ignored
            kind = "they are not about nodes either" if many else facts.ignored
            self.ignored[kind] = self.ignored.get(kind, 0) + 1
            return
        host = self._host(facts, entry)
        if host is None:
            self._problem(entry, facts)
            return
        node = self.nodes.setdefault(host, Node(host))
        if facts.time is not None and facts.command != ANY:
            # The same document, read twice: once as a file and once in a collection of them.
            uuids = tuple(gpu.uuid for gpu in facts.gpus)
            mark = hash((facts.command, facts.time, facts.outcome, uuids))
            if mark in node.seen:
                return
            node.seen.add(mark)
        self._take(node, facts, self._file(facts, entry))

    def _problem(self, entry: Entry, facts: NodeFacts) -> None:
        self.problem_count += 1
        if len(self.problems) < MOST_PROBLEMS:
            problem = "; ".join(facts.reasons) or "it names no host"
            self.problems.append(DocumentProblem(self._word(entry.file), entry.line, problem))

    def _host(self, facts: NodeFacts, entry: Entry) -> str | None:
        """Return the name under which a document's node is known."""
        stem = _stem(entry.file)
        # Who gathered the documents named the file. The document itself may say anything: in a
        # container the machine has another name than outside, or it bears another's.
        if stem in self._expected.hosts:
            return stem
        if facts.host is not None:
            return self._known(facts.host)
        # A verdict may not say whose it is; its file does, if it holds nothing else.
        named = entry.line is None and stem and entry.file.endswith(SUFFIXES)
        return self._known(stem) if named and facts.command == HEALTH_VALIDATION else None

    def _known(self, name: str) -> str:
        return self._word(self._expected.find(name) or name)

    def _file(self, facts: NodeFacts, entry: Entry) -> str | None:
        """Return the file that is this document and nothing else; None for a line of many."""
        whole = entry.line is None and entry.file != STANDARD_INPUT
        schema = entry.document and entry.document.get("schema")
        return entry.file if whole and schema == f"gpucheck/{facts.command}/1" else None

    def _take(self, node: Node, facts: NodeFacts, file: str | None) -> None:
        time = facts.time if facts.time is not None else node.time or 0.0
        newest = node.time is None or time >= node.time
        # Of thousands of runs only what the row of a node says is kept.
        run = facts._replace(time=time, order=self.documents, file=file, gpus=(), speeds=())
        node.take(run, frozenset(self._word(gpu.uuid) for gpu in facts.gpus))
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
        self._take_speeds(node, facts, configs)

    def _take_gpu(self, node: Node, facts: GpuFacts, document: NodeFacts, time: float) -> None:
        gpu = node.gpus.get(facts.uuid)
        if gpu is None:
            uuid = self._word(facts.uuid)
            gpu = node.gpus[uuid] = Gpu(uuid, node.host, len(self.gpus))
            self.gpus.append(gpu)
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

    def _take_speeds(self, node: Node, facts: NodeFacts, configs: Mapping[str, int]) -> None:
        for uuid, test, value in facts.speeds:
            config = configs.get(uuid)
            if config is None:
                continue
            row, unit, position = test
            test = self._word(row), self._word(unit), position
            column = self.columns.get(test)
            if column is None:
                column = self.columns[test] = Column()
            column.gpus.append(node.gpus[uuid].number)
            column.configs.append(config)
            column.values.append(value)

    def _word(self, text: str) -> str:
        """Return the one copy of a text: thousands of documents say the same."""
        return self._words.setdefault(text, text)


def _stem(file: str) -> str:
    """Return a file's name without what says that it is a document."""
    name = PurePath(file).name
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        name = name.removesuffix(suffix)
    return name
