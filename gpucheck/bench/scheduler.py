"""Scheduler: measures all cases in rounds over the whole time, and stops converged ones.

A round gives every unfinished case of every group one time slice on fresh memory. So a row's rounds
vary as separate runs of the program do, with memory placement, clock and other load. The interval
over the rounds covers that variation. Samples taken in one stretch do not show it: they may agree
to 0.5 %, and the next run is 5 % off.
Kalibera and Jones (2013), "Rigorous benchmarking in reasonable time".

A row with fewer than three rounds has no interval, and its figure says little. If the budget is too
short for every row, some are left out and named. Rows other than a group's first on a device (one
thread, other layouts, naive versions) go before first rows, and expensive ones before cheap ones.
Estimates of their cost decide that beforehand; a factor of two is accurate enough for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from gpucheck.bench import stats
from gpucheck.bench.case import CaseLabel, Work
from gpucheck.bench.model import Scope
from gpucheck.bench.roofline import format_of
from gpucheck.bench.sampler import ReadJoules, Record, Runner, Turn
from gpucheck.bench.stats import FEWEST_FOR_INTERVAL
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.drivers.host.blas import BlasDoor
from gpucheck.drivers.host.clock import Clock
from gpucheck.report.envelope import Failure

#: Multiple of the budget up to which rows still get their first three rounds.
_LATEST_RUN = 1.2
#: Share of the first round's time for samples and warm-up, while nothing is known about the cases.
#: The rest is for preparing, compiling and checking.
_FIRST_SHARE = 0.5
#: All first warm-ups together take at most this share of the budget.
_WARMUP_SHARE = 0.1
#: Samples take at least this share of their preparation time.
_LEAST_SHARE = 0.1
#: A first slice runs an operation to warm up, to find its length, and for its sample. It draws the
#: inputs and checks the result twice; later slices do so once at most.
_FIRST_RUNS, _FIRST_OVERHEADS = 3, 2
#: Seconds that the first three rounds always have, however small the budget is.
_LEAST_S = 10.0
#: Number of rows that a sentence names; the rest are counted.
_MOST_NAMED = 4
#: Sizes of the timed product and copy, and their repetitions: about 20 ms on one core.
_EDGE, _COPY_BYTES, _TIMES = 384, 2**23, 8
#: A GPU reaches at least half of its datasheet's figures, and a link 5 GB/s.
_GPU_SHARE, _LINK_BYTES_PER_S = 0.5, 5e9
#: Passes over an operation's bytes for drawing, allocating and checking, at a copy's speed.
_OVERHEAD_PASSES = 6
#: Error of a row for which no time was left.
NO_TIME = "no-time"
#: Takes the current case, the share done (0 to 1) and a bound on the seconds left.
Progress = Callable[[str, float, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Number and length of rounds, and the condition for convergence.

    `budget_s` is divided into `rounds`. Finished rows leave more rounds to the others, up to
    `most_rounds`. A row finishes when half the 95 % interval of its median is within `precision` at
    two looks, after `fewest_rounds` and a third more: at the first look the interval may be narrow
    by chance. A row within `wanted` at the end has converged. `warmup_s` is the longest warm-up of
    a case's first slice. `energy_s` seconds are then spent on the energy of each GPU operation.
    """

    budget_s: float
    warmup_s: float
    energy_s: float = 0.0
    rounds: int = 10
    precision: float = stats.PRECISION
    wanted: float = stats.PRECISION
    fewest_rounds: int = 6
    most_rounds: int = 200
    samples_per_turn: int = 100


def _unwatched() -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(slots=True, kw_only=True)
class Slot:
    """Cases of one group, which take their slices one after the other.

    `watch` surrounds their slices: it reads the host and the sensors, and drops the inputs. Energy
    is not counted for groups that were not requested.
    """

    records: Sequence[Record]
    watch: Callable[[], AbstractContextManager[object]] = _unwatched
    with_energy: bool = True

    @property
    def active(self) -> list[Record]:
        """Return the cases that need more samples."""
        return [record for record in self.records if record.active]


