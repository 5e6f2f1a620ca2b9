"""triad: the check of its output, block by block."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpucheck.bench.kernels.triad import FACTOR, verify_triad

#: More rows than one block of the check has.
SHAPE = (70, 8)


@pytest.mark.parametrize("row", [0, 31, 32, 69])
@pytest.mark.parametrize("wrong", [1.0, math.nan, math.inf], ids=str)
def test_one_wrong_number_is_found_in_every_block(row: int, wrong: float) -> None:
    generator = np.random.default_rng(7)
    scaled, added = (generator.standard_normal(SHAPE, dtype=np.float32) for _ in range(2))
    out = np.float32(FACTOR) * scaled + added

    assert verify_triad(scaled, added, out).ok
    out[row, 3] += np.float32(wrong)
    assert not verify_triad(scaled, added, out).ok
