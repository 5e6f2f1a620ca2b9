"""A run as `bench --save` keeps it (document gpucheck/baseline/1), and two of them compared."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpucheck.models.bench_run import Series
from gpucheck.models.gate import Direction, GateClass, GateStatus
from gpucheck.models.report import Failure

BASELINE_SCHEMA = "gpucheck/baseline/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What has to be the same for figures to be comparable; None where it could not be read.

    The processor's own fingerprint has none of the GPU's fields. `variables` are those of the
    environment that decide about arithmetic, memory or threads.
    """

    board: str | None = None
    pci_device_id: str | None = None
    vbios: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cupy: str | None = None
    cublas: str | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    clock_policy: str | None = None
    cpu: str | None = None
    cores: int | None = None
    blas: str | None = None
    blas_architecture: str | None = None
    variables: dict[str, str] | None = None
    profile: str | None = None
    gpucheck: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTool:
    """Which program wrote the file."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedDevice:
    """One device of a saved run.

    `doubts` are the reasons to distrust any of its figures that came up. `failures` says why a row
    that was asked for has no figure, by its id.
    """

    device: str
    gpu_uuid: str | None
    fingerprint: Fingerprint
    doubts: tuple[str, ...] = ()
    failures: dict[str, Failure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """One run: a list of medians, one for each process, by row or by check of its profile.

    `time` is the first session's, `further_times` are those of the sessions that were added.
    `exit_code` is the run's: 1 is one that failed and was kept on purpose.
    """

    schema: str
    tool: SavedTool
    time: str
    host: str | None
    profile: str | None
    devices: tuple[SavedDevice, ...]
    series: tuple[Series, ...]
    exit_code: int | None = None
    further_times: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One row of two runs: the second against the first.

    `ratio` is second over first, None where they cannot be compared. `interval` is its 90 %
    interval over the processes, or with `by_repeat`, where a side has too few, how far two runs of
    one process may be apart by themselves, 19 times in 20; None where neither is known. `class_`
    tells where the cause is to be looked for, `next` what to do, and `repeat_helps` whether further
    processes may decide a row that is undecided.
    """

    device: str
    id: str
    unit: str
    direction: Direction
    first: float | None
    second: float | None
    first_count: int
    second_count: int
    tolerance_percent: float
    status: GateStatus
    reason: str
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    by_repeat: bool = False
    class_: GateClass | None = None
    repeat_helps: bool = False
    next: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """Which file one side of a comparison is; `exit_code` is the run's own."""

    file: str
    time: str
    host: str | None
    gpucheck: str
    profile: str | None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """The result of `gpucheck compare`.

    `differences` are the fingerprints' keys that differ, by device, as "key: first -> second";
    those that were allowed to are among them, and in `allowed`.
    """

    first: ComparedRun
    second: ComparedRun
    rows: tuple[ComparedRow, ...]
    differences: dict[str, tuple[str, ...]] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()
