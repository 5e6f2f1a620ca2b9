"""What becomes of one case while it is measured: its rounds, its checks, its state, its error."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpucheck.core.bench import stats
from gpucheck.core.bench.kernel import Case
from gpucheck.models.bench import BenchGpu, Fact, Verified
from gpucheck.models.errors import GpucheckError
from gpucheck.models.report import Failure

#: The error of a row that the time did not reach.
NO_TIME = "no-time"
#: The error of a row whose times cannot be trusted.
CLOCK_STUCK = "clock-stuck"
#: The error of a row whose GPU has no memory left for it.
MEMORY_TAKEN = "gpu-memory-taken"


@dataclass(slots=True, kw_only=True)
class Record:
    """What became of one case; grows while it runs. Times are seconds for one operation.

    `rounds` holds the samples of each round, which had memory of its own. `turns_s` are the moments
    between which samples were taken, by the host's clock. `overhead_s` is what the last turn took
    besides its samples (of the first turn without the first runs), `spent_s` what all turns took,
    `timed_s` and `checked_s` what all samples and all checks took. `near_cpus` are those next to
    its GPU, on which the host's part of its turns runs; None where all are. `reference` marks a row
    beside its group's first one on a device, `limit` one that nobody asked for.
    `expected_operation_s` and `expected_overhead_s` are estimates from before the first turn.
    `single_s` is the shortest of a few operations run one by one, where samples hold several.
    `precision` is half the interval that is wanted, as a share of the median.
    """

    case: Case
    near_cpus: frozenset[int] | None = None
    reference: bool = False
    limit: bool = False
    expected_operation_s: float = 0.0
    expected_overhead_s: float = 0.0
    precision: float = stats.PRECISION
    loops: int = 0
    rounds: list[list[float]] = field(default_factory=list)
    warmup_s: list[float] = field(default_factory=list)
    cold_s: float | None = None
    single_s: float | None = None
    verified: Verified | None = None
    facts: dict[str, Fact] = field(default_factory=dict)
    sm_clocks_mhz: list[float] = field(default_factory=list)
    turns_s: list[tuple[float, float]] = field(default_factory=list)
    joules_per_op: float | None = None
    energy_window_s: float | None = None
    overhead_s: float = 0.0
    spent_s: float = 0.0
    timed_s: float = 0.0
    checked_s: float = 0.0
    next_look: int = 0
    narrow: bool = False
    converged: bool = False
    finished: bool = False
    interrupted: bool = False
    error: Failure | None = None

    @property
    def active(self) -> bool:
        """Return whether more samples are wanted."""
        return not self.finished and self.error is None

    @property
    def samples_s(self) -> list[float]:
        """Return the samples of all rounds, in the order in which they were taken."""
        return [sample for samples in self.rounds for sample in samples]

    @property
    def last_sample_s(self) -> float:
        """Return how long the last sample took, with all of its operations; 0 before the first."""
        return self.rounds[-1][-1] * self.loops if self.rounds and self.rounds[-1] else 0.0

    @property
    def medians_s(self) -> list[float]:
        """Return the median of each round."""
        return [stats.median(samples) for samples in self.rounds if samples]


def as_failure(error: GpucheckError) -> Failure:
    """Return an error as data."""
    return Failure(code=error.code, message=error.message, remedy=error.remedy)


def no_time(record: Record) -> Failure:
    """Return the error of a case that could not even begin."""
    return Failure(
        code=NO_TIME,
        message=f"the time was over before {record.case.label.text} could start",
        remedy=("give more time with --budget, or a smaller --size",),
    )


def left_out(record: Record, seconds: float, enough_s: float) -> Failure:
    """Return the error of a case that the budget has no time for, with one that would do."""
    return Failure(
        code=NO_TIME,
        message=f"left out: three rounds of {record.case.label.text} take about {seconds:.2g} s, "
        "and the budget has no such time",
        remedy=(f"give more time: --budget {enough_s:g}", "or choose a smaller --size"),
    )


def memory_taken(gpu: BenchGpu, holders: str | None) -> Failure:
    """Return the error of the rows of a GPU whose memory others hold."""
    free, total = gpu.memory_free_bytes / 2**30, gpu.memory_total_bytes / 2**30
    who = holders or "the driver does not say who holds the rest"
    return Failure(
        code=MEMORY_TAKEN,
        message=f"the memory of gpu:{gpu.cuda_index} is taken: {free:.1f} of {total:.1f} GiB are "
        f"free; {who}",
        remedy=("see who: gpucheck list --processes", "run it again when they are gone"),
    )


def out_of_memory(record: Record) -> Failure:
    """Return the error of a case for which the host's memory did not suffice."""
    return Failure(
        code="out-of-memory",
        message=f"the host has not enough free memory for {record.case.label.text}",
        remedy=("choose a smaller --size",),
    )


def stuck_clock(elapsed_s: float) -> Failure:
    """Return the error of a clock that stands, goes back or is no number."""
    return Failure(
        code=CLOCK_STUCK,
        message=f"the clock cannot be trusted: a run of many operations took {elapsed_s:g} seconds",
        remedy=("look at the clock source in /sys/devices/system/clocksource",),
    )


def off_by(found: Verified) -> str:
    """Say how far a finite result is from its reference; what has no bound is counted."""
    if found.bound == 0 and found.error is not None:
        return f"{found.error:.0f} of its numbers are not those of {found.reference}"
    # How float64 comes in, by sums or after steps, is in the report.
    of = "float64" if found.reference.startswith("float64") else found.reference
    return f"its deviation from {of} is {found.error:.2g}, allowed is {found.bound:.2g}"


def wrong_result(record: Record, found: Verified) -> Failure:
    """Return the error of a result that is further from float64 than its bound."""
    deviation = "it holds NaN or infinity"
    if found.error is not None:
        deviation = off_by(found)
    return Failure(
        code="wrong-result",
        message=f"{record.case.label.text} gives a wrong result: {deviation}",
        remedy=("do not use its time", "run gpucheck detect"),
    )
