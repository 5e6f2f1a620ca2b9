"""One case's turn: fresh memory, warm-up, samples, checks; and its energy.

It knows nothing of kernels, devices or other cases: a case runs and checks itself, the clock is
given, and every sample is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from gpucheck.core.bench.record import (
    Record,
    as_failure,
    out_of_memory,
    stuck_clock,
    wrong_result,
)
from gpucheck.models.errors import GpucheckError
from gpucheck.models.report import Failure
from gpucheck.probes.clock import Clock
from gpucheck.probes.cpu import running_on

#: Operations run one by one, to be held against those of a batch.
_SINGLES = 5
#: More operations than this in one sample: the clock does not move, or the operation does nothing.
_MOST_LOOPS = 2**24
#: An operation that takes so long at first is taken for a long one.
_LONG_FIRST_S = 0.5
#: From the second round on, this share of a turn warms up again: the memory is new, and the other
#: cases' turns let caches and clocks cool down.
_WARM_SHARE = 0.25
#: After the first round a result is checked as often as its checks take no more than this share.
_CHECK_SHARE = 0.2


class EnergyMeter(Protocol):
    """Who counts the energy that a GPU has taken."""

    def joules(self, uuid: str) -> float | None:
        """Return the energy counter of a GPU, None if it has none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How long one turn lasts: its samples, the warm-up if it is the first, the most samples."""

    samples_s: float
    warmup_s: float
    most_samples: int


class _Failed(Exception):
    """A case cannot be measured; carries the reason for its row."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Runner:
    """Runs cases; `ran_s` are the seconds that they reported, which count if the clock stands."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ran_s = 0.0

    def take_turn(self, record: Record, turn: Turn) -> None:
        """Give a case one turn on memory of its own; a failure becomes the row's error."""
        with self._prepared(record):
            began_s, first = self._clock.now_s(), record.cold_s is None
            record.case.prepare()
            record.case.poison()
            begin_s = self._clock.now_s()
            if first:
                self._begin(record, turn)
                began_s += self._clock.now_s() - begin_s
            elif record.rounds and record.rounds[-1][-1] * record.loops < turn.samples_s:
                self._run_for(record, record.warmup_s, _WARM_SHARE * turn.samples_s, turn)
            record.rounds.append([])
            start_s, ran_s = self._clock.now_s(), self.ran_s
            try:
                self._run_for(record, record.rounds[-1], turn.samples_s, turn)
            finally:
                end_s = self._clock.now_s()
                record.turns_s.append((start_s, end_s))
                record.timed_s += max(end_s - start_s, self.ran_s - ran_s)
            if first or record.checked_s <= _CHECK_SHARE * record.timed_s:
                self._verify(record)
            record.facts = dict(record.case.facts)
            record.overhead_s = self._clock.now_s() - began_s - (end_s - start_s)

    def count_energy(self, record: Record, energy: EnergyMeter, seconds: float) -> None:
        """Repeat an operation on a GPU without a pause and divide the energy by the count."""
        uuid = record.case.label.gpu_uuid
        if uuid is None or not record.samples_s:
            return
        with self._prepared(record):
            record.case.prepare()
            record.case.poison()
            record.case.run(1)
            before = energy.joules(uuid)
            if before is None:
                return
            start_s, ran_s, operations = self._clock.now_s(), 0.0, 0
            while max(ran_s, self._clock.now_s() - start_s) < seconds:
                # At least a little, so that a clock that stands ends the loop too.
                ran_s += max(record.case.run(record.loops), 1e-6)
                operations += record.loops
            after = energy.joules(uuid)
            if after is not None and after > before and operations:
                record.joules_per_op = (after - before) / operations
                record.energy_window_s = max(ran_s, self._clock.now_s() - start_s)

    @contextmanager
    def _prepared(self, record: Record) -> Iterator[None]:
        """Turn failures into the row's error, and release the case whatever happens.

        The host's part of a transfer is done by CPUs next to the GPU, from memory next to them.
        """
        try:
            with running_on(record.near_cpus):
                yield
        except _Failed as failed:
            record.error = failed.failure
        except GpucheckError as error:
            record.error = as_failure(error)
        except MemoryError:
            record.error = out_of_memory(record)
        finally:
            self._release(record)

    def _release(self, record: Record) -> None:
        try:
            record.case.release()
        except GpucheckError as error:
            record.error = record.error or as_failure(error)

    def _begin(self, record: Record, turn: Turn) -> None:
        """Run a case for the first time, check its result, and find out how often to repeat it."""
        before_s = self._clock.now_s()
        first_s = record.case.run(1)
        record.cold_s = self._clock.now_s() - before_s
        self.ran_s += max(0.0, first_s)
        self._verify(record)
        # One operation may take minutes: then it was warm-up enough. The first of a short one may
        # be long too, while libraries load: that says nothing of how often to repeat it.
        long = first_s >= max(10 * record.case.shortest_span_s, _LONG_FIRST_S)
        if not long and self._find_loops(record) < turn.warmup_s:
            self._run_for(record, record.warmup_s, turn.warmup_s, turn)
        record.loops = max(1, record.loops)
        if record.loops > 1:
            singles = [record.case.run(1) for _ in range(_SINGLES)]
            self.ran_s += sum(singles)
            record.single_s = min(singles)

    def _verify(self, record: Record) -> None:
        start_s = self._clock.now_s()
        found = record.case.check()
        record.checked_s += self._clock.now_s() - start_s
        before = record.verified
        if before is None or not found.ok or (before.error or 0.0) <= (found.error or 0.0):
            record.verified = found
        if not found.ok:
            raise _Failed(wrong_result(record, found))

    def _find_loops(self, record: Record) -> float:
        """Double the loops until a sample is long enough for the case's clock; return its time."""
        # A case may want whole rounds of its buffers.
        step = record.loops = record.case.loop_step
        while True:
            elapsed_s = self._sample(record, record.warmup_s)
            if elapsed_s >= record.case.shortest_span_s:
                return elapsed_s
            if record.loops >= _MOST_LOOPS or (elapsed_s == 0 and record.loops >= 2**12):
                raise _Failed(stuck_clock(elapsed_s))
            # Straight to the goal with a margin, but never more than tenfold on one short look.
            goal = 1.2 * record.case.shortest_span_s / elapsed_s if elapsed_s > 0 else 10.0
            wanted = record.loops * max(2, min(10, int(goal) + 1))
            record.loops = -(-wanted // step) * step

    def _run_for(self, record: Record, into: list[float], seconds: float, turn: Turn) -> None:
        """Run at least once, until the time is over by the clock or by the case's own account."""
        start_s, reported_s = self._clock.now_s(), 0.0
        for _ in range(max(1, turn.most_samples)):
            reported_s += self._sample(record, into)
            if max(reported_s, self._clock.now_s() - start_s) >= seconds:
                return

    def _sample(self, record: Record, into: list[float]) -> float:
        """Run once, keep the time for one operation, return the time of the whole run."""
        loops = max(1, record.loops)
        elapsed_s = record.case.run(loops)
        warming = into is record.warmup_s
        if not 0 <= elapsed_s < float("inf") or (elapsed_s == 0 and not warming):
            raise _Failed(stuck_clock(elapsed_s))
        into.append(elapsed_s / loops)
        self.ran_s += elapsed_s
        clock_mhz = record.case.sm_clock_mhz
        if clock_mhz is not None and not warming:
            record.sm_clocks_mhz.append(clock_mhz)
        return elapsed_s
