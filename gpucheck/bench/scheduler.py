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
from gpucheck.bench.kernel_traits import LINKS
from gpucheck.bench.model import NO_TIME, SMALLER_SIZE, Scope
from gpucheck.bench.sampler import CaseState, ReadJoules, Sampler
from gpucheck.bench.stats import FEWEST_FOR_INTERVAL
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.drivers.host.blas import Blas
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
#: Words of the notes on rows that were left out, and on rows that have no interval.
TOO_SHORT, NO_INTERVAL = "is too short for three rounds of every row", "three rounds; --budget"
#: Rows, and the seconds that each needs for its interval.
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
        self._slice_s = (
            _FIRST_SHARE * settings.budget_s / settings.rounds / max(1, len(self.states))
        )
        self._reported = 0.0

    def take_round(self) -> bool:
        """Give unfinished cases a slice; return whether another round is needed.

        In the first round every row that can reach three rounds in time gets one. Later, rows with
        fewer than three come first. Of the others, only rows below the average time get a slice, so
        that a row of seconds does not keep one of milliseconds from its rounds.
        """
        every = {id(state) for state in self.states}
        slices = every if self._number == 0 else self._later_slices()
        for place, group in enumerate(self._groups):
            here = [state for state in group if state.active and id(state) in slices]
            if here:
                self._visit(place, here)
        self._number += 1
        for state in self.states:
            self._decide(state, over=not slices)
        return any(state.active for state in self.states)

    def _later_slices(self) -> set[int]:
        """Return the states with a slice in this round, and set the slices' length."""
        active = [state for state in self.states if state.active]
        needs = affordable([(one, needed_s(one)) for one in active], self._left_for_first_s())
        unfinished = {id(state) for state, seconds in needs if seconds > 0}
        unfinished |= {id(one) for one in active if one.case.compiles and needed_s(one) > 0}
        if self._number < self._settings.rounds:
            self._slice_s = self._later_slice_s(needs)
        if self._left_s() <= 0:
            return unfinished
        kept = [state for state, _ in needs]
        average_s = sum(state.spent_s for state in kept) / max(1, len(kept))
        return unfinished | {
            id(state) for state in kept if state.spent_s <= average_s + self._slice_s
        }

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
                if self._number == 0 and not self._may_begin(state, self._groups[place]):
                    state.error = no_time(state, self._enough_s(state))
                    continue
                if self._number > 0 and self._is_over(state):
                    continue
                self._report_progress(state)
                before_s = self._elapsed_s()
                self._sampler.take_slice(state, self._slice_s, warmup_s)
                state.spent_s += self._elapsed_s() - before_s
                spent_s += self._elapsed_s() - before_s
        # Shared work counts too: reading the sensors, dropping the inputs.
        shared_s = max(0.0, self._elapsed_s() - began_s - spent_s) / len(slices)
        for state in slices:
            state.overhead_s += shared_s

    def _may_begin(self, state: CaseState, group: Sequence[CaseState]) -> bool:
        """Return whether a new row can finish its three rounds in time.

        A group's first row may begin late if it needs less than its share of the budget, so that
        one long row does not leave other groups without a figure.
        """
        typical_s = typical_overheads(self.states)
        needs = [(one, needed_s(one, typical_s(one))) for one in self.states if one.active]
        left_s = least_budget_s(self._settings.budget_s) - self._elapsed_s()
        if any(one is state for one, _ in affordable(needs, left_s)):
            return True
        if not any(one.rounds for one in self.states):
            return True
        own_s = needed_s(state, typical_s(state))
        begun = any(one.rounds for one in group)
        return not begun and own_s <= self._settings.budget_s / len(self._groups)

    def _enough_s(self, state: CaseState) -> float:
        """Return a sufficient budget for a row and for those that could not begin before it."""
        typical_s = typical_overheads(self.states)
        unbegun = [one for one in self.states if one is state or _lacked_time(one)]
        missing_s = sum(needed_s(one, typical_s(one)) for one in unbegun)
        return enough_budget_s(self._settings.budget_s + missing_s)

    def _is_over(self, state: CaseState) -> bool:
        unfinished = needed_s(state) > 0
        if unfinished and state.case.compiles:
            return False  # what compiling has cost is not thrown away
        return (self._left_for_first_s() if unfinished else self._left_s()) <= 0

    def _later_slice_s(self, needs: Needs) -> float:
        """Return the length of the next slices, now that the cases' needs are known.

        It assumes that no row ever finishes; time left by finished rows becomes further rounds.
        """
        slices = (self._settings.rounds - self._number) * max(1, len(needs))
        overhead_s = sum(state.overhead_s for state, _ in needs) / max(1, len(needs))
        free_s = self._left_s() - sum(seconds for _, seconds in needs)
        share_s = max(0.0, free_s) / slices - overhead_s
        return max(share_s, _LEAST_SHARE * overhead_s, 1e-4)

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
        budget_s = self._settings.budget_s
        return max(_LATEST_RUN * budget_s, least_budget_s(budget_s)) - self._elapsed_s()

    def _report_progress(self, state: CaseState) -> None:
        budget_s, left_s = self._settings.budget_s, max(0.0, self._left_s())
        done = sum(not other.active for other in self.states) / len(self.states)
        share = 1 - left_s / budget_s if budget_s > 0 else 1.0
        self._reported = min(1.0, max(self._reported, share, done))
        self._progress(state.case.label.text, self._reported, left_s)


