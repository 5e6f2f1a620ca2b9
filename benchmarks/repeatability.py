"""Does a run's interval hold what the next run measures? Repeats `gpucheck bench` and counts.

Of two independent runs with the same precision, the median of one lies in the other's 95 %
interval of the median about 83 times in 100 (the difference of two medians scatters by a root of
two more). All rows count, those that converged apart: choosing them chooses narrow intervals.

    python -m benchmarks.repeatability [--runs 10] [-- bench options, default --quick --device cpu]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from itertools import permutations
from typing import Any


def run(options: list[str]) -> list[dict[str, Any]]:
    """Return the rows of one run."""
    command = [sys.executable, "-m", "gpucheck", "bench", *options, "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    rows: list[dict[str, Any]] = json.loads(finished.stdout)["result"]["measurements"]
    return rows


def share(rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the pairs, and in how many of them one median lies in the other interval."""
    pairs = list(permutations(rows, 2))
    held = sum(one["ci95_s"][0] <= two["median_s"] <= one["ci95_s"][1] for one, two in pairs)
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
    total = {"all rows": (0, 0), "converged rows": (0, 0)}
    for name, rows in found.items():
        known = [row for row in rows if row["ci95_s"] is not None]
        converged = [row for row in known if row["converged"]]
        for kind, kept in (("all rows", known), ("converged rows", converged)):
            pairs, held = share(kept)
            total[kind] = (total[kind][0] + pairs, total[kind][1] + held)
        print(f"{name:<52} {len(converged):>2} of {len(rows)} converged, {described(known)}")
    for kind, (pairs, held) in total.items():
        rate = f"{held / pairs:.0%}" if pairs else "no pairs"
        print(f"{kind}: another run's median in the interval: {rate} ({pairs} pairs; ideal 83 %)")


def described(rows: list[dict[str, Any]]) -> str:
    """Return how far the runs' medians lie apart, and how wide their intervals are."""
    if not rows:
        return "no interval"
    medians = sorted(row["median_s"] for row in rows)
    widths = [(row["ci95_s"][1] - row["ci95_s"][0]) / 2 / row["median_s"] for row in rows]
    pairs, held = share(rows)
    inside = f"{held / pairs:.0%} in" if pairs else "one run"
    return f"{medians[-1] / medians[0] - 1:.1%} apart, +-{statistics.median(widths):.1%}, {inside}"


if __name__ == "__main__":
    main()
