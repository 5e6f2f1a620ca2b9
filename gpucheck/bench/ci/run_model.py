"""Results of a profile's worker processes, and the series kept for the next run."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpucheck.bench.ci.gate_model import Direction
from gpucheck.bench.corruption_model import Corruption as Corruption
from gpucheck.bench.model import BenchResult, Doubt
from gpucheck.report.envelope import Failure, Host


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
    process gives one. `doubts` are the processes' doubts, None in files that do not keep them by
    row. `sessions` is the number of values from each session in order; empty means one session.
    """

    id: str
    device: str
    unit: str
    direction: Direction
    values: tuple[float, ...]
    tolerance_percent: float
    gpu_uuid: str | None = None
    repeat_factor: float | None = None
    doubts: tuple[CarriedDoubt, ...] | None = None
    sessions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Earlier run to compare this one with.

    `differences` are, by device, the fingerprint keys that differ but must not. With any of them,
    no check of that device against the baseline can be decided.
    """

    path: str
    time: str
    series: tuple[Series, ...]
    differences: dict[str, tuple[str, ...]] = field(default_factory=dict)
