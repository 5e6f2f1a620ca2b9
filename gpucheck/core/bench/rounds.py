"""The engine: measures all cases in rounds over the whole time, and stops what is known.

A round gives every unfinished case of every group one turn, each time on fresh memory. So a row's
rounds differ by what also differs from one run of the program to the next (where its memory lies,
the clock, what else the machine does), and the interval over the rounds holds that too. Samples
taken in one stretch know nothing of it: they may agree to 0.5 % and the next run be 5 % away.
Kalibera and Jones (2013), "Rigorous benchmarking in reasonable time".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from gpucheck.core.bench import stats
from gpucheck.core.bench.record import Record, no_time
from gpucheck.core.bench.runner import EnergyMeter, Runner, Turn
from gpucheck.probes.clock import Clock

#: A group is not begun any more when it is so many times its part of the budget late, and so many
#: seconds: preparing and checking take their time whatever the budget.
_LATEST_START, _LATEST_START_S = 2.0, 3.0
#: From so many times the budget on, only groups without any figure get their first one.
_LATEST_RUN = 1.3
#: Of the time of the first round, in which nothing is known of the cases, this share is for samples
#: and their warm-up; the rest is for preparing, compiling and checking.
_FIRST_SHARE = 0.5
#: All first warm-ups together take this share of the budget at most.
_WARMUP_SHARE = 0.1
#: Samples are at least so long as this share of what preparing them takes.
_LEAST_SHARE = 0.1


class Progress(Protocol):
    """Who wants to know how far the run is."""

    def __call__(self, label: str, fraction: float, seconds_left: float) -> None:
        """Take the current case, the share done (0 to 1) and a bound on the seconds left."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How many rounds, how long, and when a median is known.

    `budget_s` is divided into `rounds`; once rows are finished there are more of them for the
    others, `most_rounds` at most. A row is finished when half the 95 % interval of its median is
    within `precision` at two looks, after `fewest_rounds` and a third more: who stops at the first
    look stops where it is narrow by chance. `warmup_s` is the longest warm-up of a case's first
    turn. `energy_s` seconds are then spent on the energy of each operation on a GPU.
    """

    budget_s: float
    warmup_s: float
    energy_s: float = 0.0
    rounds: int = 10
    precision: float = stats.PRECISION
    fewest_rounds: int = 6
    most_rounds: int = 200
    samples_per_turn: int = 100


def _unwatched() -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(slots=True, kw_only=True)
class Slot:
    """The cases of one group, which take their turns one after the other.

    `watch` is around their turns: it reads the host and the sensors, and drops the inputs. Of
    groups that nobody asked for the energy is not counted.
    """

    records: Sequence[Record]
    watch: Callable[[], AbstractContextManager[object]] = _unwatched
    with_energy: bool = True
    spent_s: float = field(default=0.0)

    @property
    def active(self) -> list[Record]:
        """Return the cases that want more samples."""
        return [record for record in self.records if record.active]


def measure(
    slots: Sequence[Slot],
    settings: Settings,
    clock: Clock,
    progress: Progress,
    energy: EnergyMeter | None = None,
) -> bool:
    """Measure the cases of all groups; a case that fails keeps its row, the others go on.

    Returns whether a person interrupted it: what was measured is kept, unfinished rows are marked.
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
    """All groups on their way."""

    def __init__(
        self, slots: Sequence[Slot], settings: Settings, clock: Clock, progress: Progress
    ) -> None:
        self.records = [record for slot in slots for record in slot.records]
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
        """Give each unfinished case a turn; return whether another round is wanted."""
        for slot in self._slots:
            if slot.active and (self._number == 0 or self._left_s() > 0):
                self._visit(slot)
        self._number += 1
        if self._number < self._settings.rounds:
            self._turn_s = self._later_turn_s()
        for record in self.records:
            self._decide(record)
        return any(record.active for record in self.records)

    def count_energy(self, energy: EnergyMeter) -> None:
        """Count the energy of each operation on a GPU, one after the other."""
        wanted = [record for slot in self._slots if slot.with_energy for record in slot.records]
        for record in wanted:
            if record.error is None:
                self._tell(record)
                self._runner.count_energy(record, energy, self._settings.energy_s)

    def _visit(self, slot: Slot) -> None:
        # Forwards and backwards, so that a drift meets all cases of a group.
        turns = slot.active if self._number % 2 == 0 else slot.active[::-1]
        began_s = self._elapsed_s()
        with slot.watch():
            for record in turns:
                if self._number > 0 and self._left_s() <= 0:
                    break
                if self._number == 0 and self._is_late(slot):
                    record.error = no_time(record)
                    continue
                self._tell(record)
                before_s = self._elapsed_s()
                self._runner.take_turn(record, self._turn())
                slot.spent_s += self._elapsed_s() - before_s
        # What all share counts too: drawing the inputs.
        if turns:
            shared_s = (self._elapsed_s() - began_s) / len(turns)
            for record in turns:
                record.overhead_s = max(record.overhead_s, shared_s - self._turn_s)

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

    def _later_turn_s(self) -> float:
        """Return the length of the next turns, now that the cases' own needs are known.

        As if no row were ever finished: what those leave over gives the others more rounds.
        """
        wanted = [record for record in self.records if record.error is None]
        turns = (self._settings.rounds - self._number) * max(1, len(wanted))
        overhead_s = sum(record.overhead_s for record in wanted) / max(1, len(wanted))
        share_s = max(0.0, self._left_s()) / turns - overhead_s
        return max(share_s, _LEAST_SHARE * overhead_s, 1e-4)

    def _is_late(self, slot: Slot) -> bool:
        """Return whether a group, or the whole run if the group has figures, is late already."""
        budget_s = self._settings.budget_s
        begun = any(record.rounds for record in slot.records)
        if begun and self._elapsed_s() >= max(_LATEST_RUN * budget_s, _LATEST_START_S):
            return True
        part_s = budget_s / len(self._slots)
        return slot.spent_s >= max(_LATEST_START * part_s, _LATEST_START_S)

    def _decide(self, record: Record) -> None:
        """Finish a case whose median is known, or whose time is over."""
        medians = record.medians_s
        count = len(medians)
        if count >= max(self._settings.fewest_rounds, record.next_look):
            width = stats.half_width_share(medians)
            narrow = width is not None and width <= self._settings.precision
            record.converged = narrow and record.narrow
            record.narrow = narrow
            record.next_look = count + max(1, count // 3)
        over = self._left_s() <= 0 or self._number >= self._settings.most_rounds
        record.finished = record.converged or over

    def _elapsed_s(self) -> float:
        """Return the time by the clock, or by the cases' own account if the clock stands."""
        return max(self._clock.now_s() - self._start_s, self._runner.ran_s)

    def _left_s(self) -> float:
        return self._settings.budget_s - self._elapsed_s()

    def _tell(self, record: Record) -> None:
        budget_s, left_s = self._settings.budget_s, max(0.0, self._left_s())
        done = sum(not other.active for other in self.records) / len(self.records)
        share = 1 - left_s / budget_s if budget_s > 0 else 1.0
        self._told = min(1.0, max(self._told, share, done))
        self._progress(record.case.label.text, self._told, left_s)
