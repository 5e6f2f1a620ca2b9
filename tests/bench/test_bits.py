"""Bits of stored numbers: every difference is counted, placed and measured; digests change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.bits import (
    ELEMENTS,
    BitDifferences,
    combined,
    compare_bits,
    digest,
    read_differences,
)

FLOATS = {"float16": "f2", "float32": "f4", "float64": "f8"}


def pair(one: float, other: float, form: str = "float32") -> BitDifferences:
    return compare_bits(
        np.array([one], dtype=FLOATS[form]), np.array([other], dtype=FLOATS[form]), form
    )


def words(form: str, *bits: int) -> Any:
    unsigned = {"bfloat16": "u2", "float16": "u2", "float32": "u4", "float64": "u8", "int32": "u4"}
    stored = {"bfloat16": "u2", "float16": "f2", "float32": "f4", "float64": "f8", "int32": "i4"}
    return np.array(bits, dtype=unsigned[form]).view(stored[form])


def test_equal_arrays_do_not_differ() -> None:
    values = np.array([0.0, -0.0, math.nan, math.inf, 1e-45], dtype=np.float32)

    assert compare_bits(values, values.copy(), "float32") == BitDifferences()


@pytest.mark.parametrize("form", FLOATS)
def test_neighbours_are_one_apart(form: str) -> None:
    one = np.array([1.0], dtype=FLOATS[form])

    assert compare_bits(one, np.nextafter(one, one * 2), form).largest_ulp == 1


@pytest.mark.parametrize("form", FLOATS)
def test_the_smallest_numbers_of_both_signs_are_two_apart(form: str) -> None:
    tiny = float(np.finfo(FLOATS[form]).smallest_subnormal)

    assert pair(tiny, -tiny, form).largest_ulp == 2


def test_both_zeros_are_one_number_but_not_the_same_bits() -> None:
    found = pair(0.0, -0.0)

    assert (found.count, found.largest_ulp, found.nan_count) == (1, 0, 0)


def test_the_largest_numbers_are_as_far_apart_as_there_are_numbers() -> None:
    found = pair(-math.inf, math.inf, "float64")

    assert found.largest_ulp == 2 * 0x7FF0_0000_0000_0000


@pytest.mark.parametrize("other", [1.0, math.inf, -math.nan])
def test_a_nan_has_no_distance(other: float) -> None:
    found = pair(math.nan, other)

    assert found == BitDifferences(count=1, first=0, largest_ulp=None, nan_count=1)


def test_two_different_nans_differ() -> None:
    found = compare_bits(words("float32", 0x7FC0_0000), words("float32", 0x7FC0_0001), "float32")

    assert (found.count, found.nan_count) == (1, 1)


def test_bfloat16_is_judged_by_its_own_layout() -> None:
    # 0x7F81 is a NaN in bfloat16, and a number in float16.
    one, other = words("bfloat16", 0x3F80, 0x7F81), words("bfloat16", 0x3F82, 0x7F80)

    found = compare_bits(one, other, "bfloat16")

    assert found == BitDifferences(count=2, first=0, largest_ulp=2, nan_count=1)


def test_whole_numbers_differ_by_their_difference() -> None:
    one, other = words("int32", 0, 0x8000_0000), words("int32", 5, 0x7FFF_FFFF)

    assert compare_bits(one, other, "int32").largest_ulp == 2**32 - 1


@pytest.mark.parametrize("place", [0, 5, 2**20, 2**20 + 7])
def test_the_first_place_is_that_of_the_whole_array(place: int) -> None:
    one = np.zeros(2**20 + 8, dtype=np.float32)
    other = one.copy()
    other[place] = 1.0
    other[-1] = 1.0

    found = compare_bits(one, other, "float32")

    assert found.first == place
    assert found.count == (1 if place == 2**20 + 7 else 2)


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_the_distance_is_symmetric_and_counts_the_numbers_between(one: float, other: float) -> None:
    def rank(value: float) -> int:
        bits = int(np.float32(value).view(np.uint32))
        return -(bits & 0x7FFF_FFFF) if bits >> 31 else bits

    found, back = pair(one, other), pair(other, one)

    assert found == back
    if found.count:
        assert found.largest_ulp == abs(rank(one) - rank(other))


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
    st.data(),
)
def test_any_flipped_bit_changes_the_digest(values: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    bit = data.draw(st.integers(0, 31))
    changed = list(values)
    changed[place] ^= 1 << bit

    before = digest(words("float32", *values), "float32")

    assert digest(words("float32", *changed), "float32") != before
    assert len(before) == 16


def test_the_digest_is_what_the_kernel_sums() -> None:
    """Computed once more, word by word, from the published constants of splitmix64."""

    def mixed(word: int, place: int) -> int:
        state = (word + place * 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        return state ^ (state >> 31)

    values = [0, 1, 0xFFFF, 0x3F80]
    expected = sum(mixed(word, place) for place, word in enumerate(values, 1)) % 2**64

    assert digest(words("bfloat16", *values), "bfloat16") == f"{expected:016x}"


def test_swapped_numbers_change_the_digest() -> None:
    assert digest(words("float32", 1, 2), "float32") != digest(words("float32", 2, 1), "float32")


def test_joined_counts_are_those_of_both() -> None:
    one = BitDifferences(count=2, first=9, largest_ulp=None, nan_count=2)
    other = BitDifferences(count=1, first=3, largest_ulp=7)

    assert combined(one, other) == BitDifferences(count=3, first=3, largest_ulp=7, nan_count=2)
    assert combined(BitDifferences(), BitDifferences()) == BitDifferences()


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ([0, 2**64 - 1, 0, 0], BitDifferences()),
        ([3, 17, 9, 1], BitDifferences(count=3, first=17, largest_ulp=9, nan_count=1)),
        ([2, 5, 0, 2], BitDifferences(count=2, first=5, largest_ulp=None, nan_count=2)),
    ],
)
def test_what_the_kernel_leaves_is_read(left: list[int], expected: BitDifferences) -> None:
    assert read_differences(np.array(left, dtype=np.uint64)) == expected


def test_every_output_format_has_a_number() -> None:
    from gpucheck.bench.numerics import FORMATS

    assert {form.output for form in FORMATS.values()} == set(ELEMENTS)
