"""Profile: the machine it is for, what is run, and what is demanded (document profile/1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from gpucheck.bench.model import Direction, Fact, Scope, Severity
from gpucheck.bench.request_model import BenchMode, Fill
from gpucheck.drivers.host.toml_file import Bounds, Form, Required

_WORDS = r"[a-z0-9]+(-[a-z0-9]+)*"
_NUMBERS = r"[0-9]+(\.[0-9]+)*"
_Count = Annotated[int | None, Bounds(0, 10**9)]
_Percent = Annotated[float | None, Bounds(0.1, 100)]
_SHARES = Bounds(0.1, 1000)


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


class Aggregate(StrEnum):
    """Unit of judgement: each device, or the slowest for the whole node."""

    DEVICE = "device"
    NODE = "node"


class MissingPolicy(StrEnum):
    """Outcome of a check without a figure."""

    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Machines that the profile is for; None or empty means any.

    `pci_device_ids` are four hexadecimal digits, `names` may hold * and ?.
    """

    target: Annotated[Target, "device"] = Target.GPU
    pci_device_ids: Annotated[
        tuple[str, ...],
        Form(
            "[0-9A-Fa-f]{4}",
            "bad-device-id",
            "a PCI device id",
            'write the four hexadecimal digits of the device, not the vendor: "2330"',
        ),
    ] = ()
    names: tuple[str, ...] = ()
    count: Annotated[int | None, Bounds(1, 1024)] = None
    mig: bool | None = None
    min_driver: Annotated[
        str | None,
        Form(_NUMBERS, "bad-version", "a driver version", 'write it like "535" or "580.95.05"'),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryDemands:
    """Demands on each GPU; None means no demand.

    The PCIe link counts under load; `pcie_full` demands the most that this system allows.
    """

    memory_total_gib: Annotated[float | None, Bounds(0.1, 4096)] = None
    ecc: bool | None = None
    persistence_mode: bool | None = None
    pcie_generation: Annotated[int | None, Bounds(1, 7)] = None
    pcie_width: Annotated[int | None, Bounds(1, 32)] = None
    pcie_full: bool | None = None
    nvlink_links: Annotated[int | None, Bounds(1, 64)] = None
    power_limit_w: Annotated[float | None, Bounds(1, 5000)] = None
    identical_gpus: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Plan of the run: at least `processes`, up to `max_processes` while a check is undecided.

    `seconds` is the measuring time of each process, in turn or not. `size` is that of every
    kernel, None for each kernel's default in the mode. `alone` and `together` say whether each GPU
    is measured by itself, and all at once. `same_math` makes the arithmetic of frameworks equal.
    `corruption_s` is the time for repeated products compared bit for bit, if any.
    """

    seconds: Annotated[float, Bounds(0.5, 3600)] = 10.0
    processes: Annotated[int, Bounds(1, 100)] = 5
    max_processes: Annotated[int, Bounds(1, 100)] = 10
    mode: BenchMode = BenchMode.QUICK
    size: Annotated[int | None, Bounds(1, 1 << 24)] = None
    seed: Annotated[int, Bounds(0, 2**63)] = 0
    same_math: bool = False
    alone: bool = True
    together: bool = False
    fill: Annotated[Fill, "data"] = Fill.NORMAL
    corruption_s: Annotated[float, "corruption_seconds", Bounds(0, 3600)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Demand on a figure.

    The row is the fastest of those that match `kernel`, `dtype`, `variant`, `framework`, `form`,
    `scope` and `parameters`, of the largest shape and with the most threads. Without a `framework`
    it is gpucheck's own; without a `form` every form of the framework fits. `unit` is that of
    `value` and of the report. `line` is the line in the file.

    It expects exactly one of a `value`, a share of the board's peak, or the `baseline`.
    `percent_by_board` holds the share by the board's name in the table of peaks. `other` is for all
    other boards; without it they are skipped.
    """

    id: Annotated[
        str,
        Required('"matmul-bfloat16"'),
        Form(_WORDS, "bad-name", "an id", "write a-z, 0-9 and -"),
    ]
    kernel: Annotated[str, Required('"matmul"')]
    dtype: str
    target: Annotated[Target, "device"]
    variant: str | None = None
    framework: str | None = None
    form: str | None = None
    scope: Scope = Scope.RESIDENT
    parameters: dict[str, Fact] = field(default_factory=dict)
    metric: Metric = Metric.THROUGHPUT
    fact: str | None = None
    direction: Direction
    statistic: Statistic = Statistic.MEDIAN
    phase: Phase = Phase.WHOLE
    per: Aggregate = Aggregate.DEVICE
    together: bool = False
    value: Annotated[float | None, Bounds(1e-30, 1e30)] = None
    percent_of_peak: Annotated[float | None, _SHARES] = None
    percent_by_board: Annotated[dict[str, float], "percent_of_peak", _SHARES] = field(
        default_factory=dict
    )
    baseline: bool = False
    unit: str
    tolerance_percent: Annotated[float, Required("5"), Bounds(0, 99)]
    warn_percent: Annotated[float | None, Bounds(0, 100)] = None
    on_unsupported: MissingPolicy = MissingPolicy.SKIP
    on_missing: MissingPolicy = MissingPolicy.FAIL
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
    others, `healthy_spread_percent` the standard deviation between healthy GPUs, by which such a
    one is told from a straggler. `corruption` is the most wrong numbers of repeated products.
    """

    throttle_s: Annotated[dict[str, float], Bounds(0, 1e6)] = field(default_factory=dict)
    max_temperature_c: Annotated[float | None, Bounds(20, 120)] = None
    max_clock_drop_percent: Annotated[float | None, Bounds(0, 100)] = None
    spread_percent: _Percent = None
    straggler_percent: _Percent = None
    healthy_spread_percent: Annotated[float, Bounds(0.1, 20)] = 1.8
    new_ecc_uncorrected: _Count = None
    new_ecc_corrected: _Count = None
    new_remapped_rows: _Count = None
    new_pcie_replays: _Count = None
    corruption: Annotated[int | None, Bounds(0, 0)] = None
    not_finite: _Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Checked profile; `path` is its file, `digest` the SHA-256 of the content."""

    name: Annotated[
        str,
        Required('"my-machines"'),
        Form(_WORDS, "bad-name", "a name", "write a-z, 0-9 and -"),
    ]
    version: Annotated[int, Required("1"), Bounds(1, 10**6)]
    description: str
    path: str
    digest: str
    match: Match
    inventory: InventoryDemands
    run: RunPlan
    checks: tuple[Check, ...]
    stability: Stability
    requires_gpucheck: Annotated[
        str | None, Form(_NUMBERS, "bad-version", "a version", 'write it like "0.1.0"')
    ] = None

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Return the names of the frameworks that its checks are about."""
        return tuple(dict.fromkeys(check.framework for check in self.checks if check.framework))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Mistake in a profile: its line, the key, what is wrong, and the fix (`mend`)."""

    line: int | None
    where: str
    code: str
    message: str
    mend: str


class ProfileAction(StrEnum):
    """Action of `gpucheck profile`."""

    LIST = "list"
    LINT = "lint"
    EXPLAIN = "explain"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """File of a profile, and what is wrong with it; name and version are None if unreadable.

    `seconds` is the measuring time of one device, if no check stays undecided.
    """

    path: str
    name: str | None
    version: int | None
    description: str | None
    seconds: float | None = None
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
    """Result of `gpucheck profile`.

    `boards_left_out` is the number of boards whose limits are missing because none is here.
    """

    action: ProfileAction
    files: tuple[ProfileFile, ...]
    limits: tuple[Limit, ...] = ()
    boards_left_out: int = 0
