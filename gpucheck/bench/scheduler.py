"""Scheduler: measures all cases in rounds over the whole time, and stops converged ones.

A round gives every unfinished case of every group one time slice on fresh memory. So a row's rounds
vary as separate runs of the program do, with memory placement, clock and other load. The interval
over the rounds covers that variation. Samples taken in one stretch do not show it: they may agree
to 0.5 %, and the next run is 5 % off.
Kalibera and Jones (2013), "Rigorous benchmarking in reasonable time".

A row that is settled waits while another is not. If the budget is too short for every row, some
wait until others are settled, and those that never begin are named. Rows other than a group's first
on a device (one thread, other layouts, naive versions) wait for first rows, and expensive ones for
cheap ones. Where other programs use the processor, rows of several threads wait for all others:
only for one thread is it known how long it really ran. Estimates of the rows' cost decide that, and
how long others keep them waiting corrects them; a factor of two is accurate enough.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import itemgetter

from gpucheck.bench import stats
from gpucheck.bench.case import CaseLabel, Work
from gpucheck.bench.kernels import kernels_with
from gpucheck.bench.model import NO_TIME, SMALLER_SIZE, Scope
from gpucheck.bench.numerics import fresh_array
from gpucheck.bench.sampler import CaseState, ReadJoules, Sampler
from gpucheck.bench.stats import FEWEST_FOR_INTERVAL
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.drivers.host.blas import Blas
from gpucheck.drivers.host.clock import Clock
from gpucheck.report.envelope import Failure

#: Multiple of the budget up to which rows that have begun still get their three rounds.
_LATEST_RUN = 1.2
#: Rounds in which most rows of a processor settle, and in which nearly all of one thread do. A row
#: begins if it can have the former.
_SETTLING_ROUNDS, _MOST_SETTLING_ROUNDS = 6, 16
#: Most of the time that samples take in the wanted number of rounds. The rest is for preparing and
#: checking; what is left of it becomes further rounds, which tell more than longer ones.
_SAMPLES_SHARE = 0.5
#: All first warm-ups together take at most this share of the budget.
_WARMUP_SHARE = 0.1
#: Seconds of a slice's samples at least; in recorded runs longer ones tell hardly more.
_LEAST_SLICE_S = 5e-3
#: Samples of a processor's slice take at least this share of the time of preparing and checking.
#: Beside other programs that is a second, and further samples cost little then.
_OVERHEAD_SHARE = 0.5
#: A first slice runs an operation to warm up, to find its length, and for its sample. It draws the
#: inputs, computes what is right, and checks the result twice.
_FIRST_RUNS, _FIRST_OVERHEADS = 3, 5
#: Number of rows that a sentence names; the rest are counted.
_MOST_NAMED = 4
#: Sizes of the timed product, copy and fresh array, and their repetitions: 40 ms on one core.
_EDGE, _COPY_BYTES, _FRESH_BYTES, _TIMES = 384, 2**23, 2**22, 8
#: A GPU reaches at least half of its datasheet's figures, and a link 5 GB/s.
_GPU_SHARE, _LINK_BYTES_PER_S = 0.5, 5e9
#: Seconds of a slice besides its samples and what it writes to fresh memory: the output, about half
#: of the bytes that an operation moves.
_OVERHEAD_S, _FRESH_SHARE = 0.01, 0.5
#: Multiple of its processor time that a busy processor takes for a task.
_BUSY = 1.5
#: Words of the note on rows that lacked time.
TOO_SHORT = "is too short for every row"
#: Rows, and the seconds that each needs.
Needs = Sequence[tuple[CaseState, float]]
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
    samples_per_slice: int = 100


def measure(
    groups: Sequence[Sequence[CaseState]],
    settings: Settings,
    clock: Clock,
    progress: Progress,
    read_joules: ReadJoules | None = None,
    watch: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> bool:
    """Measure the cases of all groups; a failing case keeps its row, and the others continue.

    The cases of a group take their slices one after the other; `watch`, with the group's number,
    surrounds them: it reads the host and the sensors, and drops the inputs. Energy is not counted
    for rows that only show a limit.

    Return whether the user interrupted it. Measured data is kept, and unfinished rows are marked.
    """
    run = _Run(groups, settings, clock, progress, watch)
    try:
        while run.take_round():
            pass
        if read_joules is not None and settings.energy_s > 0:
            run.count_energy(read_joules)
    except KeyboardInterrupt:
        for state in run.states:
            state.interrupted = state.active
        return True
    return False


class _Run:
    """State of a running schedule."""

    def __init__(
        self,
        groups: Sequence[Sequence[CaseState]],
        settings: Settings,
        clock: Clock,
        progress: Progress,
        watch: Callable[[int], AbstractContextManager[object]],
    ) -> None:
        self.states = [state for group in groups for state in group]
        for state in self.states:
            state.precision = settings.wanted
        self._groups = groups
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._watch = watch
        self._sampler = Sampler(clock, settings.samples_per_slice)
        self._start_s = clock()
        self._number = 0
        longest_s = _SAMPLES_SHARE * settings.budget_s / settings.rounds / max(1, len(self.states))
        self._slice_s = self._longest_slice_s = max(_LEAST_SLICE_S, longest_s)
        self._reported = 0.0

    def take_round(self) -> bool:
        """Give unfinished cases a slice; return whether another round is needed.

        First rows begin in the first round, and others later, once what has begun is left as many
        rounds as it needs to settle. All get their rounds then. If the time is too short for that,
        the costly rows get fewer, so that a row of seconds does not keep one of milliseconds from
        its rounds.
        """
        self._correct_estimates()
        slices = self._slices()
        for place, group in enumerate(self._groups):
            here = [state for state in group if state.active and id(state) in slices]
            if here:
                self._visit(place, here)
        self._number += 1
        for state in self.states:
            self._decide(state, over=not slices)
        return any(state.active for state in self.states)

    def _slices(self) -> set[int]:
        """Return the states with a slice in this round."""
        begun = [item for item in self.states if item.active and item.rounds]
        # Rows that others disturb never settle: they wait until those have settled that can.
        settling = any(is_unsettled(item) and not item.contended for item in begun)
        waiting = [
            (item, needed_s(item))
            for item in self.states
            if item.active and not item.rounds and not (settling and item.contended)
        ]
        left_s = self._left_s()
        beginning = affordable(waiting, left_s - sum(map(needed_s, begun)))
        if not self._has_figures():
            beginning = beginning or [min(waiting, key=itemgetter(1))]
            ranks = {id(need[0]): _rank(need)[:2] for need in beginning}
            return {name for name, rank in ranks.items() if rank == min(ranks.values())}
        first = [(item, needed_s(item, FEWEST_FOR_INTERVAL)) for item in begun]
        finishing = affordable(first, self._left_for_first_s())
        slices = {id(state) for state, seconds in finishing if seconds > 0}
        slices |= {id(item) for item, seconds in first if item.case.compiles and seconds > 0}
        rows = [state for state, _ in finishing]
        # One that is narrow already only needs its second look.
        rows = [state for state in rows if is_unsettled(state) or state.narrow] or rows
        if settling:
            rows = [state for state in rows if not state.contended] or rows
        slices |= {id(state) for state, _ in beginning}
        left_s -= sum(seconds for _, seconds in beginning)
        return slices | self._share_time(rows, left_s) if rows and left_s > 0 else slices

    def _share_time(self, rows: Sequence[CaseState], left_s: float) -> set[int]:
        """Return the rows that have not had their share, and set the slices' length."""
        counts = [max(1, self._settings.rounds - len(state.rounds)) for state in rows]
        wanted_s = [
            count * (state.overhead_s + max(state.last_sample_s, _LEAST_SLICE_S))
            for count, state in zip(counts, rows, strict=True)
        ]
        # What is left beside these rounds makes the slices longer.
        longer_s = _LEAST_SLICE_S + max(0.0, left_s - sum(wanted_s)) / sum(counts)
        self._slice_s = min(self._longest_slice_s, longer_s)
        total_s = left_s + sum(state.spent_s for state in rows)
        share_s = fair_share_s(
            [state.spent_s + more_s for state, more_s in zip(rows, wanted_s, strict=True)], total_s
        )
        return {id(state) for state in rows if state.spent_s < share_s}

    def _correct_estimates(self) -> None:
        """Write how long other programs keep a thread waiting now into the estimates."""
        rows = [item for item in self.states if item.rounds and item.one_thread]
        took_s = sum(item.loops * sum(item.rounds[-1]) for item in rows)
        ran_s = sum(item.loops * sum(item.cpu_rounds[-1]) for item in rows)
        if ran_s <= 0:
            return
        slowdown = max(1.0, took_s / ran_s)
        for item in filter(_is_on_cpu, self.states):
            item.expected_operation_s *= slowdown / item.expected_slowdown
            item.expected_overhead_s *= slowdown / item.expected_slowdown
            item.expected_slowdown = slowdown

    def count_energy(self, read_joules: ReadJoules) -> None:
        """Measure the energy of each GPU operation, one after the other."""
        for state in self.states:
            if state.error is None and not state.limit:
                self._report_progress(state)
                self._sampler.count_energy(state, read_joules, self._settings.energy_s)

    def _visit(self, place: int, slices: Sequence[CaseState]) -> None:
        # Forwards and backwards, so that a drift affects all cases of a group alike.
        slices = slices if self._number % 2 == 0 else slices[::-1]
        share_s = _WARMUP_SHARE * self._settings.budget_s / len(self.states)
        warmup_s = min(self._settings.warmup_s, share_s)
        began_s, spent_s = self._elapsed_s(), 0.0
        with self._watch(place):
            for state in slices:
                before_s = self._elapsed_s()
                refuse = partial(self._refuse, state, before_s)
                if self._is_over(state) if state.rounds else refuse(0.0):
                    continue
                self._report_progress(state)
                left_s = max(0.0, self._left_s() - state.overhead_s)
                least_s = _OVERHEAD_SHARE * state.overhead_s if _is_on_cpu(state) else 0.0
                slice_s = max(self._slice_s, least_s)
                self._sampler.take_slice(state, min(slice_s, left_s), warmup_s, refuse)
                state.spent_s += self._elapsed_s() - before_s
                spent_s += self._elapsed_s() - before_s
        # Shared work counts too: reading the sensors, dropping the inputs.
        shared_s = max(0.0, self._elapsed_s() - began_s - spent_s) / len(slices)
        for state in slices:
            state.overhead_s += shared_s

    def _refuse(self, state: CaseState, began_s: float, least_s: float) -> Failure | None:
        """Return the error of a row that has no time to begin, or to go on with its first slice.

        The slice began at `began_s`, and at least `least_s` are still to come. One row is measured
        in every event: the cheapest.
        """
        before_s = self._elapsed_s() - began_s
        rounds = FEWEST_FOR_INTERVAL if self._number == 0 else None
        begun = [item for item in self.states if item.active and item.rounds]
        reserved_s = sum(needed_s(item, rounds) for item in begun)
        waiting = [
            (item, max(least_s, needed_s(item) - before_s) if item is state else needed_s(item))
            for item in self.states
            if item.active and not item.rounds
        ]
        beginning = affordable(waiting, self._left_s() - reserved_s)
        if not beginning and not self._has_figures():
            beginning = [min(waiting, key=itemgetter(1))]
        if any(item is state for item, _ in beginning):
            return None
        # What it showed so far goes into the budget that its error names.
        state.expected_operation_s = max(state.expected_operation_s, least_s)
        state.expected_overhead_s = max(state.expected_overhead_s, before_s - least_s)
        return left_out(state, self.states)

    def _has_figures(self) -> bool:
        return any(state.rounds and state.error is None for state in self.states)

    def _is_over(self, state: CaseState) -> bool:
        """Return whether no further slice of a row that has begun fits into the time."""
        unfinished = needed_s(state, FEWEST_FOR_INTERVAL) > 0
        if unfinished and state.case.compiles:
            return False  # what compiling has cost is not thrown away
        slice_s = state.overhead_s + state.last_sample_s
        return slice_s > (self._left_for_first_s() if unfinished else self._left_s())

    def _decide(self, state: CaseState, *, over: bool) -> None:
        """Finish a case that has converged or has no time left."""
        count = len(state.medians_s)
        if state.active and count >= max(self._settings.fewest_rounds, state.next_look):
            width = state.half_width_share
            narrow = width is not None and width <= self._settings.precision
            state.converged = narrow and state.narrow
            state.narrow = narrow
            state.next_look = count + count // 3
        over = over or self._is_over(state) or self._number >= self._settings.most_rounds
        if over and state.active and not state.rounds:
            state.error = left_out(state, self.states)
        if over and state.active:
            width = state.half_width_share
            state.converged |= width is not None and width <= self._settings.wanted
        # A row that only shows a limit needs no interval.
        shown = state.limit and count >= stats.FEWEST_FOR_INTERVAL
        state.finished = state.finished or state.converged or shown or over

    def _elapsed_s(self) -> float:
        """Return the time by the clock, or as the cases report it if the clock stands still.

        Compiling is not part of it: it happens once, and may take longer than the budget.
        """
        elapsed_s = self._clock() - self._start_s - self._sampler.compiled_s
        return max(elapsed_s, self._sampler.ran_s)

    def _left_s(self) -> float:
        return self._settings.budget_s - self._elapsed_s()

    def _left_for_first_s(self) -> float:
        """Return the seconds left for the rows' first three rounds."""
        return _LATEST_RUN * self._settings.budget_s - self._elapsed_s()

    def _report_progress(self, state: CaseState) -> None:
        budget_s, left_s = self._settings.budget_s, max(0.0, self._left_s())
        done = sum(not other.active for other in self.states) / len(self.states)
        share = 1 - left_s / budget_s if budget_s > 0 else 1.0
        self._reported = min(1.0, max(self._reported, share, done))
        self._progress(state.case.label.text, self._reported, left_s)


