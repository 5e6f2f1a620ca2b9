"""cupyx: page-locked arrays."""

from __future__ import annotations

from typing import Any

from cupy._pretended.pinned import empty_pinned as _empty_pinned

__all__ = ["empty_pinned", "zeros_pinned"]


def empty_pinned(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """Allocate a page-locked host array."""
    return _empty_pinned(shape, dtype, order)


def zeros_pinned(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """Allocate a page-locked host array of zeros."""
    made = _empty_pinned(shape, dtype, order)
    made[...] = 0
    return made
