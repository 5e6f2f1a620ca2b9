from __future__ import annotations

import numpy as np
import pytest

from gpucheck.bench.formats import FORMATS, decode, encode
from gpucheck.bench.model import BenchRequest, Fill
from gpucheck.bench.product_check import draw_inputs, product_bound, verify_product
from tests.fakes.bench import order


@pytest.mark.parametrize("edge", [16, 700])
def test_one_wrong_entry_is_caught(edge: int) -> None:
    given = order((edge, edge, edge))
    left, right = draw_inputs(given)
    out = left @ right
    assert verify_product(given, out).ok

    out[edge // 2, edge // 3] += 0.1 * np.sqrt(edge)

    assert not verify_product(given, out).ok


def test_a_product_in_lower_precision_exceeds_the_bound_of_the_higher() -> None:
    given = order((256, 256, 256))
    left, right = draw_inputs(given)
    half = (left.astype(np.float16).astype(np.float32)) @ (right.astype(np.float16))
    assert not verify_product(given, half.astype(np.float32)).ok

    given = order((256, 256, 256), dtype="float64")
    left, right = draw_inputs(given)
    single = left.astype(np.float32) @ right.astype(np.float32)
    assert not verify_product(given, single.astype(np.float64)).ok


def test_an_integer_product_that_is_off_by_one_is_caught() -> None:
    given = order((512, 512, 512), dtype="int8")
    left, right = (side.astype(np.int32) for side in draw_inputs(given))
    out = left @ right
    assert verify_product(given, out).ok

    out[511, 3] += 1

    assert not verify_product(given, out).ok


def test_zeros_are_multiplied_to_zero_and_anything_else_is_wrong() -> None:
    request = BenchRequest(fill=Fill.ZEROS)
    given = order((32, 32, 32), request=request)
    out = np.zeros((32, 32), dtype=np.float32)
    assert verify_product(given, out).ok

    out[3, 4] = 1e-3

    assert not verify_product(given, out).ok


def test_a_float8_product_may_be_as_far_off_as_bfloat16_rounds_and_sums_are_cut() -> None:
    exact = product_bound(FORMATS["float8"], 4096)

    assert exact == product_bound(FORMATS["bfloat16"], 4096)
    # Six times a tenth of what 128 additions cut off.
    assert product_bound(FORMATS["float8"], 4096, fast_accumulation=True) == pytest.approx(
        exact + 6 * 0.1 * 128 * 2**-13
    )


def test_a_float8_product_whose_scales_were_left_out_is_caught() -> None:
    given = order((64, 64, 64), dtype="float8")
    left, right = (decode(side, "float8") for side in draw_inputs(given, transposed=True))
    out = left @ right.T
    stored = encode(out, FORMATS["bfloat16"])
    assert verify_product(given, stored, transposed=True).ok

    unscaled = encode(np.asarray(out * 256), FORMATS["bfloat16"])

    assert not verify_product(given, unscaled, transposed=True).ok


def cut_short(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> object:
    """Return numbers with fourteen bits, cut off towards zero, as fast accumulation keeps them."""
    fractions, exponents = np.frexp(values)
    return np.ldexp(np.trunc(np.ldexp(fractions, 14)), exponents - 14)


@pytest.mark.parametrize("terms", [64, 1024, 8192])
def test_sums_that_are_cut_short_are_within_the_bound_of_fast_accumulation(terms: int) -> None:
    given = order((96, terms, 80), dtype="float8")
    left, right = (
        decode(side, "float8").astype(np.float64) for side in draw_inputs(given, transposed=True)
    )
    sums = np.zeros((96, 80))
    for low in range(0, terms, 32):
        part = slice(low, low + 32)
        sums = np.asarray(cut_short(sums + left[:, part] @ right[:, part].T))
    out = encode(sums.astype(np.float32), FORMATS["bfloat16"])

    found = verify_product(given, out, transposed=True, fast_accumulation=True)

    assert found.ok
    assert found.error is not None
    # Near enough to the error that it leaves that a wrong sum shows.
    assert terms < 8192 or found.error > found.bound / 20
