"""What worker processes of a profile's run bring, and what is kept of it for the next run."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpucheck.models.bench import BenchResult, Doubt
from gpucheck.models.corruption import Corruption as Corruption
from gpucheck.models.gate import Direction
from gpucheck.models.report import Failure, Host


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRun:
    """One worker process: what it measured on one device, or why it measured nothing.

    `device` is `cpu` or `gpu:<cuda_index>`, numbered as this program sees them. `number` counts a
    device's processes from 0. `together` says whether all GPUs were under load at the same time.
    `host` and `exit_code` are the document's.
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
    """A reason to distrust a figure, as the first process states it, and how many have it."""

    doubt: Doubt
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One check's (or row's) figure on one device, a value from each process, in `unit`.

    `tolerance_percent` is the profile's for this check. `repeat_factor` is by how much two runs of
    one process each may differ, 19 times in 20, by the process that says the most; None where no
    process tells. `doubts` are those of the processes, None in files that do not keep them by row.
    `sessions` is how many of the values each session brought, in their order; empty: one session.
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
    """An earlier run to hold this one against.

    `differences` are, by device, the keys of the fingerprint that differ and are not allowed to:
    with any, no check of that device against the baseline can be decided.
    """

    path: str
    time: str
    series: tuple[Series, ...]
    differences: dict[str, tuple[str, ...]] = field(default_factory=dict)
