"""Timed cases of a GPU operation: on resident data, and with pinned transfers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpucheck.bench.case import EVENT_SPAN_S, Case, CaseLabel, CaseOrder, Work
from gpucheck.bench.model import DtypeSpec, Fact, Scope, Verified
from gpucheck.drivers.gpu import BenchGpu, GpuArray, GpuDevice
from gpucheck.drivers.host.clock import Clock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: After a walk through three times the L2, nothing of a buffer is left in it.
ROTATION_IN_L2 = 3
#: More sets than this take too long to allocate; the row then has the doubt `l2-resident`.
_MOST_SETS = 256
#: Share of the free GPU memory that the rotation may use.
_MOST_MEMORY = 0.5


class GpuOperation(ABC):
    """GPU operation of a kernel; the cases below add buffers and timing.

    `label` is that of the resident case's row, and `work` is what one operation does. The output
    has `output_shape`, and NumPy calls its stored type `output_storage`. With `captured` a batch is
    replayed as a CUDA graph; CuPy refuses to capture cuBLAS.
    """

    label: CaseLabel
    work: Work
    output_shape: tuple[int, ...]
    output_storage: str = "float32"
    captured: bool = False

    @abstractmethod
    def inputs(self) -> Sequence[HostArray]:
        """Return the inputs on the host, as they are stored."""

    def compile(self) -> None:  # noqa: B027 - libraries need no compiling
        """Compile what the operation launches."""

    @abstractmethod
    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue one operation."""

    @abstractmethod
    def verify(self, out: HostArray) -> Verified:
        """Compare an output with float64."""


