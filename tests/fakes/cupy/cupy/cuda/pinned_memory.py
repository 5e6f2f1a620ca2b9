"""cupy.cuda.pinned_memory."""

from .._pretended.pinned import PinnedMemoryPool

__all__ = ["PinnedMemoryPool"]
