"""Measurement state of one benchmark case: rounds, checks, progress, error."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpucheck.bench import stats
from gpucheck.bench.kernel import Case
from gpucheck.bench.model import Fact, Verified
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import GpucheckError

#: Error of a row for which no time was left.
NO_TIME = "no-time"
#: Error of a row whose times cannot be trusted.
CLOCK_STUCK = "clock-stuck"
#: Error of a row whose GPU has too little free memory.
MEMORY_TAKEN = "gpu-memory-taken"


@dataclass(slots=True, kw_only=True)
class Record:
    """Measurement state of one case. Times are seconds for one operation.

    `rounds` holds the samples of each round, taken on fresh memory. `turns_s` are the start and end
    of each slice's sampling by the host's clock. `overhead_s` is the time of the last slice without
    its samples (and of the first slice without the first runs). `spent_s`, `timed_s` and
    `checked_s` are the totals of all slices, samples and checks. `near_cpus` are the CPUs near its
    GPU that run the host's part; None if all are. `reference` marks a row other than its group's
    first on a device, `limit` a row that was not requested. `expected_operation_s` and
    `expected_overhead_s` are estimates from before the first slice. `single_s` is the shortest of
    a few single operations, if samples hold several. `precision` is the target half-width of the
    interval as a share of the median.
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
        """Return the samples of all rounds in order."""
        return [sample for samples in self.rounds for sample in samples]

    @property
    def last_sample_s(self) -> float:
        """Return the length of the last sample with all its operations; 0 before the first."""
        return self.rounds[-1][-1] * self.loops if self.rounds and self.rounds[-1] else 0.0

    @property
    def medians_s(self) -> list[float]:
        """Return the median of each round."""
        return [stats.median(samples) for samples in self.rounds if samples]


def as_failure(error: GpucheckError) -> Failure:
    """Return an exception as a failure record."""
    return Failure.of(error)


def no_time(record: Record) -> Failure:
    """Return the error of a case that did not start in time."""
    return Failure(
        code=NO_TIME,
        message=f"time ran out before {record.case.label.text} could start",
        remedy=("give more time with --budget, or choose a smaller --size",),
    )


def left_out(record: Record, seconds: float, enough_s: float) -> Failure:
    """Return the error of a case that the budget is too short for, with a sufficient one."""
    return Failure(
        code=NO_TIME,
        message=f"left out: three rounds of {record.case.label.text} take about {seconds:.2g} s, "
        "more than the budget allows",
        remedy=(f"give more time: --budget {enough_s:g}", "or choose a smaller --size"),
    )


def memory_taken(gpu: BenchGpu, holders: str | None) -> Failure:
    """Return the error of the rows on a GPU whose memory other processes hold."""
    free, total = gpu.memory_free_bytes / 2**30, gpu.memory_total_bytes / 2**30
    who = holders or "the driver does not say who holds the rest"
    return Failure(
        code=MEMORY_TAKEN,
        message=f"gpu:{gpu.cuda_index} has too little free memory: {free:.1f} of {total:.1f} GiB; "
        f"{who}",
        remedy=("list them: gpucheck list --processes", "run it again when they have ended"),
    )


def out_of_memory(record: Record) -> Failure:
    """Return the error of a case that ran out of host memory."""
    return Failure(
        code="out-of-memory",
        message=f"the host does not have enough free memory for {record.case.label.text}",
        remedy=("choose a smaller --size",),
    )


def stuck_clock(elapsed_s: float) -> Failure:
    """Return the error of a clock that stands still, goes back or is not a number."""
    return Failure(
        code=CLOCK_STUCK,
        message=f"the clock cannot be trusted: a run of many operations took {elapsed_s:g} seconds",
        remedy=("check the clock source in /sys/devices/system/clocksource",),
    )


def off_by(found: Verified) -> str:
    """Describe how far a finite result is from its reference; exact results are counted."""
    if found.bound == 0 and found.error is not None:
        return f"{found.error:.0f} of its numbers differ from {found.reference}"
    # The report says how float64 is used, by sums or after steps.
    of = "float64" if found.reference.startswith("float64") else found.reference
    return f"its deviation from {of} is {found.error:.2g}; at most {found.bound:.2g} is allowed"


def wrong_result(record: Record, found: Verified) -> Failure:
    """Return the error of a result beyond its bound from float64."""
    deviation = "it contains NaN or infinity"
    if found.error is not None:
        deviation = off_by(found)
    return Failure(
        code="wrong-result",
        message=f"{record.case.label.text} gives a wrong result: {deviation}",
        remedy=("do not use its time", "run gpucheck detect"),
    )
