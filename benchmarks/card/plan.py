"""Plan of a run: its parts in order, and the seconds of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

#: A part with less time is not begun.
BEGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds of a part: what it needs for its first figures, and for all of them.

    The run is incomplete without a part that is not optional.
    """

    least_s: float
    full_s: float
    optional: bool = False


#: Every part, in the order of the run: a wrong kernel makes every speed void.
BUDGETS: Mapping[str, Budget] = MappingProxyType(
    {
        "facts": Budget(20, 30),
        "tests": Budget(100, 120),
        "bandwidth": Budget(20, 40),
        "softmax": Budget(80, 190),
        "matmul": Budget(50, 90),
        "launch": Budget(15, 25),
        "transfer": Budget(15, 25),
        "burn": Budget(30, 40),
        "towers": Budget(15, 25),
        "program": Budget(60, 120),
        "variants": Budget(20, 60, optional=True),
        "memcheck": Budget(20, 60, optional=True),
        "racecheck": Budget(15, 50, optional=True),
        "synccheck": Budget(10, 25, optional=True),
        "initcheck": Budget(10, 25, optional=True),
    }
)


def share_seconds(parts: Sequence[str], seconds: float) -> dict[str, float]:
    """Return the seconds of each part, which together are all that there are.

    First each part that is not optional gets its least, then each optional one, then all are
    filled up in the same order, and what is left goes to all.
    """
    given = dict.fromkeys(parts, 0.0)
    needed = [part for part in parts if not BUDGETS[part].optional]
    optional = [part for part in parts if BUDGETS[part].optional]
    steps = [{part: BUDGETS[part].least_s for part in some} for some in (needed, optional)]
    steps += [{part: BUDGETS[part].full_s for part in some} for some in (needed, optional)]
    left = seconds
    for step in steps:
        missing = sum(most - given[part] for part, most in step.items())
        share = min(1.0, left / missing) if missing else 0.0
        for part, most in step.items():
            given[part] += share * (most - given[part])
        left -= share * missing
    whole = sum(given.values())
    return {part: taken * (1 + left / whole) if whole else 0.0 for part, taken in given.items()}
