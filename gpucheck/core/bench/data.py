"""The inputs of one group of cases: drawn once from the seed, shared by CPU and GPU."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpucheck.models.bench import Fill

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Zeros or ramps draw less power than random numbers and can run a GPU up to 13 % faster.
DESCRIPTIONS = {Fill.NORMAL: "normal(0,1)", Fill.ZEROS: "zeros"}

#: Numbers drawn from one generator, whatever the number of threads: a seed gives one array.
_CHUNK = 2**20

T = TypeVar("T")


class HostData:
    """Host arrays by name, each made at its first use and kept until the group ends."""

    def __init__(self, seed: int, fill: Fill = Fill.NORMAL) -> None:
        self.seed = seed
        self.fill = fill
        self._kept: dict[str, object] = {}

    def normal(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> HostArray:
        """Return numbers from the standard normal distribution, the same for each seed.

        `dtype` is float32 or float64. With the fill `zeros` they are zeros.
        """

        def draw() -> HostArray:
            import numpy as np

            if self.fill is Fill.ZEROS:
                return np.zeros(shape, dtype=dtype)
            # The name is part of the seed: two inputs of one kernel must not be equal.
            values = np.empty(math.prod(shape), dtype=dtype)
            _fill_normal(values, [self.seed, *name.encode()])
            return values.reshape(shape)

        return self.once(name, draw)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` makes, made once."""
        if name not in self._kept:
            self._kept[name] = make()
        return cast("T", self._kept[name])


def _fill_normal(values: HostArray, seed: list[int]) -> None:
    """Fill a one-dimensional array with standard normal numbers, chunk by chunk in all cores."""
    import numpy as np

    def draw(number: int) -> None:
        chunk = values[number * _CHUNK : (number + 1) * _CHUNK]
        # NumPy draws straight into the array, and lets go of the interpreter's lock meanwhile.
        np.random.default_rng([*seed, number]).standard_normal(dtype=chunk.dtype, out=chunk)

    chunks = range(-(-len(values) // _CHUNK))
    if len(chunks) < 2:
        for number in chunks:
            draw(number)
        return
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        list(pool.map(draw, chunks))
