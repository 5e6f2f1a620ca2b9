"""Stand-in for JAX as benchmarks use it: NumPy behind, pretended GPUs, traced calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from stand_in import CARD, break_import, call, gpu_count

break_import("jax")
__version__ = "0.99.0"


class Device:
    """A processor or a card."""

    def __init__(self, platform: str, number: int) -> None:
        self.platform, self.id = platform, number
        self.device_kind = CARD if platform == "gpu" else "cpu"
        self.client = SimpleNamespace(platform_version="PJRT C API\ncuda 12080")

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"


_CPU = Device("cpu", 0)


def devices(kind: str) -> list[Device]:
    """Return the devices of a platform."""
    if kind == "cpu":
        return [_CPU]
    found = [Device("gpu", number) for number in range(gpu_count())]
    if not found:
        message = f"Unknown backend: '{kind}' requested, but no platforms that are instances of it"
        raise RuntimeError(message)
    return found


class Array:
    """An array on a device."""

    def __init__(self, array: Any, where: Device = _CPU) -> None:
        self.array, self.where = np.asarray(array), where

    @property
    def dtype(self) -> Any:
        """Return the type of the numbers."""
        return self.array.dtype

    def _new(self, array: Any) -> Array:
        return Array(array, self.where)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self.where.platform == "gpu":
            call(f"asarray from {self.where}")
        return self.array

    def block_until_ready(self) -> Array:
        call(f"block_until_ready on {self.where}")
        return self

    def astype(self, dtype: Any) -> Array:
        return self._new(self.array.astype(dtype))

    def mean(self) -> Array:
        return self._new(self.array.mean())

    def __truediv__(self, number: float) -> Array:
        return self._new((self.array / number).astype(self.dtype))

    def __matmul__(self, other: Array) -> Array:
        return self._new(self.array @ other.array)

    def __neg__(self) -> Array:
        return self._new(-self.array)

    def __sub__(self, other: Array) -> Array:
        return self._new(self.array - other.array)

    def __rmul__(self, number: float) -> Array:
        return self._new((number * self.array).astype(self.dtype))

    def __getitem__(self, key: Any) -> Array:
        return self._new(self.array[key])


def device_put(array: Any, where: Device) -> Array:
    """Return a copy on a device."""
    source = array.where if isinstance(array, Array) else "host"
    call(f"device_put to {where} from {source}")
    values = array.array if isinstance(array, Array) else array
    return Array(np.array(values), where)


def jit(plain: Any) -> Any:
    """Return the function."""
    call("jit")
    return plain


def block_until_ready(array: Any) -> Any:
    """Wait for an array."""
    if isinstance(array, Array):
        array.block_until_ready()
    return array


def grad(loss_of: Any) -> Any:
    """Return the gradient of the mean cross entropy of a product."""

    def gradient(weights: Array, x: Array, y: Array) -> Array:
        loss_of(weights, x, y)
        images, classes = np.asarray(x.array), np.asarray(y.array)
        logits = images @ weights.array
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        raised /= raised.sum(axis=1, keepdims=True)
        raised[np.arange(len(raised)), classes] -= 1
        return Array(images.T @ (raised / len(raised)), weights.where)

    return gradient


def _softmax(x: Array, *, axis: int) -> Array:
    call(f"softmax {x.dtype} on {x.where}")
    assert axis == -1
    raised = np.exp(x.array - x.array.max(axis=-1, keepdims=True))
    return Array((raised / raised.sum(axis=-1, keepdims=True)).astype(x.dtype), x.where)


def _log_softmax(x: Array) -> Array:
    call(f"log_softmax on {x.where}")
    shifted = x.array - x.array.max(axis=-1, keepdims=True)
    return Array(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), x.where)


nn = SimpleNamespace(softmax=_softmax, log_softmax=_log_softmax)


class _Config:
    """Settings by name."""

    jax_default_matmul_precision: str | None = None

    def update(self, name: str, value: Any) -> None:
        call(f"config {name} {value}")
        setattr(self, name, value)


config = _Config()
