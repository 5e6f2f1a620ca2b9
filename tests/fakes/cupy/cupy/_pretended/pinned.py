"""Page-locked host memory: ordinary memory whose addresses are remembered."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

_ranges: dict[int, int] = {}


def empty_pinned(shape: Any, dtype: Any = float, order: str = "C") -> np.ndarray[Any, Any]:
    """Allocate a host array that counts as page-locked."""
    from .device import device

    device().call()
    edges = (shape,) if isinstance(shape, int) else tuple(shape)
    array = np.empty(edges, dtype=dtype, order=order)  # type: ignore[call-overload]
    start = int(array.ctypes.data)
    _ranges[start] = start + array.nbytes
    weakref.finalize(array, _ranges.pop, start, None)
    return array  # type: ignore[no-any-return]


def is_pinned(host: np.ndarray[Any, Any]) -> bool:
    """Return whether a host array lies in page-locked memory."""
    start = int(host.ctypes.data)
    end = start + host.nbytes
    return any(low <= start and end <= high for low, high in _ranges.items())


class PinnedMemoryPool:
    """CuPy's pool of page-locked memory, which keeps nothing here."""

    def __init__(self, allocator: object = None) -> None:
        self._allocator = allocator

    def malloc(self, size: int) -> np.ndarray[Any, Any]:
        """Allocate bytes."""
        return empty_pinned((max(size, 1),), np.uint8)

    def free_all_blocks(self) -> None:
        """Give back nothing."""

    def n_free_blocks(self) -> int:
        """Count nothing."""
        return 0
