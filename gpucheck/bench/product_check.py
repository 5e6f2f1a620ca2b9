"""Inputs of a matrix product, and verification of every output entry against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpucheck.bench.block_sums import (
    NARROWEST,
    block_weights,
    block_width,
    sums_over_columns,
    sums_over_rows,
)
from gpucheck.bench.case import CaseOrder
from gpucheck.bench.formats import FORMATS, Format, decode, encode
from gpucheck.bench.model import Verified

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Rows that the check converts to float64 at once, to bound its memory. Whole blocks fit into it.
CHECKED_ROWS = 512
#: Fast accumulation keeps 14 bits of a sum at each instruction, which adds this many terms. Source:
#: measurements in the DeepSeek-V3 technical report, 3.3.2.
_FAST_ROUNDOFF, _TERMS_AT_ONCE = 2.0**-13, 32
#: Part of the largest cut of fast accumulation that differs between entries.
_UNEVEN_CUT = 0.1
#: A block's sum may be off by this multiple of an entry's deviation times the root of the block's
#: width; with a normal distribution one in 500 million is further off.
_REACH = 6.0


def draw_inputs(order: CaseOrder, *, transposed: bool = False) -> tuple[HostArray, HostArray]:
    """Return A (m, k) and B (k, n), or (n, k) if transposed, as stored; the same for every case."""
    m, k, n = order.shape
    left = _draw(order, "left", (m, k))
    if transposed:
        return left, _draw(order, "right-transposed", (n, k))
    return left, _draw(order, "right", (k, n))


def _draw(order: CaseOrder, name: str, shape: tuple[int, ...]) -> HostArray:
    def make() -> HostArray:
        wide = "float64" if order.dtype == "float64" else "float32"
        return encode(order.data.normal(f"matmul-{name}", shape, wide), FORMATS[order.dtype])

    size_bytes = math.prod(shape) * FORMATS[order.dtype].itemsize
    return order.data.once(f"matmul-{name}-{shape}-{order.dtype}", make, size_bytes)


def product_bound(form: Format, terms: int, *, fast_accumulation: bool = False) -> float:
    """Return the error allowed for a product of `terms` terms, relative to the typical sum.

    Six times the deviation of an entry, relative to the typical one. Rounding every partial sum
    leaves 0.3 u sqrt(k) with the accumulator's u, since rounding errors add up like a random walk;
    0.5 are allowed. Rounding the entry to the output's format leaves 0.4 u with its u; one u allows
    for six such roundings, where a library adds up parts of a sum in that format. Factors cut off
    to tf32 leave 1.6 u; two are allowed. Fast accumulation cuts sums off, always towards zero,
    whenever an instruction adds its terms: the same share of every entry, which `verify_product`
    finds, and a rest. Integers are exact; what is left is the check's own rounding. A float64
    product is checked in float64, which rounds as often as the product itself.
    """
    if form.name == "int8":
        return 1e-9
    sums = FORMATS[form.accumulate].roundoff
    if form.name == "float64":
        return _REACH * 2 * sums * (1 + math.sqrt(terms))
    rounded = 2 * form.roundoff if form.name == "tf32" else FORMATS[form.output].roundoff
    further = rounded if rounded > sums else 0.0
    uneven = _UNEVEN_CUT * _largest_cut(terms) if fast_accumulation else 0.0
    return _REACH * (sums * (1 + 0.5 * math.sqrt(terms)) + further + uneven)


def _largest_cut(terms: int) -> float:
    """Return the largest share of an entry that fast accumulation cuts off."""
    return _FAST_ROUNDOFF * terms / _TERMS_AT_ONCE


def verify_product(
    order: CaseOrder,
    out: HostArray,
    *,
    transposed: bool = False,
    form: Format | None = None,
    fast_accumulation: bool = False,
) -> Verified:
    """Compare every entry of `out` with A B in float64, by weighted sums over blocks of columns.

    The error is the largest deviation of a block's sum from that of A B, relative to the sums'
    typical size. docs/bench.md lists what it detects: in any format, an entry that is off by a
    quarter of the typical one; in more precise formats, much less.
    """
    import numpy as np

    form = form or FORMATS[order.dtype]
    # Truncated sums leave larger errors, and a narrow block collects fewer of them.
    width = NARROWEST if fast_accumulation else block_width(order.shape[2])
    name = f"matmul-reference-{order.shape}-{order.dtype}-{transposed}-{width}"
    expected = order.data.keep(name, lambda: _reference(order, transposed, width))
    weights = block_weights(order.shape[2])
    found = np.concatenate(
        [sums_over_columns(block, weights, width) for _, block in _blocks(out, form.output)]
    )
    difference = found - expected
    if fast_accumulation:
        difference += _even_cut(difference, expected, order.shape[1]) * expected
    # A product of zeros has no typical size: then the deviation itself is the error.
    typical = float(np.sqrt(np.mean(np.square(expected)))) or 1.0
    worst = float(np.max(np.abs(difference))) / typical
    finite = math.isfinite(worst)
    bound = product_bound(form, order.shape[1], fast_accumulation=fast_accumulation)
    return Verified(
        error=worst if finite else None,
        bound=bound,
        ok=finite and worst <= bound,
        reference="float64, weighted sums over blocks of every row",
    )


def _even_cut(difference: HostArray, expected: HostArray, terms: int) -> float:
    """Return the best fit of the share cut off every entry, up to the allowed maximum."""
    import numpy as np

    size = float(np.sum(np.square(expected)))
    share = -float(np.sum(difference * expected)) / size if size else 0.0
    return min(max(share, 0.0), _largest_cut(terms))


def _reference(order: CaseOrder, transposed: bool, width: int) -> HostArray:
    """Return the blocks' sums of A B, in float64, from the inputs as they are stored."""
    import numpy as np

    left, right = draw_inputs(order, transposed=transposed)
    weights, name = block_weights(order.shape[2]), FORMATS[order.dtype].spec.input
    if transposed:
        parts = [
            sums_over_rows(block, weights[part], width) for part, block in _blocks(right, name)
        ]
        middle = np.concatenate(parts).T
    else:
        parts = [sums_over_columns(block, weights, width) for _, block in _blocks(right, name)]
        middle = np.concatenate(parts)
    return np.concatenate([block @ middle for _, block in _blocks(left, name)])


def _blocks(matrix: HostArray, name: str) -> Iterator[tuple[slice, HostArray]]:
    """Yield the matrix in float64, one block of rows at a time."""
    import numpy as np

    for low in range(0, len(matrix), CHECKED_ROWS):
        part = slice(low, low + CHECKED_ROWS)
        yield part, decode(matrix[part], name).astype(np.float64)
