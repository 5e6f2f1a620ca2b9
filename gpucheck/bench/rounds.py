"""Scheduler: measures all cases in rounds over the whole time, and stops converged ones.

A round gives every unfinished case of every group one time slice on fresh memory. So a row's rounds
vary as separate runs of the program do, with memory placement, clock and other load. The interval
over the rounds covers that variation. Samples taken in one stretch do not show it: they may agree
to 0.5 %, and the next run is 5 % off.
Kalibera and Jones (2013), "Rigorous benchmarking in reasonable time".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from gpucheck.bench import stats
from gpucheck.bench.budget import Need, chosen, least_budget_s, need_of, typical_overheads
from gpucheck.bench.record import Record, no_time
from gpucheck.bench.runner import EnergyMeter, Runner, Turn
from gpucheck.drivers.host.clock import Clock

#: Multiple of the budget up to which rows still get their first three rounds.
_LATEST_RUN = 1.2
#: Share of the first round's time for samples and warm-up, while nothing is known about the cases.
#: The rest is for preparing, compiling and checking.
_FIRST_SHARE = 0.5
#: All first warm-ups together take at most this share of the budget.
_WARMUP_SHARE = 0.1
#: Samples take at least this share of their preparation time.
_LEAST_SHARE = 0.1


class Progress(Protocol):
    """Receiver of the run's progress."""

    def __call__(self, label: str, fraction: float, seconds_left: float) -> None:
        """Report the current case, the share done (0 to 1) and a bound on the seconds left."""
        ...


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
    energy: EnergyMeter | None = None,
) -> bool:
    """Measure the cases of all groups; a failing case keeps its row, and the others continue.

    Return whether the user interrupted it. Measured data is kept, and unfinished rows are marked.
    """
    run = _Run(slots, settings, clock, progress)
    try:
        while run.take_round():
            pass
        if energy is not None and settings.energy_s > 0:
            run.count_energy(energy)
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

    def count_energy(self, energy: EnergyMeter) -> None:
        """Measure the energy of each GPU operation, one after the other."""
        wanted = [record for slot in self._slots if slot.with_energy for record in slot.records]
        for record in wanted:
            if record.error is None:
                self._tell(record)
                self._runner.count_energy(record, energy, self._settings.energy_s)

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
