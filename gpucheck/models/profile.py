"""A profile: which machine it is for, what is run, and what is demanded (document profile/1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpucheck.models.bench import BenchMode, Fact, Fill, Scope
from gpucheck.models.gate import Direction, Severity


class Target(StrEnum):
    """What a check or a whole profile is about."""

    CPU = "cpu"
    GPU = "gpu"


class Metric(StrEnum):
    """Which figure of a row is held against the limit."""

    THROUGHPUT = "throughput"
    TIME = "time"
    FACT = "fact"


class Statistic(StrEnum):
    """Which quantile of a process's samples is its figure; never its best sample."""

    MEDIAN = "median"
    P10 = "p10"
    P90 = "p90"


class Phase(StrEnum):
    """Which samples count: all, those of the first round, or those of the second half."""

    WHOLE = "whole"
    FIRST = "first"
    STEADY = "steady"


class Per(StrEnum):
    """Whether each device is judged, or the slowest of them for all."""

    DEVICE = "device"
    NODE = "node"


class Lacking(StrEnum):
    """What it means that there is no figure."""

    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which machines the profile is for; None or empty means any.

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
    """What each GPU must have; None is not asked.

    The PCIe link counts under load; `pcie_full` asks for the most that this system allows.
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
    """How it is measured: `processes` at least, up to `max_processes` while a check is undecided.

    `seconds` is the time for measuring in each process, in turn or not. `size` is that of every
    kernel, None for each kernel's own of the mode. `alone` and `together` say whether each GPU is
    measured by itself, and all at once. `corruption_s` is the time for repeated products compared
    bit for bit, if any.
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
    """What a check expects: exactly one of a value, a share of the board's peak, or the baseline.

    `percent_by_board` holds the share by the board's name in the table of peaks; `other` is for
    boards that it does not name, None: they are skipped.
    """

    value: float | None = None
    percent_of_peak: float | None = None
    percent_by_board: dict[str, float] = field(default_factory=dict)
    baseline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One demand on a figure.

    The row is the fastest of those that fit `kernel`, `dtype`, `variant`, `scope` and `parameters`,
    of the largest shape and with the most threads. `unit` is what `value` and the report are in.
    `line` is where it stands in the file.
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
    """How calm the run must be; None is not asked.

    `throttle_s` is the most seconds by reason of the driver's. Of the GPUs, `spread_percent` is the
    most that the slowest may lie below the fastest, `straggler_percent` below the median of the
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
    """A checked profile; `path` is the file it stands in, `digest` its content's SHA-256."""

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
    """One mistake in a profile: its line, the key, what is wrong, and how to mend it."""

    line: int | None
    where: str
    code: str
    message: str
    mend: str
    severity: Severity = Severity.ERROR


class ProfileAction(StrEnum):
    """What `gpucheck profile` does."""

    LIST = "list"
    LINT = "lint"
    EXPLAIN = "explain"
    RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """One profile's file, and what is wrong with it; name and version are None if unreadable."""

    path: str
    name: str | None
    version: int | None
    description: str | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One demand written out: what is expected, what is allowed, and how that comes about.

    `board` is None where the demand does not depend on it. `limit` is in `unit`; None for a demand
    against a baseline. `peak` and `percent_of_peak` are None where no peak is known.
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
    """The answer of `gpucheck profile`; `saved` is the file that `record` wrote."""

    action: ProfileAction
    files: tuple[ProfileFile, ...]
    limits: tuple[Limit, ...] = ()
    saved: str | None = None
