"""The rival with a stand-in for torch: the calls to it, their number and their shapes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.card.rivals import Torch, torch_or_none
from gpucheck.bench.numerics import FORMATS, decode, encode

STAND_IN = Path(__file__).parents[1] / "fakes" / "torch"
calls: list[Any] = []


def module() -> Any:
    return sys.modules["torch"]


@pytest.fixture(name="torch", autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    torch = Torch()
    assert module().__file__ == str(STAND_IN / "torch.py")
    calls.clear()
    monkeypatch.setattr(module(), "calls", calls)
    return torch


def test_a_graph_is_captured_once_and_replayed(torch: Torch) -> None:
    timed = torch.softmax(8, 16, "bfloat16")

    assert timed(5) == pytest.approx(timed(5)) == pytest.approx(5 * 1.5e-6, rel=0.01)

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


@pytest.mark.parametrize("fast", [False, True])
def test_float8_goes_to_its_own_product_with_and_without_fast_accumulation(
    torch: Torch, fast: bool
) -> None:
    torch.product(16, 32, 48, "float8", "nt", fast)(1)

    assert calls[0] == ("_scaled_mm", (16, 32), (32, 48), "float8_e4m3fn", "bfloat16", fast)


def test_float8_is_spread_as_ours_and_scaled_back(torch: Torch) -> None:
    ours = decode(encode(np.ones((2, 3), dtype=np.float32), FORMATS["float8"]), "float8")

    theirs = torch.tensor((2, 3), "float8")

    assert np.array_equal(np.full(theirs.shape, theirs.fill) / FORMATS["float8"].scale, ours)


def test_integers_are_spread_as_ours(torch: Torch) -> None:
    ours = encode(np.ones((2, 3), dtype=np.float32), FORMATS["int8"])

    tensor = torch.tensor((2, 3), "int8")
    assert np.array_equal(np.full(tensor.shape, tensor.fill, dtype=np.int8), ours)


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
    module().cuda.is_available = lambda: False  # of this test's own import

    rival, said = torch_or_none()

    assert rival is None
    assert said == "torch is left out: RuntimeError: this PyTorch sees no GPU"


def test_without_torch_it_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    rival, said = torch_or_none()

    assert rival is None
    assert said.startswith("torch is left out: ")
