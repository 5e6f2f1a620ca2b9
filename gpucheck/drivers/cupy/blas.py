"""Matrix products by cuBLAS: cublasGemmEx through CuPy's binding, float8 through cuBLASLt.

The binding is `cupy.cuda.cublas`: CuPy 14 loads the library from NVIDIA's wheels before it returns
this one. Imported by its own name, it needs the libcublas of a system-wide toolkit.

CuPy does not bind cuBLASLt, so ctypes does, on the library that cuBLAS has loaded: nothing else
needs to be installed, and float8 runs in the same version as all other products. The argument types
come from cublasLt.h; a test compares the numbers below with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpucheck.drivers.cupy.install import install_cupy
from gpucheck.drivers.gpu import FLOAT8_WORKSPACE_BYTES, PRODUCT_EDGES, Product
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
            # GPUs before Blackwell have no other layout for float8.
            if product.left_transposed or not product.right_transposed:
                raise MissingError(
                    code="layout-unsupported",
                    message="cuBLASLt multiplies float8 only with the second factor stored"
                    " transposed",
                    remedy=("Choose another format.",),
                )
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
            remedy=(f"Choose --size {max(step, odd // step * step)}.",),
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


# ---------------------------------------------------------------------------- cuBLASLt

#: library_types.h, cublas_api.h and cublasLt.h: types of numbers, computation, transposition flags,
#: attributes of a product and of the search for its algorithm.
CUDA_R_32F, CUDA_R_16BF, CUDA_R_8F_E4M3 = 0, 14, 28
CUBLAS_COMPUTE_32F = 68
CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB = 3, 4
CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 17, 18
CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25
CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1
#: Status of a search that finds no algorithm.
_NOT_SUPPORTED = "CUBLAS_STATUS_NOT_SUPPORTED"

_OUT, _POINTER = ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
_INT, _SIZE = ctypes.c_int, ctypes.c_size_t


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm and its workspace."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


#: Argument types of each function, from cublasLt.h. All return a status.
_ARGUMENTS: dict[str, Sequence[Any]] = {
    "cublasLtCreate": (_OUT,),
    "cublasLtDestroy": (_POINTER,),
    "cublasLtMatmulDescCreate": (_OUT, _INT, _INT),
    "cublasLtMatmulDescSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
    "cublasLtMatmulDescDestroy": (_POINTER,),
    "cublasLtMatrixLayoutCreate": (
        *(_OUT, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    ),
    "cublasLtMatrixLayoutDestroy": (_POINTER,),
    "cublasLtMatmulPreferenceCreate": (_OUT,),
    "cublasLtMatmulPreferenceSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
    "cublasLtMatmulPreferenceDestroy": (_POINTER,),
    "cublasLtMatmulAlgoGetHeuristic": (
        *(_POINTER,) * 7,
        *(_INT, ctypes.POINTER(Heuristic), ctypes.POINTER(_INT)),
    ),
    # handle, product, alpha, A, its layout, B, C and D likewise (beta before C), algorithm,
    # workspace, its size, stream
    "cublasLtMatmul": (*(_POINTER,) * 14, _SIZE, _POINTER),
}


class CublasLtError(RuntimeError):
    """Failed call; `status` is cuBLAS' name for the result."""

    def __init__(self, status: str, function: str) -> None:
        self.status = status
        super().__init__(f"{status} ({function})")


