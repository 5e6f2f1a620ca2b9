"""cupy.cuda.memory."""

from .._pretended.pool import Memory, MemoryPointer, MemoryPool, OutOfMemoryError

__all__ = ["Memory", "MemoryPointer", "MemoryPool", "OutOfMemoryError"]
for _one in (Memory, MemoryPointer, MemoryPool, OutOfMemoryError):
    _one.__module__ = __name__
