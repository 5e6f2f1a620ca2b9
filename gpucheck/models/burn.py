"""What `gpucheck bench --burn` is asked and finds: devices under full load, checks, sensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpucheck.models.bench import BenchRequest, GpuTelemetry
from gpucheck.models.corruption import Corruption
from gpucheck.models.gate import Gate
from gpucheck.models.report import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnRequest:
    """What to burn: size, seed, fill and devices of `product`, for so long, to what temperature.

    `limit_c` None takes each card's own. With `require_gpu` the processor does not stand in.
    """

    product: BenchRequest
    seconds: float
    limit_c: float | None = None
    require_gpu: bool = False


class BurnEnd(StrEnum):
    """Why a burn ended."""

    TIME = "time"
    TEMPERATURE = "temperature"
    INTERRUPTED = "interrupted"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnDevice:
    """One device under load.

    `flops_per_s` is over all of it, `first_flops_per_s` over the first tenth and
    `last_flops_per_s` over the last: how much heat took. `telemetry` is None for the processor.
    `exit_code` is that of a process that could not begin, by its own account. `clock_limits` are
    the reasons that held the clock down for long enough to matter, with their share of the time
    under load, from two seconds on; None where nobody read them. `temperature_limit_c` is where it
    is stopped, None where its own margin decides, or nothing is read.
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
    """The whole burn: how long, why it ended, each device, and the verdicts.

    `notes` are statements about the run, such as a reduced size. `variables` are those of the
    environment that decide about arithmetic, memory or threads.
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
class BurnGlance:
    """One device at this moment of a burn, for who watches it; None where it is not known."""

    device: str
    state: str
    products: int = 0
    mismatches: int = 0
    flops_per_s: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    clock_sm_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnMoment:
    """The whole burn at one moment; `opening_s` is how long it opens devices, 0 from then on."""

    elapsed_s: float
    asked_s: float
    devices: tuple[BurnGlance, ...]
    opening_s: float = 0.0