def needed_s(state: CaseState, rounds: int | None = None) -> float:
    """Return the seconds that a row still needs for its rounds, of at least one sample each.

    By default they are as many as it needs to settle. A row that only shows a limit needs one
    round: it has no interval.
    """
    rounds = 1 if state.limit else rounds or _fewest_rounds(state)
    if state.rounds:
        return max(0, rounds - len(state.rounds)) * (state.overhead_s + state.last_sample_s)
    return _expected_s(state, rounds)


def is_unsettled(state: CaseState) -> bool:
    """Return whether further rounds are likely to settle a row that has begun."""
    count = len(state.rounds)
    if state.limit or count >= _MOST_SETTLING_ROUNDS:
        return False
    width = state.half_width_share
    return count < _fewest_rounds(state) or width is None or width > state.precision


def _fewest_rounds(state: CaseState) -> int:
    return _SETTLING_ROUNDS if _is_on_cpu(state) else FEWEST_FOR_INTERVAL


def _expected_s(state: CaseState, rounds: int) -> float:
    """Return the seconds that so many rounds of a row were expected to take."""
    operation_s = state.expected_operation_s
    overhead_s = max(state.expected_overhead_s, _OVERHEAD_S)
    first_s = _FIRST_RUNS * operation_s + _FIRST_OVERHEADS * overhead_s
    return first_s + (rounds - 1) * (operation_s + overhead_s)


