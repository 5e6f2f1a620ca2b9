"""Device time between two CUDA events; the GPU is held until the work is queued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.drivers.gpu import GpuFunction, Span
from gpucheck.drivers.host.clock import Clock, MonotonicClock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

_SOURCE = Path(__file__).with_name("timing.cu")
#: Wait of the GPU: a multiple of the host's last enqueuing time, between these two bounds. A longer
#: wait cannot help, since the driver's queue is full before it ends.
_MARGIN, _SHORTEST_HOLD_S, _LONGEST_HOLD_S = 1.5, 50e-6, 50e-3
#: Fewest steps of the GPU's timer for a clock: each end may be off by one step, which gives 1 %.
#: Many timers step by a microsecond, and the shortest spans take 500.
_LEAST_STEPS = 250


class SpanTimer:
    """Timer of a device's work on its stream; made once for a device, which must be current.

    `compile_kernel` returns the kernel of a source with the given name.
    """

    def __init__(
        self,
        cupy: Any,
        stream: Any,
        compile_kernel: Callable[[str, str], GpuFunction],
        sm_count: int,
        clock: Clock | None = None,
    ) -> None:
        source = _SOURCE.read_text(encoding="utf-8")
        self._cupy = cupy
        self._stream = stream
        self._sm_count = sm_count
        self._clock = clock or MonotonicClock()
        self._hold, self._tick, step = (
            compile_kernel(source, name) for name in ("hold", "tick", "step")
        )
        self._ticks = cupy.empty((2, 2), dtype="uint64")
        self._begin, self._end = cupy.cuda.Event(), cupy.cuda.Event()
        self._hold_s = _SHORTEST_HOLD_S
        step(1, 1, (self._ticks[0],))
        self._step_ns = int(self._ticks.get(stream=stream)[0, 0])

    def span(self, enqueue: Callable[[], None], *, held: bool) -> Span:
        """Run the work of `enqueue`, wait for it, and return its time by the events.

        A waiting kernel goes first, so that the work is queued before the first event fires.
        Otherwise the time would include the host's launches (starvation). It waits for the host's
        last enqueuing time, with a margin. If the first event has fired by the end of the
        enqueuing, the wait was too short: the work runs again behind a longer one, up to the
        longest.
        """
        if not held:
            return self._one_span(enqueue, None)[0]
        while True:
            span, enqueued_s = self._one_span(enqueue, self._hold_s)
            needed_s = max(_MARGIN * enqueued_s, 4 * self._hold_s if span.starved else 0.0)
            longest = self._hold_s >= _LONGEST_HOLD_S
            self._hold_s = min(max(needed_s, _SHORTEST_HOLD_S), _LONGEST_HOLD_S)
            if not span.starved or longest:
                return span

    def _one_span(self, enqueue: Callable[[], None], hold_s: float | None) -> tuple[Span, float]:
        """Return the span, and how long the host took to enqueue the work."""
        import numpy as np

        self._ticks.data.memset_async(0, self._ticks.nbytes, self._stream)
        if hold_s is not None:
            self._hold(1, 1, (np.uint64(hold_s * 1e9),))
        self._tick(self._sm_count, 1, (self._ticks[0],))
        start_s = self._clock.now_s()
        self._begin.record(self._stream)
        enqueue()
        self._end.record(self._stream)
        starved = hold_s is not None and bool(self._begin.done)
        enqueued_s = self._clock.now_s() - start_s
        self._tick(self._sm_count, 1, (self._ticks[1],))
        self._stream.synchronize()
        elapsed_ms = self._cupy.cuda.get_elapsed_time(self._begin, self._end)
        clock_mhz = _clock_mhz(self._ticks.get(stream=self._stream), self._step_ns)
        span = Span(seconds=elapsed_ms / 1e3, starved=starved, sm_clock_mhz=clock_mhz)
        return span, enqueued_s


def _clock_mhz(ticks: HostArray, step_ns: int) -> float | None:
    """Return cycles over microseconds between two readings of (nanoseconds, cycles) on SM 0.

    None if they were not read, or if the timer steps too coarsely for this span.
    """
    (start_ns, start_cycles), (end_ns, end_cycles) = ticks.tolist()
    if not start_ns or end_ns <= start_ns or end_cycles <= start_cycles:
        return None
    if not step_ns or end_ns - start_ns < _LEAST_STEPS * step_ns:
        return None
    return float(1e3 * (end_cycles - start_cycles) / (end_ns - start_ns))
