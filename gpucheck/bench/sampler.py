"""Sampler: measurement state of a case, and one time slice of it.

A slice takes fresh memory, warms up, takes samples and checks the result. The sampler is
independent of kernels, devices and other cases. A case runs and checks itself, and every sample is
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpucheck.bench import stats
from gpucheck.bench.case import Case
from gpucheck.bench.model import CHOOSE_SMALLER_SIZE, Fact, RowClock, Verified
from gpucheck.drivers.host.clock import Clock
from gpucheck.drivers.host.cpu import running_on
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import GpucheckError

#: Error of a row whose times cannot be trusted.
CLOCK_STUCK = "clock-stuck"
#: Reference of a row that was too fast to have computed.
PROCESSOR_CEILING = "the processor can compute at most"
#: Number of single operations to compare with those of a batch.
_SINGLES = 5
#: With more operations than this in one sample, the clock is stuck or the operation does nothing.
_MOST_LOOPS = 2**24
#: Seconds of the first run from which an operation counts as long: ten of the longest spans that
#: any case's clock needs.
_LONG_FIRST_S = 0.5
#: Share of a slice for warming up again from the second round on: the memory is new, and caches and
#: clocks cooled down during other cases' slices.
_WARM_SHARE = 0.25
#: Largest share of the time for checks after the first round.
_CHECK_SHARE = 0.2
#: Ratio of wall time to CPU time from which a thread has waited.
_WAITED = 1.05
#: Reads a GPU's energy counter by UUID; None if it has none.
ReadJoules = Callable[[str], float | None]


@dataclass(slots=True, kw_only=True)
class CaseState:
    """Measurement state of one case. Times are seconds for one operation.

    `rounds` holds the samples of each round, taken on fresh memory, and `cpu_rounds` their CPU
    times as far as the case reads them. `slices_s` are the start and
    end of each slice's sampling by the host's clock. `overhead_s` is the time of the last slice
    without its samples (and of the first slice without the first runs). `spent_s`, `timed_s` and
    `checked_s` are the totals of all slices, samples and checks. `near_cpus` are the CPUs near its
    GPU that run the host's part; None if all are. `reference` marks a row other than its group's
    first on a device, `limit` a row that was not requested. `expected_operation_s` and
    `expected_overhead_s` are estimates for the first slice, `expected_slowdown` times as long as
    without other programs. `single_s` is the shortest of a few single operations, if samples hold
    several. `precision` is the target half-width of the interval as a share of the figure.
    `contended`: others use its cores.
    """

    case: Case
    near_cpus: frozenset[int] | None = None
    reference: bool = False
    limit: bool = False
    expected_operation_s: float = 0.0
    expected_overhead_s: float = 0.0
    expected_slowdown: float = 1.0
    contended: bool = False
    precision: float = stats.PRECISION
    loops: int = 0
    rounds: list[list[float]] = field(default_factory=list)
    cpu_rounds: list[list[float]] = field(default_factory=list)
    warmup_s: list[float] = field(default_factory=list)
    cold_s: float | None = None
    single_s: float | None = None
    verified: Verified | None = None
    facts: dict[str, Fact] = field(default_factory=dict)
    sm_clocks_mhz: list[float] = field(default_factory=list)
    slices_s: list[tuple[float, float]] = field(default_factory=list)
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

    @property
    def cpu_samples_s(self) -> list[float]:
        """Return the CPU times of all samples; empty unless each has one."""
        times_s = [sample for samples in self.cpu_rounds for sample in samples]
        known = len(times_s) == len(self.samples_s) and min(times_s, default=0.0) > 0
        return times_s if known else []

    @property
    def one_thread(self) -> bool:
        """Return whether a thread of this process runs it alone, and its CPU time is known."""
        label = self.case.label
        alone = label.device == "cpu" and label.threads == 1 and label.framework is None
        return alone and bool(self.cpu_samples_s)

    @property
    def clock(self) -> RowClock:
        """Return the clock of the figure: CPU time if the only thread waited in most samples."""
        cpu = self.cpu_samples_s if self.one_thread else []
        pairs = zip(self.samples_s, cpu, strict=False)
        waited = sum(wall_s > _WAITED * cpu_s for wall_s, cpu_s in pairs)
        return RowClock.CPU if 2 * waited > len(self.samples_s) else RowClock.WALL

    @property
    def waited_percent(self) -> float | None:
        """Return the share of the time that the only thread did not run."""
        if not self.one_thread:
            return None
        return 100 * max(0.0, 1 - sum(self.cpu_samples_s) / sum(self.samples_s))

    @property
    def estimator(self) -> stats.Estimator:
        """Return how the figure follows from rounds: a processor's is its bound."""
        return stats.BOUND if self.case.label.device == "cpu" else stats.MEDIAN

    @property
    def rounds_s(self) -> list[list[float]]:
        """Return the samples of each round by the row's clock."""
        rounds = self.cpu_rounds if self.clock is RowClock.CPU else self.rounds
        return [samples for samples in rounds if samples]

    @property
    def half_width_share(self) -> float | None:
        """Return half the interval as a share of the figure, or None from too few rounds."""
        return self.estimator.half_width_share(self.rounds_s)