def affordable(needs: Needs, left_s: float) -> Needs:
    """Return the rows that fit into the seconds left: those that settle first, then cheap ones."""
    fitting = []
    for state, seconds in sorted(needs, key=_rank):
        if seconds <= left_s:
            fitting.append((state, seconds))
            left_s -= seconds
    return fitting


def fair_share_s(wanted_s: Sequence[float], total_s: float) -> float:
    """Return the most seconds that each row may take, so that all together take the total."""
    for number, seconds in enumerate(sorted(wanted_s)):
        share_s = total_s / (len(wanted_s) - number)
        if seconds > share_s:
            return share_s
        total_s -= seconds
    return math.inf


def _rank(need: tuple[CaseState, float]) -> tuple[bool, bool, bool, float]:
    """Return the order of rows: rows that only show a limit come after requested first rows."""
    state, seconds = need
    return (state.contended, state.reference, state.limit, seconds)


def left_out(state: CaseState, states: Sequence[CaseState]) -> Failure:
    """Return the error of a row that has no time, with a budget that is enough for every row."""
    more = f"Give more time: --budget {enough_s(states):g} (seconds in a profile)."
    return Failure(
        code=NO_TIME,
        message=f"left out: measuring {state.case.label.text} takes about "
        f"{needed_s(state):.2g} s, more than the budget leaves",
        remedy=(more, f"Or {SMALLER_SIZE}."),
    )


