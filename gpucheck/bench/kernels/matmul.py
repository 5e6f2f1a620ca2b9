"""Matrix product C = A B: NumPy's BLAS on the CPU, cuBLAS (with tensor cores) on the GPU.

For A (m, k) and B (k, n): 2 m n k operations (one multiplication and one addition for each term),
and at least the bytes of A, B and C, each passing memory once. `nt` variants take B transposed, (n,
k). Most neural network layers use this layout, and tensor cores need it for int8 and float8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.bench.block_sums import NARROWEST, block_count
from gpucheck.bench.case import Case, CaseOrder, CpuCase, KernelBase, Work, cpu_label, thread_counts
from gpucheck.bench.data import fresh_array
from gpucheck.bench.formats import FORMATS, STORAGES, Format, canonical, output_bytes
from gpucheck.bench.gpu_case import EndToEndCase, ResidentCase, gpu_label, pinned_bytes
from gpucheck.bench.model import BenchMode, BenchRequest, Verified
from gpucheck.bench.product_check import CHECKED_ROWS, draw_inputs, verify_product
from gpucheck.drivers.gpu import (
    FLOAT8_WORKSPACE_BYTES,
    PRODUCT_EDGES,
    BenchGpu,
    GpuArray,
    GpuDevice,
    Product,
)
from gpucheck.report.errors import WrongUseError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Formats that NumPy gives to its BLAS; for others it runs a plain loop, no fair comparison.
_CPU_FORMATS = ("float32", "float64")
#: Formats that tensor cores multiply only with B transposed.
_TRANSPOSED_ONLY = ("int8", "float8")
#: From this compute capability on, fast accumulation changes nothing (cuBLAS' documentation,
#: CUBLASLT_MATMUL_DESC_FAST_ACCUM: it has an effect on Ada and Hopper).
_FAST_UNTIL = (10, 0)
#: Label of the sums in such a row.
FAST_ACCUMULATION = "float32 (fast)"


class Matmul(KernelBase):
    """The kernel `matmul`."""

    id = "matmul"
    dtypes = MappingProxyType(
        {
            BenchMode.QUICK: ("float32", "bfloat16"),
            BenchMode.DEFAULT: (
                "float32",
                "float64",
                "tf32",
                "bfloat16",
                "float16",
                "int8",
                "float8",
            ),
            BenchMode.FULL: tuple(FORMATS),
        }
    )
    #: `quick` stays small, so that one thread gets its samples in time.
    sizes = MappingProxyType({BenchMode.QUICK: 1024, BenchMode.DEFAULT: 2048, BenchMode.FULL: 4096})

    def validate(self, request: BenchRequest) -> None:
        """Refuse a size that no requested format supports.

        Raises:
            WrongUseError: there is no such product.
        """
        asked = [canonical(name) for name in request.dtypes]
        size = request.size or 0
        refusals = [self.size_refusal(name, size) for name in asked if name in FORMATS]
        if refusals and all(refusals):
            step = max(PRODUCT_EDGES[name] for name in asked if name in FORMATS)
            raise WrongUseError(
                code="edge-unsupported",
                message=f"This product is not possible: {refusals[0]}.",
                remedy=(f"Choose --size {max(step, size // step * step)}.",),
            )

    def size_refusal(self, dtype: str, size: int) -> str | None:
        """Refuse edges that cuBLAS does not support in a format."""
        step = PRODUCT_EDGES.get(dtype, 1)
        if size % step == 0:
            return None
        return f"cuBLAS multiplies {dtype} only where edges are multiples of {step}, not {size}"

    def cpu_refusal(self, dtype: str) -> str | None:
        """Refuse what NumPy computes without a BLAS."""
        if dtype in _CPU_FORMATS:
            return None
        if dtype == "tf32":
            return "CPUs have no tf32 arithmetic"
        return f"NumPy multiplies {dtype} without BLAS, which is no fair comparison"

    def gpu_refusal(self, dtype: str, gpu: BenchGpu) -> str | None:
        """Refuse formats that the GPU's tensor cores do not support."""
        return missing_format(FORMATS[dtype], gpu)

    def shape(self, size: int) -> tuple[int, ...]:
        """Return (m, k, n) for square matrices of edge `size`."""
        return (size, size, size)

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return 2 m n k operations and the bytes of A, B and C."""
        m, k, n = shape
        form = FORMATS[dtype]
        stored = form.itemsize * (m * k + k * n) + output_bytes(form) * m * n
        return Work(flops=2 * m * n * k, bytes_moved=stored, unit="FLOP/s")

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return the bytes of drawn and stored inputs, outputs, pinned copies and check blocks.

        The inputs count twice, since the transposed B holds other numbers.
        """
        m, k, n = shape
        wide = 8 if dtype == "float64" else 4
        drawn = wide * (m * k + 2 * k * n)
        form = FORMATS[dtype]
        sides = (form.itemsize * m * k, form.itemsize * k * n, output_bytes(form) * m * n)
        pinned = gpu_count * sum(map(pinned_bytes, sides))
        blocks = -(-n // NARROWEST) if dtype == "float8" else block_count(n)
        checked = 16 * CHECKED_ROWS * (k + n) + 8 * (2 * k + 3 * m) * blocks
        return drawn + 2 * sum(sides) + pinned + 2 * wide * m * n + checked

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return three sets of matrices: one for each variant, and the end-to-end case's."""
        workspace = FLOAT8_WORKSPACE_BYTES if dtype == "float8" else 0
        return 3 * self.work(shape, dtype).bytes_moved + workspace

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return NumPy's BLAS with all threads and with one, and with B transposed."""
        cases = [CpuMatmul(order, threads) for threads in thread_counts(order.cpu)]
        if order.request.mode is not BenchMode.QUICK:
            cases.append(CpuMatmul(order, order.cpu.threads, transposed=True))
        return cases

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return cuBLAS on resident data and with pinned transfers, then its second variant.

        The second variant has B transposed; for float8 it uses fast accumulation.
        """
        one_layout = order.dtype in _TRANSPOSED_ONLY
        operation = GpuMatmul(order, gpu, transposed=one_layout)
        cases: list[Case] = [
            ResidentCase(gpu, operation),
            EndToEndCase(gpu, operation, order.clock),
        ]
        if order.request.mode is BenchMode.QUICK:
            return cases
        if not one_layout:
            cases.append(ResidentCase(gpu, GpuMatmul(order, gpu, transposed=True)))
        elif order.dtype == "float8" and _capability(gpu.facts) < _FAST_UNTIL:
            fast = GpuMatmul(order, gpu, transposed=True, fast_accumulation=True)
            cases.append(ResidentCase(gpu, fast))
        return cases


def missing_format(form: Format, gpu: BenchGpu) -> str | None:
    """Return why a GPU does not support a format, or None if it does."""
    if _capability(gpu) >= form.capability:
        return None
    first = ".".join(str(part) for part in form.capability)
    return f"{gpu.name} does not support {form.name}: it needs compute capability {first}"


def _capability(gpu: BenchGpu) -> tuple[int, int]:
    major, _, minor = gpu.compute_capability.partition(".")
    return int(major), int(minor)


class CpuMatmul(CpuCase):
    """numpy.matmul into a preallocated output, with a stated number of BLAS threads."""

    #: A blocked product reuses the cache by design.
    walks_memory = False

    def __init__(self, order: CaseOrder, threads: int, *, transposed: bool = False) -> None:
        variant = "blas-nt" if transposed else "blas"
        label = cpu_label(order, "matmul", variant, threads, FORMATS[order.dtype].spec)
        super().__init__(order, label, Matmul().work(order.shape, order.dtype))
        self._transposed = transposed

    def prepare(self) -> None:
        """Draw the inputs and allocate the output."""
        self._left, right = draw_inputs(self._order, transposed=self._transposed)
        self._right = right.T if self._transposed else right
        m, _, n = self._order.shape
        self._out = fresh_array((m, n), self._order.dtype)

    def poison(self) -> None:
        """Fill the output with NaN."""
        self._out.fill(math.nan)

    def step(self) -> None:
        """Multiply once."""
        import numpy as np

        np.matmul(self._left, self._right, out=self._out)

    def check(self) -> Verified:
        """Compare the output with float64."""
        with self._order.blas.limited(self._order.cpu.threads):
            return verify_product(self._order, self._out, transposed=self._transposed)

    def release(self) -> None:
        """Drop the output; the inputs belong to the group."""
        import numpy as np

        self._out = self._left = self._right = np.empty((0, 0), dtype=np.float32)


class GpuMatmul:
    """cuBLAS matrix product in one format, for the GPU cases.

    `fast_accumulation` keeps float8's sums in the tensor cores to the end, where they lose bits.
    """

    captured = False

    def __init__(
        self,
        order: CaseOrder,
        gpu: GpuDevice,
        *,
        transposed: bool = False,
        fast_accumulation: bool = False,
    ) -> None:
        self._order = order
        self._gpu = gpu
        self._transposed = transposed
        self._fast_accumulation = fast_accumulation
        form = FORMATS[order.dtype]
        if order.dtype == "float32" and gpu.facts.float32_math == "tf32":
            form = FORMATS["tf32"]
        self._form = form
        self._product = product_of(
            form, right_transposed=transposed, fast_accumulation=fast_accumulation
        )
        self.output_storage = STORAGES[form.output]
        self.work = Matmul().work(order.shape, order.dtype)
        spec = replace(form.spec, accumulate=FAST_ACCUMULATION) if fast_accumulation else form.spec
        self.label = gpu_label(order, "matmul", self._variant(), gpu, spec)

    def _variant(self) -> str:
        library = "cublaslt" if self._form.name == "float8" else "cublas"
        layout = "-nt" if self._transposed else ""
        return library + layout + ("-fast-accum" if self._fast_accumulation else "")

    def inputs(self) -> tuple[HostArray, ...]:
        """Return A and B on the host, as they are stored."""
        return draw_inputs(self._order, transposed=self._transposed)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return C's shape."""
        m, _, n = self._order.shape
        return (m, n)

    def compile(self) -> None:
        """Do nothing: cuBLAS is already compiled."""

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue one product."""
        self._gpu.multiply(inputs[0], inputs[1], out, self._product)

    def verify(self, out: HostArray) -> Verified:
        """Compare an output with float64."""
        return verify_product(
            self._order,
            out,
            transposed=self._transposed,
            form=self._form,
            fast_accumulation=self._fast_accumulation,
        )


def product_of(
    form: Format,
    *,
    left_transposed: bool = False,
    right_transposed: bool = False,
    fast_accumulation: bool = False,
) -> Product:
    """Return the settings of a product in a format, with its scale divided out again."""
    return Product(
        math_mode=form.math_mode,
        left_transposed=left_transposed,
        right_transposed=right_transposed,
        factor_scale=1 / form.scale if form.name == "float8" else 1.0,
        fast_accumulation=fast_accumulation,
    )
