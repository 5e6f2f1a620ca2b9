"""Softmax on the processor, compiled by numba: a row is read from memory once and written once.

NumPy makes five passes over a block of rows. Here a row stays in the core's own cache from pass to
pass. Nothing is kept on disk: numba's cache is code that the next run would execute.

Importing this module imports numba (the extra `cpu`), and `compiled` compiles: about two seconds.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import float32, njit, types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

#: 2**r for r in [-0.5, 0.5]: the polynomial with the smallest largest relative error (7.5e-8), by
#: iteratively reweighted least squares.
_C0, _C1, _C2, _C3, _C4, _C5 = (
    np.float32(value)
    for value in (
        1.0000001192092896,
        0.6931469440460205,
        0.24022120237350464,
        0.05550713092088699,
        0.009675540961325169,
        0.0013276472454890609,
    )
)
#: Added to a number below 2**22 and subtracted again, it rounds to a whole number (1.5 * 2**23). In
#: the sum, that whole number stands in the lowest bits.
_ROUND = np.float32(12582912.0)
#: Numbers below this power of two are below float32's normal numbers, and become 0.
_LOWEST = np.float32(-126)
_EXPONENT_BITS, _ONE_BITS = np.int32(23), np.int32(127 << 23)
_SIGN_BIT, _ALL_BUT_SIGN = np.int32(31), np.int32(0x7FFFFFFF)
_ZERO, _ONE = np.float32(0), np.float32(1)
#: Longer rows are summed in pieces: longer chains of additions in float32 lose accuracy.
_LONGEST_PIECE = 32768


@intrinsic  # type: ignore[untyped-decorator]
def _bits_of(_: Any, number: Any) -> Any:
    """Return a float32's bits as an int32."""
    return types.int32(types.float32), lambda _context, builder, _signature, given: builder.bitcast(
        given[0], ir.IntType(32)
    )


@intrinsic  # type: ignore[untyped-decorator]
def _number_of(_: Any, bits: Any) -> Any:
    """Return the float32 of an int32's bits."""
    return types.float32(types.int32), lambda _context, builder, _signature, given: builder.bitcast(
        given[0], ir.FloatType()
    )


@njit  # type: ignore[untyped-decorator]
def _ordered(bits: Any) -> Any:
    """Return a float32's bits changed so that they order as the numbers do; it undoes itself."""
    return bits ^ ((bits >> _SIGN_BIT) & _ALL_BUT_SIGN)


@njit(fastmath={"contract"}, error_model="numpy")  # type: ignore[untyped-decorator]
def _raised(number: Any, highest: Any, factor: Any) -> Any:
    """Return 2**((number - highest) * factor), relative error 2e-7; NaN stays NaN.

    It is a function of its own because its additions may not be reordered, as sums may.
    """
    power = (number - highest) * factor
    rounded = power + _ROUND
    rest = power - (rounded - _ROUND)
    value = _C5
    value = value * rest + _C4
    value = value * rest + _C3
    value = value * rest + _C2
    value = value * rest + _C1
    value = value * rest + _C0
    value *= _number_of((_bits_of(rounded) << _EXPONENT_BITS) + _ONE_BITS)
    return _ZERO if power < _LOWEST else value


@cache
def compiled() -> Callable[..., None]:
    """Return softmax_rows(source, out, factor), compiled for float32 (rows, columns) in C order.

    `factor` is log2(e) / T. It releases the interpreter lock, so threads can share the rows. A row
    becomes NaN, as in the formula, if it holds NaN or +inf, or only -inf.
    """
    source = types.Array(types.float32, 2, "C", readonly=True)
    out = types.Array(types.float32, 2, "C")
    build = njit(
        types.void(source, out, types.float32),
        nogil=True,
        fastmath={"contract", "nsz", "reassoc"},
        error_model="numpy",
    )
    rows: Callable[..., None] = build(_softmax_rows)
    return rows


def _softmax_rows(source: Any, out: Any, factor: Any) -> None:
    rows, columns = source.shape
    if columns == 0:
        return
    for row in range(rows):
        # NOTE: as integers, because LLVM does not vectorise the maximum of numbers that may be NaN:
        # with them the maximum takes four times as long.
        top = _ordered(_bits_of(source[row, 0]))
        for column in range(columns):
            top = max(top, _ordered(_bits_of(source[row, column])))
        highest = _number_of(_ordered(top))
        total = 0.0
        for low in range(0, columns, _LONGEST_PIECE):
            # NOTE: slices, because loops from `low` to a minimum of two are not vectorised either.
            piece = source[row, low : low + _LONGEST_PIECE]
            written = out[row, low : low + _LONGEST_PIECE]
            part: Any = _ZERO
            for column in range(len(piece)):
                raised = _raised(piece[column], highest, factor)
                written[column] = raised
                part += raised
            total += part
        inverse = float32(_ONE / total)
        for column in range(columns):
            out[row, column] *= inverse
