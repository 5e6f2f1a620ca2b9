"""Stand-in for PyTorch as benchmarks use it: NumPy behind, pretended GPUs, traced calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from stand_in import CARD, break_import, break_run, call, gpu_count

break_import("torch")
__version__ = "2.99.0+stand-in"

float64, float32, float16 = np.dtype("float64"), np.dtype("float32"), np.dtype("float16")
bfloat16, int32, int64 = np.dtype(ml_dtypes.bfloat16), np.dtype("int32"), np.dtype("int64")
uint8 = np.dtype("uint8")
version = SimpleNamespace(cuda="13.0")
_threads = {"intra": 1, "inter": 1}


class device:
    """A device: `cpu` or `cuda:N`."""

    def __init__(self, name: str | device) -> None:
        text = str(name)
        self.type, _, number = text.partition(":")
        self.index = int(number) if number else None
        if self.type not in ("cpu", "cuda"):
            message = f"Expected one of cpu, cuda device type at start of device string: {text}"
            raise RuntimeError(message)

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]


_CPU = device("cpu")


class Tensor:
    """An array on a device."""

    def __init__(self, array: Any, where: device = _CPU, *, pinned: bool = False) -> None:
        self.array, self.device, self.pinned = array, where, pinned
        self.grad: Tensor | None = None

    @property
    def dtype(self) -> Any:
        """Return the type of the numbers."""
        return self.array.dtype

    def _new(self, array: Any) -> Tensor:
        return Tensor(array, self.device)

    def clone(self) -> Tensor:
        call(f"clone {self.dtype} on {self.device}")
        return self._new(self.array.copy())

    def reshape(self, *shape: Any) -> Tensor:
        return self._new(self.array.reshape(*shape))

    def detach(self) -> Tensor:
        return self

    contiguous = detach

    def cpu(self) -> Tensor:
        return self.to(_CPU)

    def to(self, target: Any, *, non_blocking: bool = False) -> Tensor:
        if not isinstance(target, device):
            return self._new(self.array.astype(target))
        if target != self.device:
            memory = "pinned" if self.pinned else "pageable"
            call(f"to {target} from {self.device} {memory} non_blocking={non_blocking}")
        return Tensor(self.array.copy(), target)

    def float(self) -> Tensor:
        return self._new(self.array.astype(float32))

    def long(self) -> Tensor:
        return self._new(self.array.astype(int64))

    def new_empty(self, shape: Sequence[int]) -> Tensor:
        return self._new(np.empty(tuple(shape), dtype=self.dtype))

    def fill_(self, value: Any) -> Tensor:
        self.array.fill(value)
        return self

    def zero_(self) -> Tensor:
        return self.fill_(0)

    def copy_(self, other: Tensor, *, non_blocking: bool = False) -> Tensor:
        call(f"copy_ to {self.device} from {other.device} non_blocking={non_blocking}")
        self.array[...] = other.array
        return self

    def sub_(self, other: Tensor, *, alpha: Any = 1.0) -> Tensor:
        self.array -= (alpha * other.array).astype(self.dtype)
        return self

    def pin_memory(self) -> Tensor:
        return Tensor(self.array.copy(), self.device, pinned=True)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, part: slice) -> Tensor:
        return self._new(self.array[part])

    def __truediv__(self, number: Any) -> Tensor:
        return self._new((self.array / number).astype(self.dtype))

    def __matmul__(self, other: Tensor) -> _Product:
        return _Product(self, other)


class _Product(Tensor):
    """Product that remembers its factors, for the gradient."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        super().__init__(left.array @ right.array, left.device)
        self.left, self.right = left, right