def name_budget(states: Sequence[CaseState]) -> None:
    """Name one budget in the errors of all rows that had no time, as known at the end."""
    for state in states:
        if _lacked_time(state):
            state.error = left_out(state, states)


def shortage(states: Sequence[CaseState], budget_s: float) -> str | None:
    """Return a sentence with the rows that lacked time, and a sufficient budget; None without any.

    Rows that are still measured are not among them, nor those that were not requested.
    """
    over = [state for state in states if not (state.active or state.interrupted or state.limit)]
    unbegun = [state for state in over if _lacked_time(state)]
    short = [
        state for state in over if state.error is None and len(state.rounds) < FEWEST_FOR_INTERVAL
    ]
    said = [f"left out: {named(unbegun)}"] if unbegun else []
    said += [f"fewer than three rounds: {named(short)}"] if short else []
    if not said:
        return None
    enough = f"--budget {enough_s(states):g} (seconds in a profile) would be enough"
    return "; ".join((f"{budget_s:g} s {TOO_SHORT}", *said, enough))


def _lacked_time(state: CaseState) -> bool:
    return state.error is not None and state.error.code == NO_TIME


def enough_s(states: Sequence[CaseState]) -> float:
    """Return a budget that is enough for every row: what each took, and what it still needs."""
    seconds = 0.0
    for state in states:
        seconds += 0.0 if _lacked_time(state) else state.spent_s
        if state.error is None or _lacked_time(state):
            seconds += needed_s(state)
    return enough_budget_s(seconds)


