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

#: Several blocks of the widest kind in a row.
SUBJECTS = [*products(160), *softmaxes(160), *others(160)]


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.name for subject in SUBJECTS])
def test_one_number_off_by_a_quarter_and_a_row_in_the_wrong_place_are_always_noticed(
    subject: Subject,
) -> None:
    assert subject.check(subject.right).ok
    off = partial(one_off, 0.25)
    for fault in (off, partial(one_off, 1.0), wrong_row, shifted_row, stale_tile):
        assert noticed(subject, fault, 12) == 1.0


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.name for subject in SUBJECTS])
def test_most_of_what_broken_cards_do_is_noticed(subject: Subject) -> None:
    assert noticed(subject, in_the_field, 30) >= 0.7
    assert noticed(subject, exchanged, 30) >= 0.7


def test_a_number_that_stays_within_rounding_is_not_called_wrong() -> None:
    (subject,) = (one for one in SUBJECTS if one.name == "matmul bfloat16")

    assert noticed(subject, partial(one_off, 0.001), 12) == 0.0
    assert np.isfinite(subject.check(subject.right).error or np.nan)
