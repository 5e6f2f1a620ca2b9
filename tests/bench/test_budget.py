from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.budget import chosen, enough_budget_s, leave_out, need_of, without_interval
from gpucheck.bench.record import Record
from tests.fakes.bench import FakeCase, label

COSTS = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0, 10), st.booleans()), min_size=1, max_size=12
)


def waiting(
    operation_s: float, overhead_s: float = 0.0, *, reference: bool = False, variant: str = "any"
) -> Record:
    """Return a row that was not measured yet, with its estimates."""
    case = FakeCase((), label=replace(label(), variant=variant))
    return Record(
        case=case,
        reference=reference,
        expected_operation_s=operation_s,
        expected_overhead_s=overhead_s,
    )


def begun(rounds: int, sample_s: float, overhead_s: float = 0.0) -> Record:
    """Return a row with so many rounds of one sample each."""
    record = Record(case=FakeCase(()), loops=1, overhead_s=overhead_s)
    record.rounds = [[sample_s] for _ in range(rounds)]
    return record


def test_a_row_needs_three_rounds_and_what_its_first_turn_takes_besides() -> None:
    assert need_of(waiting(1.0, 0.5)).seconds == pytest.approx(3 * 1 + 2 * 0.5 + 2 * (1 + 0.5))
    assert need_of(waiting(1.0), 0.5).seconds == need_of(waiting(1.0, 0.5)).seconds
    assert need_of(begun(1, 1.0, 0.5)).seconds == pytest.approx(3.0)
    assert need_of(begun(3, 1.0, 0.5)).seconds == 0
    limit = begun(1, 1.0)
    limit.limit = True
    assert need_of(limit).seconds == 0


@given(COSTS, st.floats(0.1, 300))
def test_what_is_chosen_fits_and_no_row_is_preferred_to_a_cheaper_one_of_its_kind(
    costs: list[tuple[float, float, bool]], left_s: float
) -> None:
    needs = [need_of(waiting(run, rest, reference=other)) for run, rest, other in costs]

    found = chosen(needs, left_s)

    assert sum(need.seconds for need in found) <= left_s * (1 + 1e-9)
    kept = {id(need) for need in found}
    for one in found:
        assert all(
            id(other) in kept
            for other in needs
            if other.record.reference == one.record.reference and other.seconds < one.seconds
        )
    # Everything is measured where the time does for everything.
    assert len(chosen(needs, 1e9)) == len(needs)


def test_references_go_first_and_the_costly_ones_before_the_cheap_ones() -> None:
    first, naive = waiting(2.0), waiting(1.2, reference=True, variant="naive")
    cheap = waiting(0.01, reference=True)

    note = leave_out([first, naive, cheap], 12.0)

    assert first.error is cheap.error is None
    assert naive.error is not None
    assert naive.error.code == "no-time"
    assert "6 s" in naive.error.message
    assert note is not None
    assert "12 s is too short" in note
    assert "fake float32 naive on cpu" in note
    assert "--budget 25 would be enough" in note


def test_the_budget_that_is_named_does_for_every_row() -> None:
    records = [waiting(1.0), waiting(0.6, reference=True), waiting(0.01, reference=True)]
    needed_s = sum(need_of(record).seconds for record in records)

    assert leave_out(records, enough_budget_s(needed_s)) is None
    assert all(record.error is None for record in records)


def test_where_nothing_fits_the_cheapest_first_row_is_measured_all_the_same() -> None:
    costly, cheap, other = waiting(100.0), waiting(50.0), waiting(10.0, reference=True)

    leave_out([costly, cheap, other], 1e-3)

    assert cheap.error is None
    assert costly.error is not None
    assert other.error is not None


def test_a_limit_that_nobody_asked_for_is_left_out_without_a_word() -> None:
    limit = waiting(100.0, reference=True)
    limit.limit = True

    assert leave_out([waiting(0.1), limit], 5.0) is None
    assert limit.error is not None


def test_rows_that_the_time_left_without_an_interval_are_named_at_the_end() -> None:
    assert without_interval([begun(3, 1.0), begun(200, 0.1)], 10.0) is None

    note = without_interval([begun(3, 1.0), begun(2, 4.0)], 10.0)

    assert note is not None
    assert "had its three rounds" in note
    assert "--budget 20 should be enough" in note
