"""cuBLAS' functions as CuPy binds them."""

from __future__ import annotations

from cupy._pretended import blas, runtime
from cupy._pretended.device import stream_of
from cupy._pretended.errors import CUBLASError

from . import loaded

__all__ = ["CUBLASError", "gemmEx", "getVersion"]

if "cublas" not in loaded:
    message = "libcublas.so.12: cannot open shared object file: No such file or directory"
    raise ImportError(message)

CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C = 0, 1, 2
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32I = 68, 70, 72
CUBLAS_COMPUTE_32F_FAST_TF32 = 77
CUBLASError.__module__ = __name__


def gemmEx(
    handle: int,
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    A: int,
    Atype: int,
    lda: int,
    B: int,
    Btype: int,
    ldb: int,
    beta: int,
    C: int,
    Ctype: int,
    ldc: int,
    computeType: int,
    algo: int,
) -> None:
    """Enqueue C = alpha op(A) op(B) + beta C on the current stream."""
    stream = stream_of(runtime.current_stream_pointer())
    blas.gemm_ex(
        *(stream, handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb),
        *(beta, C, Ctype, ldc, computeType, algo),
    )


def getVersion(handle: int) -> int:
    """Return a version."""
    return 120900
