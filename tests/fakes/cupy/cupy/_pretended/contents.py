"""Contents of GPU memory: values are computed when read, and equal ones only once.

A benchmark runs the same operation on equal inputs thousands of times. So memory holds nodes, each
the result of an operation on other nodes; an operation that is asked for again on the same nodes is
the same node, and its numbers are computed at the first look.
"""

from __future__ import annotations

import itertools
import time
import zlib
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Make = Callable[[list[Bytes]], "NDArray[Any]"]

#: Nodes waiting on nodes; deeper chains are computed, so that looking at one does not recurse far.
_DEEPEST = 40
#: Small results are kept although nothing holds them: a loop comes back to them.
_KEPT, _KEPT_BYTES = 300, 1 << 18
#: Updates in place that nobody looks at are made at least so often, and for so long on our
#: processor; then memory stands still: see `Block.update`.
_FEWEST_UPDATES, _LONGEST_UPDATING_S = 50, 1.0

_serials = itertools.count(1)
_known: WeakValueDictionary[tuple[object, ...], Node] = WeakValueDictionary()
_recent: deque[Node] = deque(maxlen=_KEPT)


class _Spent:
    """Our processor's time for computing nodes."""

    seconds = 0.0


class Node:
    """Bytes that are known, or how to compute them."""

    __slots__ = ("__weakref__", "_inputs", "_make", "_values", "depth", "nbytes", "serial")

    def __init__(
        self,
        nbytes: int,
        values: Bytes | None,
        inputs: Sequence[Node] = (),
        make: Make | None = None,
    ) -> None:
        self.depth: int = 0
        self.nbytes = nbytes
        self.serial = next(_serials)
        self._values = values
        self._inputs = tuple(inputs)
        self._make = make
        if values is None:
            self.depth = 1 + max((one.depth for one in inputs), default=0)

    def values(self) -> Bytes:
        """Return the bytes, computing them now if nobody has looked before; not to be written."""
        if self._values is None:
            assert self._make is not None
            given = [one.values() for one in self._inputs]
            start_s = time.thread_time()
            with np.errstate(all="ignore"):
                made = np.ascontiguousarray(self._make(given))
            _Spent.seconds += time.thread_time() - start_s
            found: Bytes = made.reshape(-1).view(np.uint8)
            assert found.nbytes == self.nbytes, (found.nbytes, self.nbytes)
            found.flags.writeable = False
            self._values, self._inputs, self._make, self.depth = found, (), None, 0
        return self._values


def known(values: NDArray[Any]) -> Node:
    """Return a node for bytes that nobody else will write."""
    flat: Bytes = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    flat.flags.writeable = False
    return Node(flat.nbytes, flat)


def derived(key: tuple[object, ...], inputs: Sequence[Node], nbytes: int, make: Make) -> Node:
    """Return the node of an operation on nodes; `key` names the operation and its numbers."""
    whole = (*key, nbytes, *(one.serial for one in inputs))
    found = _known.get(whole)
    if found is None:
        found = Node(nbytes, None, inputs, make)
        _known[whole] = found
        if found.depth >= _DEEPEST:
            found.values()
    if nbytes <= _KEPT_BYTES:
        _recent.append(found)
    return found


def uploaded(host: NDArray[Any]) -> Node:
    """Return the node of a host array as it is now; equal arrays give one node."""
    flat: Bytes = host.reshape(-1).view(np.uint8)
    key = ("uploaded", flat.nbytes, *_digest(flat))
    found = _known.get(key)
    if found is None:
        found = known(flat.copy())
        _known[key] = found
    return found


