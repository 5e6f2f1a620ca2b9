"""Sampler: one time slice of a case (fresh memory, warm-up, samples, checks), and its energy.

It is independent of kernels, devices and other cases. A case runs and checks itself, and every
sample is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from gpucheck.bench.record import Record, as_failure, out_of_memory, stuck_clock, wrong_result
from gpucheck.drivers.host.clock import Clock
from gpucheck.drivers.host.cpu import running_on
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import GpucheckError

#: Number of single operations to compare with those of a batch.
_SINGLES = 5
#: With more operations than this in one sample, the clock is stuck or the operation does nothing.
_MOST_LOOPS = 2**24
#: Seconds of the first run from which an operation counts as long.
_LONG_FIRST_S = 0.5
#: Share of a slice for warming up again from the second round on: the memory is new, and caches and
#: clocks cooled down during other cases' slices.
_WARM_SHARE = 0.25
#: Largest share of the time for checks after the first round.
_CHECK_SHARE = 0.2


class EnergyMeter(Protocol):
    """Energy counter of the GPUs."""

    def joules(self, uuid: str) -> float | None:
        """Return a GPU's energy counter, None if it has none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Length of one slice: samples, warm-up if it is the first, and the most samples."""

    samples_s: float
    warmup_s: float
    most_samples: int


class _Failed(Exception):
    """A case cannot be measured; carries the error of its row."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Runner:
    """Sampler of cases; `ran_s` are their reported seconds, used if the clock stands still."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ran_s = 0.0

    def take_turn(self, record: Record, turn: Turn) -> None:
        """Give a case one slice on fresh memory; a failure becomes the row's error."""
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
        """Repeat a GPU operation without pause and divide the energy by the count."""
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
                # At least a little, so that the loop also ends if the clock stands still.
                ran_s += max(record.case.run(record.loops), 1e-6)
                operations += record.loops
            after = energy.joules(uuid)
            if after is not None and after > before and operations:
                record.joules_per_op = (after - before) / operations
                record.energy_window_s = max(ran_s, self._clock.now_s() - start_s)

    @contextmanager
    def _prepared(self, record: Record) -> Iterator[None]:
        """Turn failures into the row's error, and release the case in every event.

        CPUs near the GPU do the host's part of a transfer, from memory near them.
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
        """Run a case for the first time, check its result, and find its number of repetitions."""
        before_s = self._clock.now_s()
        first_s = record.case.run(1)
        record.cold_s = self._clock.now_s() - before_s
        self.ran_s += max(0.0, first_s)
        self._verify(record)
        # One operation may take minutes, which is warm-up enough. The first run of a short one may
        # also be long while libraries load; that does not show how often to repeat it.
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
        # A case may need whole rotations of its buffers.
        step = record.loops = record.case.loop_step
        while True:
            elapsed_s = self._sample(record, record.warmup_s)
            if elapsed_s >= record.case.shortest_span_s:
                return elapsed_s
            if record.loops >= _MOST_LOOPS or (elapsed_s == 0 and record.loops >= 2**12):
                raise _Failed(stuck_clock(elapsed_s))
            # Straight to the goal with a margin, but at most tenfold after one short run.
            goal = 1.2 * record.case.shortest_span_s / elapsed_s if elapsed_s > 0 else 10.0
            wanted = record.loops * max(2, min(10, int(goal) + 1))
            record.loops = -(-wanted // step) * step

    def _run_for(self, record: Record, into: list[float], seconds: float, turn: Turn) -> None:
        """Run at least once, until the time is over by the clock or as the case reports it."""
        start_s, reported_s = self._clock.now_s(), 0.0
        for _ in range(max(1, turn.most_samples)):
            reported_s += self._sample(record, into)
            if max(reported_s, self._clock.now_s() - start_s) >= seconds:
                return

    def _sample(self, record: Record, into: list[float]) -> float:
        """Run once, store the time of one operation, return the time of the whole run."""
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
