"""Numbers of the benchmarks: formats, drawn inputs, and sums over blocks."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench import numerics
from gpucheck.bench.numerics import (
    ALIASES,
    FORMATS,
    STORAGES,
    HostData,
    block_count,
    block_weights,
    block_width,
    canonical,
    decode,
    encode,
    fresh_array,
    output_bytes,
    sums_over_columns,
    sums_over_rows,
)
from gpucheck.bench.request_model import Fill
from tests.report.formats.recorded import recorded

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-1e4, max_value=1e4)


@given(st.lists(FLOATS, min_size=1, max_size=50))
def test_rounding_is_within_the_roundoff(numbers: list[float]) -> None:
    values = np.array(numbers, dtype=np.float32)
    for name in ("float32", "float16", "bfloat16"):
        form = FORMATS[name]
        back = decode(encode(values, form), name).astype(np.float64)
        # The smallest numbers of a format are evenly spaced.
        slack = 2.0**-24 if name == "float16" else 2.0**-133
        assert np.all(np.abs(back - values) <= form.roundoff * np.abs(values) + slack)


def test_bfloat16_is_the_nearest_with_ties_to_even() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]

    ours = encode(values, FORMATS["bfloat16"])

    with np.errstate(over="ignore"):
        theirs = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(ours, theirs)


def test_halves_between_two_bfloat16_go_to_the_even_one() -> None:
    lower = np.array([0x3F80, 0x3F81, 0x0001, 0xC000, 0xC001], dtype=np.uint32) << 16
    below, half, above = ((lower + bits).view(np.float32) for bits in (0x7FFF, 0x8000, 0x8001))

    shown = [encode(values, FORMATS["bfloat16"]).tolist() for values in (below, half, above)]

    assert shown == [
        [0x3F80, 0x3F81, 0x0001, 0xC000, 0xC001],
        [0x3F80, 0x3F82, 0x0002, 0xC000, 0xC002],
        [0x3F81, 0x3F82, 0x0002, 0xC001, 0xC002],
    ]


def test_halves_between_two_float8_go_to_the_even_one() -> None:
    positive = EVERY_E4M3[:127].astype(np.float64) / 16
    halves = ((positive[:-1] + positive[1:]) / 2).astype(np.float32)

    for sign, bit in ((1, 0), (-1, 128)):
        found = encode(sign * halves, FORMATS["float8"])
        assert found.tolist() == [bit + place + place % 2 for place in range(126)]


def test_nan_stays_nan_and_infinity_stays_infinite() -> None:
    special = np.array([np.nan, np.inf, -np.inf, -np.nan], dtype=np.float32)

    back = decode(encode(special, FORMATS["bfloat16"]), "bfloat16")

    assert np.isnan(back[[0, 3]]).all()
    assert np.array_equal(back[1:3], special[1:3])


def test_int8_is_scaled_rounded_and_held_within_its_range() -> None:
    values = np.array([0.0, 1.0, -1.0, 10.0, -10.0, 1 / 64], dtype=np.float32)

    assert encode(values, FORMATS["int8"]).tolist() == [0, 32, -32, 127, -127, 0]


def e4m3(bits: int) -> float:
    """Return the number of a bit pattern, as the specification of OFP8 defines it."""
    exponent, mantissa = bits >> 3 & 15, bits & 7
    if bits & 127 == 127:
        return float("nan")
    size = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6
    return -size if bits & 128 else size


EVERY_E4M3 = np.array([e4m3(bits) for bits in range(256)], dtype=np.float32)


def test_every_float8_is_decoded_without_its_scale_and_encoded_to_itself() -> None:
    stored = np.arange(256, dtype=np.uint8).reshape(16, 16)

    numbers = decode(stored, "float8")

    assert np.array_equal(numbers.reshape(-1), EVERY_E4M3 / 16, equal_nan=True)
    assert np.array_equal(encode(numbers, FORMATS["float8"]), stored)


@given(st.lists(FLOATS, min_size=1, max_size=50))
def test_float8_is_the_nearest_of_all_with_ties_to_even(numbers: list[float]) -> None:
    values = np.array(numbers, dtype=np.float32)
    finite = np.nan_to_num(EVERY_E4M3, nan=np.inf).astype(np.float64) / 16

    stored = encode(values, FORMATS["float8"])

    for value, bits in zip(np.clip(values, -28, 28).astype(np.float64), stored, strict=True):
        distances = np.abs(finite - value)
        assert distances[bits] == distances.min()
        if np.sum(distances == distances.min()) > 1 and value:
            assert bits % 2 == 0
        assert np.signbit(EVERY_E4M3[bits]) == np.signbit(value)


def test_float8_agrees_with_another_library_in_its_range() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([bits[np.abs(bits) <= 28], np.float32(2.0) ** np.arange(-20, 5)])

    ours = encode(values, FORMATS["float8"])

    theirs = (values * np.float32(16)).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(ours, theirs)


def test_normal_numbers_neither_leave_float8_nor_lose_much_of_its_precision() -> None:
    values = np.random.default_rng(3).standard_normal(200_000, dtype=np.float32)

    stored = encode(values, FORMATS["float8"])

    assert np.abs(decode(stored, "float8")).max() < 448 / 16
    below = np.mean((stored & 0x78) == 0)  # spaced evenly, not by their size
    assert below < 2e-3


def test_what_is_beyond_float8_is_held_in_and_nan_stays() -> None:
    special = np.array([np.inf, -np.inf, 1e9, -30.0, np.nan, -0.0], dtype=np.float32)

    back = decode(encode(special, FORMATS["float8"]), "float8")

    assert back[:4].tolist() == [28.0, -28.0, 28.0, -28.0]
    assert np.isnan(back[4])
    assert np.signbit(back[5])


def test_an_array_of_many_blocks_and_dimensions_is_encoded_whole() -> None:
    values = np.random.default_rng(5).standard_normal((3, 70_001), dtype=np.float32)

    stored = encode(values, FORMATS["float8"])

    assert stored.shape == values.shape
    for row in range(3):
        assert np.array_equal(stored[row], encode(values[row].copy(), FORMATS["float8"]))


def test_sizes_are_those_of_the_stored_types() -> None:
    for form in FORMATS.values():
        assert form.itemsize == np.dtype(form.storage).itemsize
        assert output_bytes(form) == np.dtype(STORAGES[form.output]).itemsize


def test_the_table_of_formats_is_as_published() -> None:
    """Rounding errors by their mantissas; the first capability by NVIDIA's table of precisions."""
    text = "".join(f"{form} {form.itemsize} {form.spec}\n" for form in FORMATS.values())

    assert text == recorded("bench-formats", text)


