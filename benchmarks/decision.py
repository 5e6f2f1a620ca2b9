"""How often a profile's run decides wrongly: synthetic machines through the program's own code.

    python -m benchmarks.decision            the tables of docs/profiles.md, in a few minutes
    python -m benchmarks.decision --runs 200 a quick look

Each run starts pretended processes until its gates are decided, as `gpucheck bench --profile` does.
A process is off by a normal factor of its own (the noise between processes), and its median is that
of 30 samples that scatter by half as much, three in a hundred of them up to twice as long.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from gpucheck.core.bench import stats
from gpucheck.core.bench.gates.company import company_gates
from gpucheck.core.bench.gates.facts import Facts, Node
from gpucheck.core.bench.processes.workers import Station
from gpucheck.core.bench.profiles.lint import lint_text
from gpucheck.core.bench.profiles.run import run_profile
from gpucheck.models.bench_run import Baseline, ProcessRun, Series
from gpucheck.models.codec import to_plain
from gpucheck.models.gate import Direction, GateStatus
from gpucheck.models.profile import Profile
from gpucheck.models.report import Host
from gpucheck.probes.workers import WorkerAnswer, WorkerOrder

SAMPLES = 30
SLOWDOWNS_PERCENT = (0.0, 2.0, 5.0, 8.0, 12.0)
PROFILE = """
[profile]
schema = 1
name = "decision"
version = 1
[match]
device = "cpu"
[run]
seconds = 1
processes = {processes}
max_processes = {most}
[[check]]
id = "copy"
kernel = "copy"
device = "cpu"
baseline = true
tolerance_percent = 5
"""


def profile_of(processes: int, most: int) -> Profile:
    """Return a profile with one check against a baseline, at 5 % tolerance."""
    found = lint_text(PROFILE.format(processes=processes, most=most), "decision.toml").profile
    assert found is not None
    return found


def process_speed(dice: random.Random, speed: float, noise: float) -> float:
    """Return what one process says of a machine of this speed: its median throughput."""
    own = speed * (1 + dice.gauss(0.0, noise))
    times = []
    for _ in range(SAMPLES):
        seconds = (1 + dice.gauss(0.0, noise / 2)) / own
        times.append(seconds * (dice.uniform(1.0, 2.0) if dice.random() < 0.03 else 1.0))
    return 1 / stats.median(times)


class PretendedWorkers:
    """Processes on a machine of a given speed; each gives a document as the program writes it."""

    def __init__(self, document: dict[str, Any], speed: Callable[[], float]) -> None:
        self._document = document
        self._speed = speed

    def round(
        self, orders: Sequence[WorkerOrder], *, in_turn: bool, deadline_s: float
    ) -> Sequence[WorkerAnswer]:
        """Return one document for each order."""
        answers = []
        for _ in orders:
            row = self._document["result"]["measurements"][0]
            speed = self._speed()
            row["median_s"] = 1 / speed
            row["throughput"] = {"value": 1e9 * speed, "unit": "B/s"}
            answers.append(WorkerAnswer(document=self._document))
        return answers


def run_once(
    dice: random.Random,
    profile: Profile,
    document: dict[str, Any],
    slowdown_percent: float,
    noise: float,
) -> tuple[GateStatus, int]:
    """Return the verdict on a machine that is slower than its baseline, and how many processes."""
    before = tuple(process_speed(dice, 1.0, noise) for _ in range(profile.run.processes))
    series = Series(
        id="copy",
        device="cpu",
        unit="GB/s",
        direction=Direction.HIGHER,
        values=before,
        tolerance_percent=5.0,
    )
    baseline = Baseline(path="baseline.json", time="", series=(series,))
    speed = 1 - slowdown_percent / 100
    workers = PretendedWorkers(document, lambda: process_speed(dice, speed, noise))

    def baseline_for(runs: Sequence[ProcessRun]) -> Baseline:
        return baseline

    outcome = run_profile(profile, Node(), (Station(device="cpu"),), workers, baseline_for)
    gate = next(gate for gate in outcome.gates if gate.id == "copy")
    return gate.status, len(gate.values)


def empty_document() -> dict[str, Any]:
    """Return a document with one row, whose figures are filled in."""
    from tests.fakes.bench_results import copy_result

    return {
        "schema": "gpucheck/bench/1",
        "host": to_plain(Host()),
        "error": None,
        "result": to_plain(copy_result()),
    }


def cell(
    runs: int, processes: int, most: int, slowdown_percent: float, noise: float, seed: int
) -> tuple[float, float, float, float]:
    """Return the shares of fail, pass and inconclusive in percent, and the mean of processes."""
    dice = random.Random(seed)
    profile, document = profile_of(processes, most), empty_document()
    found = [run_once(dice, profile, document, slowdown_percent, noise) for _ in range(runs)]
    counts = Counter(status for status, _ in found)
    shares = [
        100 * counts[status] / runs
        for status in (GateStatus.FAIL, GateStatus.PASS, GateStatus.INCONCLUSIVE)
    ]
    return shares[0], shares[1], shares[2], sum(count for _, count in found) / runs


def table(runs: int, seed: int) -> str:
    """Return the table as docs/profiles.md has it."""
    lines = [
        "| processes | noise | slower by | fail | pass | inconclusive | processes used |",
        "|--|--|--|--|--|--|--|",
    ]
    for processes, most in ((3, 3), (5, 5), (5, 10)):
        for noise in (0.01, 0.02):
            for slower in SLOWDOWNS_PERCENT:
                fail, good, open_, used = cell(runs, processes, most, slower, noise, seed)
                count = f"{processes}" if most == processes else f"{processes} to {most}"
                lines.append(
                    f"| {count} | {noise:.0%} | {slower:.0f} % | {fail:.1f} % | {good:.1f} % | "
                    f"{open_:.1f} % | {used:.1f} |"
                )
    return "\n".join(lines)


NODE = """
[profile]
schema = 1
name = "node"
version = 1
[run]
seconds = 1
[[check]]
id = "matmul"
kernel = "matmul"
dtype = "bfloat16"
percent_of_peak = 45
tolerance_percent = 15
source = "pretended"
date = "2026-11-21"
[stability]
straggler_percent = {tolerance}
"""


def straggler_cell(
    runs: int, tolerance: float, spread: float, slowdown_percent: float, seed: int
) -> tuple[float, float]:
    """Return how many nodes of eight GPUs have a false alarm, and how many slow GPUs are found.

    Healthy GPUs differ by `spread` among themselves, and each process by 1 %.
    """
    from tests.fakes.bench_results import product_runs

    dice = random.Random(seed)
    profile = lint_text(NODE.format(tolerance=tolerance), "node.toml").profile
    assert profile is not None
    alarms = found = 0
    for _ in range(runs):
        every: list[ProcessRun] = []
        for at in range(8):
            own = 700 * (1 + dice.gauss(0.0, spread))
            own *= 1 - slowdown_percent / 100 if at == 0 else 1
            speeds = [process_speed(dice, own, 0.01) for _ in range(5)]
            every.extend(product_runs(speeds, f"gpu:{at}"))
        gates = company_gates(Facts(profile=profile, runs=every))
        failed = {gate.device for gate in gates if gate.status is GateStatus.FAIL}
        alarms += bool(failed - ({"gpu:0"} if slowdown_percent else set()))
        found += "gpu:0" in failed
    return 100 * alarms / runs, 100 * found / runs


def straggler_table(runs: int, seed: int) -> str:
    """Return the table of stragglers as docs/profiles.md has it."""
    lines = [
        "| tolerance | healthy spread | one GPU slower by | found | nodes with a false alarm |",
        "|--|--|--|--|--|",
    ]
    for tolerance in (5.0, 7.0):
        for spread in (0.01, 0.02):
            for slower in (0.0, 8.0, 10.0, 12.0):
                alarms, found = straggler_cell(runs, tolerance, spread, slower, seed)
                told = f"{found:.1f} %" if slower else ""
                what = f"| {tolerance:.0f} % | {spread:.0%} | {slower:.0f} %"
                lines.append(f"{what} | {told} | {alarms:.1f} % |")
    return "\n".join(lines)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(table(given.runs, given.seed))
    print()
    print(straggler_table(max(1, given.runs // 4), given.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
