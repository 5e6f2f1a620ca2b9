"""A matrix product's inputs, and whether its output is right: Freivalds' test against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpucheck.core.bench.formats import FORMATS, Format, decode, encode
from gpucheck.core.bench.kernel import CaseOrder
from gpucheck.models.bench import Verified

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Rows converted to float64 at once by the check: bounds its memory.
CHECKED_ROWS = 512
#: Fast accumulation keeps 14 bits of a sum at each instruction, which adds so many terms. Source:
#: measurements in the DeepSeek-V3 technical report, 3.3.2.
_FAST_ROUNDOFF, _TERMS_AT_ONCE = 2.0**-13, 32


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
    """Return the error allowed for a product of `terms` terms, relative to the typical entry.

    4 u sqrt(k) for the sums in the accumulator's precision, since rounding errors add up like a
    random walk, and 8 roundings of an entry where the output, or tf32's factors, are rounded
    further. Fast accumulation cuts sums off, always
    towards zero, whenever an instruction adds its terms.
    Integers are exact; what is left is the check's own rounding. A float64 product is checked in
    float64, which rounds as often as the product itself.
    """
    if form.name == "int8":
        return 1e-9
    sums = FORMATS[form.accumulate].roundoff
    if form.name == "float64":
        return 16 * sums * (1 + math.sqrt(terms))
    rounded = form.roundoff if form.name == "tf32" else FORMATS[form.output].roundoff
    further = 8 * rounded if rounded > sums else sums
    cut = _FAST_ROUNDOFF * terms / _TERMS_AT_ONCE if fast_accumulation else 0.0
    return 4 * sums * math.sqrt(terms) + further + cut


def verify_product(
    order: CaseOrder,
    out: HostArray,
    *,
    transposed: bool = False,
    form: Format | None = None,
    fast_accumulation: bool = False,
) -> Verified:
    """Compare out with A B in float64 by Freivalds' test: out x against A (B x), x random.

    The error is the largest row's deviation relative to the rows' typical size:
    max |out x - A (B x)| / rms(A (B x)). It takes O(n^2) work instead of O(n^3), and a single wrong
    entry shows in its row. Freivalds (1977), "Probabilistic machines can use less running time".
    Instead of 0 and 1, x takes values of random sign between 0.5 and 1.5: no entry is passed over,
    and opposite errors of one row do not cancel.
    """
    import numpy as np

    form = form or FORMATS[order.dtype]
    name = f"matmul-reference-{order.shape}-{order.dtype}-{transposed}"
    probe, expected = order.data.keep(name, lambda: _reference(order, transposed))
    found = _times_vector(out, probe, form.output)
    # Zeros times anything have no typical size: then the deviation itself is the error.
    typical = float(np.sqrt(np.mean(np.square(expected)))) or 1.0
    worst = float(np.max(np.abs(found - expected))) / typical
    finite = math.isfinite(worst)
    bound = product_bound(form, order.shape[1], fast_accumulation=fast_accumulation)
    return Verified(
        error=worst if finite else None,
        bound=bound,
        ok=finite and worst <= bound,
        reference="float64, Freivalds' test over every row",
    )


def _reference(order: CaseOrder, transposed: bool) -> tuple[HostArray, HostArray]:
    """Return the random vector x and A (B x), in float64, from the inputs as they are stored."""
    import numpy as np

    left, right = draw_inputs(order, transposed=transposed)
    generator = np.random.default_rng(7)
    signs = generator.choice([-1.0, 1.0], order.shape[2])
    probe = signs * generator.uniform(0.5, 1.5, order.shape[2])
    name = FORMATS[order.dtype].spec.input
    middle = (
        _times_vector_transposed(right, probe, name)
        if transposed
        else _times_vector(right, probe, name)
    )
    return probe, _times_vector(left, middle, name)


def _blocks(matrix: HostArray, name: str) -> Iterator[tuple[slice, HostArray]]:
    """Yield the matrix in float64, a block of rows at a time."""
    import numpy as np

    for low in range(0, len(matrix), CHECKED_ROWS):
        part = slice(low, low + CHECKED_ROWS)
        yield part, decode(matrix[part], name).astype(np.float64)


def _times_vector(matrix: HostArray, vector: HostArray, name: str) -> HostArray:
    """Return matrix @ vector in float64, converted block by block."""
    import numpy as np

    return np.concatenate([block @ vector for _, block in _blocks(matrix, name)])


def _times_vector_transposed(matrix: HostArray, vector: HostArray, name: str) -> HostArray:
    """Return matrix.T @ vector in float64, converted block by block."""
    import numpy as np

    total = np.zeros(matrix.shape[1])
    for part, block in _blocks(matrix, name):
        total += vector[part] @ block
    return total
