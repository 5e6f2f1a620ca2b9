"""Memory bandwidth of a copy, y = x in float32: the ceiling for other kernels.

For (rows, columns): 8 bytes for each element, read once and written once; no arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
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
from gpucheck.bench.model import Verified
from gpucheck.bench.numerics import FORMATS, fresh_array
from gpucheck.bench.request_model import BenchMode
from gpucheck.drivers.gpu import GpuArray, GpuDevice, GpuFunction

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: CUDA kernels: float32 numbers in a pack, threads in a block, packs for each thread.
PACK, BLOCK, UNROLL = 4, 256, 4
#: Macros for compiling stream.cu.
TILE = MappingProxyType({"BLOCK": BLOCK, "UNROLL": UNROLL})
_FLOAT32 = FORMATS["float32"].spec


class Copy(Kernel):
    """The kernel `copy`."""

    id = "copy"
    limited_by_memory = True
    streams = True
    #: 64 MiB: more than four times the last-level cache of most processors.
    sizes = MappingProxyType({BenchMode.QUICK: 4096, BenchMode.DEFAULT: 4096, BenchMode.FULL: 8192})

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return 8 bytes for each element."""
        return Work(flops=0, bytes_moved=8 * shape[0] * shape[1], unit="B/s")

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return the source, three outputs, and each GPU's copy for its check."""
        return 4 * shape[0] * shape[1] * (4 + gpu_count)

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return the bytes of a pair of arrays for each of the two cases."""
        return 2 * self.work(shape, dtype).bytes_moved

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return NumPy's copy with all threads and with one."""
        return [CpuCopy(order, threads) for threads in thread_counts(order.cpu)]

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return the driver's copy and our own kernel's."""
        own = [ResidentCase(gpu, KernelCopy(order, gpu))] if packed(order) else []
        return [ResidentCase(gpu, DriverCopy(order, gpu)), *own]


def packed(order: CaseOrder) -> bool:
    """Return whether the arrays consist of whole packs."""
    return order.shape[0] * order.shape[1] % PACK == 0


class CpuCopy(TeamCase):
    """numpy.copyto, each thread on rows of its own."""

    def __init__(self, order: CaseOrder, threads: int) -> None:
        label = cpu_label(order, "copy", "numpy", threads, _FLOAT32)
        super().__init__(order, label, Copy().work(order.shape, "float32"))

    def prepare(self) -> None:
        """Draw the source, allocate the output, start the threads."""
        import numpy as np

        self._source = self._order.data.normal("copy", self._order.shape)
        self._out = fresh_array(self._order.shape, "float32")
        rows, columns = self._order.shape
        parts = [
            (self._out[part], self._source[part])
            for part in row_parts(rows, columns, self._threads)
        ]
        self.gather(np.copyto, parts)

    def check(self) -> Verified:
        """Count the numbers that differ."""
        return verify_copy(self._source, self._out)

    def release(self) -> None:
        """Drop the output and end the threads."""
        import numpy as np

        self._source = self._out = np.empty((0, 0), dtype=np.float32)
        super().release()


class _GpuCopy(GpuOperation):
    """Base of the GPU copies: label, input and check."""

    captured = True

    def __init__(self, order: CaseOrder, gpu: GpuDevice, variant: str) -> None:
        self._order = order
        self._gpu = gpu
        self.output_shape = order.shape
        self.work = Copy().work(order.shape, "float32")
        self.label = gpu_label(order, "copy", variant, gpu.facts, _FLOAT32)

    def inputs(self) -> tuple[HostArray, ...]:
        """Return the source on the host."""
        return (self._order.data.normal("copy", self._order.shape),)

    def verify(self, out: HostArray) -> Verified:
        """Count the numbers that differ."""
        return verify_copy(self.inputs()[0], out)


class DriverCopy(_GpuCopy):
    """cudaMemcpy within the GPU's memory."""

    def __init__(self, order: CaseOrder, gpu: GpuDevice) -> None:
        super().__init__(order, gpu, "memcpy")

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue one copy."""
        self._gpu.copy(inputs[0], out)


class KernelCopy(_GpuCopy):
    """The kernel `copy` of stream.cu."""

    def __init__(self, order: CaseOrder, gpu: GpuDevice) -> None:
        super().__init__(order, gpu, "kernel")
        self._stream = StreamKernel(gpu, "copy")

    def compile(self) -> None:
        """Compile the kernel."""
        self._stream.compile()

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue one launch."""
        self._stream.enqueue((*inputs, out), self.output_shape)


class StreamKernel:
    """One of stream.cu's kernels on one GPU; a thread moves packs of numbers."""

    def __init__(self, gpu: GpuDevice, name: str) -> None:
        self._gpu = gpu
        self._name = name
        self._function: GpuFunction | None = None

    def compile(self) -> None:
        """Compile the kernel for this GPU, once."""
        if self._function is None:
            self._function = self._gpu.compile(stream_source(), self._name, TILE)

    def enqueue(self, arguments: tuple[object, ...], shape: tuple[int, ...]) -> None:
        """Enqueue one launch on arrays of this shape; `compile` comes first."""
        import numpy as np

        assert self._function is not None
        packs = math.prod(shape) // PACK
        self._function(grid_for(packs), BLOCK, (*arguments, np.int64(packs)))


def grid_for(packs: int) -> int:
    """Return the number of blocks, one for each tile; the GPU schedules them as SMs become free."""
    return max(1, -(-packs // (BLOCK * UNROLL)))


def stream_source() -> str:
    """Return the CUDA source of copy and triad."""
    return Path(__file__).with_name("stream.cu").read_text(encoding="utf-8")


def verify_copy(source: HostArray, out: HostArray) -> Verified:
    """Count the numbers whose bits differ from the source: a copy does not round."""
    import numpy as np

    wrong = int(np.count_nonzero(source.view(np.uint32) != out.view(np.uint32)))
    return Verified.of(float(wrong), bound=0.0, reference="the source, bit by bit")
