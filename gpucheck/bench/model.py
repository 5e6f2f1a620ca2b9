"""Records of the documents bench/1 and burn/1: rows, doubts, gates, devices.

Times are seconds for one operation. A row keeps every sample, so that readers can recompute median,
interval and summary. A missing figure is None; the row's `unavailable` or `error` has the reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from gpucheck.bench.request_model import BenchMode
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.report.envelope import Evidence, Failure
from gpucheck.report.text import framework_title

Fact = str | int | float


def shared_fields(record: object, kind: type) -> dict[str, Any]:
    """Return the fields of a record that another kind of record has under the same names."""
    names = (part.name for part in fields(kind))
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


#: Steps that a run by options and one by a profile, which refuses those options, take alike.
MORE_TIME = "give more time (--budget; seconds in a profile)"
LARGER_SIZE = "choose a larger size (--size; size in a profile)"
SMALLER_SIZE = "choose a smaller size (--size; size in a profile)"
#: The same as a remedy, which is a sentence.
CHOOSE_SMALLER_SIZE = f"C{SMALLER_SIZE[1:]}."

#: Failure of a row for which no time was left.
NO_TIME = "no-time"
#: Warning where rows have times, but none has an interval.
NOTHING_SETTLED = "nothing-settled"


class Scope(StrEnum):
    """Scope of a time: data already in place, or pinned transfer in, kernel, transfer out."""

    RESIDENT = "resident"
    END_TO_END = "end-to-end"


class RowClock(StrEnum):
    """Clock of a row's figure: the wall's, or the CPU time of the thread that ran it."""

    WALL = "wall"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypeSpec:
    """Precision that really ran: input, sums, output, and arithmetic."""

    input: str
    accumulate: str
    output: str
    math_mode: str

    @property
    def format(self) -> str:
        """Return the name of the input format; tf32 is float32 in memory."""
        return "tf32" if self.math_mode == "tf32" else self.input


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Work per second at the row's time; `unit` is `FLOP/s`, `B/s`, `image/s` or `launch/s`."""

    value: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Deviation of a result from float64; `error` None means that it contained NaN or infinity."""

    error: float | None
    bound: float
    ok: bool
    reference: str

    @classmethod
    def of(cls, error: float, *, bound: float, reference: str) -> Verified:
        """Return the judgement of an error, which may be NaN or infinity."""
        finite = math.isfinite(error)
        known = error if finite else None
        return cls(error=known, bound=bound, ok=finite and error <= bound, reference=reference)


def is_wrong(verified: Verified | None) -> bool:
    """Return whether a result was checked and is not right."""
    return verified is not None and not verified.ok


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Reason to distrust a figure, with its facts and a remedy."""

    code: str
    message: str
    next: str
    facts: dict[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSummary:
    """Summary of samples; `outlier_count` uses Tukey's fences, and nothing is dropped."""

    count: int
    min_s: float
    p10_s: float
    median_s: float
    p90_s: float
    max_s: float
    iqr_s: float
    outlier_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkUse:
    """Framework that ran a row: its name, its version, the form of the code, and its Python.

    `form` is how the operations were handed over: `eager`, or the way they were compiled.
    `version` is None if the framework did not answer; `python` is the interpreter's path.
    """

    name: str
    version: str | None
    form: str
    python: str

    @property
    def text(self) -> str:
        """Return framework and form: "PyTorch eager"; a form such as tf.function names both."""
        return self.form if "." in self.form else f"{framework_title(self.name)} {self.form}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Result row: one kernel variant on one device at one shape.

    `id` names the measurement without the device and is stable across versions. `framework` is
    None for gpucheck's own code. `time_s` is the row's figure, by `clock`; speed and percentages
    follow from it. `ci95_s` is how well this run knows it. The wider `repeat95_s` is where 19 of 20
    further runs on the same machine are expected to have theirs. `process_times_s` are those of all
    processes of a run of several, the other fields those of its first. `samples_s` holds the
    samples of all rounds in order by the wall's clock, and `round_sizes` their number per round.
    `median_s` is the median of `round_medians_s`. `cpu_samples_s` are the CPU times of the samples,
    of a team its longest thread's, and `cpu_median_s` is their median. `waited_percent` is the
    share of the time that a row's only thread did not run. `cold_s` is the first run,
    with compilation and handle creation. `loops` is the number of operations in a sample. `limits`
    names the limits that the percentages refer to. `percent_of_peak_at_clock` refers to the peak at
    the SMs' real clock. `facts` are further results, such as accuracy, with the unit in the key.
    `error` is why a row has no figures or ended early; `interrupted`: the user ended it.
    """

    kernel: str
    variant: str
    device: str
    gpu_uuid: str | None
    dtype: DtypeSpec
    shape: tuple[int, ...]
    scope: Scope
    id: str = ""
    framework: FrameworkUse | None = None
    threads: int | None = None
    parameters: dict[str, Fact] = field(default_factory=dict)
    flops: int | None = None
    bytes_moved: int | None = None
    loops: int | None = None
    samples_s: tuple[float, ...] = ()
    round_sizes: tuple[int, ...] = ()
    round_medians_s: tuple[float, ...] = ()
    warmup_s: tuple[float, ...] = ()
    cold_s: float | None = None
    summary: SampleSummary | None = None
    time_s: float | None = None
    clock: RowClock = RowClock.WALL
    ci95_s: tuple[float, float] | None = None
    repeat95_s: tuple[float, float] | None = None
    process_times_s: tuple[float, ...] = ()
    median_s: float | None = None
    cpu_samples_s: tuple[float, ...] = ()
    cpu_median_s: float | None = None
    waited_percent: float | None = None
    converged: bool = False
    throughput: Throughput | None = None
    percent_of_peak: float | None = None
    percent_of_peak_at_clock: float | None = None
    percent_of_copy: float | None = None
    limits: dict[str, str] = field(default_factory=dict)
    sm_clock_mhz: float | None = None
    joules_per_op: float | None = None
    facts: dict[str, Fact] = field(default_factory=dict)
    verified: Verified | None = None
    doubts: tuple[Doubt, ...] = ()
    error: Failure | None = None
    interrupted: bool = False
    unavailable: dict[str, str] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        """Return the row's work per second, 0 without a time."""
        return self.throughput.value if self.throughput is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSide:
    """Row behind one side of a comparison; `time_s` is what is compared."""

    device: str
    variant: str
    threads: int | None
    dtype: DtypeSpec
    framework: FrameworkUse | None = None
    time_s: float | None = None
    median_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of CPU and GPU for one kernel and shape: always three speed-ups.

    The CPU's side is its fastest row, whoever ran it; `speedup_own_cpu` is against the fastest CPU
    row of the GPU side's own maker (gpucheck, or the same framework), None if it has none.
    `speedup_amortised` moves the data once for `reuse_count` operations. `break_even` is the
    smallest number of operations on moved data from which the GPU is faster, None if it never is
    or if the transfer was not measured. A speed-up whose range (`resident_repeat95`,
    `end_to_end_repeat95`) holds 1 is not known to be one; the range is None without intervals.
    """

    kernel: str
    dtype: DtypeSpec
    shape: tuple[int, ...]
    cpu: ComparisonSide
    gpu: ComparisonSide
    speedup_resident: float
    speedup_end_to_end: float | None
    speedup_amortised: float | None
    reuse_count: int
    break_even: int | None
    sentence: str
    speedup_own_cpu: float | None = None
    resident_repeat95: tuple[float, float] | None = None
    end_to_end_repeat95: tuple[float, float] | None = None
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """Conclusion from several rows of one kernel on one device, such as a knee or a fit.

    `facts` carry the numbers, with the unit in the key.
    """

    kernel: str
    device: str
    code: str
    sentence: str
    facts: dict[str, Fact] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Measurement, code: str, sentence: str, **facts: Fact) -> Conclusion:
        """Return a conclusion from a row and others of its kernel on its device."""
        return cls(kernel=row.kernel, device=row.device, code=code, sentence=sentence, facts=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Limits that this run measured on one device: the best copy and the best matrix product.

    `threads` is None for a GPU; several of a processor have at least the limits of fewer. The
    product is in `gemm_dtype`. Both are figures of rows, by the same estimator as those compared
    with them. A copy that may have stayed in a cache is no limit here: then `unavailable` says so.
    """

    device: str
    threads: int | None
    copy_bytes_per_s: float | None
    gemm_flops_per_s: float | None
    gemm_dtype: str
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Readings of one sensor during the run: smallest, median and largest."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorHistory:
    """Readings of one GPU over the run, in equal parts of its time.

    Each part of `part_s` seconds has the median of its readings, None if it has none; the first
    begins at the run's first reading of any GPU. `limited` are the periods, from and to in seconds,
    in which each reason held the clock down.
    """

    part_s: float
    clock_sm_mhz: tuple[float | None, ...] = ()
    power_w: tuple[float | None, ...] = ()
    temperature_c: tuple[float | None, ...] = ()
    limited: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTelemetry:
    """NVML readings of one GPU while it was measured.

    `reasons` is the share of readings in which each reason held the clock down; several can at
    once. `limited_s` is the driver's count of seconds for each, which misses nothing between two
    readings. `new_errors` are counters that grew. The PCIe link is the best seen under load.
    `temperature_margin_c` is the distance to the slowdown temperature, on cards that report it.
    `temperature_memory_c` is the highest, `temperature_memory_max_c` the card's limit.
    `history` is left out by --samples summary; over several processes it is that of the first.
    """

    uuid: str
    reading_count: int
    period_s: float
    clock_sm_mhz: Extent | None = None
    clock_memory_mhz: Extent | None = None
    power_w: Extent | None = None
    temperature_c: Extent | None = None
    temperature_memory_c: float | None = None
    temperature_memory_max_c: float | None = None
    temperature_margin_c: Extent | None = None
    clock_sm_max_mhz: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temperature_slowdown_c: float | None = None
    vbios_version: str | None = None
    ecc_mode: bool | None = None
    confidential_computing: bool | None = None
    energy_j: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    reasons: dict[str, float] = field(default_factory=dict)
    limited_s: dict[str, float] = field(default_factory=dict)
    new_errors: dict[str, int] = field(default_factory=dict)
    other_processes: tuple[int, ...] = ()
    history: SensorHistory | None = None
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Sensors of the GPUs during the run, or why they were not read."""

    gpus: tuple[GpuTelemetry, ...] = ()
    unavailable: str | None = None


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
    figure of each process behind it. `expected` is the baseline's figure or what a profile expects,
    and `tolerance_percent` how much worse is allowed. `class_` is None for a pass. `warning` marks
    a pass beyond the warn level. `repeat_helps` means that further processes may decide an
    undecided gate. `reason` says why in one sentence, `next` what to do.
    """

    id: str
    device: str
    status: GateStatus
    direction: Direction
    unit: str
    measured: float | None = None
    limit: float | None = None
    expected: float | None = None
    tolerance_percent: float | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineUse:
    """Saved run that a run was compared with (bench's `baseline`)."""

    file: str
    time: str
    host: str | None
    driver: str | None
    gpucheck: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkFacts:
    """Facts about a framework that was measured, as its own process reports them.

    `build` is the build's own name for itself, such as `cpu` or `CUDA 12.8`. `blas` computes its
    products on the processor; `libraries` are the kernel libraries by name, with their versions.
    `threads_intra` work on one operation, `threads_inter` on independent ones. `math_settings` are
    the settings that permit reduced precision, with the values that the rows were measured with.
    `failure` is why it could not be measured; what it does not report is None with a reason.
    """

    name: str
    version: str | None
    python: str
    build: str | None = None
    blas: str | None = None
    libraries: dict[str, str] = field(default_factory=dict)
    threads_intra: int | None = None
    threads_inter: int | None = None
    math_settings: dict[str, str] = field(default_factory=dict)
    failure: Failure | None = None
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchEnvironment:
    """Run environment of the figures: processor, libraries, load, and reasons for missing parts.

    `variables` are environment variables that change arithmetic, memory or threads. `gpu_silent`:
    it is unknown whether a missing GPU works, because the driver did not answer or another process
    has exclusive use of it. `gpu_remedy` is what to do about missing GPUs, and
    `gpus_not_measured` are their names if none could be opened.
    """

    cpu_model: str | None
    logical_cores: int | None
    usable_cores: int
    cpu_quota_cores: float | None
    blas_name: str | None
    blas_version: str | None
    blas_architecture: str | None
    blas_threads: int | None
    numpy_version: str
    cupy_version: str | None
    gpus: tuple[BenchGpu, ...]
    gpu_unavailable: str | None
    load_average_1m: float | None
    other_load_percent: float | None
    steal_percent: float | None
    parallel_efficiency: float | None
    peak_memory_bytes: int | None
    duration_s: float
    seed: int
    data: str
    mode: BenchMode
    budget_s: float
    cublas_version: str | None = None
    gpu_silent: bool = False
    gpu_remedy: tuple[str, ...] = ()
    gpus_not_measured: tuple[str, ...] = ()
    rooflines: tuple[Roofline, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    frameworks: tuple[FrameworkFacts, ...] = ()
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Result of a benchmark; `notes` are statements about the run, such as a reduced size.

    `headline` is the overall speed-up in one sentence, if there is one.
    """

    measurements: tuple[Measurement, ...]
    comparisons: tuple[Comparison, ...]
    environment: BenchEnvironment
    conclusions: tuple[Conclusion, ...] = ()
    corruption: tuple[Corruption, ...] = ()
    gates: tuple[Gate, ...] = ()
    telemetry: Telemetry | None = None
    profile: ProfileUse | None = None
    baseline: BaselineUse | None = None
    notes: tuple[str, ...] = ()
    headline: str | None = None
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """Result of repeated identical products on one device; each was compared with the first.

    `words` counts the numbers of one product. `mismatches` counts differing numbers over all
    `products`; `first_index` is the index of the first in the flattened result. `largest_ulp` is
    the largest difference in units in the last place (None without a difference, or only by a NaN),
    and `not_finite` counts differing pairs with a NaN. `digest` is that of the first product, equal
    on identical GPUs. `reference_ok` says whether the first product was right against float64, and
    `reference_error` gives its error, None if it held NaN. `dtype` is the product's format.
    `output_bytes` is the memory that the results rotate through. `product_time_percent` is the
    share of `seconds` in which products were computed; comparisons and the host take the rest.
    `failure` says why it ended early.
    """

    device: str
    gpu_uuid: str | None
    products: int = 0
    words: int = 0
    mismatches: int = 0
    first_index: int | None = None
    largest_ulp: int | None = None
    not_finite: int = 0
    digest: str | None = None
    reference_ok: bool | None = None
    reference_error: float | None = None
    reference_bound: float | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    seconds: float = 0.0
    output_bytes: int = 0
    product_time_percent: float | None = None
    failure: Failure | None = None

    @property
    def is_corrupt(self) -> bool:
        """Return whether a device computed wrong: changed bits, or a first result off float64."""
        return self.mismatches > 0 or self.reference_ok is False


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
