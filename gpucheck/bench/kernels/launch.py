"""Launch latency of an empty kernel: one by one, as a graph, and as a round trip.

An operation is one launch; it moves no bytes and computes nothing. `stream` is the cost in a
program that launches short kernels in a loop. `graph` replays the same launches as a CUDA graph.
`round-trip` waits for each launch. The host's share of a launch is `stream` minus `graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from gpucheck.bench.case import Case, CaseOrder, Kernel, Work
from gpucheck.bench.gpu_case import gpu_label
from gpucheck.bench.model import Conclusion, Measurement, Verified
from gpucheck.bench.numerics import FORMATS
from gpucheck.bench.request_model import BenchMode
from gpucheck.drivers.gpu import GpuDevice

#: Launches in one graph: so many that the cost of replaying it is negligible.
_LAUNCHES_IN_A_GRAPH = 100


class Launch(Kernel):
    """The kernel `launch`."""

    id = "launch"
    runs_with_host = True
    gpus_needed = 1
    sizes = MappingProxyType(dict.fromkeys(BenchMode, 1))

    def shape(self, size: int) -> tuple[int, ...]:
        """Return no edges: an empty kernel has no size."""
        return ()

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return the work of a launch, which moves nothing."""
        return Work(flops=0, bytes_moved=0, unit="launch/s")

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return almost nothing."""
        return 1024 * (1 + gpu_count)

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return almost nothing."""
        return 1024

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return the three ways to launch."""
        return [LaunchCase(order, gpu, way) for way in ("stream", "graph", "round-trip")]

    def conclude(self, rows: Sequence[Measurement]) -> Sequence[Conclusion]:
        """Return the host's share of each launch."""
        conclusions = []
        for device in dict.fromkeys(row.device for row in rows):
            here = {row.variant: row for row in rows if row.device == device and row.time_s}
            if "stream" in here and "graph" in here:
                added_s = (here["stream"].time_s or 0.0) - (here["graph"].time_s or 0.0)
                sentence = (
                    f"{device}: launching from Python adds {1e6 * added_s:.1f} us to "
                    "each kernel compared with a CUDA graph"
                )
                conclusions.append(
                    Conclusion.of(here["stream"], "launch-overhead", sentence, overhead_s=added_s)
                )
        return conclusions


class LaunchCase(Case):
    """Empty kernels, launched in one of three ways and timed by the host until all have run."""

    def __init__(self, order: CaseOrder, gpu: GpuDevice, way: str) -> None:
        self._order = order
        self._gpu = gpu
        self._way = way
        self._replay: Callable[[], None] | None = None
        self._done = 0
        self.label = gpu_label(order, "launch", way, gpu.facts, FORMATS["float32"].spec)
        self.work = Launch().work((), "float32")

    def prepare(self) -> None:
        """Compile, and capture the graph."""
        self._gpu.launch_empty(1)
        self._gpu.synchronize()
        if self._way == "graph":
            self._replay = self._gpu.capture(lambda: self._gpu.launch_empty(_LAUNCHES_IN_A_GRAPH))

    def poison(self) -> None:
        """Forget the launches so far."""
        self._done = 0

    def run(self, loops: int) -> float:
        """Launch `loops` times and wait; a graph's time is scaled from its own launches."""
        clock, gpu, replay = self._order.clock, self._gpu, self._replay
        gpu.synchronize()
        start_s = clock()
        scale = 1.0
        if replay is not None:
            replays = -(-loops // _LAUNCHES_IN_A_GRAPH)
            scale = loops / (replays * _LAUNCHES_IN_A_GRAPH)
            for _ in range(replays):
                replay()
        else:
            gpu.launch_empty(loops, waiting=self._way == "round-trip")
        gpu.synchronize()
        self._done = loops
        return (clock() - start_s) * scale

    def check(self) -> Verified:
        """Return success: an empty kernel leaves no output, and an error would have been raised."""
        self._gpu.synchronize()
        ok = self._done > 0
        return Verified(
            error=0.0 if ok else None,
            bound=0.0,
            ok=ok,
            reference="every launch ended without error",
        )

    def release(self) -> None:
        """Drop the graph."""
        self._replay = None
