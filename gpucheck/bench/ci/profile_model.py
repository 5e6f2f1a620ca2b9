"""Profile: the machine it is for, what is run, and what is demanded (document profile/1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpucheck.bench.ci.gate_model import Direction, Severity
from gpucheck.bench.model import BenchMode, Fact, Fill, Scope


class Target(StrEnum):
    """Kind of device that a check or a whole profile is about."""

    CPU = "cpu"
    GPU = "gpu"


class Metric(StrEnum):
    """Figure of a row that is compared with the limit."""

    THROUGHPUT = "throughput"
    TIME = "time"
    FACT = "fact"


class Statistic(StrEnum):
    """Quantile of a process's samples that is its figure; never its best sample."""

    MEDIAN = "median"
    P10 = "p10"
    P90 = "p90"


class Phase(StrEnum):
    """Samples that count: all, those of the first round, or those of the second half."""

    WHOLE = "whole"
    FIRST = "first"
    STEADY = "steady"


class Per(StrEnum):
    """Unit of judgement: each device, or the slowest for the whole node."""

    DEVICE = "device"
    NODE = "node"


class Lacking(StrEnum):
    """Outcome of a check without a figure."""

    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Machines that the profile is for; None or empty means any.

    `pci_device_ids` are four hexadecimal digits, `names` may hold * and ?.
    """

    target: Target = Target.GPU
    pci_device_ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    count: int | None = None
    mig: bool | None = None
    min_driver: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryDemands:
    """Demands on each GPU; None means no demand.

    The PCIe link counts under load; `pcie_full` demands the most that this system allows.
    """

    memory_total_gib: float | None = None
    ecc: bool | None = None
    persistence_mode: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_full: bool | None = None
    nvlink_links: int | None = None
    power_limit_w: float | None = None
    identical_gpus: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Plan of the run: at least `processes`, up to `max_processes` while a check is undecided.

    `seconds` is the measuring time of each process, in turn or not. `size` is that of every
    kernel, None for each kernel's default in the mode. `alone` and `together` say whether each GPU
    is measured by itself, and all at once. `corruption_s` is the time for repeated products
    compared bit for bit, if any.
    """

    seconds: float
    processes: int = 5
    max_processes: int = 10
    mode: BenchMode = BenchMode.QUICK
    size: int | None = None
    fill: Fill = Fill.NORMAL
    seed: int = 0
    alone: bool = True
    together: bool = False
    corruption_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Expectation of a check: exactly one of a value, a share of the board's peak, or the baseline.

    `percent_by_board` holds the share by the board's name in the table of peaks. `other` is for all
    other boards; without it they are skipped.
    """

    value: float | None = None
    percent_of_peak: float | None = None
    percent_by_board: dict[str, float] = field(default_factory=dict)
    baseline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Demand on a figure.

    The row is the fastest of those that match `kernel`, `dtype`, `variant`, `scope` and
    `parameters`, of the largest shape and with the most threads. `unit` is that of `value` and of
    the report. `line` is the line in the file.
    """

    id: str
    kernel: str
    dtype: str
    target: Target
    expectation: Expectation
    tolerance_percent: float
    unit: str
    direction: Direction
    variant: str | None = None
    scope: Scope = Scope.RESIDENT
    parameters: dict[str, Fact] = field(default_factory=dict)
    metric: Metric = Metric.THROUGHPUT
    fact: str | None = None
    statistic: Statistic = Statistic.MEDIAN
    phase: Phase = Phase.WHOLE
    per: Per = Per.DEVICE
    together: bool = False
    warn_percent: float | None = None
    on_unsupported: Lacking = Lacking.SKIP
    on_missing: Lacking = Lacking.FAIL
    severity: Severity = Severity.ERROR
    reason: str | None = None
    source: str | None = None
    date: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stability:
    """Demands on how steady the run must be; None means no demand.

    `throttle_s` is the most seconds for each of the driver's throttle reasons. `spread_percent` is
    how far the slowest GPU may be below the fastest, `straggler_percent` below the median of the
    others. `corruption` is the most wrong numbers of repeated products.
    """

    throttle_s: dict[str, float] = field(default_factory=dict)
    max_temperature_c: float | None = None
    max_clock_drop_percent: float | None = None
    spread_percent: float | None = None
    straggler_percent: float | None = None
    new_ecc_uncorrected: int | None = None
    new_ecc_corrected: int | None = None
    new_remapped_rows: int | None = None
    new_pcie_replays: int | None = None
    corruption: int | None = None
    not_finite: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Checked profile; `path` is its file, `digest` the SHA-256 of the content."""

    name: str
    version: int
    description: str
    path: str
    digest: str
    match: Match
    inventory: InventoryDemands
    run: RunPlan
    checks: tuple[Check, ...]
    stability: Stability
    requires_gpucheck: str | None = None
    provenance: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Mistake in a profile: its line, the key, what is wrong, and the fix (`mend`)."""

    line: int | None
    where: str
    code: str
    message: str
    mend: str
    severity: Severity = Severity.ERROR


class ProfileAction(StrEnum):
    """Action of `gpucheck profile`."""

    LIST = "list"
    LINT = "lint"
    EXPLAIN = "explain"
    RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """File of a profile, and what is wrong with it; name and version are None if unreadable."""

    path: str
    name: str | None
    version: int | None
    description: str | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Demand written out: what is expected, what is allowed, and how that is computed.

    `board` is None if the demand does not depend on it. `limit` is in `unit`; None for a demand
    against a baseline. `peak` and `percent_of_peak` are None if no peak is known.
    """

    id: str
    sentence: str
    unit: str
    direction: Direction
    board: str | None = None
    expected: float | None = None
    tolerance_percent: float | None = None
    limit: float | None = None
    peak: float | None = None
    percent_of_peak: float | None = None
    source: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileResult:
    """Result of `gpucheck profile`; `saved` is the file that `record` wrote."""

    action: ProfileAction
    files: tuple[ProfileFile, ...]
    limits: tuple[Limit, ...] = ()
    saved: str | None = None