class Sampler:
    """Sampler of cases; `ran_s` are their reported seconds, used if the clock stands still.

    `compiled_s` are the seconds of first runs that compile.
    A stretch of samples or of warming up has at most `most_samples`.
    """

    def __init__(self, clock: Clock, most_samples: int) -> None:
        self._clock = clock
        self._most_samples = most_samples
        self.ran_s = 0.0
        self.compiled_s = 0.0

    def take_slice(
        self,
        state: CaseState,
        samples_s: float,
        warmup_s: float,
        refuse: Callable[[float], Failure | None] = lambda least_s: None,
    ) -> None:
        """Give a case one slice on fresh memory; a failure becomes the row's error.

        Samples take `samples_s`; the first slice warms up for `warmup_s`. It ends early with the
        error that `refuse` returns, which is asked after preparing, and after the first run with
        the time that this took: as long as another may take.
        """
        with self._prepared(state):
            began_s, first = self._clock(), state.cold_s is None
            state.case.prepare()
            begin_s = self._clock()
            if first:
                state.case.poison()
                self._begin(state, warmup_s, refuse)
                began_s += self._clock() - begin_s
            elif state.rounds and state.rounds[-1][-1] * state.loops < samples_s:
                self._run_for(state, state.warmup_s, _WARM_SHARE * samples_s)
            # Again: a kernel that stopped working after its first run left a right result.
            state.case.poison()
            state.rounds.append([])
            state.cpu_rounds.append([])
            start_s, ran_s = self._clock(), self.ran_s
            try:
                self._run_for(state, state.rounds[-1], samples_s)
            finally:
                end_s = self._clock()
                state.slices_s.append((start_s, end_s))
                state.timed_s += max(end_s - start_s, self.ran_s - ran_s)
            _check_speed(state)
            if first or state.checked_s <= _CHECK_SHARE * state.timed_s:
                self._verify(state)
            state.facts = dict(state.case.facts)
            state.overhead_s = self._clock() - began_s - (end_s - start_s)

    def count_energy(self, state: CaseState, read_joules: ReadJoules, seconds: float) -> None:
        """Repeat a GPU operation without pause and divide the energy by the count."""
        uuid = state.case.label.gpu_uuid
        if uuid is None or not state.samples_s:
            return
        with self._prepared(state):
            state.case.prepare()
            state.case.poison()
            state.case.run(1)
            before = read_joules(uuid)
            if before is None:
                return
            start_s, ran_s, operations = self._clock(), 0.0, 0
            while max(ran_s, self._clock() - start_s) < seconds:
                # At least a little, so that the loop also ends if the clock stands still.
                ran_s += max(state.case.run(state.loops), 1e-6)
                operations += state.loops
            after = read_joules(uuid)
            if after is not None and after > before and operations:
                state.joules_per_op = (after - before) / operations
                state.energy_window_s = max(ran_s, self._clock() - start_s)

    @contextmanager
    def _prepared(self, state: CaseState) -> Iterator[None]:
        """Slice failures into the row's error, and release the case in every event.

        CPUs near the GPU do the host's part of a transfer, from memory near them.
        """
        try:
            with running_on(state.near_cpus):
                yield
        except GpucheckError as error:
            state.error = Failure.of(error)
        except MemoryError:
            state.error = memory_failure(state)
        finally:
            try:
                state.case.release()
            except GpucheckError as error:
                state.error = state.error or Failure.of(error)

    def _begin(
        self, state: CaseState, warmup_s: float, refuse: Callable[[float], Failure | None]
    ) -> None:
        """Run a case for the first time, check its result, and find its number of repetitions."""
        _raise(refuse(0.0))
        before_s = self._clock()
        first_s = state.case.run(1)
        state.cold_s = self._clock() - before_s
        if state.case.compiles:
            self.compiled_s += state.cold_s
        else:
            self.ran_s += max(0.0, first_s)
        self._verify(state)
        _raise(refuse(0.0 if state.case.compiles else first_s))
        # One operation may take minutes, which is warm-up enough. The first run of a short one may
        # also be long while libraries load; that does not show how often to repeat it. A framework
        # loads most of them, and compiles, so that a second run tells.
        long = first_s >= _LONG_FIRST_S
        if long and state.case.label.framework is not None:
            state.loops = 1
            second_s = self._sample(state, state.warmup_s)
            long = second_s >= _LONG_FIRST_S
        if not long and self._find_loops(state) < warmup_s:
            self._run_for(state, state.warmup_s, warmup_s)
        state.loops = max(1, state.loops)
        if state.loops > 1:
            singles = [state.case.run(1) for _ in range(_SINGLES)]
            self.ran_s += sum(singles)
            state.single_s = min(singles)

    def _verify(self, state: CaseState) -> None:
        start_s = self._clock()
        verified = state.case.check()
        state.checked_s += self._clock() - start_s
        before = state.verified
        if before is None or not verified.ok or (before.error or 0.0) <= (verified.error or 0.0):
            state.verified = verified
        if not verified.ok:
            raise wrong_result(state, verified).as_error(GpucheckError)

    def _find_loops(self, state: CaseState) -> float:
        """Double the loops until a sample is long enough for the case's clock; return its time."""
        # A case may need whole rotations of its buffers.
        step = state.loops = state.case.loop_step
        while True:
            elapsed_s = self._sample(state, state.warmup_s)
            if elapsed_s >= state.case.shortest_span_s:
                return elapsed_s
            if state.loops >= _MOST_LOOPS or (elapsed_s == 0 and state.loops >= 2**12):
                raise stuck_clock(elapsed_s).as_error(GpucheckError)
            # Straight to the goal with a margin, but at most tenfold after one short run.
            goal = 1.2 * state.case.shortest_span_s / elapsed_s if elapsed_s > 0 else 10.0
            wanted = state.loops * max(2, min(10, int(goal) + 1))
            state.loops = -(-wanted // step) * step

    def _run_for(self, state: CaseState, into: list[float], seconds: float) -> None:
        """Run at least once, until the time is over by the clock or as the case reports it."""
        start_s, reported_s = self._clock(), 0.0
        for _ in range(max(1, self._most_samples)):
            reported_s += self._sample(state, into)
            if max(reported_s, self._clock() - start_s) >= seconds:
                return

    def _sample(self, state: CaseState, into: list[float]) -> float:
        """Run once, store the time of one operation, return the time of the whole run."""
        loops = max(1, state.loops)
        elapsed_s = state.case.run(loops)
        warming = into is state.warmup_s
        if not 0 <= elapsed_s < float("inf") or (elapsed_s == 0 and not warming):
            raise stuck_clock(elapsed_s).as_error(GpucheckError)
        into.append(elapsed_s / loops)
        self.ran_s += elapsed_s
        if not warming:
            if (cpu_s := state.case.cpu_s) is not None:
                state.cpu_rounds[-1].append(cpu_s / loops)
            if (clock_mhz := state.case.sm_clock_mhz) is not None:
                state.sm_clocks_mhz.append(clock_mhz)
        return elapsed_s


def _check_speed(state: CaseState) -> None:
    """Fail a case that was faster than its device can compute, whatever its result."""
    least_s, fastest_s = state.case.least_s, min(state.rounds[-1])
    if least_s is not None and fastest_s < least_s:
        state.verified = Verified(
            error=least_s / fastest_s, bound=1.0, ok=False, reference=PROCESSOR_CEILING
        )
        raise wrong_result(state, state.verified).as_error(GpucheckError)


def _raise(failure: Failure | None) -> None:
    if failure is not None:
        raise failure.as_error(GpucheckError)


def memory_failure(state: CaseState) -> Failure:
    """Return the error of a case that ran out of host memory."""
    return Failure(
        code="out-of-memory",
        message=f"the host does not have enough free memory for {state.case.label.text}",
        remedy=(CHOOSE_SMALLER_SIZE,),
    )


def stuck_clock(elapsed_s: float) -> Failure:
    """Return the error of a clock that stands still, goes back or is not a number."""
    return Failure(
        code=CLOCK_STUCK,
        message=f"the clock cannot be trusted: a run of many operations took {elapsed_s:g} seconds",
        remedy=("Check the clock source in /sys/devices/system/clocksource.",),
    )


def describe_deviation(verified: Verified) -> str:
    """Describe how far a finite result is from its reference; exact results are counted."""
    if verified.reference == PROCESSOR_CEILING:
        return f"it was {verified.error:.3g} times as fast as {verified.reference}"
    if verified.bound == 0 and verified.error is not None:
        return f"{verified.error:.0f} of its numbers differ from {verified.reference}"
    # The report says how float64 is used, by sums or after steps.
    of = "float64" if verified.reference.startswith("float64") else verified.reference
    return (
        f"its deviation from {of} is {verified.error:.2g}; at most {verified.bound:.2g} is allowed"
    )


def wrong_result(state: CaseState, verified: Verified) -> Failure:
    """Return the error of a result beyond its bound from float64."""
    deviation = "it contains NaN or infinity"
    if verified.error is not None:
        deviation = describe_deviation(verified)
    return Failure(
        code="wrong-result",
        message=f"{state.case.label.text} gives a wrong result: {deviation}",
        remedy=("Do not use its time.", "Run: gpucheck detect"),
    )
