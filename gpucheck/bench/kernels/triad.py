"""Memory bandwidth with two sources, y = a x + z in float32: STREAM's triad.

For (rows, columns): 12 bytes for each element (two read, one written) and 2 operations. McCalpin
(1995), "Memory bandwidth and machine balance in current high performance computers".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.bench.case import (
    Case,
    CaseOrder,
    Kernel,
    TeamCase,
    Work,
    cpu_label,
    row_parts,
    thread_counts,
)
from gpucheck.bench.gpu_case import GpuOperation, ResidentCase, gpu_label
from gpucheck.bench.kernels.copy import StreamKernel, packed
from gpucheck.bench.model import Verified
from gpucheck.bench.numerics import FORMATS, fresh_array
from gpucheck.bench.request_model import BenchMode
from gpucheck.drivers.gpu import GpuArray, GpuDevice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Factor a: not a power of two, so that a missing multiplication shows.
FACTOR = 0.7
_FORM = FORMATS["float32"]
#: One product and one sum: two roundings of a result at most twice the typical number.
_BOUND = 4 * _FORM.roundoff
#: Numbers in a piece, so that NumPy's second pass finds those of the first in the cache.
_PIECE = 32768
_CHECKED_ROWS = 32


class Triad(Kernel):
    """The kernel `triad`."""

    id = "triad"
    limited_by_memory = True
    streams = True
    #: `quick` stays small, so that drawing the data leaves time for its rounds.
    sizes = MappingProxyType({BenchMode.QUICK: 3072, BenchMode.DEFAULT: 4096, BenchMode.FULL: 8192})

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return 2 operations and 12 bytes for each element."""
        elements = shape[0] * shape[1]
        return Work(flops=2 * elements, bytes_moved=12 * elements, unit="B/s")

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return two sources, two outputs, each GPU's output, and the check's blocks."""
        return 4 * shape[0] * shape[1] * (4 + gpu_count) + 24 * _CHECKED_ROWS * shape[1]

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return the three arrays."""
        return self.work(shape, dtype).bytes_moved

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return NumPy with all threads and with one."""
        return [CpuTriad(order, threads) for threads in thread_counts(order.cpu)]

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return our own kernel."""
        return [ResidentCase(gpu, GpuTriad(order, gpu))] if packed(order) else []


class CpuTriad(TeamCase):
    """NumPy's product and sum in pieces that stay in the cache; each thread has its own rows."""

    def __init__(self, order: CaseOrder, threads: int) -> None:
        label = cpu_label(order, "triad", "blocked", threads, _FORM.spec)
        super().__init__(order, label, Triad().work(order.shape, "float32"))

    def prepare(self) -> None:
        """Draw the sources, allocate the output, start the threads."""

        self._sources = draw_sources(self._order)
        self._out = fresh_array(self._order.shape, "float32")
        scaled, added = self._sources
        rows, columns = self._order.shape
        parts = [
            (scaled[part].reshape(-1), added[part].reshape(-1), self._out[part].reshape(-1))
            for part in row_parts(rows, columns, self._threads)
        ]
        self.gather(triad, parts)

    def check(self) -> Verified:
        """Compare the output with float64."""
        scaled, added = self._sources
        return verify_triad(scaled, added, self._out)

    def release(self) -> None:
        """Drop the output and end the threads."""
        import numpy as np

        empty = np.empty((0, 0), dtype=np.float32)
        self._sources, self._out = (empty, empty), empty
        super().release()


def triad(scaled: HostArray, added: HostArray, out: HostArray) -> None:
    """Write FACTOR * scaled + added into `out`, all one-dimensional."""
    import numpy as np

    factor = np.float32(FACTOR)
    for low in range(0, len(out), _PIECE):
        piece = out[low : low + _PIECE]
        np.multiply(scaled[low : low + _PIECE], factor, out=piece)
        np.add(piece, added[low : low + _PIECE], out=piece)


class GpuTriad(GpuOperation):
    """The kernel `triad` of stream.cu."""

    captured = True

    def __init__(self, order: CaseOrder, gpu: GpuDevice) -> None:
        self._order = order
        self._stream = StreamKernel(gpu, "triad")
        self.output_shape = order.shape
        self.work = Triad().work(order.shape, "float32")
        self.label = gpu_label(order, "triad", "kernel", gpu.facts, _FORM.spec)

    def inputs(self) -> tuple[HostArray, HostArray]:
        """Return the two sources on the host."""
        return draw_sources(self._order)

    def compile(self) -> None:
        """Compile the kernel."""
        self._stream.compile()

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue one launch."""
        import numpy as np

        self._stream.enqueue((*inputs, out, np.float32(FACTOR)), self.output_shape)

    def verify(self, out: HostArray) -> Verified:
        """Compare an output with float64."""
        scaled, added = self.inputs()
        return verify_triad(scaled, added, out)


def draw_sources(order: CaseOrder) -> tuple[HostArray, HostArray]:
    """Return x and z, the same for every case of a group."""
    data, shape = order.data, order.shape
    return data.normal("triad-scaled", shape), data.normal("triad-added", shape)


def verify_triad(scaled: HostArray, added: HostArray, out: HostArray) -> Verified:
    """Compare every number with float64, relative to |a x| + |z| + 1."""
    import numpy as np

    worst = 0.0
    for low in range(0, len(out), _CHECKED_ROWS):
        part = slice(low, low + _CHECKED_ROWS)
        product = np.float64(np.float32(FACTOR)) * scaled[part].astype(np.float64)
        size = np.abs(product) + np.abs(added[part]) + 1
        difference = np.max(np.abs(out[part] - (product + added[part])) / size)
        # max() would drop a NaN that comes second.
        worst = float(difference) if not difference <= worst else worst
        if not math.isfinite(worst):
            break
    return Verified.of(worst, bound=_BOUND, reference="float64, every number")
