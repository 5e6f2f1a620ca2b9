"""Matrix product C = A B: NumPy's BLAS on the CPU, cuBLAS (tensor cores where a format has them).

For A (m, k) and B (k, n): 2 m n k operations (one multiplication and one addition for each term);
at least the bytes of A, B and C, each passing memory once. `nt` variants are given B transposed,
(n, k): the layout of most layers of neural networks, and for int8 the one of the tensor cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.core.bench.cpu_case import CpuCase, cpu_label
from gpucheck.core.bench.data import fresh_array
from gpucheck.core.bench.formats import FORMATS, STORAGES, Format, decode, encode
from gpucheck.core.bench.gpu_case import EndToEndCase, ResidentCase, gpu_label
from gpucheck.core.bench.kernel import Case, CaseOrder, KernelBase, Work, thread_counts
from gpucheck.models.bench import BenchGpu, BenchMode, Verified
from gpucheck.probes.gpu import GpuArray, GpuDevice, Product

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: What NumPy gives to its BLAS; for other types it has a plain loop, no opponent for anybody.
_CPU_FORMATS = ("float32", "float64")
#: Rows converted to float64 at once by the check: bounds its memory.
_CHECK_ROWS = 512
_OUTPUT_ITEMSIZE = {"float64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}


class Matmul(KernelBase):
    """The kernel `matmul`."""

    id = "matmul"
    dtypes = MappingProxyType(
        {
            BenchMode.QUICK: ("float32", "bfloat16"),
            BenchMode.DEFAULT: ("float32", "float64", "tf32", "bfloat16", "float16", "int8"),
            BenchMode.FULL: tuple(FORMATS),
        }
    )
    #: Quick stays small so that one thread gets its samples in time.
    sizes = MappingProxyType({BenchMode.QUICK: 1024, BenchMode.DEFAULT: 2048, BenchMode.FULL: 4096})

    def cpu_refusal(self, dtype: str) -> str | None:
        """Refuse what NumPy computes without a BLAS."""
        if dtype in _CPU_FORMATS:
            return None
        if dtype == "tf32":
            return "processors have no tf32"
        return f"NumPy has no fair {dtype} product: it would be a loop without BLAS"

    def gpu_refusal(self, dtype: str, gpu: BenchGpu) -> str | None:
        """Refuse formats that the GPU's tensor cores do not have."""
        return missing_format(FORMATS[dtype], gpu)

    def shape(self, size: int) -> tuple[int, ...]:
        """Return (m, k, n) for square matrices of edge `size`."""
        return (size, size, size)

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return 2 m n k operations and the bytes of A, B and C."""
        m, k, n = shape
        form = FORMATS[dtype]
        stored = form.itemsize * (m * k + k * n) + _OUTPUT_ITEMSIZE[form.output] * m * n
        return Work(flops=2 * m * n * k, bytes_moved=stored, unit="FLOP/s")

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return the drawn and the stored inputs, two outputs, pinned copies, the check's blocks.

        The inputs count twice, since the transposed B has numbers of its own.
        """
        m, k, n = shape
        wide = 8 if dtype == "float64" else 4
        drawn = wide * (m * k + 2 * k * n)
        one_set = self.work(shape, dtype).bytes_moved
        return drawn + (2 + gpu_count) * one_set + 2 * wide * m * n + 16 * _CHECK_ROWS * (k + n)

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return three sets of matrices: one for each layout, and the end-to-end case's."""
        return 3 * self.work(shape, dtype).bytes_moved

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return NumPy's BLAS with all threads and with one, and with B transposed."""
        cases = [CpuMatmul(order, threads) for threads in thread_counts(order.cpu)]
        if order.request.mode is not BenchMode.QUICK:
            cases.append(CpuMatmul(order, order.cpu.threads, transposed=True))
        return cases

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return cuBLAS on data in place and with pinned transfers, and with B transposed."""
        if order.dtype == "int8":
            # Tensor cores multiply integers in this layout only.
            transposed = GpuMatmul(order, gpu, transposed=True)
            return [ResidentCase(gpu, transposed), EndToEndCase(gpu, transposed, order.clock)]
        operation = GpuMatmul(order, gpu)
        cases: list[Case] = [
            ResidentCase(gpu, operation),
            EndToEndCase(gpu, operation, order.clock),
        ]
        if order.request.mode is not BenchMode.QUICK:
            cases.append(ResidentCase(gpu, GpuMatmul(order, gpu, transposed=True)))
        return cases


def missing_format(form: Format, gpu: BenchGpu) -> str | None:
    """Return that a GPU does not have a format, or None if it does."""
    major, _, minor = gpu.compute_capability.partition(".")
    if (int(major), int(minor)) >= form.capability:
        return None
    first = ".".join(str(part) for part in form.capability)
    return f"{gpu.name} has no {form.name}: that came with compute capability {first}"


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
        """Compare the output with float64 by Freivalds' test."""
        with self._order.blas.limited(self._order.cpu.threads):
            return verify_product(self._order, self._out, transposed=self._transposed)

    def release(self) -> None:
        """Drop the output; the inputs belong to the group."""
        import numpy as np

        self._out = self._left = self._right = np.empty((0, 0), dtype=np.float32)