def set_count(set_bytes: int, gpu: BenchGpu) -> int:
    """Return how many sets of buffers fill three times the L2, if the memory allows it."""
    wanted = -(-ROTATION_IN_L2 * gpu.l2_bytes // max(set_bytes, 1))
    affordable = int(_MOST_MEMORY * gpu.memory_free_bytes // max(set_bytes, 1))
    return max(1, min(wanted, affordable, _MOST_SETS))


def pinned_bytes(size_bytes: int) -> int:
    """Return the memory that a page-locked array takes: CuPy's pool hands out powers of two.

    Source: cupy/cuda/pinned_memory.pyx, PinnedMemoryPool.malloc.
    """
    return 1 << max(9, (size_bytes - 1).bit_length())


class GpuTimer:
    """Timer of batches between two CUDA events, replayed as a graph where possible.

    It also records starvation and the SMs' real clock.
    """

    def __init__(self, gpu: GpuDevice) -> None:
        self._gpu = gpu
        self._graphs: dict[Hashable, Callable[[], None]] = {}
        self._spans = self._starved = 0
        self.sm_clock_mhz: float | None = None

    @property
    def starved_share(self) -> float:
        """Return the share of the spans in which the GPU may have waited for the host."""
        return self._starved / self._spans if self._spans else 0.0

    def seconds(
        self,
        enqueue: Callable[[], None],
        replayed_as: Hashable | None = None,
        *,
        held: bool = True,
    ) -> float:
        """Return the device time of the work that `enqueue` enqueues.

        With a key, the work is captured once and replayed afterwards, so that the host's launches
        leave no gaps between short kernels. `held` is as for `GpuDevice.span`.
        """
        if replayed_as is not None:
            if replayed_as not in self._graphs:
                self._graphs[replayed_as] = self._gpu.capture(enqueue)
            enqueue = self._graphs[replayed_as]
        span = self._gpu.span(enqueue, held=held)
        self._spans += 1
        self._starved += span.starved
        self.sm_clock_mhz = span.sm_clock_mhz
        return span.seconds

    def clear(self) -> None:
        """Drop the graphs and the memory that they hold."""
        self._graphs.clear()


class EventCase(Case):
    """Base of the cases that CUDA events time."""

    def __init__(self, gpu: GpuDevice) -> None:
        self._gpu = gpu
        self._timer = GpuTimer(gpu)

    @property
    def shortest_span_s(self) -> float:
        """Return the shortest span between two events."""
        return EVENT_SPAN_S

    @property
    def starved_share(self) -> float:
        """Return the share of the spans in which the GPU may have waited for the host."""
        return self._timer.starved_share


class ResidentCase(EventCase):
    """Case on data in GPU memory, timed by CUDA events around a batch.

    The batch rotates through several sets of buffers, so that no input is in the L2 cache.
    """

    def __init__(self, gpu: GpuDevice, operation: GpuOperation) -> None:
        super().__init__(gpu)
        self._operation = operation
        self._sets: list[tuple[tuple[GpuArray, ...], GpuArray]] = []
        self._turn = 0
        self._all_checked = False
        self.label = operation.label
        self.work = operation.work

    @property
    def loop_step(self) -> int:
        """Return the number of sets if graphs are replayed, so that each begins with the same set.

        Otherwise every possible first set of a sample would need its own graph.
        """
        return self.sets if self._operation.captured else 1

    @property
    def sets(self) -> int:
        """Return the number of buffer sets to rotate through."""
        return set_count(self.work.bytes_moved, self._gpu.facts)

    @property
    def walked_and_cache_bytes(self) -> tuple[int, int] | None:
        """Return the rotation's size and the L2's."""
        return self.sets * self.work.bytes_moved, self._gpu.facts.l2_bytes

    @property
    def sm_clock_mhz(self) -> float | None:
        """Return the SMs' real clock during the last run."""
        return self._timer.sm_clock_mhz

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return how the launches reached the GPU."""
        return {"launched_as": "graph" if self._operation.captured else "stream"}

    def prepare(self) -> None:
        """Put the inputs and outputs of every set into GPU memory."""
        operation = self._operation
        first = tuple(self._gpu.upload(array) for array in operation.inputs())
        for number in range(self.sets):
            inputs = first if number == 0 else tuple(self._gpu.clone(array) for array in first)
            out = self._gpu.allocate(operation.output_shape, operation.output_storage)
            self._sets.append((inputs, out))

    def poison(self) -> None:
        """Fill every output with NaN."""
        for _, out in self._sets:
            self._gpu.poison(out)

    def run(self, loops: int) -> float:
        """Run `loops` operations on the next sets and return their device time."""
        first, count = self._turn, len(self._sets)

        def enqueue() -> None:
            for turn in range(first + 1, first + loops + 1):
                self._operation.enqueue(*self._sets[turn % count])

        self._operation.compile()
        self._turn = (first + loops) % count
        replayed_as = (first, loops) if self._operation.captured else None
        return self._timer.seconds(enqueue, replayed_as)

    def check(self) -> Verified:
        """Compare the last output with float64; the first time, the outputs of all sets.

        For that, one operation per set runs on poisoned outputs: a skipped one leaves its NaN.
        """
        if self._all_checked:
            return self._verified(self._turn)
        self._all_checked = True
        # The output of the run before this check is checked too.
        verified = self._verified(self._turn)
        if verified.ok and len(self._sets) > 1:
            self.poison()
            self.run(len(self._sets))
            results = (self._verified(number) for number in range(len(self._sets)))
            verified = next((item for item in results if not item.ok), verified)
        return verified

    def _verified(self, number: int) -> Verified:
        return self._operation.verify(self._gpu.download(self._sets[number][1]))

    def release(self) -> None:
        """Give the GPU memory back."""
        self._timer.clear()
        self._sets.clear()
        self._gpu.release()


class EndToEndCase(Case):
    """Case that sends its inputs from pinned memory and fetches its output into it.

    The host's clock times it until the output has arrived: that is what a program waits for.
    """

    def __init__(self, gpu: GpuDevice, operation: GpuOperation, clock: Clock) -> None:
        self._gpu = gpu
        self._operation = operation
        self._clock = clock
        self._host: list[HostArray] = []
        self._device: list[GpuArray] = []
        self._host_out: HostArray | None = None
        self._device_out: GpuArray | None = None
        self.label = replace(operation.label, scope=Scope.END_TO_END)
        self.work = operation.work

    def prepare(self) -> None:
        """Fill the pinned inputs and allocate both outputs."""
        for array in self._operation.inputs():
            pinned = self._gpu.pinned(array.shape, str(array.dtype))
            pinned[...] = array
            self._host.append(pinned)
            self._device.append(self._gpu.allocate(array.shape, str(array.dtype)))
        shape, storage = self._operation.output_shape, self._operation.output_storage
        self._host_out = self._gpu.pinned(shape, storage)
        self._device_out = self._gpu.allocate(shape, storage)

    def poison(self) -> None:
        """Fill both outputs with NaN."""
        _, host_out, device_out = self._ready()
        self._gpu.poison(device_out)
        self._gpu.fetch(device_out, host_out)
        self._gpu.synchronize()

    def run(self, loops: int) -> float:
        """Send, compute and fetch `loops` times, one after the other; return the elapsed time."""
        pairs, host_out, device_out = self._ready()
        self._operation.compile()
        self._gpu.synchronize()
        start_s = self._clock()
        for _ in range(loops):
            for host, device in pairs:
                self._gpu.send(host, device)
            self._operation.enqueue(self._device, device_out)
            self._gpu.fetch(device_out, host_out)
            self._gpu.synchronize()
        return self._clock() - start_s

    def check(self) -> Verified:
        """Compare the output that arrived with float64."""
        return self._operation.verify(self._ready()[1])

    def release(self) -> None:
        """Give the GPU memory and the pinned memory back."""
        self._host.clear()
        self._device.clear()
        self._host_out = self._device_out = None
        self._gpu.release()

    def _ready(self) -> tuple[list[tuple[HostArray, GpuArray]], HostArray, GpuArray]:
        """Return the buffers that `prepare` made."""
        assert self._host_out is not None
        assert self._device_out is not None
        pairs = list(zip(self._host, self._device, strict=True))
        return pairs, self._host_out, self._device_out


def gpu_label(
    order: CaseOrder, kernel: str, variant: str, gpu: BenchGpu, dtype: DtypeSpec
) -> CaseLabel:
    """Return the label of a row on a GPU with resident data."""
    return CaseLabel(
        kernel=kernel,
        variant=variant,
        device=gpu.device,
        gpu_uuid=gpu.uuid,
        shape=order.shape,
        dtype=dtype,
    )
