"""cupy.cuda: devices, streams, events, memory."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .._pretended.pinned import PinnedMemoryPool, empty_pinned
from .._pretended.pool import Memory, MemoryPointer, MemoryPool
from . import compiler, device, graph, memory, pinned_memory, runtime, stream
from .device import Device, get_cublas_handle, get_device_id
from .graph import Graph
from .stream import Event, ExternalStream, Stream, get_current_stream, get_elapsed_time

__all__ = [
    "Device",
    "Event",
    "ExternalStream",
    "Graph",
    "Memory",
    "MemoryPointer",
    "MemoryPool",
    "PinnedMemoryPool",
    "Stream",
    "compiler",
    "device",
    "get_cublas_handle",
    "get_current_stream",
    "get_device_id",
    "get_elapsed_time",
    "graph",
    "memory",
    "pinned_memory",
    "runtime",
    "stream",
]

_allocator: list[Callable[[int], MemoryPointer]] = []


def alloc(size: int) -> MemoryPointer:
    """Allocate by the current allocator."""
    return _allocator[-1](size)


def set_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> None:
    """Set the allocator."""
    _allocator[:] = [allocator or MemoryPool().malloc]


def get_allocator() -> Callable[[int], MemoryPointer]:
    """Return the allocator."""
    return _allocator[-1]


def alloc_pinned_memory(size: int) -> Any:
    """Allocate page-locked bytes."""
    return empty_pinned((max(size, 1),), "uint8")


def is_available() -> bool:
    """Return whether there is a device."""
    try:
        return runtime.getDeviceCount() > 0
    except runtime.CUDARuntimeError:
        return False


def __getattr__(name: str) -> Any:
    if name == "cublas":
        # As the real one: the package finds the library, the module alone does not.
        return import_module("cupy_backends.cuda.libs").cublas
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
