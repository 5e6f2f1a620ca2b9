"""Matrix product C = A B: NumPy's BLAS on the CPU, cuBLAS (with tensor cores) on the GPU.

For A (m, k) and B (k, n): 2 m n k operations (one multiplication and one addition for each term),
and at least the bytes of A, B and C, each passing memory once. `nt` variants take B transposed, (n,
k). Most neural network layers use this layout, and tensor cores need it for int8 and float8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.bench.case import Case, CaseOrder, CpuCase, Kernel, Work, cpu_label, thread_counts
from gpucheck.bench.gpu_case import (
    EndToEndCase,
    GpuOperation,
    ResidentCase,
    gpu_label,
    pinned_bytes,
)
from gpucheck.bench.model import Verified
from gpucheck.bench.numerics import (
    FORMATS,
    NARROWEST,
    STORAGES,
    Format,
    block_count,
    block_weights,
    block_width,
    canonical,
    decode,
    encode,
    fresh_array,
    output_bytes,
    sums_over_columns,
    sums_over_rows,
)
from gpucheck.bench.request_model import BenchMode, BenchRequest
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
#: Line of the caches of x86-64 and of most Arm processors.
_CACHE_LINE_BYTES = 64
#: Formats that tensor cores multiply only with B transposed.
_TRANSPOSED_ONLY = ("int8", "float8")
#: From this compute capability on, fast accumulation changes nothing (cuBLAS' documentation,
#: CUBLASLT_MATMUL_DESC_FAST_ACCUM: it has an effect on Ada and Hopper).
_FAST_UNTIL = (10, 0)
#: Label of the sums in such a row.
FAST_ACCUMULATION = "float32 (fast)"


class Matmul(Kernel):
    """The kernel `matmul`."""

    id = "matmul"
    uses_blas = True
    transfers_all = True
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
        requested = [canonical(name) for name in request.dtypes]
        size = request.size or 0
        refusals = [self.size_refusal(name, size) for name in requested if name in FORMATS]
        if refusals and all(refusals):
            step = max(PRODUCT_EDGES[name] for name in requested if name in FORMATS)
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
        elif order.dtype == "float8" and gpu.facts.capability < _FAST_UNTIL:
            fast = GpuMatmul(order, gpu, transposed=True, fast_accumulation=True)
            cases.append(ResidentCase(gpu, fast))
        return cases


def missing_format(form: Format, gpu: BenchGpu) -> str | None:
    """Return why a GPU does not support a format, or None if it does."""
    if gpu.capability >= form.capability:
        return None
    first = ".".join(str(part) for part in form.capability)
    return f"{gpu.name} does not support {form.name}: it needs compute capability {first}"


class CpuMatmul(CpuCase):
    """numpy.matmul into a preallocated output, with a stated number of BLAS threads.

    The output is the left part of a wider array, so that its rows do not share cache sets.
    """

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
        columns = allocated_columns(n, self._order.dtype)
        self._out = fresh_array((m, columns), self._order.dtype)[:, :n]

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


def allocated_columns(columns: int, dtype: str) -> int:
    """Return the columns of an array whose rows are an odd number of cache lines apart.

    Rows a power of two apart fall on few sets of the caches, and a BLAS that updates a tile of C
    evicts the tile's own rows. An odd number of lines reaches every set (benchmarks/README.md).
    """
    itemsize = FORMATS[dtype].itemsize
    lines = -(-columns * itemsize // _CACHE_LINE_BYTES)
    return (lines | 1) * _CACHE_LINE_BYTES // itemsize


class GpuMatmul(GpuOperation):
    """cuBLAS matrix product in one format, for the GPU cases.

    `fast_accumulation` keeps float8's sums in the tensor cores to the end, where they lose bits.
    """

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
        self.output_shape = (order.shape[0], order.shape[2])
        self.output_storage = STORAGES[form.output]
        self.work = Matmul().work(order.shape, order.dtype)
        spec = replace(form.spec, accumulate=FAST_ACCUMULATION) if fast_accumulation else form.spec
        self.label = gpu_label(order, "matmul", self._variant(), gpu.facts, spec)

    def _variant(self) -> str:
        library = "cublaslt" if self._form.name == "float8" else "cublas"
        layout = "-nt" if self._transposed else ""
        return library + layout + ("-fast-accum" if self._fast_accumulation else "")

    def inputs(self) -> tuple[HostArray, ...]:
        """Return A and B on the host, as they are stored."""
        return draw_inputs(self._order, transposed=self._transposed)

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


# -------------------------------------------------------------------- inputs and check

#: Rows that the check converts to float64 at once, to bound its memory. Whole blocks fit into it.
CHECKED_ROWS = 512
#: Fast accumulation keeps 14 bits of a sum at each instruction, which adds this many terms. Source:
#: measurements in the DeepSeek-V3 technical report, 3.3.2.
_FAST_ROUNDOFF, _TERMS_AT_ONCE = 2.0**-13, 32
#: Part of the largest cut of fast accumulation that differs between entries.
_UNEVEN_CUT = 0.1
#: A block's sum may be off by this multiple of an entry's deviation times the root of the block's
#: width; with a normal distribution one in 500 million is further off.
_REACH = 6.0


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
    """Return the error allowed for a product of `terms` terms, relative to the typical sum.

    Six times the deviation of an entry, relative to the typical one. Rounding every partial sum
    leaves 0.3 u sqrt(k) with the accumulator's u, since rounding errors add up like a random walk;
    0.5 are allowed. Rounding the entry to the output's format leaves 0.4 u with its u; one u allows
    for six such roundings, where a library adds up parts of a sum in that format. Factors cut off
    to tf32 leave 1.6 u; two are allowed. Fast accumulation cuts sums off, always towards zero,
    whenever an instruction adds its terms: the same share of every entry, which `verify_product`
    finds, and a rest. Integers are exact; what is left is the check's own rounding. A float64
    product is checked in float64, which rounds as often as the product itself.
    """
    if form.name == "int8":
        return 1e-9
    sums = FORMATS[form.accumulate].roundoff
    if form.name == "float64":
        return _REACH * 2 * sums * (1 + math.sqrt(terms))
    rounded = 2 * form.roundoff if form.name == "tf32" else FORMATS[form.output].roundoff
    further = rounded if rounded > sums else 0.0
    uneven = _UNEVEN_CUT * _largest_cut(terms) if fast_accumulation else 0.0
    return _REACH * (sums * (1 + 0.5 * math.sqrt(terms)) + further + uneven)


def _largest_cut(terms: int) -> float:
    """Return the largest share of an entry that fast accumulation cuts off."""
    return _FAST_ROUNDOFF * terms / _TERMS_AT_ONCE


def verify_product(
    order: CaseOrder,
    out: HostArray,
    *,
    transposed: bool = False,
    form: Format | None = None,
    fast_accumulation: bool = False,
) -> Verified:
    """Compare every entry of `out` with A B in float64, by weighted sums over blocks of columns.

    The error is the largest deviation of a block's sum from that of A B, relative to the sums'
    typical size. docs/reference/bench.md lists what it detects: in any format, an entry that is
    off by a quarter of the typical one; in more precise formats, much less.
    """
    import numpy as np

    form = form or FORMATS[order.dtype]
    # Truncated sums leave larger errors, and a narrow block collects fewer of them.
    width = NARROWEST if fast_accumulation else block_width(order.shape[2])
    name = f"matmul-reference-{order.shape}-{order.dtype}-{transposed}-{width}"
    expected = order.data.keep(name, lambda: _reference(order, transposed, width))
    weights = block_weights(order.shape[2])
    products = np.concatenate(
        [sums_over_columns(block, weights, width) for _, block in _blocks(out, form.output)]
    )
    difference = products - expected
    if fast_accumulation:
        difference += _even_cut(difference, expected, order.shape[1]) * expected
    # A product of zeros has no typical size: then the deviation itself is the error.
    typical = float(np.sqrt(np.mean(np.square(expected)))) or 1.0
    worst = float(np.max(np.abs(difference))) / typical
    bound = product_bound(form, order.shape[1], fast_accumulation=fast_accumulation)
    return Verified.of(
        worst, bound=bound, reference="float64, weighted sums over blocks of every row"
    )


def _even_cut(difference: HostArray, expected: HostArray, terms: int) -> float:
    """Return the best fit of the share cut off every entry, up to the allowed maximum."""
    import numpy as np

    size = float(np.sum(np.square(expected)))
    share = -float(np.sum(difference * expected)) / size if size else 0.0
    return min(max(share, 0.0), _largest_cut(terms))


def _reference(order: CaseOrder, transposed: bool, width: int) -> HostArray:
    """Return the blocks' sums of A B, in float64, from the inputs as they are stored."""
    import numpy as np

    left, right = draw_inputs(order, transposed=transposed)
    weights, name = block_weights(order.shape[2]), FORMATS[order.dtype].spec.input
    if transposed:
        parts = [
            sums_over_rows(block, weights[part], width) for part, block in _blocks(right, name)
        ]
        middle = np.concatenate(parts).T
    else:
        parts = [sums_over_columns(block, weights, width) for _, block in _blocks(right, name)]
        middle = np.concatenate(parts)
    return np.concatenate([block @ middle for _, block in _blocks(left, name)])


def _blocks(matrix: HostArray, name: str) -> Iterator[tuple[slice, HostArray]]:
    """Yield the matrix in float64, one block of rows at a time."""
    import numpy as np

    for low in range(0, len(matrix), CHECKED_ROWS):
        part = slice(low, low + CHECKED_ROWS)
        yield part, decode(matrix[part], name).astype(np.float64)
