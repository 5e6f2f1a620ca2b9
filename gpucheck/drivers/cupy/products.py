"""Matrix products by cuBLAS: cublasGemmEx through CuPy's binding, float8 through cuBLASLt.

The binding is `cupy.cuda.cublas`: CuPy 14 loads the library from NVIDIA's wheels before it returns
this one. Imported by its own name, it needs the libcublas of a system-wide toolkit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucheck.drivers.cupy.cublaslt import Float8Products
from gpucheck.drivers.gpu import PRODUCT_EDGES, Product
from gpucheck.report.errors import MissingError

#: cuBLAS: transposition flags, and the default choice of algorithm (cublas_api.h).
_NORMAL, _TRANSPOSED, _DEFAULT_ALGORITHM = 0, 1, -1
#: By arithmetic: the format whose edges it needs.
_FORMATS = {"int8": "int8", "fp8": "float8"}
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


class Products:
    """Products on one device, which must be current."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._float8 = Float8Products(cupy)

    def multiply(self, left: Any, right: Any, out: Any, product: Product) -> None:
        """Enqueue a product on the current stream, in exactly the requested arithmetic.

        Raises:
            MissingError: cuBLAS has no such product.
        """
        _check_edges(left.shape, right.shape, product)
        if product.math_mode == "fp8":
            _check_layout(product)
            self._float8.multiply(left, right, out, product)
        else:
            _multiply(self._cupy, left, right, out, product)

    def release(self) -> None:
        """Release all that products hold besides their matrices."""
        self._float8.release()


def _multiply(cupy: Any, left: Any, right: Any, out: Any, product: Product) -> None:
    """Enqueue a product by cublasGemmEx.

    cuBLAS is column-major, so it gets the transposed problem, out' = right' left'.
    """
    import numpy as np

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
    """Refuse edges that cuBLAS does not support, and name the nearest that it does."""
    name = _FORMATS.get(product.math_mode, "")
    step = PRODUCT_EDGES.get(name, 1)
    odd = next((edge for edge in (*left, *right) if edge % step), None)
    if odd is not None:
        raise MissingError(
            code="edge-unsupported",
            message=f"cuBLAS multiplies {name} only where all edges are multiples of {step}, "
            f"not {odd}",
            remedy=(f"choose --size {max(step, odd // step * step)}",),
        )


def _check_layout(product: Product) -> None:
    """Refuse the layouts that float8 lacks on GPUs before Blackwell."""
    if product.left_transposed or not product.right_transposed:
        raise MissingError(
            code="layout-unsupported",
            message="cuBLASLt multiplies float8 only with the second factor stored transposed",
            remedy=("choose another format",),
        )


def cublas_version(cupy: Any, device: int) -> str | None:
    """Return cuBLAS' version ("12.8.4"), or None if it cannot be loaded; then no product runs."""
    try:
        with cupy.cuda.Device(device):
            number = int(cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle()))
    except Exception:  # any error of CuPy's: the row that needs cuBLAS reports it
        return None
    # cublasGetVersion: 10000 x major + 100 x minor + patch.
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
