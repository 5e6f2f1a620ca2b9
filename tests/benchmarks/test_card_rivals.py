"""The rival's side against a stand-in for torch: what is asked of it, how often, in what shape."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.card.rivals import Torch, torch_or_none
from gpucheck.core.bench.formats import FORMATS, encode

NUMPY = {"float64": "f8", "float32": "f4", "float16": "f2", "bfloat16": "f4", "int8": "i1"}


class Tensor:
    """A tensor as an array, with the memory it would have."""

    def __init__(self, values: Any, dtype: str) -> None:
        self.values, self.dtype = np.asarray(values), dtype

    def to(self, dtype: str) -> Tensor:
        return Tensor(self.values.astype(NUMPY[dtype]), dtype)

    def t(self) -> Tensor:
        return Tensor(self.values.T, self.dtype)

    def mul_(self, factor: float) -> Tensor:
        self.values = self.values * factor
        return self

    def round_(self) -> Tensor:
        self.values = np.rint(self.values)
        return self

    def clamp_(self, low: float, high: float) -> Tensor:
        self.values = np.clip(self.values, low, high)
        return self

    def pin_memory(self) -> Tensor:
        return self

    def copy_(self, other: Tensor, non_blocking: bool = False) -> None:
        self.values[...] = other.values
        calls.append("copy_")


calls: list[Any] = []


class Graph:
    """A graph that keeps what was called while it was captured."""

    def __init__(self) -> None:
        self.length = 0

    def replay(self) -> None:
        calls.append(("replay", self.length))


@contextmanager
def capturing(graph: Graph) -> Iterator[None]:
    before = len(calls)
    yield
    graph.length = len(calls) - before


def product(name: str) -> Any:
    def multiply(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        flags = module().backends.cuda.matmul.allow_tf32
        calls.append((name, left.values.shape, right.values.shape, left.dtype, flags))
        found = left.values.astype("f8") @ right.values.astype("f8")
        if out is not None:
            assert out.values.shape == found.shape
        return Tensor(found, "int32" if name == "_int_mm" else left.dtype)

    return multiply


def module() -> Any:
    return sys.modules["torch"]


def softmax(source: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
    calls.append(("softmax", source.values.shape, source.dtype, out is not None))
    return source


@pytest.fixture(name="torch", autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    calls.clear()
    stream = SimpleNamespace(wait_stream=lambda other: None)
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 2.0)

    @contextmanager
    def entered(stream: Any) -> Iterator[None]:
        yield

    def random(*shape: Any, dtype: str = "float32", device: str = "cpu") -> Tensor:
        edges = shape[0] if isinstance(shape[0], tuple) else shape
        return Tensor(np.ones(edges, dtype=NUMPY[dtype]), dtype)

    fake: Any = SimpleNamespace(
        __version__="2.11.0",
        cuda=SimpleNamespace(
            is_available=lambda: True,
            Stream=lambda: stream,
            current_stream=lambda: stream,
            stream=entered,
            CUDAGraph=Graph,
            graph=capturing,
            Event=lambda enable_timing: event,
            _sleep=lambda cycles: None,
            synchronize=lambda: None,
            empty_cache=lambda: calls.append("emptied"),
        ),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False))),
        _dynamo=SimpleNamespace(reset=lambda: calls.append("reset")),
        compile=lambda function, dynamic: function,
        randn=random,
        empty=lambda *shape, dtype, device: random(*shape, dtype=dtype),
        empty_like=lambda other: other,
        softmax=softmax,
        add=lambda one, other, alpha, out: calls.append(("add", alpha)),
        mm=product("mm"),
        _int_mm=product("_int_mm"),
        **{name: name for name in NUMPY},
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    return Torch()


def test_a_graph_is_captured_once_and_replayed(torch: Torch) -> None:
    timed = torch.softmax(8, 16, "bfloat16")

    assert timed(5) == timed(5) == pytest.approx(2e-3)

    once = ("softmax", (8, 16), "bfloat16", True)
    # Twice to warm up, five times into the graph, and two replays.
    assert calls == [once] * 7 + [("replay", 5)] * 2


def test_the_compiled_one_is_compiled_anew_for_each_shape(torch: Torch) -> None:
    torch.compiled_softmax(8, 16, "float32")(1)

    assert calls[0] == "reset"
    assert calls[1] == ("softmax", (8, 16), "float32", False)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_products_are_of_the_same_shape_in_every_layout(torch: Torch, layout: str) -> None:
    torch.product(4, 6, 8, "float16", layout)(1)

    assert calls[0] == ("mm", (4, 6), (6, 8), "float16", False)


def test_tf32_is_allowed_for_its_own_row_only(torch: Torch) -> None:
    timed = torch.product(4, 6, 8, "tf32", "nn")
    timed(1)
    torch.product(4, 6, 8, "float32", "nn")(1)

    assert [call[4] for call in calls if call[0] == "mm"] == [True] * 3 + [False] * 3
    assert module().backends.cuda.matmul.allow_tf32 is False


def test_integers_go_to_their_own_product(torch: Torch) -> None:
    torch.product(4, 6, 8, "int8", "nt")(1)

    assert calls[0] == ("_int_mm", (4, 6), (6, 8), "int8", False)


def test_integers_are_spread_as_ours(torch: Torch) -> None:
    ours = encode(np.ones((2, 3), dtype=np.float32), FORMATS["int8"])

    assert np.array_equal(torch.tensor((2, 3), "int8").values, ours)


def test_copies_and_the_triad_are_torchs_own(torch: Torch) -> None:
    torch.copy(16)(1)
    torch.triad(16)(1)
    torch.transfer(16, "to-gpu")(3)
    torch.transfer(16, "from-gpu")(2)
    torch.release()

    assert calls.count("copy_") == 3 + 3 + 2
    assert calls.count(("add", 0.7)) == 3
    assert calls[-1] == "emptied"


def test_a_torch_that_sees_no_gpu_takes_no_part(torch: Torch) -> None:
    module().cuda.is_available = lambda: False

    rival, said = torch_or_none()

    assert rival is None
    assert said == "torch takes no part: RuntimeError: this PyTorch sees no GPU"


def test_without_torch_it_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    rival, said = torch_or_none()

    assert rival is None
    assert said.startswith("torch takes no part: ")