def measure(
    slots: Sequence[Slot],
    settings: Settings,
    clock: Clock,
    progress: Progress,
    read_joules: ReadJoules | None = None,
) -> bool:
    """Measure the cases of all groups; a failing case keeps its row, and the others continue.

    Return whether the user interrupted it. Measured data is kept, and unfinished rows are marked.
    """
    run = _Run(slots, settings, clock, progress)
    try:
        while run.take_round():
            pass
        if read_joules is not None and settings.energy_s > 0:
            run.count_energy(read_joules)
    except KeyboardInterrupt:
        for record in run.records:
            record.interrupted = record.active
        return True
    return False


class _Run:
    """State of a running schedule."""

    def __init__(
        self, slots: Sequence[Slot], settings: Settings, clock: Clock, progress: Progress
    ) -> None:
        self.records = [record for slot in slots for record in slot.records]
        for record in self.records:
            record.precision = settings.wanted
        self._slots = slots
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._runner = Runner(clock)
        self._start_s = clock.now_s()
        self._number = 0
        self._turn_s = self._first_turn_s()
        self._told = 0.0

    def take_round(self) -> bool:
        """Give unfinished cases a slice; return whether another round is needed.

        In the first round every row that can reach three rounds in time gets one. Later, rows with
        fewer than three come first. Of the others, only rows below the average time get a slice, so
        that a row of seconds does not keep one of milliseconds from its rounds.
        """
        turns = self._first_turns() if self._number == 0 else self._later_turns()
        for slot in self._slots:
            here = [record for record in slot.active if id(record) in turns]
            if here:
                self._visit(slot, here)
        self._number += 1
        for record in self.records:
            self._decide(record, over=not turns)
        return any(record.active for record in self.records)

    def _first_turns(self) -> set[int]:
        return {id(record) for record in self.records}

    def _later_turns(self) -> set[int]:
        """Return the records with a slice in this round, and set the slices' length."""
        active = [record for record in self.records if record.active]
        needs = chosen([need_of(record) for record in active], self._left_for_first_s())
        lacking = {id(need.record) for need in needs if need.seconds > 0}
        if self._number < self._settings.rounds:
            self._turn_s = self._later_turn_s(needs)
        if self._left_s() <= 0:
            return lacking
        kept = [need.record for need in needs]
        average_s = sum(record.spent_s for record in kept) / max(1, len(kept))
        return lacking | {
            id(record) for record in kept if record.spent_s <= average_s + self._turn_s
        }

    def count_energy(self, read_joules: ReadJoules) -> None:
        """Measure the energy of each GPU operation, one after the other."""
        wanted = [record for slot in self._slots if slot.with_energy for record in slot.records]
        for record in wanted:
            if record.error is None:
                self._tell(record)
                self._runner.count_energy(record, read_joules, self._settings.energy_s)

    def _visit(self, slot: Slot, turns: Sequence[Record]) -> None:
        # Forwards and backwards, so that a drift affects all cases of a group alike.
        turns = turns if self._number % 2 == 0 else turns[::-1]
        began_s, spent_s = self._elapsed_s(), 0.0
        with slot.watch():
            for record in turns:
                if self._number == 0 and not self._may_begin(record, slot):
                    record.error = no_time(record)
                    continue
                if self._number > 0 and self._is_over(record):
                    continue
                self._tell(record)
                before_s = self._elapsed_s()
                self._runner.take_turn(record, self._turn())
                record.spent_s += self._elapsed_s() - before_s
                spent_s += self._elapsed_s() - before_s
        # Shared work counts too: reading the sensors, dropping the inputs.
        shared_s = max(0.0, self._elapsed_s() - began_s - spent_s) / len(turns)
        for record in turns:
            record.overhead_s += shared_s

    def _may_begin(self, record: Record, slot: Slot) -> bool:
        """Return whether a new row can finish its three rounds in time.

        A group's first row may begin late if it needs less than its share of the budget, so that
        one long row does not leave other groups without a figure.
        """
        typical_s = typical_overheads(self.records)
        needs = [need_of(one, typical_s(one)) for one in self.records if one.active]
        left_s = least_budget_s(self._settings.budget_s) - self._elapsed_s()
        if any(need.record is record for need in chosen(needs, left_s)):
            return True
        if not any(one.rounds for one in self.records):
            return True
        own = next(need for need in needs if need.record is record)
        begun = any(one.rounds for one in slot.records)
        return not begun and own.seconds <= self._settings.budget_s / len(self._slots)

    def _is_over(self, record: Record) -> bool:
        lacking = need_of(record).seconds > 0
        return (self._left_for_first_s() if lacking else self._left_s()) <= 0

    def _turn(self) -> Turn:
        settings = self._settings
        first = self._number == 0
        return Turn(
            samples_s=self._turn_s,
            warmup_s=min(settings.warmup_s, self._warmup_s()) if first else 0.0,
            most_samples=settings.samples_per_turn,
        )

    def _warmup_s(self) -> float:
        return _WARMUP_SHARE * self._settings.budget_s / max(1, len(self.records))

    def _first_turn_s(self) -> float:
        settings = self._settings
        return _FIRST_SHARE * settings.budget_s / settings.rounds / max(1, len(self.records))

    def _later_turn_s(self, needs: Sequence[Need]) -> float:
        """Return the length of the next slices, now that the cases' needs are known.

        It assumes that no row ever finishes; time left by finished rows becomes further rounds.
        """
        turns = (self._settings.rounds - self._number) * max(1, len(needs))
        overhead_s = sum(need.record.overhead_s for need in needs) / max(1, len(needs))
        free_s = self._left_s() - sum(need.seconds for need in needs)
        share_s = max(0.0, free_s) / turns - overhead_s
        return max(share_s, _LEAST_SHARE * overhead_s, 1e-4)

    def _decide(self, record: Record, *, over: bool) -> None:
        """Finish a case that has converged or has no time left."""
        medians = record.medians_s
        count = len(medians)
        if record.active and count >= max(self._settings.fewest_rounds, record.next_look):
            width = stats.half_width_share(medians)
            narrow = width is not None and width <= self._settings.precision
            record.converged = narrow and record.narrow
            record.narrow = narrow
            record.next_look = count + max(1, count // 3)
        over = over or self._is_over(record) or self._number >= self._settings.most_rounds
        if over and record.active and record.error is None:
            width = stats.half_width_share(medians)
            record.converged |= width is not None and width <= self._settings.wanted
        # Of a row that only shows a limit, the fastest sample counts.
        shown = record.limit and count >= stats.FEWEST_FOR_INTERVAL
        record.finished = record.finished or record.converged or shown or over

    def _elapsed_s(self) -> float:
        """Return the time by the clock, or as the cases report it if the clock stands still."""
        return max(self._clock.now_s() - self._start_s, self._runner.ran_s)

    def _left_s(self) -> float:
        return self._settings.budget_s - self._elapsed_s()

    def _left_for_first_s(self) -> float:
        """Return the seconds left for the rows' first three rounds."""
        budget_s = self._settings.budget_s
        return max(_LATEST_RUN * budget_s, least_budget_s(budget_s)) - self._elapsed_s()

    def _tell(self, record: Record) -> None:
        budget_s, left_s = self._settings.budget_s, max(0.0, self._left_s())
        done = sum(not other.active for other in self.records) / len(self.records)
        share = 1 - left_s / budget_s if budget_s > 0 else 1.0
        self._told = min(1.0, max(self._told, share, done))
        self._progress(record.case.label.text, self._told, left_s)


def no_time(record: Record) -> Failure:
    """Return the error of a case that did not start in time."""
    return Failure(
        code=NO_TIME,
        message=f"time ran out before {record.case.label.text} could start",
        remedy=("give more time with --budget, or choose a smaller --size",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Seconds that a row needs for its interval."""

    record: Record
    seconds: float


def need_of(record: Record, typical_overhead_s: float = 0.0) -> Need:
    """Return the time that a row still needs for three rounds of at least one sample.

    `typical_overhead_s` is the overhead of other rows on the same device, for a row that has not
    begun. A row that only shows a limit needs one round, since its fastest sample counts.
    """
    rounds = 1 if record.limit else FEWEST_FOR_INTERVAL
    if record.rounds:
        turn_s = record.overhead_s + record.last_sample_s
        seconds = max(0, rounds - len(record.rounds)) * turn_s
    else:
        operation_s = record.expected_operation_s
        overhead_s = max(record.expected_overhead_s, typical_overhead_s)
        first_s = _FIRST_RUNS * operation_s + _FIRST_OVERHEADS * overhead_s
        seconds = first_s + (rounds - 1) * (operation_s + overhead_s)
    return Need(record=record, seconds=seconds)


def chosen(needs: Sequence[Need], left_s: float) -> list[Need]:
    """Return the rows that fit into the seconds left: first rows first, then cheap ones.

    Rows that only show a limit come after the first rows that were requested.
    """
    found: list[Need] = []
    for need in sorted(needs, key=_rank):
        if need.seconds <= left_s:
            found.append(need)
            left_s -= need.seconds
    return found


def _rank(need: Need) -> tuple[bool, bool, float]:
    return (need.record.reference, need.record.limit, need.seconds)


def least_budget_s(budget_s: float) -> float:
    """Return the time in which rows may begin; preparing and checking take time too."""
    return max(budget_s, _LEAST_S)


def leave_out(records: Sequence[Record], budget_s: float) -> str | None:
    """Mark the rows that the budget is too short for, before any row is measured.

    Return a sentence with their names and a sufficient budget, or None if all fit. The cheapest
    first row is always measured.
    """
    needs = [need_of(record) for record in records if record.active]
    kept = {id(need.record) for need in chosen(needs, least_budget_s(budget_s))}
    if needs and not kept:
        kept = {id(min(needs, key=_rank).record)}
    dropped = [need for need in needs if id(need.record) not in kept]
    if not dropped:
        return None
    enough_s = enough_budget_s(sum(need.seconds for need in needs))
    for need in dropped:
        need.record.error = left_out(need.record, need.seconds, enough_s)
    shown = [need.record for need in dropped if not need.record.limit]
    if not shown:
        return None
    return (
        f"{budget_s:g} s is too short for three rounds of every row; left out: {named(shown)}; "
        f"--budget {enough_s:g} would be enough"
    )


def left_out(record: Record, seconds: float, enough_s: float) -> Failure:
    """Return the error of a case that the budget is too short for, with a sufficient one."""
    return Failure(
        code=NO_TIME,
        message=f"left out: three rounds of {record.case.label.text} take about {seconds:.2g} s, "
        "more than the budget allows",
        remedy=(f"give more time: --budget {enough_s:g}", "or choose a smaller --size"),
    )


def without_interval(records: Sequence[Record], budget_s: float) -> str | None:
    """Return a sentence with the rows that ran out of time before they had an interval."""
    short = [
        record
        for record in records
        if record.error is None
        and not (record.limit or record.interrupted)
        and len(record.medians_s) < FEWEST_FOR_INTERVAL
    ]
    if not short:
        return None
    missing_s = sum(need_of(record).seconds for record in short)
    whose = "its" if len(short) == 1 else "their"
    return (
        f"time ran out before {named(short)} had {whose} three rounds; "
        f"--budget {enough_budget_s(budget_s + missing_s):g} should be enough"
    )


def enough_budget_s(needed_s: float) -> float:
    """Return a rounded budget at least a quarter above what is needed."""
    wanted = max(1.0, 1.25 * needed_s)
    step = 10.0 ** math.floor(math.log10(wanted)) / 2
    return math.ceil(wanted / step) * step


def named(records: Sequence[Record]) -> str:
    """Return the names of the first few rows and the number of the rest."""
    labels = [record.case.label for record in records[:_MOST_NAMED]]
    names = [
        f"{label.kernel} {format_of(label.dtype)} {label.variant} on {label.device}"
        for label in labels
    ]
    rest = len(records) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")


def typical_overheads(records: Sequence[Record]) -> Callable[[Record], float]:
    """Return the median overhead of the rows on a record's device so far."""
    by_kind: dict[bool, list[float]] = {}
    for record in records:
        if record.rounds:
            by_kind.setdefault(_on_cpu(record), []).append(record.overhead_s)
    middles = {kind: stats.median(found) for kind, found in by_kind.items()}
    return lambda record: middles.get(_on_cpu(record), 0.0)


def _on_cpu(record: Record) -> bool:
    return record.case.label.device == "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """Rates of one thread: float32 operations of a product, bytes of a copy."""

    flops_per_s: float
    bytes_per_s: float


def measure_host(clock: Clock, blas: BlasDoor) -> HostRates | None:
    """Return the best rates of a small product and a small copy; None if the clock stands still.

    With one thread: on a busy machine several threads wait for each other for whole time slices.
    """
    import numpy as np

    factor = np.ones((_EDGE, _EDGE), dtype=np.float32)
    source = np.ones(_COPY_BYTES // 4, dtype=np.float32)
    target = np.zeros_like(source)
    products, copies = [], []
    with blas.limited(1):
        for _ in range(_TIMES):
            began_s = clock.now_s()
            np.matmul(factor, factor)
            between_s = clock.now_s()
            np.copyto(target, source)
            products.append(between_s - began_s)
            copies.append(clock.now_s() - between_s)
    if min(*products, *copies) <= 0:
        return None
    return HostRates(
        flops_per_s=2 * _EDGE**3 / min(products),
        bytes_per_s=2 * _COPY_BYTES / min(copies),
    )


def expect(records: Sequence[Record], host: HostRates | None, gpus: Sequence[BenchGpu]) -> None:
    """Write the expected time of an operation, and of a slice's overhead, into each record."""
    if host is None:
        return
    for record in records:
        label, work = record.case.label, record.case.work
        record.expected_overhead_s = _OVERHEAD_PASSES * work.bytes_moved / host.bytes_per_s
        if label.device == "cpu":
            record.expected_operation_s = _on_host(label, work, host)
        else:
            gpu = next((gpu for gpu in gpus if label.device == f"gpu:{gpu.cuda_index}"), None)
            record.expected_operation_s = _on_gpu(label, work, gpu)


def _on_host(label: CaseLabel, work: Work, host: HostRates) -> float:
    """Return the time at the measured rates; float64 counts double, other formats as float32."""
    flops_per_s = host.flops_per_s * (label.threads or 1)
    if label.dtype.input == "float64":
        flops_per_s /= 2
    return max(work.flops / flops_per_s, work.bytes_moved / host.bytes_per_s)


def _on_gpu(label: CaseLabel, work: Work, gpu: BenchGpu | None) -> float:
    """Return the time at half of the datasheet's rates, 0 for rates it does not give."""
    moved_s = work.bytes_moved / _LINK_BYTES_PER_S
    if label.scope is Scope.END_TO_END or label.kernel in ("transfer", "p2p"):
        return moved_s
    board = gpu.board if gpu is not None else None
    if board is None:
        return 0.0
    times = [0.0]
    flops_per_s = board.flops_per_s.get(format_of(label.dtype))
    if flops_per_s:
        times.append(work.flops / (_GPU_SHARE * flops_per_s))
    if board.bytes_per_s:
        times.append(work.bytes_moved / (_GPU_SHARE * board.bytes_per_s))
    return max(times)
