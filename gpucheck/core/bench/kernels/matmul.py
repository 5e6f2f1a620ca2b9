"""Matrix product C = A B in float32: NumPy's BLAS on the CPU, cuBLAS through CuPy on a GPU.

For A (m, k) and B (k, n): 2 m n k floating-point operations (one multiplication and one addition
for each term); at least 4 (m k + k n + m n) bytes, each matrix passing memory once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.core.bench.gpu_case import EndToEndCase, ResidentCase, set_count
from gpucheck.core.bench.kernel import (
    HOST_SPAN_S,
    CacheFit,
    Case,
    CaseLabel,
    CaseOrder,
    Work,
    thread_counts,
)
from gpucheck.models.bench import BenchMode, BenchRequest, DtypeSpec, Verified
from gpucheck.probes.cupy_device import GpuArray, GpuDevice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

FLOAT32_EPSILON = 2.0**-24
#: TF32 keeps ten bits of the inputs' mantissas; its error does not grow with k.
_TF32_BOUND = 4e-3
#: Rows converted to float64 at once by the check: bounds its memory.
_CHECK_ROWS = 512


class Matmul:
    """The kernel `matmul`."""

    id = "matmul"
    dtypes = ("float32",)
    #: Quick stays small so that one thread gets its samples in time.
    sizes = MappingProxyType({BenchMode.QUICK: 1024, BenchMode.DEFAULT: 2048, BenchMode.FULL: 4096})

    def validate(self, request: BenchRequest) -> None:
        """Accept every request: a product has no parameters of its own."""

    def shape(self, size: int) -> tuple[int, ...]:
        """Return (m, k, n) for square matrices of edge `size`."""
        return (size, size, size)

    def work(self, shape: tuple[int, ...]) -> Work:
        """Return 2 m n k operations and 4 (m k + k n + m n) bytes."""
        m, k, n = shape
        return Work(flops=2 * m * n * k, bytes_moved=4 * (m * k + k * n + m * n), unit="FLOP/s")

    def host_bytes(self, shape: tuple[int, ...], gpu_count: int) -> int:
        """Return A, B and two outputs, each GPU's pinned copies, and the check's blocks."""
        m, k, n = shape
        one_set = 4 * (m * k + k * n + m * n)
        return (1 + gpu_count) * one_set + 2 * 4 * m * n + 8 * _CHECK_ROWS * (k + n)

    def device_bytes(self, shape: tuple[int, ...]) -> int:
        """Return two sets of matrices: the resident case's, at least one, and the end-to-end's."""
        return 2 * self.work(shape).bytes_moved

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return NumPy's BLAS with all threads and with one."""
        return [CpuMatmul(order, threads) for threads in thread_counts(order.cpu)]

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return cuBLAS on data in place, and with pinned transfers."""
        operation = GpuMatmul(order, gpu)
        return [ResidentCase(gpu, operation), EndToEndCase(gpu, operation, order.clock)]


class CpuMatmul:
    """numpy.matmul into a preallocated output, with a stated number of BLAS threads."""

    shortest_span_s = HOST_SPAN_S
    starved_share = 0.0

    def __init__(self, order: CaseOrder, threads: int) -> None:
        self._order = order
        self._threads = threads
        self.work = Matmul().work(order.shape)
        self.label = CaseLabel(
            kernel="matmul",
            variant="blas" if threads == order.cpu.threads else "blas-1-thread",
            device="cpu",
            shape=order.shape,
            dtype=DtypeSpec(
                input="float32", accumulate="float32", output="float32", math_mode="fp32"
            ),
            threads=threads,
        )

    @property
    def cache_fit(self) -> CacheFit | None:
        """Return None: a blocked product reuses the cache by design."""
        return None

    def prepare(self) -> None:
        """Draw the inputs and allocate the output."""
        import numpy as np

        self._left, self._right = draw_inputs(self._order)
        m, _, n = self._order.shape
        self._out = np.empty((m, n), dtype=np.float32)

    def poison(self) -> None:
        """Fill the output with NaN."""
        self._out.fill(math.nan)

    def run(self, loops: int) -> float:
        """Multiply `loops` times and return the elapsed seconds."""
        import numpy as np

        left, right, out, now_s = self._left, self._right, self._out, self._order.clock.now_s
        with self._order.blas.limited(self._threads):
            start_s = now_s()
            for _ in range(loops):
                np.matmul(left, right, out=out)
            return now_s() - start_s

    def check(self) -> Verified:
        """Compare the output with float64 by Freivalds' test."""
        with self._order.blas.limited(self._order.cpu.threads):
            return verify_product(self._order, self._out, float32_bound(self._order.shape[1]))

    def release(self) -> None:
        """Drop the output; the inputs belong to the group."""
        import numpy as np

        self._out = self._left = self._right = np.empty((0, 0), dtype=np.float32)


