"""Matrix products by cuBLAS through CuPy's binding of cublasGemmEx.

The binding is `cupy.cuda.cublas`: asked for there, CuPy 14 first loads the library out of NVIDIA's
wheels. Imported by its own name it is linked to a libcublas that only a toolkit of the system has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucheck.models.errors import MissingError
from gpucheck.probes.gpu import Product

#: cuBLAS: the transposition flags, and its default choice of algorithm (cublas_api.h).
_NORMAL, _TRANSPOSED, _DEFAULT_ALGORITHM = 0, 1, -1
#: Rows of int8 begin at multiples of four bytes.
_INT8_EDGE = 4
#: By arithmetic: the types of the factors and the product (library_types.h), cuBLAS' compute type
#: (cublas_api.h), and NumPy's type for its scalars.
_GEMM_TYPES = {
    "fp64": (1, 1, 70, "float64"),
    "fp32": (0, 0, 68, "float32"),
    "tf32": (0, 0, 77, "float32"),
    "fp16": (2, 2, 68, "float32"),
    "bf16": (14, 14, 68, "float32"),
    "int8": (3, 10, 72, "int32"),
}


def multiply(cupy: Any, left: Any, right: Any, out: Any, product: Product) -> None:
    """Enqueue a product on the current stream, in exactly the arithmetic that is asked for.

    cuBLAS thinks in columns: it is given the transposed problem, out' = right' left'.
    """
    import numpy as np

    _check_edges(left.shape, right.shape, product)
    factor, result, compute, scalar = _GEMM_TYPES[product.math_mode]
    scales = np.array([product.alpha, product.beta], dtype=scalar)
    (m, n), k = out.shape, left.shape[0 if product.left_transposed else 1]
    flags = (
        _TRANSPOSED if product.right_transposed else _NORMAL,
        _TRANSPOSED if product.left_transposed else _NORMAL,
    )
    cupy.cuda.cublas.gemmEx(
        *(cupy.cuda.device.get_cublas_handle(), *flags, n, m, k),
        *(scales.ctypes.data, right.data.ptr, factor, right.shape[1]),
        *(left.data.ptr, factor, left.shape[1]),
        *(scales.ctypes.data + scales.itemsize, out.data.ptr, result, n),
        *(compute, _DEFAULT_ALGORITHM),
    )


def _check_edges(left: Sequence[int], right: Sequence[int], product: Product) -> None:
    """Refuse what cuBLAS does not have (cuBLAS documentation, cublasGemmEx), with the reason."""
    odd = next((edge for edge in (*left, *right) if edge % _INT8_EDGE), None)
    if product.math_mode == "int8" and odd is not None:
        raise MissingError(
            code="edge-unsupported",
            message=f"cuBLAS multiplies int8 only where all edges are multiples of {_INT8_EDGE}, "
            f"not {odd}",
            remedy=(f"choose --size {max(_INT8_EDGE, odd // _INT8_EDGE * _INT8_EDGE)}",),
        )


def cublas_version(cupy: Any, device: int) -> str | None:
    """Return cuBLAS' version ("12.8.4"), None where it cannot be loaded: then no product runs."""
    try:
        with cupy.cuda.Device(device):
            number = int(cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle()))
    except Exception:  # whatever CuPy raises: the row that needs cuBLAS says why it failed
        return None
    # cublasGetVersion: 10000 x major + 100 x minor + patch.
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