def test_names_lead_to_a_format() -> None:
    for alias, name in ALIASES.items():
        assert canonical(alias.upper()) == name
        assert name in FORMATS
    assert canonical(" BF16 ") == "bfloat16"
    assert canonical("complex64") == "complex64"


def test_a_seed_gives_the_same_numbers_in_other_memory_after_each_renewal() -> None:
    data = HostData(3)
    first = data.normal("left", (50, 40))
    assert data.normal("left", (50, 40)) is first

    data.renew()
    second = data.normal("left", (50, 40))

    assert second is not first
    np.testing.assert_array_equal(first, second)


def test_names_and_shapes_tell_arrays_apart() -> None:
    data = HostData(3)

    assert not np.array_equal(data.normal("left", (9, 9)), data.normal("right", (9, 9)))
    assert data.normal("left", (9, 9)).shape != data.normal("left", (9, 8)).shape
    assert data.normal("left", (9, 9), "float64").dtype == np.float64


def test_what_is_kept_and_what_is_large_survives_a_renewal() -> None:
    data = HostData(3, kept_from_bytes=4 * 100)
    large, small = data.normal("large", (10, 10)), data.normal("small", (10, 9))
    reference = data.keep("reference", lambda: [1.0])

    data.renew()

    assert data.normal("large", (10, 10)) is large
    assert data.normal("small", (10, 9)) is not small
    assert data.keep("reference", lambda: [2.0]) is reference