class CublasLt:
    """Functions of one libcublasLt; they raise CublasLtError for any status but success.

    Raises:
        OSError: there is no such library.
    """

    def __init__(self, name: str) -> None:
        self._library = ctypes.CDLL(name)
        for function, arguments in _ARGUMENTS.items():
            getattr(self._library, function).argtypes = arguments
        self._library.cublasLtGetStatusName.restype = ctypes.c_char_p

    def ask(self, function: str, *arguments: object) -> None:
        """Call a function."""
        status = int(getattr(self._library, function)(*arguments))
        if status:
            name = self._library.cublasLtGetStatusName(status).decode()
            raise CublasLtError(name, function)

    def create(self, kept: ExitStack, kind: str, *arguments: object) -> ctypes.c_void_p:
        """Return a new handle, descriptor or layout, destroyed when `kept` is closed."""
        made = ctypes.c_void_p()
        self.ask(f"cublasLt{kind}Create", ctypes.byref(made), *arguments)
        # The status is ignored: the GPU may be lost by then.
        kept.callback(getattr(self._library, f"cublasLt{kind}Destroy"), made)
        return made

    def set(self, kind: str, descriptor: ctypes.c_void_p, attribute: int, value: Any) -> None:
        """Set an attribute to a value of its type."""
        place, size = ctypes.byref(value), ctypes.sizeof(value)
        self.ask(f"cublasLt{kind}SetAttribute", descriptor, attribute, place, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Descriptors of a product; `scale` holds a number that the GPU reads."""

    product: ctypes.c_void_p
    left: ctypes.c_void_p
    right: ctypes.c_void_p
    out: ctypes.c_void_p
    heuristic: Heuristic
    scale: Any


class Float8Products:
    """float8 products on one device: C = A B in bfloat16, with B stored transposed.

    cuBLASLt is column-major, so it gets out' = right' left' with the first factor transposed. This
    is its only layout for float8 before Blackwell.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._kept = ExitStack()
        #: Equal products share a plan.
        self._plans: dict[object, _Plan] = {}
        self._library: CublasLt | None = None
        self._handle: ctypes.c_void_p

    def multiply(self, left: Any, right: Any, out: Any, product: Product) -> None:
        """Enqueue a product of e4m3 matrices on the current stream of the current device.

        Raises:
            MissingError: the library is missing, or it has no such product for this GPU.
        """
        plan, library = self._planned(left, right, product), self._opened()
        alpha, beta = ctypes.c_float(product.alpha), ctypes.c_float(product.beta)
        workspace_bytes = plan.heuristic.workspace_bytes
        # Freed at once: the pool reuses it only for later work on this stream.
        workspace = self._cupy.empty(max(1, workspace_bytes), dtype="uint8")
        library.ask(
            "cublasLtMatmul",
            *(self._handle, plan.product, ctypes.byref(alpha)),
            *(right.data.ptr, plan.right, left.data.ptr, plan.left, ctypes.byref(beta)),
            *(out.data.ptr, plan.out, out.data.ptr, plan.out),
            *(ctypes.byref(plan.heuristic), workspace.data.ptr, workspace_bytes),
            self._cupy.cuda.get_current_stream().ptr,
        )

    def release(self) -> None:
        """Destroy the handle and all descriptors; the next product makes new ones."""
        self._plans.clear()
        self._library = None
        self._kept.close()

    def _opened(self) -> CublasLt:
        if self._library is None:
            library = load_cublaslt(self._cupy)
            self._handle = library.create(self._kept, "")
            self._library = library
        return self._library

    def _planned(self, left: Any, right: Any, product: Product) -> _Plan:
        (m, k), (n, _) = left.shape, right.shape
        key = (m, k, n, product.factor_scale, product.fast_accumulation)
        if key not in self._plans:
            self._plans[key] = self._plan(*key)
        return self._plans[key]

    def _plan(self, m: int, k: int, n: int, factor_scale: float, fast: bool) -> _Plan:
        """Describe a product, and let cuBLASLt choose its algorithm."""
        library = self._opened()
        create: Callable[..., ctypes.c_void_p] = partial(library.create, self._kept)
        product = create("MatmulDesc", CUBLAS_COMPUTE_32F, CUDA_R_32F)
        scale = self._cupy.asarray([factor_scale], dtype="float32")
        address = ctypes.c_void_p(scale.data.ptr)
        for attribute, value in (
            (CUBLASLT_MATMUL_DESC_TRANSA, ctypes.c_int32(CUBLAS_OP_T)),
            (CUBLASLT_MATMUL_DESC_TRANSB, ctypes.c_int32(CUBLAS_OP_N)),
            (CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, address),
            (CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, address),
            (CUBLASLT_MATMUL_DESC_FAST_ACCUM, ctypes.c_int8(fast)),
        ):
            library.set("MatmulDesc", product, attribute, value)
        # Our rows are columns here: B is (k, n), A is (k, m) and C is (n, m).
        right = create("MatrixLayout", CUDA_R_8F_E4M3, k, n, k)
        left = create("MatrixLayout", CUDA_R_8F_E4M3, k, m, k)
        out = create("MatrixLayout", CUDA_R_16BF, n, m, n)
        heuristic = self._best(library, product, (right, left, out, out))
        return _Plan(
            product=product, left=left, right=right, out=out, heuristic=heuristic, scale=scale
        )

    def _best(
        self, library: CublasLt, product: ctypes.c_void_p, layouts: Sequence[ctypes.c_void_p]
    ) -> Heuristic:
        """Return cuBLASLt's first choice of algorithm, as PyTorch does."""
        heuristic, count = Heuristic(), ctypes.c_int()
        with ExitStack() as searching:
            preference = library.create(searching, "MatmulPreference")
            limit = ctypes.c_size_t(FLOAT8_WORKSPACE_BYTES)
            attribute = CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
            library.set("MatmulPreference", preference, attribute, limit)
            wanted = (self._handle, product, *layouts, preference, 1)
            places = (ctypes.byref(heuristic), ctypes.byref(count))
            try:
                library.ask("cublasLtMatmulAlgoGetHeuristic", *wanted, *places)
            except CublasLtError as error:
                if error.status != _NOT_SUPPORTED:
                    raise
        if not count.value:
            raise MissingError(
                code="float8-unsupported",
                message="this cuBLASLt has no float8 product of this shape for this GPU",
                remedy=("Install a newer cuBLAS for the same CUDA.", "Choose another --size."),
            )
        return heuristic


def load_cublaslt(cupy: Any) -> CublasLt:
    """Return the cuBLASLt that belongs to CuPy's cuBLAS.

    cuBLAS cannot be loaded without it, so this process has it already, and the system's loader
    finds it by name.

    Raises:
        MissingError: it is missing or too old.
    """
    version = int(cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle()))
    name = f"libcublasLt.so.{version // 10000}"
    try:
        return CublasLt(name)
    except (OSError, AttributeError) as error:
        raise MissingError(
            code="cublaslt-missing",
            message=f"float8 needs cuBLASLt, and {name} cannot be used: {error}",
            remedy=install_cupy(version // 10000),
        ) from error