def no_time(state: CaseState, enough_s: float) -> Failure:
    """Return the error of a case that did not start in time, with a sufficient budget."""
    return Failure(
        code=NO_TIME,
        message=f"time ran out before {state.case.label.text} could start",
        remedy=_more_time(enough_s),
    )


def _more_time(enough_s: float) -> tuple[str, ...]:
    more = f"Give more time: --budget {enough_s:g} (seconds in a profile)."
    return more, f"Or {SMALLER_SIZE}."


def _lacked_time(state: CaseState) -> bool:
    return state.error is not None and state.error.code == NO_TIME


def needed_s(state: CaseState, typical_overhead_s: float = 0.0) -> float:
    """Return the seconds that a row still needs for three rounds of at least one sample.

    `typical_overhead_s` is the overhead of other rows on the same device, for a row that has not
    begun. A row that only shows a limit needs one round: it has no interval.
    """
    rounds = 1 if state.limit else FEWEST_FOR_INTERVAL
    if state.rounds:
        slice_s = state.overhead_s + state.last_sample_s
        return max(0, rounds - len(state.rounds)) * slice_s
    operation_s = state.expected_operation_s
    overhead_s = max(state.expected_overhead_s, typical_overhead_s)
    first_s = _FIRST_RUNS * operation_s + _FIRST_OVERHEADS * overhead_s
    return first_s + (rounds - 1) * (operation_s + overhead_s)


def affordable(needs: Needs, left_s: float) -> Needs:
    """Return the rows that fit into the seconds left: first rows first, then cheap ones.

    Rows that only show a limit come after the first rows that were requested.
    """
    found = []
    for state, seconds in sorted(needs, key=_rank):
        if seconds <= left_s:
            found.append((state, seconds))
            left_s -= seconds
    return found


def _rank(need: tuple[CaseState, float]) -> tuple[bool, bool, float]:
    state, seconds = need
    return (state.reference, state.limit, seconds)


def least_budget_s(budget_s: float) -> float:
    """Return the time in which rows may begin; preparing and checking take time too."""
    return max(budget_s, _LEAST_S)


def leave_out(states: Sequence[CaseState], budget_s: float) -> str | None:
    """Mark the rows that the budget is too short for, before any row is measured.

    Return a sentence with their names and a sufficient budget, or None if all fit. The cheapest
    first row is always measured.
    """
    needs = [(state, needed_s(state)) for state in states if state.active]
    kept = {id(state) for state, _ in affordable(needs, least_budget_s(budget_s))}
    if needs and not kept:
        kept = {id(min(needs, key=_rank)[0])}
    dropped = [(state, seconds) for state, seconds in needs if id(state) not in kept]
    if not dropped:
        return None
    enough_s = enough_budget_s(sum(seconds for _, seconds in needs))
    for state, seconds in dropped:
        state.error = left_out(state, seconds, enough_s)
    shown = [state for state, _ in dropped if not state.limit]
    if not shown:
        return None
    return (
        f"{budget_s:g} s {TOO_SHORT}; left out: {named(shown)}; "
        f"--budget {enough_s:g} (seconds in a profile) would be enough"
    )


