"""Phrases of the records of `place`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.place.model import Holder, ranges


@pytest.mark.parametrize(
    ("holder", "text"),
    [
        (Holder(), "an unknown user"),
        (Holder(user="ann", pid=7), "ann (pid 7)"),
        (Holder(user="ann", pid=7, command="x" * 60), f"ann (pid 7: {'x' * 60})"),
        (Holder(user="ann", pid=7, command="x" * 61), f"ann (pid 7: {'x' * 57}...)"),
    ],
)
def test_a_holder_in_a_phrase_of_bounded_length(holder: Holder, text: str) -> None:
    assert holder.described == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((3,), "3"), ((0, 1), "0-1"), ((5, 2, 1, 0), "0-2,5"), ((0, 2, 4), "0,2,4")],
)
def test_neighbours_are_one_range(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text


@given(st.sets(st.integers(min_value=0, max_value=200)))
def test_nothing_is_lost_and_nothing_added(numbers: set[int]) -> None:
    found: set[int] = set()
    for part in filter(None, ranges(numbers).split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))

    assert found == numbers
