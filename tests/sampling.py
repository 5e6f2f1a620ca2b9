"""How many cases of a sweep are looked at: a sample that is always the same, or all of them.

`python -m benchmarks.sweeps` runs the same tests with every case, and prints how many there were.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

#: Set to `all` it asks for every case; see benchmarks/sweeps.py.
VARIABLE = "GPUCHECK_TEST_SWEEPS"
THOROUGH = os.environ.get(VARIABLE) == "all"
#: A number of examples for every property; see benchmarks/fuzz.py.
EXAMPLES_VARIABLE = "GPUCHECK_TEST_EXAMPLES"


def examples(count: int) -> int:
    """Return how many examples hypothesis looks at, where `count` are enough for each run."""
    return int(os.environ.get(EXAMPLES_VARIABLE, 5 * count if THOROUGH else count))


def sampled(items: Iterable[Item], count: int, *, always: Sequence[Item] = ()) -> list[Item]:
    """Return `count` items drawn by a fixed seed, in their order, and those of `always` besides."""
    everything = list(items)
    if THOROUGH or len(everything) <= count:
        return everything
    drawn = set(random.Random(0).sample(range(len(everything)), count))
    return [item for place, item in enumerate(everything) if place in drawn or item in always]
