from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.block_sums import (
    block_count,
    block_weights,
    block_width,
    sums_over_columns,
    sums_over_rows,
)


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
