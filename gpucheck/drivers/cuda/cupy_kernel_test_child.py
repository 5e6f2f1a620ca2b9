"""CUDA kernel self-test through CuPy, stage by stage: run by path.

It runs in the interpreter that has CuPy (Python 3.8 or newer, otherwise standard library only). It
reports when CuPy is imported and when it has compiled, so that a slow start is not taken for a
driver that hangs.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any

COUNT = 4096
MOST_CHARACTERS = 500


def run(cupy: Any, ordinal: int) -> dict[str, Any]:
    """Compute 3x + 7 twice on one device and compare; the first run compiles it."""
    times = []
    with cupy.cuda.Device(ordinal):
        values = cupy.arange(COUNT, dtype=cupy.uint32)
        for _ in range(2):
            started = time.perf_counter()
            values = values * cupy.uint32(3) + cupy.uint32(7)
            cupy.cuda.Stream.null.synchronize()
            times.append(time.perf_counter() - started)
            if len(times) == 1:
                write_answer({"stage": "compiled"})
        results = values.get()
    right = all(int(value) == 3 * (3 * x + 7) + 7 for x, value in enumerate(results))
    return {
        "ordinal": ordinal,
        "right": right,
        "first_launch_s": times[0],
        "second_launch_s": times[1],
    }


def explain(error: BaseException) -> str:
    """Return an exception as one line."""
    lines = (type(error).__name__ + ": " + str(error)).splitlines()
    return " ".join(line.strip() for line in lines if line.strip())[:MOST_CHARACTERS]


def write_answer(document: dict[str, Any]) -> None:
    """Write one line to the parent."""
    os.write(OUT, json.dumps(document).encode("ascii") + b"\n")


def main(ordinals: list[int]) -> None:
    """Report each finished stage, and at the end the result on each of these devices."""
    # Neither our own folder nor the current one is on the path: this is the user's CuPy.
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry not in ("", own)]
    os.chdir("/")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        import cupy

        write_answer({"stage": "imported"})
        write_answer({"launches": [run(cupy, ordinal) for ordinal in ordinals]})
    except Exception as error:  # any exception of CuPy or its libraries
        write_answer({"error": explain(error)})


OUT = -1
if __name__ == "__main__":
    OUT = os.dup(1)
    main([int(word) for word in sys.argv[1:]])
