"""Records of the documents fleet/1 and fleet-node/1: nodes, their GPUs, groups, differences.

A fleet-node/1 is what one node answered, one line of results.jsonl. A fleet/1 is the report over
all of them. Speeds are work per second, so that more is better; percentages say how much slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """Outcome of one node, by what it answered.

    `ok`: answered, and nothing is wrong. `unexpected`: the same, but it is not on the list of
    expected hosts. `failed`: a check or gate failed, a result was wrong, or a GPU is lost.
    `inconclusive`: it answered that it cannot tell. `busy`: its GPUs were in use, so that nothing
    was measured. `incompatible`: a document, or an engine, of a version that is not understood.
    `unreadable`: what came is damaged, or of another program. Of these there is no answer at all:
    `missing`: expected and never heard of; `timeout`: the command did not end in its time on the
    node; `no-answer`: the node was silent up to the deadline; `lost`: it went away while it worked;
    `not-installed`: gpucheck is not there.
    """

    OK = "ok"
    UNEXPECTED = "unexpected"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    BUSY = "busy"
    INCOMPATIBLE = "incompatible"
    UNREADABLE = "unreadable"
    MISSING = "missing"
    TIMEOUT = "timeout"
    NO_ANSWER = "no-answer"
    LOST = "lost"
    NOT_INSTALLED = "not-installed"


#: The order of outcomes in a report; the worst of its documents decides about a node.
WORST_FIRST = (
    Outcome.FAILED, Outcome.LOST, Outcome.TIMEOUT, Outcome.NO_ANSWER, Outcome.NOT_INSTALLED,
    Outcome.MISSING, Outcome.UNREADABLE, Outcome.INCOMPATIBLE, Outcome.BUSY, Outcome.INCONCLUSIVE,
    Outcome.UNEXPECTED, Outcome.OK,
)  # fmt: skip
#: Outcomes with which a node is healthy, if it is not slow.
HEALTHY = frozenset({Outcome.OK, Outcome.UNEXPECTED})
#: Outcomes without an answer, all called missing in words: they count against --max-missing.
SILENT = frozenset(
    {Outcome.MISSING, Outcome.TIMEOUT, Outcome.NO_ANSWER, Outcome.LOST, Outcome.NOT_INSTALLED}
)
#: Outcomes with an answer that decides nothing.
UNDECIDED = frozenset(
    {Outcome.INCONCLUSIVE, Outcome.BUSY, Outcome.INCOMPATIBLE, Outcome.UNREADABLE}
)


class NodeAnswer(NamedTuple):
    """What one node answered: a line of results.jsonl, written by whoever asked it.

    `schema` is gpucheck/fleet-node/1. `time` is when the answer came, by the clock of who asked.
    `seconds` is how long the command ran there. `command` is the verb: detect, list or bench.
    `exit_code` is that of the command, null if it did not end. `last_seen_s` is how long ago the
    engine had heard of the node, where it did not answer. `document` is what gpucheck printed
    there, null if it printed none.
    """

    schema: str
    host: str
    outcome: Outcome
    reason: str | None = None
    command: str | None = None
    time: str | None = None
    seconds: float | None = None
    exit_code: int | None = None
    gpucheck_version: str | None = None
    last_seen_s: float | None = None
    document: object | None = None


class GpuSpeed(StrEnum):
    """Verdict on a GPU's speed beside its peers.

    `unstable`: slow in some of its runs, but not in enough. `busy`: other processes used it.
    """

    OK = "ok"
    WATCH = "watch"
    SLOW = "slow"
    UNSTABLE = "unstable"
    BUSY = "busy"
    NOT_JUDGED = "not-judged"


class FleetGpu(NamedTuple):
    """GPU of a node; `slower_percent` is that of its worst test, null if nothing was compared."""

    uuid: str
    index: int | None = None  # type: ignore[assignment]  # hides tuple.index, as in Gpu
    name: str | None = None
    state: str | None = None
    speed: GpuSpeed = GpuSpeed.NOT_JUDGED
    slower_percent: float | None = None


class FleetNode(NamedTuple):
    """Node of the fleet: its outcome with the reasons, the worst first, and its GPUs.

    `reasons` are identifiers where a document has them, `conclusion` says the same in words; null
    where there is nothing to say. `file` is the document that decides, if a file holds it alone.
    `expected` is null without a list of hosts, `rack` without a column for it. `time` is that of
    its newest document. `failed_in` counts its runs that failed, of `runs`.
    """

    host: str
    outcome: Outcome
    reasons: tuple[str, ...] = ()
    rack: str | None = None
    expected: bool | None = None
    slow: bool = False
    different: bool = False
    documents: int = 0
    runs: int = 0
    failed_in: int = 0
    time: str | None = None
    gpucheck_version: str | None = None
    driver_version: str | None = None
    gpus: tuple[FleetGpu, ...] = ()
    conclusion: str | None = None
    file: str | None = None


class JudgedBy(StrEnum):
    """Reference of a group: its own GPUs, the stored baseline, or none, with the reason."""

    PEERS = "peers"
    BASELINE = "baseline"
    NOTHING = "nothing"


class Group(NamedTuple):
    """GPUs that should be equally fast in one test.

    `key` names it in later reports. `median` and `scale` (the robust standard deviation) are speeds
    in `unit`, those of the healthy part. `finds_percent` is how much slower a GPU must be to be
    called slow. `shift_percent` is how much slower the whole group is than in the baseline.
    """

    key: str
    test: str
    gpu_name: str
    gpus: int
    judged_by: JudgedBy
    reason: str | None = None
    memory_total_bytes: int | None = None
    power_limit_w: float | None = None
    mig: bool | None = None
    ecc_mode: bool | None = None
    pcie: str | None = None
    driver: str | None = None
    position: int | None = None
    unit: str = "1/s"
    median: float | None = None
    scale: float | None = None
    finds_percent: float | None = None
    baseline_median: float | None = None
    shift_percent: float | None = None
    slow: int = 0


class SlowGpu(NamedTuple):
    """GPU that is slower than its group, in its worst test.

    `z` is the robust standard score. `tests` counts those in which it is, of `judged_tests`;
    `slow_runs` are its runs that are slow in this test, of `runs`. `facts` are what may explain it:
    throttling, temperature, errors.
    """

    host: str
    gpu_uuid: str
    speed: GpuSpeed
    test: str
    group: str
    value: float
    median: float
    unit: str
    slower_percent: float
    z: float
    index: int | None = None  # type: ignore[assignment]  # as in FleetGpu
    rack: str | None = None
    runs: int = 1
    slow_runs: int = 1
    tests: int = 1
    judged_tests: int = 1
    facts: tuple[str, ...] = ()


class Scope(StrEnum):
    """Where a cause is to be sought: in one GPU, a node or a rack, or in a whole group."""

    GPU = "gpu"
    NODE = "node"
    RACK = "rack"
    GROUP = "group"


class Attribution(NamedTuple):
    """Where slow GPUs are: `slow` of `judged` (GPUs of a node or group, nodes of a rack).

    `chance` is how likely so many are in one place if they are spread by chance, null where that
    was not asked.
    """

    scope: Scope
    name: str
    slow: int
    judged: int
    sentence: str
    chance: float | None = None


class Difference(NamedTuple):
    """Fact in which some nodes differ from the majority of their kind.

    `field` names the fact with its unit, `of` the kind: a GPU model, or null for nodes. `count`
    GPUs or nodes have `value`, `majority_count` of `total` have `majority`; without a majority it
    is null. `hosts` are those with the value.
    """

    field: str
    of: str | None
    value: str
    majority: str | None
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    majority_count: int
    total: int
    hosts: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Return the difference as a node's reason; without a majority no node is different."""
        most = f"{self.majority_count} of {self.total} have {self.majority}"
        return f"{self.field} {self.value}, but {most}"


