"""How many cases of a sweep are looked at: a sample that is always the same, or all of them.

`python -m benchmarks.sweeps` runs the same tests with every case, and prints how many there were;
`python -m benchmarks.fuzz` runs properties of parsers with as many examples as it is told.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

#: `all` asks for every case; a number, for so many examples of each property.
ASKED = os.environ.get("GPUCHECK_TEST_SWEEPS", "")
THOROUGH = ASKED == "all"


def examples(count: int) -> int:
    """Return how many examples hypothesis looks at, where `count` are enough for each run."""
    return 5 * count if THOROUGH else int(ASKED or count)


def sampled(items: Iterable[Item], count: int, *, always: Sequence[Item] = ()) -> list[Item]:
    """Return `count` items drawn by a fixed seed, in their order, and those of `always` besides."""
    everything = list(items)
    if THOROUGH or len(everything) <= count:
        return everything
    drawn = set(random.Random(0).sample(range(len(everything)), count))
    return [item for place, item in enumerate(everything) if place in drawn or item in always]