def left_out(state: CaseState, seconds: float, enough_s: float) -> Failure:
    """Return the error of a case that the budget is too short for, with a sufficient one."""
    return Failure(
        code=NO_TIME,
        message=f"left out: three rounds of {state.case.label.text} take about {seconds:.2g} s, "
        "more than the budget allows",
        remedy=_more_time(enough_s),
    )


def without_interval(states: Sequence[CaseState], budget_s: float) -> str | None:
    """Return a sentence with the rows that ran out of time before they had an interval.

    The budget that it names is sufficient for the rows that could not begin, too.
    """
    short = [
        state
        for state in states
        if state.error is None
        and not (state.limit or state.interrupted)
        and len(state.medians_s) < FEWEST_FOR_INTERVAL
    ]
    if not short:
        return None
    typical_s = typical_overheads(states)
    unbegun = [state for state in states if _lacked_time(state)]
    missing_s = sum(needed_s(state, typical_s(state)) for state in (*short, *unbegun))
    whose = "its" if len(short) == 1 else "their"
    return (
        f"time ran out before {named(short)} had {whose} {NO_INTERVAL} "
        f"{enough_budget_s(budget_s + missing_s):g} (seconds in a profile) should be enough"
    )


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


def typical_overheads(states: Sequence[CaseState]) -> Callable[[CaseState], float]:
    """Return the median overhead of the rows on a state's device so far."""
    by_kind: dict[bool, list[float]] = {}
    for state in states:
        if state.rounds:
            by_kind.setdefault(_on_cpu(state), []).append(state.overhead_s)
    middles = {kind: stats.median(found) for kind, found in by_kind.items()}
    return lambda state: middles.get(_on_cpu(state), 0.0)


def _on_cpu(state: CaseState) -> bool:
    return state.case.label.device == "cpu"


def measure_host_rates(clock: Clock, blas: Blas) -> tuple[float, float] | None:
    """Return the best rates of a small product and a small copy; None if the clock stands still.

    They are float32 operations and bytes per second of one thread: on a busy machine several
    threads wait for each other for whole time slices.
    """
    import numpy as np

    factor = np.ones((_EDGE, _EDGE), dtype=np.float32)
    source = np.ones(_COPY_BYTES // 4, dtype=np.float32)
    target = np.zeros_like(source)
    products, copies = [], []
    with blas.limited(1):
        for _ in range(_TIMES):
            began_s = clock()
            np.matmul(factor, factor)
            between_s = clock()
            np.copyto(target, source)
            products.append(between_s - began_s)
            copies.append(clock() - between_s)
    if min(*products, *copies) <= 0:
        return None
    return 2 * _EDGE**3 / min(products), 2 * _COPY_BYTES / min(copies)


def estimate_costs(
    states: Sequence[CaseState], host: tuple[float, float] | None, gpus: Sequence[BenchGpu]
) -> None:
    """Write the expected time of an operation, and of a slice's overhead, into each state.

    `host` are the rates of one thread; float64 counts double, other formats as float32, unless a
    case tries it out.
    """
    if host is None:
        return
    flops_per_s, bytes_per_s = host
    for state in states:
        label, work = state.case.label, state.case.work
        state.expected_overhead_s = _OVERHEAD_PASSES * work.bytes_moved / bytes_per_s
        if label.device == "cpu":
            flops = 2 * work.flops if label.dtype.input == "float64" else work.flops
            computing_s = flops / (flops_per_s * (label.threads or 1))
            tried_s = state.case.trial_s() or 0.0
            state.expected_operation_s = max(computing_s, work.bytes_moved / bytes_per_s, tried_s)
        else:
            gpu = next((gpu for gpu in gpus if label.device == gpu.device), None)
            state.expected_operation_s = _on_gpu(label, work, gpu)


def _on_gpu(label: CaseLabel, work: Work, gpu: BenchGpu | None) -> float:
    """Return the time at half of the datasheet's rates, 0 for rates it does not give."""
    moved_s = work.bytes_moved / _LINK_BYTES_PER_S
    if label.scope is Scope.END_TO_END or label.kernel in LINKS:
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
