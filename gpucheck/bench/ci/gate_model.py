"""Gates of a run: a verdict for each demand and device (document bench/1, key `gates`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpucheck.report.envelope import Evidence


class GateStatus(StrEnum):
    """Verdict; `inconclusive` is neither good nor bad, `skip` does not apply to the device."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIP = "skip"


class GateClass(StrEnum):
    """Where to look for the cause."""

    HARDWARE = "hardware"
    THERMAL = "thermal"
    POWER_CAP = "power-cap"
    CONFIG = "config"
    SOFTWARE = "software"
    ENVIRONMENT = "environment"
    NOISE = "noise"


class Direction(StrEnum):
    """Good side of a limit."""

    HIGHER = "higher"
    LOWER = "lower"


class Severity(StrEnum):
    """Effect of a failing gate: exit code 1, or only a warning."""

    ERROR = "error"
    WARN = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One verdict; `id` and `device` together are unique in a run.

    `device` is `cpu`, `gpu:<cuda_index>` or `node`. `measured` and `limit` are in `unit`; None
    means that there is no such number. `interval` is the 90 % interval of `measured`, `values` the
    figure of each process behind it. `class_` is None for a pass. `warning` marks a pass beyond the
    warn level. `repeat_helps` means that further processes may decide an undecided gate.
    `reason` says why in one sentence, `next` what to do.
    """

    id: str
    device: str
    status: GateStatus
    direction: Direction
    unit: str
    measured: float | None = None
    limit: float | None = None
    reason: str | None = None
    class_: GateClass | None = None
    severity: Severity = Severity.ERROR
    warning: bool = False
    repeat_helps: bool = False
    gpu_uuid: str | None = None
    interval: tuple[float, float] | None = None
    values: tuple[float, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    next: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileUse:
    """Profile that a run was judged by, and how many processes it took (bench's `profile`)."""

    name: str
    version: int
    path: str
    digest: str
    processes: int
    max_processes: int
