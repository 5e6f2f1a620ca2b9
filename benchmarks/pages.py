"""Size of a page and the time to make it: `python -m benchmarks.pages [--rounds N]`.

The page is that of a pretended node: eight GPUs, 300 s of sensors, all charts
(tests/browser/samples.py). Each round is a process of its own, as a command is. The exit code is 1
if the page is over 2 MB; time is no test.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence

#: What a ticket system takes without asking.
MOST_BYTES = 2_000_000
_CHILD = """
import json, sys, time
from tests.browser.samples import node
from tests.fakes.verdicts import report
from gpucheck.report.formats.html import render
from gpucheck.report.text import View
found = report(node(300.0))
remedy = () if sys.argv[1] == "charts" else ("Install it.",)
start, cpu = time.perf_counter(), time.process_time()
text = render(found, View(chart_remedy=remedy))
took = time.perf_counter() - start, time.process_time() - cpu
print(json.dumps([len(text.encode()), *took]))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; return 1 if the page is too large."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args(arguments).rounds
    largest = 0
    print("| page | size | time | processor |")
    print("|--|--:|--:|--:|")
    for kind in ("charts", "without"):
        found = [_measured(kind) for _ in range(rounds)]
        size = int(found[0][0])
        largest = max(largest, size)
        wall, cpu = (statistics.median(one[place] for one in found) for place in (1, 2))
        name = "with charts" if kind == "charts" else "without charts"
        print(f"| {name} | {size / 1000:.0f} kB | {wall:.2f} s | {cpu:.2f} s |")
    return 1 if largest > MOST_BYTES else 0


def _measured(kind: str) -> list[float]:
    command = [sys.executable, "-c", _CHILD, kind]
    found: list[float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
