"""Weighted sums over short blocks of columns, which check every number of a result.

A row is cut into blocks of up to 32 numbers, and each block is summed with random weights of either
sign. A number that is off by d moves its block's sum by at least 0.75 d. Rounding grows only with
the root of the block's width. A sum over a whole row would hide a wrong number in the rounding of
thousands of others. The right sums of a product take O(n^3 / 32) operations, as in Freivalds' test
with a vector for each block. Weights of different sizes detect exchanged columns.
Freivalds (1977),
"Probabilistic machines can use less running time"; Huang and Abraham (1984), "Algorithm-based fault
tolerance for matrix operations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Number of blocks per row, if their width stays between the narrowest and the widest.
_BLOCKS, NARROWEST, WIDEST = 128, 8, 32
#: Range of the weights' sizes.
_LIGHTEST, _HEAVIEST = 0.75, 1.25
_SEED = 7


def block_width(columns: int) -> int:
    """Return the width of a block: 8, 16 or 32."""
    width = NARROWEST
    while width < WIDEST and width * _BLOCKS < columns:
        width *= 2
    return width


def block_count(columns: int) -> int:
    """Return the number of blocks in a row; the last one may be narrower."""
    return -(-columns // block_width(columns))


def block_weights(columns: int) -> HostArray:
    """Return the weight of each column, the same on every call."""
    import numpy as np

    generator = np.random.default_rng([_SEED, columns])
    signs = generator.choice([-1.0, 1.0], columns)
    weights: HostArray = signs * generator.uniform(_LIGHTEST, _HEAVIEST, columns)
    return weights


def sums_over_columns(rows: HostArray, weights: HostArray, width: int) -> HostArray:
    """Return the weighted sums of each row's blocks, (rows, blocks); all in float64."""
    import numpy as np

    whole = len(weights) // width
    edge = whole * width
    inner = np.einsum(
        "rbw,bw->rb",
        rows[:, :edge].reshape(len(rows), whole, width),
        weights[:edge].reshape(whole, width),
    )
    if edge == len(weights):
        found: HostArray = inner
        return found
    return np.column_stack([inner, rows[:, edge:] @ weights[edge:]])


def sums_over_rows(rows: HostArray, weights: HostArray, width: int) -> HostArray:
    """Return the same sums for rows of a transposed matrix, (blocks, columns)."""
    import numpy as np

    starts = range(0, len(weights), width)
    return np.stack([weights[low : low + width] @ rows[low : low + width] for low in starts])