class GpuMatmul:
    """cuBLAS' float32 product as the GPU cases use it."""

    def __init__(self, order: CaseOrder, gpu: GpuDevice) -> None:
        self._order = order
        self._gpu = gpu
        mode = gpu.facts.float32_math
        self._bound = _TF32_BOUND if mode == "tf32" else float32_bound(order.shape[1])
        self.work = Matmul().work(order.shape)
        self.label = CaseLabel(
            kernel="matmul",
            variant="cublas",
            device=f"gpu:{gpu.facts.cuda_index}",
            gpu_uuid=gpu.facts.uuid,
            shape=order.shape,
            dtype=DtypeSpec(
                input="float32", accumulate="float32", output="float32", math_mode=mode
            ),
        )

    def inputs(self) -> tuple[HostArray, ...]:
        """Return A and B on the host."""
        return draw_inputs(self._order)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return C's shape."""
        m, _, n = self._order.shape
        return (m, n)

    @property
    def sets(self) -> int:
        """Return how many sets of matrices to rotate through."""
        return set_count(self.work.bytes_moved, self._gpu)

    def compile(self) -> None:
        """Do nothing: cuBLAS comes compiled."""

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue one product."""
        self._gpu.matmul(inputs[0], inputs[1], out)

    def verify(self, out: HostArray) -> Verified:
        """Compare an output with float64."""
        return verify_product(self._order, out, self._bound)


def draw_inputs(order: CaseOrder) -> tuple[HostArray, HostArray]:
    """Return A (m, k) and B (k, n), the same arrays for every case of a group."""
    m, k, n = order.shape
    return order.data.normal("matmul-left", (m, k)), order.data.normal("matmul-right", (k, n))


def float32_bound(terms: int) -> float:
    """Return 4 eps sqrt(k): rounding errors of k terms add up like a random walk."""
    return 4 * FLOAT32_EPSILON * math.sqrt(terms) + FLOAT32_EPSILON


def verify_product(order: CaseOrder, out: HostArray, bound: float) -> Verified:
    """Compare out with A B in float64 by Freivalds' test: out x against A (B x), x random.

    The error is the largest row's deviation, scaled to one entry and to the typical entry:
    max |out x - A (B x)| / (sqrt(n) rms(A B)). It takes O(n^2) work instead of O(n^3), and a single
    wrong entry shows in its row. Freivalds (1977), "Probabilistic machines can use less running
    time". Instead of 0 and 1, x takes values of random sign between 0.5 and 1.5: no entry is passed
    over, and opposite errors of one row do not cancel.
    """
    import numpy as np

    m, k, n = order.shape
    probe, expected = order.data.once("matmul-reference", lambda: _reference(order))
    found = _times_vector(out, probe)
    # Entries of A B are sums of k products of standard normals: their rms is sqrt(k).
    deviation = np.abs(found - expected) / math.sqrt(n * k)
    worst = float(np.max(deviation)) if m else 0.0
    finite = math.isfinite(worst)
    return Verified(
        error=worst if finite else None,
        bound=bound,
        ok=finite and worst <= bound,
        reference="float64, Freivalds' test over every row",
    )


def _reference(order: CaseOrder) -> tuple[HostArray, HostArray]:
    """Return the random vector x and A (B x), in float64."""
    import numpy as np

    left, right = draw_inputs(order)
    generator = np.random.default_rng(7)
    signs = generator.choice([-1.0, 1.0], order.shape[2])
    probe = signs * generator.uniform(0.5, 1.5, order.shape[2])
    return probe, _times_vector(left, _times_vector(right, probe))


def _times_vector(matrix: HostArray, vector: HostArray) -> HostArray:
    """Return matrix @ vector in float64, converted block by block."""
    import numpy as np

    parts = [
        matrix[low : low + _CHECK_ROWS].astype(np.float64) @ vector
        for low in range(0, matrix.shape[0], _CHECK_ROWS)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)
