"""gpucheck's kernels in NumPy: one function for each name.

A kernel that is not here cannot be launched on the pretended GPU. To add one, write a function
with `@kernel("its_name")` (a regular expression): it gets the launch and returns its `Effect`. Take
care that it writes only what the kernel's threads would write, so that a grid too small shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .contents import Bytes, Region, repeated
from .device import SPACE, Device
from .errors import CUDADriverError, FakeIncompleteError

Values = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch: grid and block are numbers of blocks and threads, pointers are addresses."""

    name: str
    match: re.Match[str]
    device: Device
    grid: int
    block: int
    arguments: Sequence[Any]
    dtypes: Sequence[str]
    defines: Mapping[str, str]

    def define(self, name: str, absent: int) -> int:
        """Return a macro's number."""
        return int(self.defines.get(name, absent))

    def region(self, position: int, nbytes: int) -> Region:
        """Return the bytes from where a pointer points; fewer there are an illegal address."""
        return SPACE.region(int(self.arguments[position]), nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a launch writes, from what, and how much work that is; `seconds` if it only waits."""

    out: Region | None = None
    inputs: Sequence[Region] = ()
    key: tuple[object, ...] | None = ()
    make: Callable[[list[Bytes]], Values] | None = None
    done: Callable[[float, float], None] | None = None
    moved: Sequence[Region] | None = None
    flops: float = 0.0
    seconds: float | None = None


Implementation = Callable[[Launch], Effect]
_IMPLEMENTATIONS: list[tuple[re.Pattern[str], Implementation]] = []


def kernel(pattern: str) -> Callable[[Implementation], Implementation]:
    """Register what kernels with names of this pattern do."""

    def register(function: Implementation) -> Implementation:
        _IMPLEMENTATIONS.append((re.compile(pattern), function))
        return function

    return register


def implementation(name: str) -> tuple[re.Match[str], Implementation]:
    """Return what a kernel does."""
    for pattern, function in _IMPLEMENTATIONS:
        match = pattern.fullmatch(name)
        if match:
            return match, function
    message = f"the pretended GPU has no kernel {name!r}: add it to {__name__}"
    raise FakeIncompleteError(message)


@kernel("empty")
def _empty(launch: Launch) -> Effect:
    return Effect()


@kernel("hold")
def _hold(launch: Launch) -> Effect:
    return Effect(seconds=int(launch.arguments[0]) / 1e9)


@kernel("tick")
def _tick(launch: Launch) -> Effect:
    out = launch.region(0, 16)
    # One block for each SM, so that one of them finds itself on SM 0.
    if launch.grid < launch.device.card.sm_count:
        return Effect()

    def done(start_s: float, end_s: float) -> None:
        from .contents import known

        count = launch.device.cycles(end_s)
        values = np.array([1 + round(end_s * 1e9), 1 + round(count)], dtype=np.uint64)
        out.block.write(out.offset, known(values))

    return Effect(done=done)


@kernel("step")
def _step(launch: Launch) -> Effect:
    out = launch.region(0, 8)

    def done(start_s: float, end_s: float) -> None:
        from .contents import known

        out.block.write(out.offset, known(np.array([32], dtype=np.uint64)))

    return Effect(done=done)


def _check_tile(launch: Launch) -> None:
    """Refuse a block that stream.cu was not compiled for: it would leave packs out."""
    if launch.block != launch.define("BLOCK", 256):
        raise CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE", "the block is not stream.cu's")


@kernel("copy")
def _copy(launch: Launch) -> Effect:
    _check_tile(launch)
    nbytes = 16 * int(launch.arguments[2])
    source, out = launch.region(0, nbytes), launch.region(1, nbytes)
    return Effect(out=out, inputs=(source,), key=None, make=lambda found: found[0])


@kernel("triad")
def _triad(launch: Launch) -> Effect:
    _check_tile(launch)
    factor, packs = np.float32(launch.arguments[3]), int(launch.arguments[4])
    regions = [launch.region(number, 16 * packs) for number in range(3)]

    def make(found: list[Bytes]) -> Values:
        one, other = (values.view(np.float32) for values in found)
        return np.asarray(factor * one + other, dtype=np.float32)

    return Effect(
        out=regions[2], inputs=regions[:2], key=(float(factor),), make=make, flops=8 * packs
    )


def widen(values: Bytes, element: int) -> Values:
    """Return numbers of softmax.cu's format ELEMENT as float32."""
    if element == 0:
        return values.view(np.float32)
    if element == 1:
        return values.view(np.float16).astype(np.float32)
    return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def narrow(values: Values, element: int) -> Values:
    """Return float32 numbers rounded to softmax.cu's format ELEMENT."""
    if element == 0:
        return values.astype(np.float32, copy=False)
    if element == 1:
        return values.astype(np.float16)
    bits = values.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


@kernel(r"softmax_(short|long|online|ahead|cluster|raw)")
def _softmax(launch: Launch) -> Effect:
    """Every kernel walks over all rows, so that any grid covers them."""
    rows, columns = (int(launch.arguments[at]) for at in (2, 3))
    factor = float(np.float32(launch.arguments[4]))
    element = launch.define("ELEMENT", 0)
    itemsize = 4 if element == 0 else 2
    _check_softmax(launch, columns, itemsize)
    source, out = (launch.region(at, rows * columns * itemsize) for at in (0, 1))

    def make(found: list[Bytes]) -> Values:
        x = widen(found[0], element).reshape(rows, columns)
        return narrow(_softmax_of(x, factor), element)

    return Effect(
        out=out,
        inputs=(source,),
        key=(element, rows, columns, factor),
        make=make,
        flops=5 * rows * columns,
    )


def _check_softmax(launch: Launch, columns: int, itemsize: int) -> None:
    """Refuse a launch for which the kernel was not compiled: on a card rows would be cut off."""
    kind, per_pack = launch.match.group(1), 16 // itemsize
    aligned = bool(launch.define("ALIGNED", 0))
    packs = -(-(columns + (0 if aligned else per_pack - 1)) // per_pack)
    lanes = {
        "short": launch.define("LANES", 0),
        "long": launch.block,
        "ahead": launch.block,
        "raw": launch.block,
        "cluster": launch.block * launch.define("CLUSTER", 0),
    }.get(kind)
    wrong = (
        not launch.define(launch.name.upper(), 0),
        launch.block != launch.define("BLOCK", 0),
        lanes is not None and packs > lanes * launch.define("PACKS", 0),
        launch.define("EXACT", 0)
        and (not aligned or packs != (lanes or 0) * launch.define("PACKS", 0)),
        aligned and (columns * itemsize % 16 or any(one % 16 for one in launch.arguments[:2])),
        kind == "cluster" and launch.grid % launch.define("CLUSTER", 1),
    )
    if any(wrong):
        message = f"{launch.name} is not compiled for rows of {columns} ({launch.defines})"
        raise CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE", message)


def _softmax_of(x: Values, factor: float) -> Values:
    result = np.empty(x.shape, dtype=np.float32)
    for low in range(0, len(x), 256):
        part = x[low : low + 256]
        raised = np.exp2((part - part.max(axis=1, keepdims=True)) * np.float32(factor))
        result[low : low + 256] = raised / raised.sum(axis=1, keepdims=True)
    return result


#: train.cu: numbers of an image, classes, threads of a block of `project`.
_INPUTS, _CLASSES, _PROJECT_BLOCK = 785, 10, 512


def _softmax_less(values: Values, targets: Values) -> Values:
    raised = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True) - targets, dtype=np.float32)


