"""The two ways to time any GPU operation: on data in place, and with its pinned transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from gpucheck.core.bench.kernel import (
    EVENT_SPAN_S,
    HOST_SPAN_S,
    CacheFit,
    CaseLabel,
    Work,
)
from gpucheck.models.bench import Scope, Verified
from gpucheck.probes.clock import Clock
from gpucheck.probes.cupy_device import GpuArray, GpuDevice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Walking through three times the L2 leaves nothing of a buffer in it at its next turn.
ROTATION_IN_L2 = 3
#: More sets than this cost more to allocate than they tell; the row then says "L2-resident".
_MOST_SETS = 256
#: Share of the free GPU memory that the rotation may take.
_MOST_MEMORY = 0.5


class GpuOperation(Protocol):
    """What a kernel brings for the GPU; the cases below bring the buffers and the clock."""

    @property
    def label(self) -> CaseLabel:
        """Return the row of the resident case."""
        ...

    @property
    def work(self) -> Work:
        """Return what one operation does."""
        ...

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return the output's shape."""
        ...

    @property
    def sets(self) -> int:
        """Return how many sets of buffers to rotate through."""
        ...

    def inputs(self) -> Sequence[HostArray]:
        """Return the inputs on the host."""
        ...

    def compile(self) -> None:
        """Compile what the operation launches."""
        ...

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue one operation."""
        ...

    def verify(self, out: HostArray) -> Verified:
        """Compare an output with float64."""
        ...


def set_count(set_bytes: int, gpu: GpuDevice) -> int:
    """Return how many sets of buffers reach three times the L2, as far as the memory allows."""
    wanted = -(-ROTATION_IN_L2 * gpu.facts.l2_bytes // max(set_bytes, 1))
    affordable = int(_MOST_MEMORY * gpu.facts.memory_free_bytes // max(set_bytes, 1))
    return max(1, min(wanted, affordable, _MOST_SETS))


class ResidentCase:
    """An operation on data in GPU memory, timed by CUDA events around a batch.

    The batch walks through several sets of buffers, so that no input is found in the L2 cache.
    """

    shortest_span_s = EVENT_SPAN_S

    def __init__(self, gpu: GpuDevice, operation: GpuOperation) -> None:
        self._gpu = gpu
        self._operation = operation
        self._sets: list[tuple[tuple[GpuArray, ...], GpuArray]] = []
        self._turn = 0
        self._spans = self._starved = 0
        self.label = operation.label
        self.work = operation.work

    @property
    def cache_fit(self) -> CacheFit | None:
        """Return the rotation's size against the L2."""
        walked = self._operation.sets * self.work.bytes_moved
        return CacheFit(walked_bytes=walked, cache_bytes=self._gpu.facts.l2_bytes, cache="L2")

    @property
    def starved_share(self) -> float:
        """Return the share of the spans in which the GPU may have waited for the host."""
        return self._starved / self._spans if self._spans else 0.0

    def prepare(self) -> None:
        """Put the inputs and outputs of every set into GPU memory and compile."""
        first = tuple(self._gpu.upload(array) for array in self._operation.inputs())
        for number in range(self._operation.sets):
            inputs = first if number == 0 else tuple(self._gpu.clone(array) for array in first)
            self._sets.append((inputs, self._gpu.allocate(self._operation.output_shape)))

    def poison(self) -> None:
        """Fill every output with NaN."""
        for _, out in self._sets:
            self._gpu.poison(out)

    def run(self, loops: int) -> float:
        """Enqueue `loops` operations on the next sets and return their device time."""

        def enqueue() -> None:
            for _ in range(loops):
                self._turn = (self._turn + 1) % len(self._sets)
                self._operation.enqueue(*self._sets[self._turn])

        self._operation.compile()
        span = self._gpu.span(enqueue)
        self._spans += 1
        self._starved += span.starved
        return span.seconds

    def check(self) -> Verified:
        """Compare the output written last with float64."""
        return self._operation.verify(self._gpu.download(self._sets[self._turn][1]))

    def release(self) -> None:
        """Give the GPU memory back."""
        self._sets.clear()
        self._gpu.release()


class EndToEndCase:
    """The same operation with its inputs sent from and its output fetched to pinned memory.

    Timed by the host's clock until the output has arrived: that is what a program waits for.
    """

    shortest_span_s = HOST_SPAN_S
    starved_share = 0.0

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

    @property
    def cache_fit(self) -> CacheFit | None:
        """Return None: the transfers decide."""
        return None

    def prepare(self) -> None:
        """Fill the pinned inputs and allocate both outputs."""
        for array in self._operation.inputs():
            pinned = self._gpu.pinned(array.shape)
            pinned[...] = array
            self._host.append(pinned)
            self._device.append(self._gpu.allocate(array.shape))
        self._host_out = self._gpu.pinned(self._operation.output_shape)
        self._device_out = self._gpu.allocate(self._operation.output_shape)

    def poison(self) -> None:
        """Fill both outputs with NaN."""
        _, host_out, device_out = self._ready()
        host_out.fill(float("nan"))
        self._gpu.poison(device_out)
        self._gpu.synchronize()

    def run(self, loops: int) -> float:
        """Send, compute and fetch `loops` times, one after the other; return the elapsed time."""
        pairs, host_out, device_out = self._ready()
        self._operation.compile()
        self._gpu.synchronize()
        start_s = self._clock.now_s()
        for _ in range(loops):
            for host, device in pairs:
                self._gpu.send(host, device)
            self._operation.enqueue(self._device, device_out)
            self._gpu.fetch(device_out, host_out)
            self._gpu.synchronize()
        return self._clock.now_s() - start_s

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
        """Return the buffers, which `prepare` has made."""
        assert self._host_out is not None
        assert self._device_out is not None
        pairs = list(zip(self._host, self._device, strict=True))
        return pairs, self._host_out, self._device_out
