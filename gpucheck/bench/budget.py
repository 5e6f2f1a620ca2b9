"""Time budget of a run: which rows get the rounds that an interval needs.

A row with fewer than three rounds has no interval, and its figure says little. If the budget is too
short for every row, some are left out and named. Rows other than a group's first on a device (one
thread, other layouts, naive versions) go before first rows, and expensive ones before cheap ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpucheck.bench import stats
from gpucheck.bench.peaks import format_of
from gpucheck.bench.record import Record, left_out
from gpucheck.bench.stats import FEWEST_FOR_INTERVAL

#: A first slice runs an operation to warm up, to find its length, and for its sample. It draws the
#: inputs and checks the result twice; later slices do so once at most.
_FIRST_RUNS, _FIRST_OVERHEADS = 3, 2
#: Seconds that the first three rounds always have, however small the budget is.
_LEAST_S = 10.0
#: Number of rows that a sentence names; the rest are counted.
_MOST_NAMED = 4


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
