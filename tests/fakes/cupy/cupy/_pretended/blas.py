"""cublasGemmEx on pretended memory: column-major, with cuBLAS' own rules about types and edges."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import cublaslt
from .clock import CLOCK, driver_call
from .contents import Bytes, Region
from .device import SPACE, Operation, Stream, device
from .errors import BLAS_ERRORS, CUBLASError
from .kernels import narrow, widen
from .script import SCRIPT

Values = NDArray[Any]

#: cudaDataType_t: bytes of one number.
_SIZES = {0: 4, 1: 8, 2: 2, 3: 1, 10: 4, 14: 2}
#: By compute type (cublasComputeType_t): what A, B and C may be, the scalars' type, the arithmetic.
#: Source: cuBLAS documentation, cublasGemmEx, the table of supported types.
_ALLOWED = {
    68: ({(0, 0): "fp32", (2, 2): "fp16", (2, 0): "fp16", (14, 14): "bf16", (14, 0): "bf16",
          (3, 0): "fp32"}, "float32"),
    77: ({(0, 0): "tf32"}, "float32"),
    70: ({(1, 1): "fp64"}, "float64"),
    72: ({(3, 10): "int8"}, "int32"),
}  # fmt: skip
_HANDLE_S = 0.2
_handles: dict[int, int] = {}


def handle() -> int:
    """Return the current device's handle; the first call makes it, which takes long."""
    ordinal = device().card.ordinal
    if ordinal not in _handles:
        device().call()
        cublaslt.load()
        CLOCK.spend(_HANDLE_S)
        _handles[ordinal] = 0xB1A50000 + 0x100 * ordinal
    return _handles[ordinal]


def _refuse(name: str) -> CUBLASError:
    return CUBLASError(BLAS_ERRORS[name])


@driver_call
def gemm_ex(stream: Stream, asked_handle: int, *rest: Any) -> None:
    """Enqueue C = alpha op(A) op(B) + beta C on a stream of the handle's device."""
    (transa, transb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc,
     compute, algorithm) = rest  # fmt: skip
    if _handles.get(stream.device.card.ordinal) != asked_handle:
        raise _refuse("CUBLAS_STATUS_NOT_INITIALIZED")
    if stream.captured is not None:
        message = "calling cuBLAS API during stream capture is currently unsupported"
        raise NotImplementedError(message)
    rows_a, rows_b = (m if transa == 0 else k), (k if transb == 0 else n)
    edges = ((lda, rows_a), (ldb, rows_b), (ldc, m))
    if min(m, n, k) < 0 or any(leading < max(1, rows) for leading, rows in edges):
        raise _refuse("CUBLAS_STATUS_INVALID_VALUE")
    if transa not in (0, 1, 2) or transb not in (0, 1, 2) or algorithm not in (-1, *range(24), 99):
        raise _refuse("CUBLAS_STATUS_INVALID_VALUE")
    types, scalar = _ALLOWED.get(compute, ({}, "float32"))
    arithmetic = types.get((a_type, c_type)) if a_type == b_type else None
    if arithmetic is None:
        raise _refuse("CUBLAS_STATUS_NOT_SUPPORTED")
    arithmetic = _on_this_card(arithmetic, stream)
    if arithmetic == "int8" and (lda % 4 or ldb % 4 or a % 4 or b % 4):
        raise _refuse("CUBLAS_STATUS_NOT_SUPPORTED")
    if min(m, n) == 0:
        return
    scales = tuple(_host_scalar(place, scalar) for place in (alpha, beta))
    columns_a, columns_b = (k if transa == 0 else m), (n if transb == 0 else k)
    regions = [
        _matrix(a, lda, rows_a, columns_a, a_type),
        _matrix(b, ldb, rows_b, columns_b, b_type),
        _matrix(c, ldc, m, n, c_type),
    ]
    inputs = regions if scales[1] else regions[:2]
    key = (transa, transb, m, n, k, *scales, a_type, lda, ldb, c_type, ldc, compute)

    def make(found: list[Bytes]) -> Values:
        left = _columns(found[0], lda, rows_a, columns_a, a_type, arithmetic)
        right = _columns(found[1], ldb, rows_b, columns_b, b_type, arithmetic)
        product = _product(
            left.T if transa else left,
            right.T if transb else right,
            exact=a_type == 3 and k <= 1024,
        )
        result = scales[0] * product
        if scales[1]:
            result = result + scales[1] * _columns(found[2], ldc, m, n, c_type, arithmetic)
        return _stored(result, c_type)

    if ldc != m:
        raise _refuse("CUBLAS_STATUS_NOT_SUPPORTED")  # not learnt: C with a gap between columns
    stream.device.submit(
        stream,
        Operation(
            name="gemm",
            out=regions[2],
            inputs=inputs,
            key=key,
            make=make,
            flops=2.0 * m * n * k,
            arithmetic=arithmetic,
        ),
    )


def _on_this_card(arithmetic: str, stream: Stream) -> str:
    """Return the arithmetic that the card has for it: tf32 falls back to fp32, others do not."""
    card = stream.device.card
    for statement in SCRIPT.about("instead", card.gpu):
        if statement.text("of", "") == arithmetic:
            return statement.text("runs", arithmetic)
    has = card.flops
    if arithmetic in has:
        return arithmetic
    if arithmetic == "tf32":
        return "fp32"
    raise _refuse("CUBLAS_STATUS_NOT_SUPPORTED")


def _host_scalar(place: int, dtype: str) -> float:
    raw = ctypes.string_at(place, np.dtype(dtype).itemsize)
    return float(np.frombuffer(raw, dtype=dtype)[0])


def _matrix(place: int, leading: int, rows: int, columns: int, kind: int) -> Region:
    last = leading * (columns - 1) + rows if columns else 0
    return SPACE.region(place, last * _SIZES[kind])


def _columns(
    raw: Bytes, leading: int, rows: int, columns: int, kind: int, arithmetic: str
) -> Values:
    """Return the matrix (rows, columns) that lies there column by column, as NumPy computes it."""
    size = _SIZES[kind]
    padded = raw
    if raw.nbytes < leading * columns * size:
        padded = np.concatenate([raw, np.zeros(leading * columns * size - raw.nbytes, np.uint8)])
    flat: Values = padded
    if kind == 0:
        flat = padded.view(np.float32)
        if arithmetic == "tf32":
            flat = ((flat.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)
    elif kind == 1:
        flat = padded.view(np.float64)
    elif kind == 2:
        flat = widen(padded, 1)
    elif kind == 14:
        flat = widen(padded, 2)
    else:
        flat = padded.view({3: np.int8, 10: np.int32}[kind]).astype(np.float64)
    return flat.reshape(columns, leading)[:, :rows].T


def _product(left: Values, right: Values, *, exact: bool) -> Values:
    """Return left @ right; float32 holds the sums of a thousand products of int8 exactly."""
    if exact:
        return np.asarray(left.astype(np.float32) @ right.astype(np.float32))
    return np.asarray(left @ right)


def _stored(result: Values, kind: int) -> Values:
    """Return the columns one after the other, rounded as they are stored."""
    flat = np.ascontiguousarray(result.T)
    if kind == 0:
        return np.asarray(flat, dtype=np.float32)
    if kind == 1:
        return np.asarray(flat, dtype=np.float64)
    if kind == 10:
        return np.asarray(np.rint(flat).astype(np.int64), dtype=np.int32)
    return narrow(flat.astype(np.float32, copy=False), {2: 1, 14: 2}[kind])
