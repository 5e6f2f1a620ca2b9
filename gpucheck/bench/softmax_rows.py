"""Row softmax in NumPy, limited only by its passes over memory.

A plain version is slowed by its passes and temporaries, and reaches a tenth of a copy. This one
works in place on blocks of rows that stay in the cache. Each thread has its own rows: NumPy
releases the interpreter lock inside its loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucheck.drivers.host.clock import Clock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

LOG2_E = 1.4426950408889634
#: Largest distance of a row's maximum below its block's, in powers of two. Beyond it the row is
#: scaled by its own maximum: the relative error of its terms is about the distance times 4e-8, and
#: small terms would leave float32's range.
_DEEPEST_ROW = 30.0
#: Longer rows are split into pieces: longer chains of additions lose accuracy.
_LONGEST_PIECE = 32768


@dataclass(frozen=True, slots=True)
class Scaling:
    """Exponential function, and its factor for exp(x / T): exp with 1/T, exp2 with log2(e)/T."""

    raise_to: Callable[..., object]
    factor: float
    deepest: float


def choose_scaling(clock: Clock, temperature: float) -> Scaling:
    """Return exp2 or exp, whichever this NumPy computes faster on this CPU.

    NumPy has a vector exp2 for AVX-512 only, where it is twice as fast as exp, but a vector exp for
    more CPUs.
    """
    import numpy as np

    values = np.linspace(-8, 0, 65536, dtype=np.float32)
    out = np.empty_like(values)

    def seconds(function: Callable[..., object]) -> float:
        spans = []
        for _ in range(5):
            start_s = clock.now_s()
            function(values, out=out)
            spans.append(clock.now_s() - start_s)
        return min(spans)

    if seconds(np.exp2) <= seconds(np.exp):
        return Scaling(np.exp2, LOG2_E / temperature, _DEEPEST_ROW)
    return Scaling(np.exp, 1 / temperature, _DEEPEST_ROW / LOG2_E)


def rows_per_block(columns: int, l2_bytes: int | None) -> int:
    """Return how many rows fill twice one core's L2 (1 MiB where unknown), at least one.

    NOTE: twice, not half: each NumPy call then holds off the interpreter lock for longer, which
    gains two threads 9 % (7.9 instead of 8.7 ms at 4096x4096). The L3 holds what the L2 does not.
    """
    return max(1, 2 * (l2_bytes or 2**20) // max(4 * columns, 1))


def softmax_rows(source: HostArray, out: HostArray, scaling: Scaling, block: int) -> None:
    """Write softmax(source / T) of each row into `out`, both (rows, columns) float32.

    A row becomes NaN, as in the formula, if it holds NaN or +inf, or only -inf.
    """
    import numpy as np

    # NaN rows are valid answers here; the settings apply to this thread only.
    with np.errstate(all="ignore"):
        if source.shape[1] > _LONGEST_PIECE:
            for row, written in zip(source, out, strict=True):
                _softmax_long_row(row, written, scaling)
            return
        for low in range(0, source.shape[0], block):
            _softmax_block(source[low : low + block], out[low : low + block], scaling)


def _softmax_block(source: HostArray, out: HostArray, scaling: Scaling) -> None:
    """Compute a block of rows that fits the cache.

    NOTE: one maximum serves the whole block if the rows' maxima lie close together. Subtracting one
    number takes NumPy less than half the time of subtracting a column from every row.
    """
    import numpy as np

    if source.shape[1] == 0:
        return
    factor = np.float32(scaling.factor)
    highest = np.maximum.reduce(source, axis=1)
    top = np.maximum.reduce(highest)
    spread = (float(top) - float(np.minimum.reduce(highest))) * scaling.factor
    if spread <= scaling.deepest:  # False for NaN too
        np.subtract(source, top, out=out)
    else:
        np.subtract(source, highest[:, None], out=out)
    np.multiply(out, factor, out=out)
    scaling.raise_to(out, out=out)
    # NOTE: einsum adds along rows twice as fast as sum(); its chains are short enough here.
    total = np.einsum("ij->i", out)
    np.divide(np.float32(1), total, out=total)
    np.multiply(out, total[:, None], out=out)


def _softmax_long_row(source: HostArray, out: HostArray, scaling: Scaling) -> None:
    """Compute one row in pieces that fit the cache, with the sum of the pieces in float64."""
    import numpy as np

    factor, top, total = np.float32(scaling.factor), np.maximum.reduce(source), 0.0
    for low in range(0, source.shape[0], _LONGEST_PIECE):
        piece = out[low : low + _LONGEST_PIECE]
        np.subtract(source[low : low + _LONGEST_PIECE], top, out=piece)
        np.multiply(piece, factor, out=piece)
        scaling.raise_to(piece, out=piece)
        total += float(np.add.reduce(piece))
    np.multiply(out, np.float32(1 / total), out=out)