@kernel("forward")
def _forward(launch: Launch) -> Effect:
    rows = int(launch.arguments[4])
    images = launch.region(0, 4 * _INPUTS * rows)
    weights = launch.region(1, 4 * _INPUTS * _CLASSES)
    targets, out = (launch.region(at, 4 * _CLASSES * rows) for at in (2, 3))

    def make(found: list[Bytes]) -> Values:
        x, w, wanted = (one.view(np.float32) for one in found)
        logits = x.reshape(rows, _INPUTS) @ w.reshape(_INPUTS, _CLASSES)
        return _softmax_less(logits, wanted.reshape(rows, _CLASSES))

    return Effect(
        out=out,
        inputs=(images, weights, targets),
        key=(rows,),
        make=make,
        flops=2 * rows * _INPUTS * _CLASSES,
    )


@kernel("project")
def _project(launch: Launch) -> Effect:
    scale, added, rows = (
        np.float32(launch.arguments[3]),
        bool(launch.arguments[4]),
        int(launch.arguments[5]),
    )
    if launch.block != _PROJECT_BLOCK:
        raise CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE", "project needs its own block")
    reached = min(_INPUTS, 32 * launch.grid)
    images = launch.region(0, 4 * _INPUTS * rows)
    gradients = launch.region(1, 4 * _CLASSES * rows)
    out = launch.region(2, 4 * _CLASSES * reached)

    def make(found: list[Bytes]) -> Values:
        x = found[0].view(np.float32).reshape(rows, _INPUTS)[:, :reached]
        sums = scale * (x.T @ found[1].view(np.float32).reshape(rows, _CLASSES))
        if added:
            sums = sums + found[2].view(np.float32).reshape(reached, _CLASSES)
        return np.asarray(sums, dtype=np.float32)

    return Effect(
        out=out,
        inputs=(images, gradients, out) if added else (images, gradients),
        key=(float(scale), rows, reached),
        make=make,
        flops=2 * rows * reached * _CLASSES,
    )