class GpuMatmul:
    """cuBLAS' product in one format as the GPU cases use it."""

    captured = False

    def __init__(self, order: CaseOrder, gpu: GpuDevice, *, transposed: bool = False) -> None:
        self._order = order
        self._gpu = gpu
        self._transposed = transposed
        form = FORMATS[order.dtype]
        if order.dtype == "float32" and gpu.facts.float32_math == "tf32":
            form = FORMATS["tf32"]
        self._form = form
        self._product = Product(math_mode=form.math_mode, right_transposed=transposed)
        self.output_storage = STORAGES[form.output]
        self.work = Matmul().work(order.shape, order.dtype)
        variant = "cublas-nt" if transposed else "cublas"
        self.label = gpu_label(order, "matmul", variant, gpu, form.spec)

    def inputs(self) -> tuple[HostArray, ...]:
        """Return A and B on the host, as they are stored."""
        return draw_inputs(self._order, transposed=self._transposed)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return C's shape."""
        m, _, n = self._order.shape
        return (m, n)

    def compile(self) -> None:
        """Do nothing: cuBLAS comes compiled."""

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue one product."""
        self._gpu.multiply(inputs[0], inputs[1], out, self._product)

    def verify(self, out: HostArray) -> Verified:
        """Compare an output with float64."""
        return verify_product(self._order, out, transposed=self._transposed, form=self._form)


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


def product_bound(form: Format, terms: int) -> float:
    """Return the error allowed for a product of `terms` terms, relative to the typical entry.

    4 u sqrt(k) for the sums in the accumulator's precision, since rounding errors add up like a
    random walk, and 8 roundings of an entry where the factors or the output are rounded further.
    Integers are exact; what is left is the check's own rounding. A float64 product is checked in
    float64, which rounds as often as the product itself.
    """
    if form.name == "int8":
        return 1e-9
    sums = FORMATS[form.accumulate].roundoff
    if form.name == "float64":
        return 16 * sums * (1 + math.sqrt(terms))
    further = 8 * form.roundoff if form.roundoff > sums else sums
    return 4 * sums * math.sqrt(terms) + further


def verify_product(
    order: CaseOrder, out: HostArray, *, transposed: bool = False, form: Format | None = None
) -> Verified:
    """Compare out with A B in float64 by Freivalds' test: out x against A (B x), x random.

    The error is the largest row's deviation relative to the rows' typical size:
    max |out x - A (B x)| / rms(A (B x)). It takes O(n^2) work instead of O(n^3), and a single wrong
    entry shows in its row. Freivalds (1977), "Probabilistic machines can use less running time".
    Instead of 0 and 1, x takes values of random sign between 0.5 and 1.5: no entry is passed over,
    and opposite errors of one row do not cancel.
    """
    import numpy as np

    form = form or FORMATS[order.dtype]
    name = f"matmul-reference-{order.shape}-{order.dtype}-{transposed}"
    probe, expected = order.data.keep(name, lambda: _reference(order, transposed))
    found = _times_vector(out, probe, form.output)
    # Zeros times anything have no typical size: then the deviation itself is the error.
    typical = float(np.sqrt(np.mean(np.square(expected)))) or 1.0
    worst = float(np.max(np.abs(found - expected))) / typical
    finite = math.isfinite(worst)
    bound = product_bound(form, order.shape[1])
    return Verified(
        error=worst if finite else None,
        bound=bound,
        ok=finite and worst <= bound,
        reference="float64, Freivalds' test over every row",
    )


def _reference(order: CaseOrder, transposed: bool) -> tuple[HostArray, HostArray]:
    """Return the random vector x and A (B x), in float64, from the inputs as they are stored."""
    import numpy as np

    left, right = draw_inputs(order, transposed=transposed)
    generator = np.random.default_rng(7)
    signs = generator.choice([-1.0, 1.0], order.shape[2])
    probe = signs * generator.uniform(0.5, 1.5, order.shape[2])
    name = FORMATS[order.dtype].spec.input
    middle = (
        _times_vector_transposed(right, probe, name)
        if transposed
        else _times_vector(right, probe, name)
    )
    return probe, _times_vector(left, middle, name)


def _blocks(matrix: HostArray, name: str) -> Iterator[tuple[slice, HostArray]]:
    """Yield the matrix in float64, a block of rows at a time."""
    import numpy as np

    for low in range(0, len(matrix), _CHECK_ROWS):
        part = slice(low, low + _CHECK_ROWS)
        yield part, decode(matrix[part], name).astype(np.float64)


def _times_vector(matrix: HostArray, vector: HostArray, name: str) -> HostArray:
    """Return matrix @ vector in float64, converted block by block."""
    import numpy as np

    return np.concatenate([block @ vector for _, block in _blocks(matrix, name)])


def _times_vector_transposed(matrix: HostArray, vector: HostArray, name: str) -> HostArray:
    """Return matrix.T @ vector in float64, converted block by block."""
    import numpy as np

    total = np.zeros(matrix.shape[1])
    for part, block in _blocks(matrix, name):
        total += vector[part] @ block
    return total
