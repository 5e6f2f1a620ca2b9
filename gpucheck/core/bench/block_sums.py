"""Weighted sums over short blocks of columns, by which every number of a result is checked.

A row of a matrix is cut into blocks of up to 32 numbers, and each block is summed up with random
weights of either sign. A number that is off by d moves its block's sum by at least three quarters
of d, while what rounding leaves grows with the root of the block's width only: a sum over a whole
row would drown a wrong number in the rounding of thousands of others. For a product the sums of the
right result are found in O(n^3 / 32) operations, as in Freivalds' test with a vector for each
block. Weights of different sizes keep exchanged columns from passing. Freivalds (1977),
"Probabilistic machines can use less running time"; Huang and Abraham (1984), "Algorithm-based fault
tolerance for matrix operations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Blocks that a row is cut into, if that leaves them between the narrowest and the widest.
_BLOCKS, NARROWEST, WIDEST = 128, 8, 32
#: Between which the sizes of the weights lie.
_LIGHTEST, _HEAVIEST = 0.75, 1.25
_SEED = 7


def block_width(columns: int) -> int:
    """Return the width of a block: 8, 16 or 32."""
    width = NARROWEST
    while width < WIDEST and width * _BLOCKS < columns:
        width *= 2
    return width


def block_count(columns: int) -> int:
    """Return the blocks of a row; the last one may be narrower."""
    return -(-columns // block_width(columns))


def block_weights(columns: int) -> HostArray:
    """Return the weight of each column, the same at every call."""
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
    """Return the same of rows of a transposed matrix, (blocks, columns), `width` rows a block."""
    import numpy as np

    starts = range(0, len(weights), width)
    return np.stack([weights[low : low + width] @ rows[low : low + width] for low in starts])