@kernel("gradient")
def _gradient(launch: Launch) -> Effect:
    rows = min(int(launch.arguments[2]), launch.grid * launch.block)
    logits, targets = (launch.region(at, 4 * _CLASSES * rows) for at in (0, 1))

    def make(found: list[Bytes]) -> Values:
        values, wanted = (one.view(np.float32).reshape(rows, _CLASSES) for one in found)
        return _softmax_less(values, wanted)

    return Effect(out=logits, inputs=(logits, targets), key=(rows,), make=make, flops=50 * rows)


@kernel("merge")
def _merge(launch: Launch) -> Effect:
    towers, count = int(launch.arguments[2]), int(launch.arguments[3])
    reached = min(count, launch.grid * launch.block)
    weights = launch.region(0, 4 * reached)
    steps = launch.region(1, 4 * towers * count)

    def make(found: list[Bytes]) -> Values:
        values = found[0].view(np.float32)
        parts = found[1].view(np.float32).reshape(towers, count)[:, :reached]
        return np.asarray(values - parts.sum(axis=0, dtype=np.float32), dtype=np.float32)

    return Effect(out=weights, inputs=(weights, steps), key=(towers, count, reached), make=make)


#: sdc.cu: by ELEMENT the type of a word, and the bits of infinity (None: no such thing).
_WORDS: Mapping[int, tuple[type[np.unsignedinteger[Any]], int | None]] = {
    0: (np.uint32, 0x7F800000),
    1: (np.uint16, 0x7C00),
    2: (np.uint16, 0x7F80),
    3: (np.uint64, 0x7FF0000000000000),
    4: (np.uint32, None),
}


@kernel("differ")
def _differ(launch: Launch) -> Effect:
    word, infinite = _WORDS[launch.define("ELEMENT", 0)]
    nbytes = int(launch.arguments[2]) * np.dtype(word).itemsize
    one, other, found = launch.region(0, nbytes), launch.region(1, nbytes), launch.region(3, 32)
    if any(int(address) % 16 for address in launch.arguments[:2]):
        raise CUDADriverError(716, "CUDA_ERROR_MISALIGNED_ADDRESS", "packs of differ")

    def leave_poison(start_s: float, end_s: float) -> None:
        byte = b"\x80" if infinite is None else b"\xff"
        other.block.write(other.offset, repeated(byte, nbytes))

    def make(given: list[Bytes]) -> Values:
        counts = given[2].view(np.uint64).copy()
        left, right = given[0].view(word), given[1].view(word)
        places = np.flatnonzero(left != right) if left is not right else np.empty(0, np.int64)
        if len(places):
            a, b = left[places], right[places]
            nan = _is_nan(a, infinite) | _is_nan(b, infinite)
            counts[0] += np.uint64(len(places))
            counts[1] = min(counts[1], np.uint64(places[0]))
            counts[2] = max(counts[2], _ulps(a[~nan], b[~nan], infinite))
            counts[3] += np.uint64(nan.sum())
        return counts

    return Effect(
        out=found,
        inputs=(one, other, found),
        key=(infinite,),
        make=make,
        done=leave_poison,
        moved=(one, other, other),
    )


def _is_nan(words: Values, infinite: int | None) -> Values:
    if infinite is None:
        return np.zeros(words.shape, np.bool_)
    sign = words.dtype.type(1 << (8 * words.itemsize - 1))
    return np.asarray((words & ~sign) > words.dtype.type(infinite))


def _ulps(one: Values, other: Values, infinite: int | None) -> np.uint64:
    """Return the most numbers that lie between two of a pair."""
    if not len(one):
        return np.uint64(0)
    if infinite is None:
        wide = np.abs(one.view(np.int32).astype(np.int64) - other.view(np.int32).astype(np.int64))
        return np.uint64(wide.max())
    sign = one.dtype.type(1 << (8 * one.itemsize - 1))
    low, high = ((side & ~sign).astype(np.uint64) for side in (one, other))
    apart = np.where(low < high, high - low, low - high)
    return np.uint64(np.where((one ^ other) & sign, low + high, apart).max())


@kernel("digest")
def _digest(launch: Launch) -> Effect:
    word, _ = _WORDS[launch.define("ELEMENT", 0)]
    values = launch.region(0, int(launch.arguments[1]) * np.dtype(word).itemsize)
    total = launch.region(2, 8)

    def make(found: list[Bytes]) -> Values:
        words = found[0].view(word).astype(np.uint64)
        mixed = words + np.arange(1, len(words) + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        summed = np.add.reduce(mixed ^ (mixed >> np.uint64(31)))
        return np.asarray(found[1].view(np.uint64) + summed, dtype=np.uint64)

    return Effect(out=total, inputs=(values, total), make=make, moved=(values,))
