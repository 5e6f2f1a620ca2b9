"""Request, progress and result of `gpucheck bench --burn`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpucheck.bench.ci.gate_model import Gate
from gpucheck.bench.model import BenchRequest, Corruption, GpuTelemetry
from gpucheck.report.envelope import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnRequest:
    """Request of a burn: `product` with its size, seed, fill and devices, the time, and the limit.

    `limit_c` None takes each card's own limit. With `require_gpu` the CPU is no substitute.
    """

    product: BenchRequest
    seconds: float
    limit_c: float | None = None
    require_gpu: bool = False


class BurnEnd(StrEnum):
    """Reason why a burn ended."""

    TIME = "time"
    TEMPERATURE = "temperature"
    INTERRUPTED = "interrupted"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnDevice:
    """Result of one device under load.

    `flops_per_s` covers all of the time, `first_flops_per_s` the first tenth and `last_flops_per_s`
    the last: the difference is the loss to heat. `telemetry` is None for the CPU. `exit_code` comes
    from a process that could not begin. `clock_limits` are the reasons that limited the clock for
    long enough to matter, with their share of the time under load, from two seconds on; None if
    they were not read. `temperature_limit_c` is the temperature at which it is stopped; None if its
    margin decides, or nothing is read.
    """

    device: str
    gpu_uuid: str | None
    name: str | None
    corruption: Corruption
    flops_per_s: float | None = None
    first_flops_per_s: float | None = None
    last_flops_per_s: float | None = None
    telemetry: GpuTelemetry | None = None
    failure: Failure | None = None
    exit_code: int | None = None
    clock_limits: dict[str, float] | None = None
    temperature_limit_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnResult:
    """Result of a burn: its duration, why it ended, its devices, and the gates.

    `notes` are statements about the run, such as a reduced size. `variables` are the
    environment variables that affect arithmetic, memory or threads.
    """

    asked_s: float
    duration_s: float
    ended_by: BurnEnd
    temperature_limit_c: float | None
    devices: tuple[BurnDevice, ...]
    gates: tuple[Gate, ...]
    telemetry_unavailable: str | None = None
    notes: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProgress:
    """Device at one moment of a burn, for the live view; None for unknown values."""

    device: str
    state: str
    products: int = 0
    mismatches: int = 0
    flops_per_s: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    clock_sm_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnProgress:
    """Burn at one moment; `opening_s` counts while devices are opened, and is 0 afterwards."""

    elapsed_s: float
    asked_s: float
    devices: tuple[DeviceProgress, ...]
    opening_s: float = 0.0
