"""A stand-in for CuPy on a pretended machine: see tests/fakes/README.md.

It has the names of CuPy that gpucheck uses, and nothing else: what is missing is an AttributeError,
not a guess. `tests/fakes/test_cupy.py` compares names and signatures with the real package.
"""

from __future__ import annotations

import os as _os

import numpy as _numpy
from numpy import (
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

from . import cuda
from ._pretended import clock as _clock
from ._pretended.arrays import (
    arange,
    array,
    array_equal,
    asarray,
    ascontiguousarray,
    asnumpy,
    copyto,
    empty,
    empty_like,
    full,
    matmul,
    ndarray,
    ones,
    zeros,
    zeros_like,
)
from ._pretended.arrays import elementwise as _elementwise
from ._pretended.pinned import PinnedMemoryPool as _PinnedMemoryPool
from ._pretended.pool import MemoryPool as _MemoryPool
from ._pretended.raw import RawKernel, RawModule

__all__ = [
    "RawKernel",
    "RawModule",
    "arange",
    "array",
    "array_equal",
    "asarray",
    "ascontiguousarray",
    "asnumpy",
    "bool_",
    "complex64",
    "complex128",
    "copyto",
    "cuda",
    "empty",
    "empty_like",
    "float16",
    "float32",
    "float64",
    "full",
    "int8",
    "int16",
    "int32",
    "int64",
    "matmul",
    "ndarray",
    "ones",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "zeros",
    "zeros_like",
]

__version__ = _os.environ.get("FAKE_CUPY_VERSION", "14.2.0")
newaxis = None
_default_memory_pool = _MemoryPool()
_default_pinned_memory_pool = _PinnedMemoryPool()
cuda.set_allocator(_default_memory_pool.malloc)


class ufunc:
    """One of NumPy's functions on arrays of the GPU."""

    def __init__(self, name: str) -> None:
        self._function = getattr(_numpy, name)
        self.__name__ = f"cupy_{name}"

    def __call__(self, *args: object, out: object = None, **keywords: object) -> object:
        """Apply it."""
        if keywords:
            message = f"{self.__name__} has no {sorted(keywords)} here"
            raise TypeError(message)
        target = out[0] if isinstance(out, tuple) else out
        return _elementwise(self._function, args, out=target)  # type: ignore[arg-type]


add, subtract, multiply = ufunc("add"), ufunc("subtract"), ufunc("multiply")
divide = true_divide = ufunc("true_divide")
maximum, minimum, negative, absolute = (
    ufunc("maximum"),
    ufunc("minimum"),
    ufunc("negative"),
    ufunc("absolute"),
)
exp, exp2, log, sqrt, tanh = ufunc("exp"), ufunc("exp2"), ufunc("log"), ufunc("sqrt"), ufunc("tanh")
isfinite, isnan, equal, not_equal = (
    ufunc("isfinite"),
    ufunc("isnan"),
    ufunc("equal"),
    ufunc("not_equal"),
)


def get_default_memory_pool() -> _MemoryPool:
    """Return the pool of GPU memory."""
    return _default_memory_pool


def get_default_pinned_memory_pool() -> _PinnedMemoryPool:
    """Return the pool of page-locked memory."""
    return _default_pinned_memory_pool


def is_available() -> bool:
    """Return whether there is a device."""
    return cuda.is_available()


_clock.install()
