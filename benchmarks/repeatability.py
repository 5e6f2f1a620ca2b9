"""Repeatability of `gpucheck bench`: how often the next run's time lies in an interval.

`repeat95_s` is to hold the time of another run 95 times in 100. `ci95_s` is how well a run knows
its own time: of two runs that differ by nothing but noise, the median of one lies in that of the
other about 83 times in 100 (their difference scatters by a root of two more); where it is less, the
machine changes from run to run. All rows count, those that converged apart: choosing them chooses
narrow intervals. The last figure of a row is how far the runs scatter beside one round of a run.

    python -m benchmarks.repeatability [--runs 10] [-- bench options, default --quick --device cpu]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections import defaultdict
from itertools import permutations
from typing import Any

INTERVALS = {"repeat95_s": "stated 95 %", "ci95_s": "83 % where only noise differs"}


def run(options: list[str]) -> list[dict[str, Any]]:
    """Return the rows of one run."""
    command = [sys.executable, "-m", "gpucheck", "bench", *options, "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    rows: list[dict[str, Any]] = json.loads(finished.stdout)["result"]["measurements"]
    return rows


def share(rows: list[dict[str, Any]], interval: str) -> tuple[int, int]:
    """Return the pairs, and in how many of them one time lies in the other's interval."""
    pairs = list(permutations(rows, 2))
    held = sum(one[interval][0] <= two["time_s"] <= one[interval][1] for one, two in pairs)
    return len(pairs), held


def main() -> None:
    """Print a line for each row, and the share over all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("options", nargs="*", default=[])
    chosen = parser.parse_args()
    options = chosen.options or ["--quick", "--device", "cpu"]
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number in range(chosen.runs):
        for row in run(options):
            name = f"{row['kernel']} {row['variant']} {row['shape']} {row['device']}"
            found[name].append(row)
        print(f"run {number + 1} of {chosen.runs}", file=sys.stderr, flush=True)
    total: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for name, rows in found.items():
        known = [row for row in rows if row["ci95_s"] is not None]
        converged = [row for row in known if row["converged"]]
        for kind, kept in (("all rows", known), ("converged rows", converged)):
            for interval in INTERVALS:
                pairs, held = share(kept, interval)
                before = total[kind, interval]
                total[kind, interval] = (before[0] + pairs, before[1] + held)
        print(f"{name:<50} {len(converged):>2} of {len(rows)} converged, {described(known)}")
    for (kind, interval), (pairs, held) in total.items():
        rate = f"{held / pairs:.0%}" if pairs else "no pairs"
        meant = INTERVALS[interval]
        print(f"{kind}: another time in {interval}: {rate} ({pairs} pairs; {meant})")


def described(rows: list[dict[str, Any]]) -> str:
    """Return how far the runs' times lie apart, how wide their intervals are, and who holds."""
    if not rows:
        return "no interval"
    times = sorted(row["time_s"] for row in rows)
    parts = [f"{times[-1] / times[0] - 1:.1%} apart"]
    for interval in INTERVALS:
        halves = [(row[interval][1] - row[interval][0]) / 2 / row["time_s"] for row in rows]
        pairs, held = share(rows, interval)
        inside = f" {held / pairs:.0%}" if pairs else ""
        parts.append(f"{interval} +-{statistics.median(halves):.1%}{inside}")
    if len(rows) > 1:
        one_round = statistics.median(scatter(row["round_medians_s"]) for row in rows)
        if one_round > 0:
            parts.append(f"runs {scatter(times) / one_round:.2f} of a round")
    return ", ".join(parts)


def scatter(times_s: list[float]) -> float:
    """Return the standard deviation of the times' logarithms."""
    return statistics.stdev(math.log(time_s) for time_s in times_s)


if __name__ == "__main__":
    main()
