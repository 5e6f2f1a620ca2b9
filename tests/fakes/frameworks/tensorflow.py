"""Stand-in for TensorFlow as benchmarks use it: NumPy behind, pretended GPUs, traced calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from stand_in import CARD, break_import, break_run, call, gpu_count

break_import("tensorflow")
__version__ = "2.99.0-stand-in"

_here: list[str] = ["/device:CPU:0"]
_state: dict[str, Any] = {"tf32": True, "intra": 0, "inter": 0}
_NUMPY = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


def as_dtype(name: str) -> Any:
    """Return a type by its name."""
    return SimpleNamespace(as_numpy_dtype=_NUMPY.get(name, np.dtype(name if name else "f4")))


float16, float32 = np.dtype("float16"), np.dtype("float32")
bfloat16 = _NUMPY["bfloat16"]


class Tensor:
    """An array on a device."""

    def __init__(self, array: Any, where: str | None = None) -> None:
        self.array, self.where = np.asarray(array), where or _here[-1]

    @property
    def dtype(self) -> Any:
        """Return the type of the numbers."""
        return self.array.dtype

    def numpy(self) -> Any:
        if "GPU" in self.where:
            call(f"numpy() from {self.where}")
        return self.array.copy()

    def gpu(self, number: int) -> Tensor:
        call(f"gpu({number}) from {self.where}")
        return Tensor(self.array.copy(), f"/device:GPU:{number}")

    def cpu(self) -> Tensor:
        call(f"cpu() from {self.where}")
        return Tensor(self.array.copy(), "/device:CPU:0")

    def __truediv__(self, number: float) -> Tensor:
        return Tensor((self.array / number).astype(self.dtype))

    def __rmul__(self, number: float) -> Tensor:
        return Tensor((number * self.array).astype(self.dtype))


class Variable(Tensor):
    """A tensor that changes."""

    def __init__(self, value: Tensor) -> None:
        super().__init__(value.array.copy())

    def assign(self, value: Tensor) -> None:
        self.array[...] = value.array

    def assign_sub(self, value: Tensor) -> None:
        self.array -= value.array


@contextmanager
def device(name: str) -> Iterator[None]:
    """Place what the block creates."""
    if "GPU" in name and int(name.rpartition(":")[2]) >= gpu_count():
        message = f"{name} unknown device."
        raise RuntimeError(message)
    _here.append(name)
    try:
        yield
    finally:
        _here.pop()


def constant(array: Any) -> Tensor:
    """Return a tensor with a copy of an array."""
    call(f"constant {np.asarray(array).dtype} on {_here[-1]}")
    return Tensor(np.array(array))


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Multiply in float32 or wider."""
    call(f"matmul {left.dtype} on {_here[-1]} tf32={_state['tf32']}")
    wrong = break_run()
    wide = np.float64 if left.dtype == np.float64 else np.float32
    found = left.array.astype(wide) @ right.array.astype(wide)
    made = Tensor((found + (1 if wrong else 0)).astype(left.dtype))
    made.factors = (left, right)  # type: ignore[attr-defined]
    return made


def cast(x: Tensor, dtype: Any) -> Tensor:
    """Return a tensor in another type."""
    return Tensor(x.array.astype(dtype))


def zeros(shape: Sequence[int]) -> Tensor:
    """Return zeros."""
    return Tensor(np.zeros(tuple(shape), dtype=np.float32))


def zeros_like(x: Tensor) -> Tensor:
    """Return zeros like a tensor."""
    return Tensor(np.zeros_like(x.array))


def _softmax(x: Tensor) -> Tensor:
    call(f"softmax {x.dtype} on {_here[-1]}")
    raised = np.exp(x.array - x.array.max(axis=-1, keepdims=True))
    return Tensor((raised / raised.sum(axis=-1, keepdims=True)).astype(x.dtype))


def _cross_entropy(labels: Tensor, logits: Any) -> Any:
    call(f"cross_entropy on {_here[-1]}")
    return labels, logits


def reduce_mean(loss: Any) -> Any:
    """Return the mean, as what the tape needs of it."""
    return loss


class GradientTape:
    """A tape that differentiates the mean cross entropy of a product."""

    def __enter__(self) -> GradientTape:
        return self

    def __exit__(self, *_: object) -> None: ...

    def gradient(self, loss: Any, weights: Variable) -> Tensor:
        labels, logits = loss
        images, factor = logits.factors
        assert factor is weights
        raised = np.exp(logits.array - logits.array.max(axis=1, keepdims=True))
        raised /= raised.sum(axis=1, keepdims=True)
        raised[np.arange(len(raised)), labels.array] -= 1
        return Tensor(images.array.T @ (raised / len(raised)))


def function(plain: Any, *, jit_compile: bool | None, autograph: bool) -> Any:
    """Return a function whose arguments become tensors."""
    call(f"function jit_compile={jit_compile}")
    assert not autograph

    def run(*arguments: Any) -> Any:
        return plain(*(one if isinstance(one, Tensor) else Tensor(one) for one in arguments))

    return run


def _set(name: str, value: Any) -> None:
    call(f"set {name} {value}")
    _state[name] = value


def _deep_copy(*, x: Tensor) -> Tensor:
    call(f"DeepCopy on {_here[-1]}")
    return Tensor(x.array.copy())


nn = SimpleNamespace(softmax=_softmax, sparse_softmax_cross_entropy_with_logits=_cross_entropy)
raw_ops = SimpleNamespace(DeepCopy=_deep_copy)
sysconfig = SimpleNamespace(
    get_build_info=lambda: {
        "is_cuda_build": True,
        "cuda_version": "12.5.1",
        "cudnn_version": "9",
    }
)
test = SimpleNamespace(experimental=SimpleNamespace(sync_devices=lambda: call("sync_devices")))
config = SimpleNamespace(
    threading=SimpleNamespace(
        set_intra_op_parallelism_threads=lambda count: _set("intra", count),
        set_inter_op_parallelism_threads=lambda count: _set("inter", count),
        get_intra_op_parallelism_threads=lambda: _state["intra"],
        get_inter_op_parallelism_threads=lambda: _state["inter"],
    ),
    list_physical_devices=lambda kind: list(range(gpu_count())),
    set_visible_devices=lambda devices, kind: call(f"set_visible_devices {devices} {kind}"),
    experimental=SimpleNamespace(
        set_memory_growth=lambda card, on: call(f"set_memory_growth {card} {on}"),
        tensor_float_32_execution_enabled=lambda: _state["tf32"],
        enable_tensor_float_32_execution=lambda on: _set("tf32", on),
        get_device_details=lambda card: {"device_name": CARD},
    ),
)