def enough_budget_s(seconds: float) -> float:
    """Return a rounded budget at least a quarter above what is needed."""
    wanted = max(1.0, 1.25 * seconds)
    step = 10.0 ** math.floor(math.log10(wanted)) / 2
    return math.ceil(wanted / step) * step


def named(states: Sequence[CaseState]) -> str:
    """Return the names of the first few rows and the number of the rest."""
    names = [state.case.label.text for state in states[:_MOST_NAMED]]
    rest = len(states) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")


def _is_on_cpu(state: CaseState) -> bool:
    return state.case.label.device == "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """Rates of one thread that has a core, and how many times as long it takes beside others.

    `fresh_bytes_per_s` is the rate of writing to memory that the process has not used before.
    """

    flops_per_s: float
    bytes_per_s: float
    fresh_bytes_per_s: float
    slowdown: float


def measure_host_rates(
    clock: Clock, blas: Blas, cpu_clock: Clock = time.thread_time
) -> HostRates | None:
    """Return the best rates of small operations; None if the clock stands still.

    They are of one thread, by its own time: on a busy machine several threads wait for each other
    for whole time slices, and one for the others' slices.
    """
    import numpy as np

    factor = np.ones((_EDGE, _EDGE), dtype=np.float32)
    source = np.ones(_COPY_BYTES // 4, dtype=np.float32)
    target = np.zeros_like(source)
    operations = (
        partial(np.matmul, factor, factor),
        partial(np.copyto, target, source),
        lambda: fresh_array((_FRESH_BYTES // 4,), "float32").fill(1),
    )
    with blas.limited(1):
        moments = [(clock(), cpu_clock())]
        for operate in _TIMES * operations:
            operate()
            moments.append((clock(), cpu_clock()))
    walls, cpus = (
        [end - start for start, end in pairwise(times)] for times in zip(*moments, strict=True)
    )
    # A thread's clock may move in steps of ten milliseconds.
    product_s, copy_s, fill_s = (min(cpus[at::3]) or min(walls[at::3]) for at in range(3))
    if min(product_s, copy_s, fill_s) <= 0:
        return None
    return HostRates(
        flops_per_s=2 * _EDGE**3 / product_s,
        bytes_per_s=2 * _COPY_BYTES / copy_s,
        fresh_bytes_per_s=_FRESH_BYTES / fill_s,
        slowdown=max(1.0, sum(walls) / (sum(cpus) or math.inf)),
    )


def estimate_costs(
    states: Sequence[CaseState], host: HostRates | None, gpus: Sequence[BenchGpu]
) -> None:
    """Write the expected time of an operation, and of a slice's overhead, into each state.

    float64 counts double, other formats as float32, unless a case tries it out. What the processor
    does takes longer beside other programs; rows for which several threads must have it contend.
    """
    if host is None:
        return
    for state in states:
        label, work = state.case.label, state.case.work
        moved_s = work.bytes_moved / host.bytes_per_s
        state.expected_slowdown = host.slowdown
        written_s = _FRESH_SHARE * work.bytes_moved / host.fresh_bytes_per_s
        state.expected_overhead_s = host.slowdown * (_OVERHEAD_S + written_s)
        if _is_on_cpu(state):
            flops = 2 * work.flops if label.dtype.input == "float64" else work.flops
            computing_s = flops / (host.flops_per_s * (label.threads or 1))
            tried_s = state.case.trial_s() or 0.0
            state.expected_operation_s = max(host.slowdown * max(computing_s, moved_s), tried_s)
            alone = label.threads == 1 and label.framework is None
            state.contended = host.slowdown >= _BUSY and not alone
        else:
            gpu = next((gpu for gpu in gpus if label.device == gpu.device), None)
            state.expected_operation_s = _estimate_gpu_s(label, work, gpu)


def _estimate_gpu_s(label: CaseLabel, work: Work, gpu: BenchGpu | None) -> float:
    """Return the time at half of the datasheet's rates, 0 for rates it does not give."""
    moved_s = work.bytes_moved / _LINK_BYTES_PER_S
    if label.scope is Scope.END_TO_END or label.kernel in kernels_with("measures_link"):
        return moved_s
    board = gpu.board if gpu is not None else None
    if board is None:
        return 0.0
    times = [0.0]
    flops_per_s = board.flops_per_s.get(label.dtype.format)
    if flops_per_s:
        times.append(work.flops / (_GPU_SHARE * flops_per_s))
    if board.bytes_per_s:
        times.append(work.bytes_moved / (_GPU_SHARE * board.bytes_per_s))
    return max(times)
