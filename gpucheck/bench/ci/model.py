"""Runs of several processes, as they are measured, saved (baseline/1) and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpucheck.bench.model import BenchResult, Direction, Doubt, GateClass, GateStatus, Measurement
from gpucheck.report.envelope import Failure, Tool
from gpucheck.report.host import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRun:
    """Worker process: its measurements on one device, or why it has none.

    `device` is `cpu` or `gpu:<cuda_index>`, numbered as this program sees them. `number` counts a
    device's processes from 0. `together`: all GPUs were under load at the same time. `host` and
    `exit_code` are the document's.
    """

    device: str
    number: int
    gpu_uuid: str | None = None
    together: bool = False
    result: BenchResult | None = None
    failure: Failure | None = None
    host: Host = field(default_factory=Host)
    exit_code: int | None = None

    @property
    def rows(self) -> tuple[Measurement, ...]:
        """Return the measured rows; none if the process returned no document."""
        return self.result.measurements if self.result is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedDoubt:
    """Doubt as the first process states it, and the number of processes that have it."""

    doubt: Doubt
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Figure of one check or row on one device, with a value from each process, in `unit`.

    `tolerance_percent` is the profile's for this check. `repeat_factor` is the factor by which two
    runs of one process each may differ, 19 times in 20: the largest of all processes, None if no
    process gives one. `doubts` are the processes' doubts. `sessions` is the number of values from
    each session in order; empty means one session. `disturbed` says why the figures do not show the
    machine itself, None if they do.
    """

    id: str
    device: str
    unit: str
    direction: Direction
    values: tuple[float, ...]
    tolerance_percent: float
    gpu_uuid: str | None = None
    repeat_factor: float | None = None
    doubts: tuple[CarriedDoubt, ...] = ()
    sessions: tuple[int, ...] = ()
    disturbed: str | None = None


BASELINE_SCHEMA = "gpucheck/baseline/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What must be the same for figures to be comparable; None if it could not be read.

    The processor's fingerprint has none of the GPU's fields. `variables` are the environment
    variables that affect arithmetic, memory or threads, `frameworks` those that were measured, by
    name: version, BLAS, threads and settings of their arithmetic.
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
    frameworks: dict[str, str] | None = None
    profile: str | None = None
    gpucheck: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedDevice:
    """Device of a saved run.

    `doubts` are the codes of the doubts of any of its rows. `failures` says why a requested row has
    no figure, by its id.
    """

    device: str
    gpu_uuid: str | None
    fingerprint: Fingerprint
    doubts: tuple[str, ...] = ()
    failures: dict[str, Failure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """Run as a list of medians, one for each process, by row or by check of its profile.

    `time` is the first session's, `further_times` are those of added sessions. `exit_code` is the
    run's: 1 for one that failed and was saved on purpose.
    """

    schema: str
    tool: Tool
    time: str
    host: str | None
    profile: str | None
    devices: tuple[SavedDevice, ...]
    series: tuple[Series, ...]
    exit_code: int | None = None
    further_times: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Saved run to compare with, its file, and the fingerprint keys that may differ."""

    run: SavedRun
    path: Path
    allowed: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """Row of two runs: the second compared with the first.

    `ratio` is second over first, None if they cannot be compared. `interval` is its 90 % interval
    over the processes. With `by_repeat`, if a side has too few, it is how far apart two identical
    runs of one process may be, 19 times in 20; None if neither is known. `class_` says where to
    look for the cause, `next` what to do, and `repeat_helps` whether further processes may decide
    an undecided row.
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
    """One side of a comparison; `exit_code` is the run's own."""

    file: str
    time: str
    host: str | None
    gpucheck: str
    profile: str | None
    driver: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Result of `gpucheck compare`.

    `differences` are the keys of the fingerprints that differ, by device, as "key: first ->
    second". They include those in `allowed`.
    """

    first: ComparedRun
    second: ComparedRun
    rows: tuple[ComparedRow, ...]
    differences: dict[str, tuple[str, ...]] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()
