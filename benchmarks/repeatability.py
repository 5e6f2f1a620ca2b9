"""Does a run's interval hold what the next run measures? Repeats `gpucheck bench` and counts.

Of two independent runs with the same precision, the median of one lies in the other's 95 %
interval of the median about 83 times in 100 (the difference of two medians scatters by a root of
two more). Rows that did not converge, or carry a doubt about their samples, are told apart.

    python -m benchmarks.repeatability [--runs 10] [-- bench options, default --quick --device cpu]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from itertools import permutations
from typing import Any

#: Doubts that say themselves that another run may find something else.
UNSTEADY = {"autocorrelated", "bimodal", "host-busy", "throttled", "too-few-samples"}


def run(options: list[str]) -> list[dict[str, Any]]:
    """Return the rows of one run."""
    command = [sys.executable, "-m", "gpucheck", "bench", *options, "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    rows: list[dict[str, Any]] = json.loads(finished.stdout)["result"]["measurements"]
    return rows


def steady(row: dict[str, Any]) -> bool:
    """Return whether nothing about the row says that its interval may miss."""
    return not UNSTEADY & {doubt["code"] for doubt in row["doubts"]}


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
    total = {"converged": (0, 0), "converged and steady": (0, 0)}
    for name, rows in found.items():
        converged = [row for row in rows if row["converged"]]
        kinds = {
            "converged": converged,
            "converged and steady": [row for row in converged if steady(row)],
        }
        for kind, kept in kinds.items():
            pairs, held = share(kept)
            total[kind] = (total[kind][0] + pairs, total[kind][1] + held)
        medians = sorted(row["median_s"] for row in converged)
        spread = f"{medians[-1] / medians[0] - 1:.1%} apart" if medians else ""
        print(f"{name:<52} {len(converged)} of {len(rows)} converged {spread}")
    for kind, (pairs, held) in total.items():
        rate = f"{held / pairs:.0%}" if pairs else "no pairs"
        print(f"{kind}: another run's median in the interval: {rate} ({pairs} pairs; ideal 83 %)")


if __name__ == "__main__":
    main()
