"""The engine: warms cases up, takes samples in turn, and stops when the median is known.

It knows nothing of kernels, devices or statistics of a kind: a case runs and checks itself, the
clock is given, and every sample is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpucheck.core.bench import stats
from gpucheck.core.bench.kernel import Case
from gpucheck.models.bench import Fact, Verified
from gpucheck.models.errors import GpucheckError
from gpucheck.models.report import Failure
from gpucheck.probes.clock import Clock

#: More operations than this in one sample: the clock does not move, or the operation does nothing.
_MOST_LOOPS = 2**24
#: The error of a row that the time did not reach.
NO_TIME = "no-time"
#: A case is not begun any more when the group is so many times its budget late, and so many
#: seconds: preparing and checking take their time whatever the budget.
_LATEST_START, _LATEST_START_S = 2.0, 3.0


class Progress(Protocol):
    """Who wants to know how far the run is."""

    def __call__(self, label: str, fraction: float, seconds_left: float) -> None:
        """Take the current case, the share done (0 to 1) and a bound on the seconds left."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """When to stop and how to take turns.

    `precision` is half the 95 % interval of the median as a share of the median. Cases take turns
    of `turn_s`, so that a drift of the machine meets all of them; the first tenth of a turn is
    warm-up again, since the other cases' turns let caches and clocks cool down. For `energy_s`
    seconds each operation is repeated without a pause, for what it takes from the power supply.
    """

    budget_s: float
    warmup_s: float
    energy_s: float = 0.0
    precision: float = 0.01
    fewest_samples: int = 10
    most_samples: int = 2000
    turn_s: float = 0.2


@dataclass(slots=True, kw_only=True)
class Record:
    """What became of one case; grows while it runs. Times are seconds for one operation.

    `turns_s` are the moments between which its samples were taken, by the host's clock.
    """

    case: Case
    loops: int = 1
    samples_s: list[float] = field(default_factory=list)
    warmup_s: list[float] = field(default_factory=list)
    cold_s: float | None = None
    verified: Verified | None = None
    facts: dict[str, Fact] = field(default_factory=dict)
    sm_clocks_mhz: list[float] = field(default_factory=list)
    turns_s: list[tuple[float, float]] = field(default_factory=list)
    joules_per_op: float | None = None
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


class EnergyMeter(Protocol):
    """Who counts the energy that a GPU has taken."""

    def joules(self, uuid: str) -> float | None:
        """Return the energy counter of a GPU, None if it has none."""
        ...


def measure(
    cases: Sequence[Case],
    settings: Settings,
    clock: Clock,
    progress: Progress,
    energy: EnergyMeter | None = None,
) -> list[Record]:
    """Measure the cases of one group in turn; a case that fails keeps its row, the others go on.

    A KeyboardInterrupt ends the group: what was measured is kept, unfinished rows are marked.
    """
    run = _Run([Record(case=case) for case in cases], settings, clock, progress)
    try:
        run.start()
        run.take_turns()
        if energy is not None and settings.energy_s > 0:
            run.count_energy(energy)
        run.check_again()
    except KeyboardInterrupt:
        for record in run.records:
            record.interrupted = record.active
    finally:
        for record in run.records:
            _release(record)
    return run.records


def _release(record: Record) -> None:
    try:
        record.case.release()
    except GpucheckError as error:
        record.error = record.error or as_failure(error)


def as_failure(error: GpucheckError) -> Failure:
    """Return an error as data."""
    return Failure(code=error.code, message=error.message, remedy=error.remedy)


class _Failed(Exception):
    """A case cannot be measured; carries the reason for its row."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Run:
    """One group on its way."""

    def __init__(
        self, records: list[Record], settings: Settings, clock: Clock, progress: Progress
    ) -> None:
        self.records = records
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._start_s = clock.now_s()
        self._granted_s = settings.budget_s
        #: Seconds that the cases themselves reported: the budget holds even if the clock stands.
        self._sampled_s = 0.0

    def start(self) -> None:
        """Prepare, verify and warm up every case."""
        for record in self.records:
            self._tell(record)
            self._guard(record, self._start_case)

    def take_turns(self) -> None:
        """Give each unfinished case a turn, forwards and backwards, until all are finished."""
        # Preparing may have taken longer than planned: the samples still get their half.
        self._granted_s += max(0.0, self._settings.budget_s / 2 - self._left_s())
        forwards = True
        while active := [record for record in self.records if record.active]:
            for record in active if forwards else reversed(active):
                self._tell(record)
                self._guard(record, self._take_turn)
            forwards = not forwards

    def check_again(self) -> None:
        """Check what the timed runs left behind: a result may go wrong with time."""
        for record in self.records:
            if record.error is None:
                self._guard(record, self._verify)
                record.facts = dict(record.case.facts)

    def count_energy(self, energy: EnergyMeter) -> None:
        """Repeat each operation on a GPU without a pause and divide the energy by the count."""

        def count(record: Record) -> None:
            uuid, operations = record.case.label.gpu_uuid, 0
            before = energy.joules(uuid) if uuid is not None else None
            if uuid is None or before is None:
                return
            self._tell(record)
            start_s, ran_s = self._clock.now_s(), 0.0
            while max(ran_s, self._clock.now_s() - start_s) < self._settings.energy_s:
                # At least a little, so that a clock that stands ends the loop too.
                ran_s += max(record.case.run(record.loops), 1e-6)
                operations += record.loops
            after = energy.joules(uuid)
            if after is not None and after > before and operations:
                record.joules_per_op = (after - before) / operations

        for record in self.records:
            if record.error is None and record.samples_s:
                self._guard(record, count)

    def _guard(self, record: Record, step: _Step) -> None:
        """Run a step; its failure becomes the row's error."""
        try:
            step(record)
        except _Failed as failed:
            record.error = failed.failure
        except GpucheckError as error:
            record.error = as_failure(error)
        except MemoryError:
            record.error = Failure(
                code="out-of-memory",
                message=f"the host has not enough free memory for {record.case.label.text}",
                remedy=("choose a smaller --size",),
            )
        if record.error is not None:
            # What it holds may be what the next case lacks.
            _release(record)

    def _start_case(self, record: Record) -> None:
        if self._left_s() <= -max(_LATEST_START * self._settings.budget_s, _LATEST_START_S):
            raise _Failed(_no_time(record))
        case = record.case
        case.prepare()
        case.poison()
        before_s = self._clock.now_s()
        first_s = case.run(1)
        record.cold_s = self._clock.now_s() - before_s
        self._sampled_s += max(0.0, first_s)
        self._verify(record)
        # One operation may take minutes: then it was warm-up enough.
        if first_s < max(10 * case.shortest_span_s, self._settings.warmup_s):
            self._find_loops(record)
            self._warm(record, self._settings.warmup_s)

    def _verify(self, record: Record) -> None:
        found = record.case.check()
        before = record.verified
        if before is None or not found.ok or (before.error or 0.0) <= (found.error or 0.0):
            record.verified = found
        if not found.ok:
            raise _Failed(
                Failure(
                    code="wrong-result",
                    message=f"{record.case.label.text} gives a wrong result: {_deviation(found)}",
                    remedy=("do not use its time", "run gpucheck detect"),
                )
            )

    def _find_loops(self, record: Record) -> None:
        """Double the loops until one sample is long enough for the case's clock."""
        while True:
            elapsed_s = self._sample(record, record.warmup_s)
            if elapsed_s >= record.case.shortest_span_s:
                return
            if record.loops >= _MOST_LOOPS or (elapsed_s == 0 and record.loops >= 2**12):
                raise _Failed(_stuck_clock(elapsed_s))
            # Straight to the goal with a margin, but never more than tenfold on one short look.
            goal = 1.2 * record.case.shortest_span_s / elapsed_s if elapsed_s > 0 else 10.0
            record.loops *= max(2, min(10, int(goal) + 1))

    def _warm(self, record: Record, seconds: float) -> None:
        self._run_for(record, record.warmup_s, seconds, self._settings.most_samples)

    def _take_turn(self, record: Record) -> None:
        settings = self._settings
        turn_s = min(settings.turn_s, settings.budget_s / 10 / len(self.records))
        last_s = (record.samples_s or record.warmup_s or [turn_s])[-1] * record.loops
        if last_s < turn_s / 10:
            self._warm(record, turn_s / 10)
        wanted = settings.most_samples - len(record.samples_s)
        start_s = self._clock.now_s()
        self._run_for(record, record.samples_s, turn_s, wanted)
        record.turns_s.append((start_s, self._clock.now_s()))
        self._decide(record)

    def _run_for(self, record: Record, into: list[float], seconds: float, most: int) -> None:
        """Run at least once, until the time is over by the clock or by the case's own account."""
        start_s, reported_s = self._clock.now_s(), 0.0
        for _ in range(most):
            reported_s += self._sample(record, into)
            if max(reported_s, self._clock.now_s() - start_s) >= seconds:
                return

    def _decide(self, record: Record) -> None:
        """Finish a case whose median is known, or whose time is over.

        The interval must be narrow at two looks, with half as many samples again in between: who
        stops at the first look stops where it is narrow by chance, and 95 % would be 92 %.
        """
        count = len(record.samples_s)
        if count >= max(self._settings.fewest_samples, record.next_look):
            width = stats.half_width_share(record.samples_s)
            narrow = width is not None and width <= self._settings.precision
            record.converged = narrow and record.narrow
            record.narrow = narrow
            record.next_look = count + count // 2
        over = self._left_s() <= 0 or count >= self._settings.most_samples
        record.finished = record.converged or over

    def _sample(self, record: Record, into: list[float]) -> float:
        """Run once, keep the time for one operation, return the time of the whole run."""
        elapsed_s = record.case.run(record.loops)
        if not 0 <= elapsed_s < float("inf"):
            raise _Failed(_stuck_clock(elapsed_s))
        into.append(elapsed_s / record.loops)
        self._sampled_s += elapsed_s
        if into is record.samples_s:
            if elapsed_s == 0:
                raise _Failed(_stuck_clock(elapsed_s))
            if (clock_mhz := record.case.sm_clock_mhz) is not None:
                record.sm_clocks_mhz.append(clock_mhz)
        return elapsed_s

    def _left_s(self) -> float:
        spent_s = max(self._clock.now_s() - self._start_s, self._sampled_s)
        return self._granted_s - spent_s

    def _tell(self, record: Record) -> None:
        left_s = max(0.0, self._left_s())
        done = sum(not other.active for other in self.records) / len(self.records)
        fraction = max(done, 1 - left_s / self._granted_s) if self._granted_s > 0 else 1.0
        self._progress(record.case.label.text, min(1.0, fraction), left_s)


class _Step(Protocol):
    """One thing to do with one case."""

    def __call__(self, record: Record) -> None: ...


def _deviation(found: Verified) -> str:
    if found.error is None:
        return "it holds NaN or infinity"
    return f"its deviation from float64 is {found.error:.2g}, allowed is {found.bound:.2g}"


def _no_time(record: Record) -> Failure:
    return Failure(
        code=NO_TIME,
        message=f"the time was over before {record.case.label.text} could start",
        remedy=("give more time with --budget, or a smaller --size",),
    )


def _stuck_clock(elapsed_s: float) -> Failure:
    return Failure(
        code="clock-stuck",
        message=f"the clock cannot be trusted: a run of many operations took {elapsed_s:g} seconds",
        remedy=("look at the clock source in /sys/devices/system/clocksource",),
    )
