"""Inputs of a group of cases: drawn from the seed, shared by CPU and GPU."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpucheck.bench.model import Fill

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Zeros or ramps take less power than random numbers and can run a GPU up to 13 % faster.
DESCRIPTIONS = {Fill.NORMAL: "normal(0,1)", Fill.ZEROS: "zeros"}

#: Numbers drawn from one generator for any number of threads: a seed gives one array.
_CHUNK = 2**20

#: Smaller arrays lie in a few pages of the heap, which moves with every allocation.
_SMALLEST_MAPPING = 2**18
#: NumPy requests huge pages from this size on, and so does `fresh_array`.
_HUGE_PAGES_FROM = 2**22

T = TypeVar("T")


class HostData:
    """Host arrays by name, each made at first use: the inputs of a round, and arrays that are kept.

    Inputs are made anew for each round, in other memory but with the same numbers, unless they have
    at least `kept_from_bytes`. Groups may share kept arrays: the names tell them apart.
    """

    def __init__(
        self,
        seed: int,
        fill: Fill = Fill.NORMAL,
        *,
        kept_from_bytes: float = math.inf,
        kept: dict[str, object] | None = None,
    ) -> None:
        self.seed = seed
        self.fill = fill
        self._kept_from_bytes = kept_from_bytes
        self._inputs: dict[str, object] = {}
        self._kept: dict[str, object] = {} if kept is None else kept

    def normal(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> HostArray:
        """Return numbers from the standard normal distribution, the same for each seed.

        `dtype` is float32 or float64. With the fill `zeros` they are zeros.
        """

        def draw() -> HostArray:
            import numpy as np

            if self.fill is Fill.ZEROS:
                return np.zeros(shape, dtype=dtype)
            # The name is part of the seed, so that two inputs of a kernel differ.
            values = fresh_array((math.prod(shape),), dtype)
            _fill_normal(values, [self.seed, *name.encode()])
            return values.reshape(shape)

        size_bytes = math.prod(shape) * (8 if dtype == "float64" else 4)
        return self.once(f"{name}-{shape}-{dtype}", draw, size_bytes)

    def once(self, name: str, make: Callable[[], T], size_bytes: int) -> T:
        """Return the input that `make` makes, once in a round; it has `size_bytes`."""
        kept = size_bytes >= self._kept_from_bytes
        return _made(self._kept if kept else self._inputs, name, make)

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """Return the array that `make` makes, once for all rounds; for untimed or small arrays."""
        return _made(self._kept, name, make)

    def renew(self) -> None:
        """Release the inputs, so that the next caller gets new ones."""
        self._inputs.clear()


def _made(place: dict[str, object], name: str, make: Callable[[], T]) -> T:
    if name not in place:
        place[name] = make()
    return cast("T", place[name])


def fresh_array(shape: tuple[int, ...], dtype: str) -> HostArray:
    """Return an uninitialised array in pages that this process has not used before.

    The allocator reuses freed memory, at its old address and in its old pages: all rounds would
    then share the luck of the first.
    """
    import numpy as np

    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if size_bytes < _SMALLEST_MAPPING:
        return np.empty(shape, dtype=dtype)
    try:
        pages = mmap.mmap(-1, size_bytes)
    except OSError as error:
        raise MemoryError from error
    if size_bytes >= _HUGE_PAGES_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=dtype).reshape(shape)


def _fill_normal(values: HostArray, seed: list[int]) -> None:
    """Fill a one-dimensional array with standard normal numbers, in chunks on all cores."""
    import numpy as np

    def draw(number: int) -> None:
        chunk = values[number * _CHUNK : (number + 1) * _CHUNK]
        # NumPy draws directly into the array, and releases the interpreter lock meanwhile.
        np.random.default_rng([*seed, number]).standard_normal(dtype=chunk.dtype, out=chunk)

    chunks = range(-(-len(values) // _CHUNK))
    if len(chunks) < 2:
        for number in chunks:
            draw(number)
        return
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        list(pool.map(draw, chunks))
