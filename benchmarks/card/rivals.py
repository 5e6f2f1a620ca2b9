"""PyTorch as the rival, if installed: the same work on the same card in the same run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any

from benchmarks.card.figures import Timed
from gpucheck.bench.numerics import FORMATS

#: GPU cycles for which a sample's work is held, so that all of it is queued first.
_HELD_CYCLES = 400_000
#: Factor of our float8 numbers before rounding.
_FLOAT8_SCALE = FORMATS["float8"].scale
#: By our names: torch's types, and whether float32 products may use TF32.
_TYPES = MappingProxyType(
    {
        "float64": ("float64", False),
        "float32": ("float32", False),
        "tf32": ("float32", True),
        "float16": ("float16", False),
        "bfloat16": ("bfloat16", False),
        "float8": ("float8_e4m3fn", False),
        "int8": ("int8", False),
    }
)


class Torch:
    """PyTorch on the first GPU."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._device = "cuda:0"
        if not torch.cuda.is_available():
            message = "this PyTorch sees no GPU"
            raise RuntimeError(message)
        self.version = str(torch.__version__)

    def timed(self, work: Callable[[], object]) -> Timed:
        """Return a timer of `work`, replayed as a graph of the requested repetitions."""
        torch = self._torch
        graphs: dict[int, Any] = {}

        def captured(loops: int) -> Any:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(loops):
                    work()
            return graph

        def seconds(loops: int) -> float:
            if loops not in graphs:
                graphs[loops] = captured(loops)
            return self.span(graphs[loops].replay)

        return seconds

    def span(self, enqueue: Callable[[], object]) -> float:
        """Return the seconds between two events around the work of `enqueue`."""
        torch = self._torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_HELD_CYCLES)
        begin.record()
        enqueue()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def release(self) -> None:
        """Return unused GPU memory."""
        self._torch.cuda.empty_cache()

    def tensor(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return random numbers on the GPU, distributed as ours: they affect a card's power."""
        torch, name = self._torch, _TYPES[dtype][0]
        if name == "int8":
            wide = torch.randn(shape, dtype=torch.float32, device=self._device)
            return wide.mul_(32).round_().clamp_(-127, 127).to(torch.int8)
        if dtype == "float8":
            wide = torch.randn(shape, dtype=torch.float32, device=self._device)
            return wide.mul_(_FLOAT8_SCALE).to(getattr(torch, name))
        wide = torch.float64 if name == "float64" else torch.float32
        return torch.randn(shape, dtype=wide, device=self._device).to(getattr(torch, name))

    def softmax(self, rows: int, columns: int, dtype: str) -> Timed:
        """Return the timer of torch.softmax into an existing tensor."""
        source = self.tensor((rows, columns), dtype)
        out = self._torch.empty_like(source)
        return self.timed(lambda: self._torch.softmax(source, dim=-1, out=out))

    def compiled_softmax(self, rows: int, columns: int, dtype: str) -> Timed:
        """Return the timer of the softmax compiled by torch.compile."""
        torch = self._torch
        # After eight shapes of a function it would silently fall back to eager.
        torch._dynamo.reset()
        source = self.tensor((rows, columns), dtype)
        compiled = torch.compile(lambda given: torch.softmax(given, dim=-1), dynamic=False)
        return self.timed(lambda: compiled(source))

    def copy(self, count: int) -> Timed:
        """Return the timer of copy_ on float32 numbers."""
        source = self.tensor((count,), "float32")
        out = self._torch.empty_like(source)
        return self.timed(lambda: out.copy_(source))

    def triad(self, count: int) -> Timed:
        """Return the timer of a x + z in one kernel of torch."""
        scaled, added = (self.tensor((count,), "float32") for _ in range(2))
        out = self._torch.empty_like(scaled)
        return self.timed(lambda: self._torch.add(added, scaled, alpha=0.7, out=out))

    def product(self, m: int, k: int, n: int, dtype: str, layout: str, fast: bool = False) -> Timed:
        """Return the timer of torch.mm; `layout` is nn, nt or tn, t for a factor stored transposed.

        TF32 is switched while it runs; int8 and float8 have their own functions, for B transposed.
        `fast` is float8's fast accumulation.
        """
        torch = self._torch
        left = self.tensor((k, m), dtype).t() if layout[0] == "t" else self.tensor((m, k), dtype)
        right = self.tensor((n, k), dtype).t() if layout[1] == "t" else self.tensor((k, n), dtype)
        if dtype == "int8":
            return self.timed(lambda: torch._int_mm(left, right))
        if dtype == "float8":
            return self.timed(self._scaled(left, right, fast))
        out = torch.empty((m, n), dtype=left.dtype, device=self._device)
        timed = self.timed(lambda: torch.mm(left, right, out=out))

        def switched(loops: int) -> float:
            before = torch.backends.cuda.matmul.allow_tf32
            torch.backends.cuda.matmul.allow_tf32 = _TYPES[dtype][1]
            try:
                return timed(loops)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = before

        return switched

    def _scaled(self, left: Any, right: Any, fast: bool) -> Callable[[], object]:
        """Return the float8 product function, with the scales on the GPU."""
        torch = self._torch
        scale = torch.full((), 1 / _FLOAT8_SCALE, dtype=torch.float32, device=self._device)
        keywords = {"scale_a": scale, "scale_b": scale, "out_dtype": torch.bfloat16}
        return partial(torch._scaled_mm, left, right, **keywords, use_fast_accum=fast)

    def transfer(self, count: int, way: str) -> Timed:
        """Return the timer of copy_ between pinned memory and the GPU; `way` as in `transfer`."""
        torch = self._torch
        host = torch.randn(count, dtype=torch.float32).pin_memory()
        device = torch.empty(count, dtype=torch.float32, device=self._device)

        def work() -> None:
            if way == "to-gpu":
                device.copy_(host, non_blocking=True)
            else:
                host.copy_(device, non_blocking=True)

        def several(loops: int) -> None:
            for _ in range(loops):
                work()

        return lambda loops: self.span(lambda: several(loops))


def torch_or_none() -> tuple[Torch | None, str]:
    """Return PyTorch, or None and the reason."""
    try:
        rival = Torch()
    except Exception as error:  # an unsuitable installation may raise anything
        return None, f"torch is left out: {type(error).__name__}: {error}"
    return rival, f"torch {rival.version}"
