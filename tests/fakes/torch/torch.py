"""Stand-in for PyTorch on a GPU, as far as benchmarks/card needs it: shapes, types and times.

A tensor is a shape, a type and one number that fills it. Operations take the time that a model of
a card gives them; operations captured in a graph take it at each replay. `calls` records the
calls. `FAKE_TORCH` names the faults, as words:
`import=hang`, `import=exit`, `compile=fail`, `gpu=none`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

__version__ = "2.11.0+cu130"
_WRONG = set(os.environ.get("FAKE_TORCH", "").split())
if "import=hang" in _WRONG:
    time.sleep(3600)
if "import=exit" in _WRONG:
    os._exit(139)

float64, float32, float16, bfloat16, int8 = "float64", "float32", "float16", "bfloat16", "int8"
float8_e4m3fn = "float8_e4m3fn"
_SIZES = {"float64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}
#: Bytes a second within the card and over its link, and operations a second by type.
_MEMORY, _LINK = 2.95e12, 54e9
_OPERATIONS = {"float64": 55e12, "float32": 50e12, "float16": 700e12, "bfloat16": 720e12}
_LAUNCH_S = 1.5e-6

calls: list[Any] = []


class _Device:
    """The card's clock, and the graph that is being captured."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.graph: CUDAGraph | None = None

    def spend(self, moved: float, operations: float = 0.0, dtype: str = "float32") -> None:
        """Advance the clock by an operation's time."""
        fast = _OPERATIONS.get(dtype, 1200e12)
        taken = _LAUNCH_S + max(moved / _MEMORY, operations / fast)
        if self.graph is not None:
            self.graph.seconds += taken
        else:
            self.seconds += taken


_device = _Device()


class Tensor:
    """A tensor of one number."""

    def __init__(self, shape: tuple[int, ...], dtype: str, fill: float = 1.0) -> None:
        self.shape, self.dtype, self.fill = shape, dtype, fill

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        size = _SIZES.get(self.dtype, 1)
        for edge in self.shape:
            size *= edge
        return size

    def to(self, dtype: str) -> Tensor:
        """Return it in another type."""
        return Tensor(self.shape, dtype, self.fill)

    def t(self) -> Tensor:
        """Return it transposed."""
        return Tensor(self.shape[::-1], self.dtype, self.fill)

    def mul_(self, factor: float) -> Tensor:
        """Multiply in place."""
        self.fill *= factor
        return self

    def round_(self) -> Tensor:
        """Round in place."""
        self.fill = float(round(self.fill))
        return self

    def clamp_(self, low: float, high: float) -> Tensor:
        """Limit in place."""
        self.fill = min(max(self.fill, low), high)
        return self

    def pin_memory(self) -> Tensor:
        """Return it in page-locked memory."""
        return self

    def copy_(self, other: Tensor, non_blocking: bool = False) -> Tensor:
        """Copy another one into this, over the link if non-blocking."""
        assert self.shape == other.shape
        calls.append("copy_")
        slower = _MEMORY / _LINK if non_blocking else 2
        _device.spend(other.nbytes * slower)
        self.fill = other.fill
        return self


def randn(*shape: Any, dtype: str = "float32", device: str = "cpu") -> Tensor:
    """Return a tensor of ones."""
    return Tensor(shape[0] if isinstance(shape[0], tuple) else shape, dtype)


empty = randn


def full(shape: tuple[int, ...], value: float, *, dtype: str, device: str) -> Tensor:
    """Return a tensor of one number."""
    return Tensor(shape, dtype, value)


def empty_like(other: Tensor) -> Tensor:
    """Return a tensor of the same kind."""
    return Tensor(other.shape, other.dtype)


def softmax(source: Tensor, dim: int, *, out: Tensor | None = None) -> Tensor:
    """Take the time of a softmax."""
    calls.append(("softmax", source.shape, source.dtype, out is not None))
    _device.spend(2.1 * source.nbytes)
    return source


def add(one: Tensor, other: Tensor, *, alpha: float, out: Tensor) -> Tensor:
    """Take the time of a triad."""
    calls.append(("add", alpha))
    _device.spend(3 * one.nbytes)
    return out


def _product(name: str, left: Tensor, right: Tensor, out: Tensor | None) -> Tensor:
    (m, k), n = left.shape, right.shape[1]
    assert right.shape[0] == k
    flags = backends.cuda.matmul.allow_tf32
    calls.append((name, left.shape, right.shape, left.dtype, flags))
    found = Tensor((m, n), "int32" if name == "_int_mm" else left.dtype)
    assert out is None or (out.shape, out.dtype) == (found.shape, found.dtype)
    faster = 8 if flags and left.dtype == "float32" else 1
    moved = left.nbytes + right.nbytes + found.nbytes
    _device.spend(moved, 2 * m * n * k / faster, left.dtype)
    return found


def mm(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Take the time of a product."""
    return _product("mm", left, right, out)


def _int_mm(left: Tensor, right: Tensor) -> Tensor:
    return _product("_int_mm", left, right, None)


def _scaled_mm(
    left: Tensor,
    right: Tensor,
    *,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: str,
    use_fast_accum: bool,
) -> Tensor:
    assert scale_a.shape == scale_b.shape == ()
    (m, k), n = left.shape, right.shape[1]
    calls.append(("_scaled_mm", left.shape, right.shape, left.dtype, out_dtype, use_fast_accum))
    found = Tensor((m, n), out_dtype)
    _device.spend(left.nbytes + right.nbytes + found.nbytes, 2 * m * n * k, left.dtype)
    return found


def compile(function: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
    """Return the function, or one that finds no compiler."""

    def failing(*given: Any) -> Any:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable")

    return failing if "compile=fail" in _WRONG else function


class CUDAGraph:
    """A captured graph, as the time that it takes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.length = 0

    def replay(self) -> None:
        """Take that time."""
        calls.append(("replay", self.length))
        _device.seconds += self.seconds


class Event:
    """A reading of the card's clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._timing = enable_timing
        self._seconds = 0.0

    def record(self) -> None:
        """Read the clock."""
        self._seconds = _device.seconds

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds until another event."""
        assert self._timing
        return 1e3 * (end._seconds - self._seconds)


class _Stream:
    def wait_stream(self, other: _Stream) -> None:
        """Do nothing: everything happens in order."""


@contextmanager
def _capturing(graph: CUDAGraph) -> Iterator[None]:
    before = len(calls)
    _device.graph = graph
    try:
        yield
    finally:
        _device.graph = None
    graph.length = len(calls) - before


@contextmanager
def _on(stream: _Stream) -> Iterator[None]:
    yield


cuda = SimpleNamespace(
    is_available=lambda: "gpu=none" not in _WRONG,
    Stream=_Stream,
    current_stream=_Stream,
    stream=_on,
    CUDAGraph=CUDAGraph,
    graph=_capturing,
    Event=Event,
    _sleep=lambda cycles: None,
    synchronize=lambda: None,
    empty_cache=lambda: calls.append("emptied"),
)
backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False)))
_dynamo = SimpleNamespace(reset=lambda: calls.append("reset"))