class DocumentProblem(NamedTuple):
    """File or line of which no node could be made out."""

    file: str
    line: int | None
    problem: str


class Correction(StrEnum):
    """How the number of GPUs is taken into account: not, by Holm, or by a false discovery rate."""

    NONE = "none"
    HOLM = "holm"
    FDR = "fdr"


class JudgementRule(NamedTuple):
    """Parameters of the judgement (docs/reference/fleet.md), and the file they are from.

    The scores are robust standard scores. `risk` is the share of healthy GPUs among those called
    slow that is allowed (fdr), or the chance of one (holm), if healthy GPUs vary normally.
    """

    slow_z: float = -5.0
    watch_z: float = -3.5
    least_percent: float = 5.0
    least_group: int = 20
    least_scale_percent: float = 0.5
    confirmed_share: float = 2 / 3
    correction: Correction = Correction.FDR
    risk: float = 0.05
    most_scale_percent: float = 5.0
    shift_percent: float = 3.0
    node_share: float = 0.5
    rack_risk: float = 0.001
    majority_share: float = 0.6
    most_age_s: float = 86400.0
    source: str | None = None


class FleetReport(NamedTuple):
    """Result of `gpucheck fleet report`: its sentence, the nodes, and what was found in them.

    `nodes_expected` is null without a list of hosts. `outcomes` counts the nodes by outcome.
    `slow` has slow, unstable and watched GPUs, the slowest first.
    """

    conclusion: str
    nodes_expected: int | None
    nodes_answered: int
    max_missing: int
    documents: int
    outcomes: Mapping[str, int]
    nodes: tuple[FleetNode, ...]
    groups: tuple[Group, ...] = ()
    slow: tuple[SlowGpu, ...] = ()
    attributions: tuple[Attribution, ...] = ()
    differences: tuple[Difference, ...] = ()
    problems: tuple[DocumentProblem, ...] = ()
    rule: JudgementRule = JudgementRule()
    baseline: str | None = None
