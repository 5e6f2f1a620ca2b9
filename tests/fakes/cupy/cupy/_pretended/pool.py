"""CuPy's memory pool: blocks of cudaMalloc cut into chunks, kept when freed, with a limit."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

from .clock import driver_call
from .contents import Block
from .device import THREAD, Device, device, devices
from .errors import CUDARuntimeError

_UNIT = 512
_OUT_OF_MEMORY = 2


class OutOfMemoryError(MemoryError):
    """The pool's limit or the card's memory is reached."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        self._size = size
        self._total = total
        self._limit = limit
        said = f"Out of memory allocating {size:,} bytes"
        if limit:
            said += f" (allocated so far: {total:,} bytes, limit set to: {limit:,} bytes)."
        elif total != -1:
            said += f" (allocated so far: {total:,} bytes)."
        super().__init__(said)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._size, self._total, self._limit))


class Memory:
    """A chunk of a block as an array holds it; it goes back to its pool with the last holder."""

    def __init__(
        self, block: Block | None, offset: int, size: int, pool: DevicePool | None
    ) -> None:
        self.block = block
        self.offset = offset
        self.size = size
        self._pool = pool
        self.device_id = THREAD.device if block is None else block.device
        self.ptr = 0 if block is None else block.address + offset

    def __del__(self) -> None:
        if self._pool is not None and self.block is not None:
            self._pool.give_back(self.block, self.offset, self.size)


class MemoryPointer:
    """A place in a chunk."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id

    @property
    def device(self) -> Any:
        """Return the device it is on."""
        from cupy.cuda import Device as PublicDevice

        return PublicDevice(self.device_id)

    def __int__(self) -> int:
        return self.ptr

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        """Enqueue filling memory with one byte."""
        from . import runtime

        runtime.memset(self.ptr, value, size, None if stream is None else stream.ptr)

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


class DevicePool:
    """The pool of one device; chunks freed on a stream serve that stream only."""

    def __init__(self, owner: Device, limit: str | None) -> None:
        self._owner = owner
        self._free: dict[int, list[tuple[int, Block, int]]] = {}
        self._streams: dict[tuple[int, int], int] = {}
        self.used = 0
        self.total = 0
        self.limit = 0
        if limit is not None:
            parsed = parse_limit(limit)
            self.set_limit(**parsed)

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Set the limit; nothing or 0 is none."""
        if size is None:
            if fraction is None:
                size = 0
            else:
                if not 0 <= fraction <= 1:
                    message = f"memory limit fraction out of range: {fraction}"
                    raise ValueError(message)
                self._owner.call()
                size = int(fraction * self._owner.card.memory_bytes)
        elif fraction is not None:
            message = "size and fraction cannot be specified at one time"
            raise ValueError(message)
        if size < 0:
            message = f"memory limit size out of range: {size}"
            raise ValueError(message)
        self.limit = int(size)

    def malloc(self, size: int, stream: int) -> MemoryPointer:
        """Allocate from what was freed on this stream, or from the card."""
        if size == 0:
            return MemoryPointer(Memory(None, 0, 0, None), 0)
        rounded = -(-size // _UNIT) * _UNIT
        block, offset = self._reused(rounded, stream) or (self._fresh(rounded), 0)
        self.used += rounded
        self._streams[(block.address, offset)] = stream
        return MemoryPointer(Memory(block, offset, rounded, self), 0)

    def _reused(self, size: int, stream: int) -> tuple[Block, int] | None:
        chunks = self._free.get(stream, [])
        fitting = [chunk for chunk in chunks if chunk[0] >= size]
        if not fitting:
            return None
        chosen = min(fitting, key=lambda chunk: chunk[0])
        chunks.remove(chosen)
        found, block, offset = chosen
        if found > size:
            chunks.append((found - size, block, offset + size))
        return block, offset

    def _fresh(self, size: int) -> Block:
        for collect in (None, gc.collect):
            if not self._over(size):
                break
            self._try_again(collect)
        if self._over(size):
            raise OutOfMemoryError(size, self.total, self.limit)
        for collect in (None, gc.collect, None):
            try:
                block = self._owner.malloc(size)
            except CUDARuntimeError as error:
                if error.status != _OUT_OF_MEMORY:
                    raise
                self._try_again(collect)
            else:
                self.total += size
                return block
        raise OutOfMemoryError(size, self.total, self.limit)

    def _over(self, size: int) -> bool:
        return self.limit > 0 and self.total + size > self.limit

    def _try_again(self, collect: Callable[[], object] | None) -> None:
        if collect is not None:
            collect()
        self.free_all_blocks()

    def give_back(self, block: Block, offset: int, size: int) -> None:
        """Keep a chunk that nobody holds any more, joined with its neighbours."""
        self.used -= size
        stream = self._streams.pop((block.address, offset))
        chunks = self._free.setdefault(stream, [])
        for other in list(chunks):
            length, where, start = other
            if where is block and start + length == offset:
                chunks.remove(other)
                offset, size = start, size + length
            elif where is block and offset + size == start:
                chunks.remove(other)
                size += length
        chunks.append((size, block, offset))

    def free_all_blocks(self) -> None:
        """Give back to the card what is wholly free."""
        for stream, chunks in self._free.items():
            kept = []
            for size, block, offset in chunks:
                if size == block.nbytes:
                    self._owner.free(block)
                    self.total -= size
                else:
                    kept.append((size, block, offset))
            self._free[stream] = kept

    def free_count(self) -> int:
        """Count the chunks that are kept."""
        return sum(len(chunks) for chunks in self._free.values())


def parse_limit(text: str) -> dict[str, Any]:
    """Return CUPY_GPU_MEMORY_LIMIT as the arguments of set_limit; nonsense is a ValueError."""
    if text.endswith("%"):
        return {"fraction": float(text[:-1]) / 100.0}
    return {"size": int(text)}


class MemoryPool:
    """A pool for each device."""

    def __init__(self, allocator: object = None) -> None:
        self._pools: list[DevicePool] = []

    def _here(self) -> DevicePool:
        if not self._pools:
            limit = os.environ.get("CUPY_GPU_MEMORY_LIMIT")
            self._pools = [DevicePool(one, limit) for one in devices()]
        return self._pools[device().card.ordinal]

    @driver_call
    def malloc(self, size: int) -> MemoryPointer:
        """Allocate on the current device, for the current stream."""
        from .runtime import current_stream_pointer

        return self._here().malloc(size, current_stream_pointer())

    @driver_call
    def free_all_blocks(self, stream: object = None) -> None:
        """Give unused blocks back."""
        self._here().free_all_blocks()

    def n_free_blocks(self) -> int:
        """Count unused chunks."""
        return self._here().free_count()

    def used_bytes(self) -> int:
        """Return what arrays hold."""
        return self._here().used

    def free_bytes(self) -> int:
        """Return what is kept for later."""
        pool = self._here()
        return pool.total - pool.used

    def total_bytes(self) -> int:
        """Return both."""
        return self._here().total

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Set the current device's limit."""
        self._here().set_limit(size, fraction)

    def get_limit(self) -> int:
        """Return the current device's limit, 0 for none."""
        return self._here().limit
