"""A small sample of `python -m benchmarks.planted`, whose tables are in docs/reference/bench.md."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from benchmarks.planted import (
    Subject,
    exchanged,
    in_the_field,
    noticed,
    one_off,
    others,
    products,
    shifted_row,
    softmaxes,
    stale_tile,
    wrong_row,
)


@pytest.fixture(name="subjects", scope="module")
def _subjects() -> list[Subject]:
    """Return results with several blocks of the widest kind in a row."""
    return [*products(160), *softmaxes(160), *others(160)]


@pytest.mark.slow
def test_one_number_off_by_a_quarter_and_a_row_in_the_wrong_place_are_always_noticed(
    subjects: list[Subject],
) -> None:
    faults = (partial(one_off, 0.25), partial(one_off, 1.0), wrong_row, shifted_row, stale_tile)

    assert [subject.name for subject in subjects if not subject.check(subject.right).ok] == []
    shares = {(one.name, fault): noticed(one, fault, 12) for one in subjects for fault in faults}
    assert {each: share for each, share in shares.items() if share < 1} == {}


def test_most_of_what_broken_cards_do_is_noticed(subjects: list[Subject]) -> None:
    faults = (in_the_field, exchanged)

    shares = {(one.name, fault): noticed(one, fault, 30) for one in subjects for fault in faults}
    assert {each: share for each, share in shares.items() if share < 0.7} == {}


def test_a_number_that_stays_within_rounding_is_not_called_wrong(
    subjects: list[Subject],
) -> None:
    (subject,) = (one for one in subjects if one.name == "matmul bfloat16")

    assert noticed(subject, partial(one_off, 0.001), 12) == 0.0
    assert np.isfinite(subject.check(subject.right).error or np.nan)