def test_groups_share_what_is_kept_and_nothing_else() -> None:
    kept: dict[str, object] = {}
    one, other = HostData(3, kept=kept), HostData(3, kept=kept)

    assert one.keep("images", lambda: [1.0]) is other.keep("images", lambda: [2.0])
    assert one.normal("left", (4, 4)) is not other.normal("left", (4, 4))


def test_zeros_are_zeros() -> None:
    assert not HostData(3, Fill.ZEROS).normal("left", (4, 4)).any()


@pytest.mark.parametrize("edge", [3, 600, 1200])
def test_fresh_arrays_are_written_like_others_and_lie_elsewhere(edge: int) -> None:
    one, other = (fresh_array((edge, edge), "float64") for _ in range(2))

    one.fill(1.0)
    other.fill(2.0)

    assert one.shape == (edge, edge)
    assert one.dtype == np.float64
    assert one.flags.c_contiguous
    assert one.sum() == edge * edge
    assert not np.shares_memory(one, other)
    # Small ones are the allocator's, others have pages of their own.
    assert (one.base is None) == (edge == 3)


def test_memory_that_is_not_there_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        fresh_array((2**55,), "float64")


@given(st.integers(1, 5000), st.integers(1, 4), st.integers(0, 100))
def test_both_ways_of_summing_agree_and_one_wrong_number_moves_one_sum(
    columns: int, rows: int, seed: int
) -> None:
    source = np.random.default_rng(seed)
    values = source.standard_normal((rows, columns))
    weights = block_weights(columns)

    sums = sums_over_columns(values, weights, block_width(columns))

    assert sums.shape == (rows, block_count(columns))
    transposed = sums_over_rows(values.T, weights, block_width(columns))
    np.testing.assert_allclose(transposed.T, sums, rtol=0, atol=1e-12)
    row, column = int(source.integers(rows)), int(source.integers(columns))
    values[row, column] += 1.0
    moved = np.abs(sums_over_columns(values, weights, block_width(columns)) - sums)
    assert 0.75 - 1e-9 <= moved[row, column // block_width(columns)] <= 1.25 + 1e-9
    assert np.count_nonzero(moved > 1e-9) == 1


@pytest.mark.parametrize(("columns", "width"), [(1, 8), (1024, 8), (1025, 16), (4096, 32)])
def test_blocks_stay_short_so_that_rounding_does_not_drown_a_wrong_number(
    columns: int, width: int
) -> None:
    assert block_width(columns) == width
    assert block_width(2**20) == 32


def test_chunks_are_drawn_apart_whatever_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class LastFirst:
        def __init__(self, max_workers: int) -> None:
            assert max_workers > 0

        def __enter__(self) -> LastFirst:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def map(self, draw: Callable[[int], None], chunks: range) -> list[None]:
            return [draw(number) for number in reversed(chunks)]

    monkeypatch.setattr(numerics, "_CHUNK", 4)
    monkeypatch.setattr(numerics, "ThreadPoolExecutor", LastFirst)

    found = HostData(3).normal("left", (2, 5))

    seeds = [[3, *b"left", number] for number in range(3)]
    drawn = [
        np.random.default_rng(seed).standard_normal(size, dtype=np.float32)
        for seed, size in zip(seeds, (4, 4, 2), strict=True)
    ]
    np.testing.assert_array_equal(found.ravel(), np.concatenate(drawn))


def test_inputs_are_the_same_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(numerics, "_CHUNK", 100)
    with_threads = HostData(3).normal("a", (25, 10))

    class Refused:
        def __init__(self, **_: object) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(numerics, "ThreadPoolExecutor", Refused)
    assert np.array_equal(HostData(3).normal("a", (25, 10)), with_threads)