def _written(array: Any, like: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        return Tensor(array.astype(like.dtype), like.device)
    out.array[...] = array
    return out


def matmul(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Multiply in float32 or wider."""
    call(f"matmul {left.dtype} on {left.device} out={out is not None} tf32={_tf32()}")
    wrong = break_run()
    wide = np.float64 if left.dtype == float64 else np.float32
    product = left.array.astype(wide) @ right.array.astype(wide)
    return _written(product + (1 if wrong else 0), left, out)


def softmax(x: Tensor, axis: int, *, out: Tensor | None = None) -> Tensor:
    """Return the softmax of the last axis."""
    call(f"softmax {x.dtype} on {x.device} out={out is not None}")
    assert axis == -1
    raised = np.exp(x.array - x.array.max(axis=-1, keepdims=True))
    return _written(raised / raised.sum(axis=-1, keepdims=True), x, out)


def div(x: Tensor, number: Any, *, out: Tensor) -> Tensor:
    """Divide into `out`."""
    return _written(x.array / number, x, out)


def empty_like(x: Tensor, *, dtype: Any = None) -> Tensor:
    """Return a new tensor like another."""
    return Tensor(np.empty(x.array.shape, dtype=dtype or x.dtype), x.device)


def zeros(shape: Sequence[int], *, device: device, requires_grad: bool = False) -> Tensor:
    """Return zeros."""
    return Tensor(np.zeros(tuple(shape), dtype=float32), device)


def frombuffer(content: Any, *, dtype: Any) -> Tensor:
    """Return a tensor over the content's memory."""
    return Tensor(np.frombuffer(content, dtype=dtype))


class _Loss:
    """Mean cross entropy, whose `backward` writes the weights' gradient."""

    def __init__(self, logits: _Product, classes: Tensor) -> None:
        self.logits, self.classes = logits, classes

    def backward(self) -> None:
        images, weights = self.logits.left, self.logits.right
        raised = np.exp(self.logits.array - self.logits.array.max(axis=1, keepdims=True))
        raised /= raised.sum(axis=1, keepdims=True)
        count = len(raised)
        raised[np.arange(count), self.classes.array] -= 1
        weights.grad = Tensor(images.array.T @ (raised / count), weights.device)


def _cross_entropy(logits: _Product, classes: Tensor) -> _Loss:
    call(f"cross_entropy on {logits.device}")
    return _Loss(logits, classes)


nn = SimpleNamespace(functional=SimpleNamespace(cross_entropy=_cross_entropy))


def compile(function: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
    """Return the function."""
    call(f"compile dynamic={dynamic}")
    return function


def set_num_threads(count: int) -> None:
    _threads["intra"] = count


def set_num_interop_threads(count: int) -> None:
    _threads["inter"] = count


def get_num_threads() -> int:
    return _threads["intra"]


def get_num_interop_threads() -> int:
    return _threads["inter"]


def set_grad_enabled(enabled: bool) -> None:
    call(f"set_grad_enabled {enabled}")


@contextmanager
def no_grad() -> Iterator[None]:
    yield


def get_float32_matmul_precision() -> str:
    return "high" if _tf32() else "highest"


_MATMUL = SimpleNamespace(
    allow_tf32=False,
    allow_fp16_reduced_precision_reduction=True,
    allow_bf16_reduced_precision_reduction=True,
)
backends = SimpleNamespace(
    cuda=SimpleNamespace(matmul=_MATMUL),
    cudnn=SimpleNamespace(version=lambda: 91002),
    mkldnn=SimpleNamespace(is_available=lambda: True),
)


def _tf32() -> bool:
    return bool(_MATMUL.allow_tf32)


__config__ = SimpleNamespace(
    show=lambda: (
        "PyTorch built with:\n  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product\n"
        "  - Intel(R) MKL-DNN v3.7.1\n  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release"
    )
)
cuda = SimpleNamespace(
    is_available=lambda: gpu_count() > 0,
    device_count=gpu_count,
    get_device_properties=lambda number: SimpleNamespace(name=CARD),
    set_device=lambda which: call(f"set_device {which}"),
    synchronize=lambda which: call(f"synchronize {which}"),
    empty_cache=lambda: call("empty_cache"),
)
_dynamo = SimpleNamespace(config=SimpleNamespace(recompile_limit=8))
sys.modules["torch._dynamo"] = _dynamo  # type: ignore[assignment]
