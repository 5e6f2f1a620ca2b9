"""What `gpucheck bench` is asked and what it answers (contract bench/1): rows, comparisons, doubts.

Times are seconds for one operation. A row keeps every sample; what is computed from the samples
(median, interval, summary) can be recomputed by the reader. An absent figure is None and its reason
stands in `unavailable` of the same row, or in the row's `error`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpucheck.models.report import Failure

Fact = str | int | float


class Scope(StrEnum):
    """What a time covers: data already in place, or pinned transfer in, kernel, transfer out."""

    RESIDENT = "resident"
    END_TO_END = "end-to-end"


class BenchMode(StrEnum):
    """How thorough: about 10 seconds, about a minute, or as long as it takes."""

    QUICK = "quick"
    DEFAULT = "default"
    FULL = "full"


class SampleDetail(StrEnum):
    """Whether a document carries every sample or only their summary."""

    ALL = "all"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What to measure.

    `kernels` empty means every registered kernel. `devices` holds `cpu`, `gpu`, `gpu:<cuda_index>`
    or `all`. `size` is the edge of the square problem, None for the mode's own. `budget_s` is the
    time for all of it, None for the mode's own. `temperature` is softmax's.
    """

    kernels: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("all",)
    size: int | None = None
    dtype: str = "float32"
    mode: BenchMode = BenchMode.DEFAULT
    budget_s: float | None = None
    seed: int = 0
    samples: SampleDetail = SampleDetail.ALL
    temperature: float = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypeSpec:
    """The precision that really ran: of the input, the sums, the output, and the arithmetic."""

    input: str
    accumulate: str
    output: str
    math_mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Work per second at the median time; `unit` is `FLOP/s` or `B/s`."""

    value: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """How far the result is from float64; `error` None means that it held NaN or infinity."""

    error: float | None
    bound: float
    ok: bool
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One reason to distrust a figure, the facts behind it, and the next step."""

    code: str
    message: str
    next: str
    facts: dict[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSummary:
    """The samples in eight numbers; `outlier_count` is by Tukey's fences, nothing is dropped."""

    count: int
    min_s: float
    p10_s: float
    median_s: float
    p90_s: float
    max_s: float
    iqr_s: float
    outlier_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row: one kernel variant on one device at one shape.

    `cold_s` is the first run, with compilation and handle creation. `loops` is how many operations
    one sample held. `error` says why a row has no figures, or why it ended early; `interrupted`
    that a person ended it.
    """

    kernel: str
    variant: str
    device: str
    gpu_uuid: str | None
    dtype: DtypeSpec
    shape: tuple[int, ...]
    scope: Scope
    threads: int | None = None
    parameters: dict[str, Fact] = field(default_factory=dict)
    flops: int | None = None
    bytes_moved: int | None = None
    loops: int | None = None
    samples_s: tuple[float, ...] = ()
    warmup_s: tuple[float, ...] = ()
    cold_s: float | None = None
    summary: SampleSummary | None = None
    median_s: float | None = None
    ci95_s: tuple[float, float] | None = None
    converged: bool = False
    throughput: Throughput | None = None
    percent_of_peak: float | None = None
    percent_of_copy: float | None = None
    joules_per_op: float | None = None
    verified: Verified | None = None
    doubts: tuple[Doubt, ...] = ()
    error: Failure | None = None
    interrupted: bool = False
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSide:
    """The row that one side of a comparison stands on."""

    device: str
    variant: str
    threads: int | None
    median_s: float
    dtype: DtypeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """CPU against GPU for one kernel and shape: three speed-ups, never one.

    `speedup_amortised` moves the data once for `reuse_count` operations. `break_even` is the
    smallest number of operations on moved data from which the GPU is faster, None if it never is or
    the transfer was not measured.
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
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchGpu:
    """One GPU that took part, as the CUDA runtime describes it."""

    cuda_index: int
    uuid: str | None
    name: str
    compute_capability: str
    sm_count: int
    l2_bytes: int
    memory_total_bytes: int
    memory_free_bytes: int
    float32_math: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchEnvironment:
    """Where the figures were taken: processor, libraries, load, and why a part is missing."""

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
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The whole answer; `notes` are statements about the run, such as a reduced size."""

    measurements: tuple[Measurement, ...]
    comparisons: tuple[Comparison, ...]
    environment: BenchEnvironment
    gates: tuple[object, ...] = ()
    telemetry: object | None = None
    profile: object | None = None
    notes: tuple[str, ...] = ()
    interrupted: bool = False