def _digest(flat: Bytes) -> tuple[int, ...]:
    """Return checksums that a change of any bit and any exchange of numbers alters."""
    if flat.nbytes < 1 << 16:
        return (zlib.crc32(flat.data), zlib.adler32(flat.data))
    words = flat[: flat.nbytes // 8 * 8].view(np.uint64)
    width = 4096
    square = words[: len(words) // width * width].reshape(-1, width)
    rest = flat[square.size * 8 :]
    down = np.add.reduce(square, axis=0, dtype=np.uint64)
    across = np.add.reduce(square, axis=1, dtype=np.uint64)
    return tuple(zlib.crc32(np.ascontiguousarray(part).data) for part in (down, across, rest))


def part_of(node: Node, offset: int, nbytes: int) -> Node:
    """Return some of a node's bytes."""
    if offset == 0 and nbytes == node.nbytes:
        return node
    key = ("part", offset)
    return derived(key, (node,), nbytes, lambda found: found[0][offset : offset + nbytes])


def repeated(pattern: bytes, nbytes: int) -> Node:
    """Return memory that was filled with one number."""

    def make(_: list[Bytes]) -> NDArray[Any]:
        unit = np.frombuffer(pattern, dtype=f"u{len(pattern)}")
        return np.full(nbytes // len(pattern), unit[0])

    return derived(("repeated", pattern), (), nbytes, make)


def corrupted(node: Node, what: str) -> Node:
    """Return a node with one bit flipped, or with one NaN in it (all bytes of it set)."""

    def make(found: list[Bytes]) -> Bytes:
        values = found[0].copy()
        place = len(values) // 3 // 8 * 8
        if what == "nan":
            values[place : place + 8] = 0xFF
        else:
            # The upper part of a 16-, 32- or 64-bit number: an error that matters.
            values[place + (1 if len(values) < 8 else 7)] ^= 0x20
        return values

    return derived(("corrupted", what), (node,), node.nbytes, make)


class Block:
    """One cudaMalloc: an address, a size, and what was written where."""

    def __init__(self, address: int, nbytes: int, device: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.device = device
        self.freed = False
        self._starts: list[int] = []
        self._parts: dict[int, Node] = {}
        self._updates: dict[int, tuple[int, float]] = {}

    def read(self, offset: int, nbytes: int) -> Node:
        """Return what is there; never written memory reads as 0xFF, NaN to every float."""
        node = self._parts.get(offset)
        if node is not None and node.nbytes == nbytes:
            return node
        found = self._overlapping(offset, nbytes)
        if len(found) == 1:
            start, only = found[0]
            if start <= offset and start + only.nbytes >= offset + nbytes:
                return part_of(only, offset - start, nbytes)
        if not found:
            return repeated(b"\xff", nbytes)
        gathered = known(self._gathered(found, offset, nbytes))
        self.write(offset, gathered)
        return gathered

    @staticmethod
    def _gathered(found: list[tuple[int, Node]], offset: int, nbytes: int) -> Bytes:
        values = np.full(nbytes, 0xFF, dtype=np.uint8)
        for start, node in found:
            low, high = max(start, offset), min(start + node.nbytes, offset + nbytes)
            values[low - offset : high - offset] = node.values()[low - start : high - start]
        return values

    def write(self, offset: int, node: Node) -> None:
        """Put a node there; what it covers only partly keeps the rest."""
        self._updates.pop(offset, None)
        self._write(offset, node)

    def update(self, offset: int, node: Node) -> None:
        """Put there what an operation made of what was there.

        Nobody can tell a number that was updated ten thousand times from one updated twice that
        many, and computing them takes time: an unobserved place stands still in the end.
        """
        count, since_s = self._updates.get(offset, (0, _Spent.seconds))
        self._updates[offset] = (count + 1, since_s)
        if count < _FEWEST_UPDATES or _Spent.seconds - since_s < _LONGEST_UPDATING_S:
            self._write(offset, node)

    def looked_at(self) -> None:
        """Begin to count the updates anew."""
        self._updates.clear()

    def _write(self, offset: int, node: Node) -> None:
        old = self._parts.get(offset)
        if old is not None and old.nbytes == node.nbytes:
            self._parts[offset] = node
            return
        end = offset + node.nbytes
        for start, covered in self._overlapping(offset, node.nbytes):
            self._starts.remove(start)
            del self._parts[start]
            if start < offset:
                self._put(start, part_of(covered, 0, offset - start))
            if start + covered.nbytes > end:
                self._put(end, part_of(covered, end - start, start + covered.nbytes - end))
        self._put(offset, node)

    def _put(self, offset: int, node: Node) -> None:
        insort(self._starts, offset)
        self._parts[offset] = node

    def _overlapping(self, offset: int, nbytes: int) -> list[tuple[int, Node]]:
        first = max(0, bisect_right(self._starts, offset) - 1)
        found = []
        for start in self._starts[first:]:
            if start >= offset + nbytes:
                break
            if start + self._parts[start].nbytes > offset:
                found.append((start, self._parts[start]))
        return found


class Region:
    """Some bytes of a block."""

    __slots__ = ("block", "nbytes", "offset")

    def __init__(self, block: Block, offset: int, nbytes: int) -> None:
        self.block = block
        self.offset = offset
        self.nbytes = nbytes

    @property
    def place(self) -> tuple[int, int]:
        """Return what tells it from others."""
        return (self.block.address + self.offset, self.nbytes)

    def node(self) -> Node:
        """Return what is there."""
        return self.block.read(self.offset, self.nbytes)
