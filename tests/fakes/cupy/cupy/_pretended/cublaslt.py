"""float8 products of the pretended libcublasLt, by the rules for this card.

The library itself is C (tests/fakes/native/cublaslt.c), so that a program calls it as it would call
the real one; it comes into the process with cuBLAS, as there.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .clock import driver_call
from .contents import Bytes
from .device import SPACE, Operation, stream_of
from .errors import CUBLASError, CUDARuntimeError
from .kernels import narrow

Values = NDArray[Any]

_E4M3, _BFLOAT16, _FLOAT32, _COMPUTE_32F = 28, 14, 0, 68
_SUCCESS, _INVALID_VALUE, _EXECUTION_FAILED, _INTERNAL_ERROR, _NOT_SUPPORTED = 0, 7, 13, 14, 15


class Product(ctypes.Structure):
    """The library's description of a product; `product` in cublaslt.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "lda", "ldb", "ldd")),
        *((name, ctypes.c_size_t) for name in ("a", "b", "c", "d", "a_scale", "b_scale", "stream")),
        *((name, ctypes.c_double) for name in ("alpha", "beta")),
        *(
            (name, ctypes.c_int32)
            for name in (
                *("a_type", "b_type", "c_type", "d_type", "compute_type", "scale_type"),
                *("transa", "transb", "fast", "asking"),
            )
        ),
    )


#: The description of the last product that was enqueued.
last: dict[str, float] = {}
_Answerer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Product))
#: What the library may call must live as long as it.
_kept: list[object] = []


def load() -> None:
    """Load the library once, as the real cuBLAS does; the path is empty where there is none."""
    path = os.environ.get("FAKE_CUBLASLT")
    if _kept or not path:
        return
    library, answerer = ctypes.CDLL(path), _Answerer(_answer)
    library.cublasLtFakeConnect(answerer)
    _kept.extend((library, answerer))


def living() -> int:
    """Return how many handles, descriptors and layouts have not been destroyed."""
    library: Any = _kept[0]
    return int(library.cublasLtFakeLiving())


def _answer(asked: Any) -> int:
    try:
        return _multiply(asked.contents)
    except (CUDARuntimeError, CUBLASError):
        return _EXECUTION_FAILED
    except BaseException:
        # Nothing that is raised gets through C.
        sys.stderr.write(traceback.format_exc())
        return _INTERNAL_ERROR


@driver_call
def _multiply(asked: Product) -> int:
    """Enqueue D = alpha (a A)^T (b B) + beta C, all of them in columns.

    Source: cuBLAS documentation, cublasLtMatmul, "To use FP8 kernels".
    """
    stream = stream_of(asked.stream)
    card = stream.device.card
    types = (asked.a_type, asked.b_type, asked.c_type, asked.d_type)
    if "fp8" not in card.flops or types != (_E4M3, _E4M3, _BFLOAT16, _BFLOAT16):
        return _NOT_SUPPORTED
    if (asked.compute_type, asked.scale_type) != (_COMPUTE_32F, _FLOAT32):
        return _NOT_SUPPORTED
    if (asked.transa, asked.transb) != (1, 0) and card.capability < (10, 0):
        return _NOT_SUPPORTED
    if any(edge % 16 for edge in (asked.m, asked.n, asked.k, asked.lda, asked.ldb)):
        return _NOT_SUPPORTED
    if asked.asking:
        return _SUCCESS
    m, n, k = asked.m, asked.n, asked.k
    last.update((str(field[0]), getattr(asked, field[0])) for field in Product._fields_)
    # Not learnt: gaps between columns, C apart from D, other layouts.
    dense = (asked.lda, asked.ldb, asked.ldd) == (k, k, m)
    if not dense or asked.c != asked.d or asked.beta or (asked.transa, asked.transb) != (1, 0):
        return _INTERNAL_ERROR
    scales = [place for place in (asked.a_scale, asked.b_scale) if place]
    alpha = asked.alpha

    def make(found: list[Bytes]) -> Values:
        left, right = _numbers(found[0]).reshape(m, k), _numbers(found[1]).reshape(n, k)
        factor = alpha * np.prod([float(raw.view(np.float32)[0]) for raw in found[2:]])
        return narrow((factor * (right @ left.T)).astype(np.float32), 2)

    stream.device.submit(
        stream,
        Operation(
            name="gemm",
            out=SPACE.region(asked.d, 2 * m * n),
            inputs=[
                SPACE.region(asked.a, m * k),
                SPACE.region(asked.b, n * k),
                *(SPACE.region(place, 4) for place in scales),
            ],
            key=("fp8", m, n, k, alpha, asked.fast),
            make=make,
            flops=2.0 * m * n * k,
            arithmetic="fp8",
        ),
    )
    return _SUCCESS


def _numbers(raw: Bytes) -> Values:
    """Return e4m3 numbers as float32: a sign, four bits of exponent, three of mantissa."""
    return _E4M3_NUMBERS[raw.view(np.uint8)]


def _e4m3(bits: int) -> float:
    exponent, mantissa = bits >> 3 & 15, bits & 7
    size = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6
    return float("nan") if bits & 127 == 127 else -size if bits & 128 else size


_E4M3_NUMBERS = np.array([_e4m3(bits) for bits in range(256)], dtype=np.float32)
