"""Kill test of `memlimit --hard`: SIGKILL at random moments, and what the next call leaves.

Every run is a whole command in a session of its own, on a simulated machine whose driver limits
cgroups: with plain folders for groups, under a stand-in of systemd-run, and with groups of the
running kernel where a tree of version 2 may be written. After the kill the command's own processes
end by themselves; the next call must then leave no group, no limit and no record. In between, the
limit must stay for as long as the command runs.

    python -m benchmarks.hard_limits --runs 200 --seed 1
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.kills import MARK, PATIENCE_S, members
from tests.fakes.cgroups import Capping, capping_machine, with_systemd, writable_kernel_tree

HARD = (sys.executable, "-m", "gpucheck", "memlimit", "8GiB", "--hard")
#: It leaves a child, which the limit must hold as well, and ends a little later.
COMMAND = ("sh", "-c", "sleep 0.5 & sleep 0.4")
#: Where the kill found the run, in the order in which it comes there.
STAGES = ("before the record", "record", "group", "limit set", "command runs", "after its end")


def machines(folder: Path) -> dict[str, Capping]:
    """Return a machine for each way to make a group that is possible here."""
    found = {
        "own group, folders": capping_machine(folder / "own"),
        "scope, stand-in": with_systemd(capping_machine(folder / "scope"), sys.executable),
    }
    tree = writable_kernel_tree()
    if tree is not None:
        found["own group, kernel"] = capping_machine(folder / "kernel", kernel_mount=tree)
    return found


def environment(capping: Capping, mark: str) -> dict[str, str]:
    """Return the variables of a run, with the mark by which its processes are known."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return {**kept, "LANG": "C.UTF-8", **capping.env, MARK: mark}


def kill_one(capping: Capping, mark: str, delay_s: float) -> tuple[str, list[str]]:
    """Kill a run after a delay; return where that found it, and what was wrong afterwards."""
    problems = []
    with subprocess.Popen(
        [*HARD, "--", *COMMAND],
        env=environment(capping, mark),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        end = time.monotonic() + delay_s
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        ended = process.poll() is not None
        process.kill()
        process.wait()
        stage = "after its end" if ended else stage_of(capping, mark)
        _, said = process.communicate()
    if b"Traceback" in said:
        problems.append(said.decode(errors="replace"))
    if stage == "command runs" and members(mark) and not capping.limits():
        problems.append("the command runs on without its limit")
    patience = time.monotonic() + PATIENCE_S
    while (left := members(mark)) and time.monotonic() < patience:
        time.sleep(0.01)
    problems += [f"left running: {pid}" for pid in left]
    return stage, problems


def stage_of(capping: Capping, mark: str) -> str:
    """Return how far a run had come when it was killed."""
    if not capping.records():
        return "before the record"
    if not capping.groups():
        return "record"
    if not capping.limits():
        return "group"
    names = set()
    for pid in members(mark):
        try:
            names.add(Path(f"/proc/{pid}/comm").read_text().strip())
        except OSError:
            continue
    return "command runs" if names & {"sh", "sleep"} else "limit set"


def leftovers(capping: Capping) -> list[str]:
    """Return the groups, limits and records that are still there."""
    return [
        *(f"group {name}" for name in capping.groups()),
        *(f"limit {text}" for text in capping.limits()),
        *(f"record {name}" for name in capping.records()),
    ]


def next_call(capping: Capping, mark: str) -> list[str]:
    """Make the next call, and return what it leaves."""
    finished = subprocess.run(
        [*HARD, "--", "true"],
        env=environment(capping, mark),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    wrong = [] if finished.returncode == 0 else [f"{finished.returncode}: {finished.stderr!r}"]
    return [*wrong, *leftovers(capping)]


def main(words: Sequence[str]) -> int:
    """Make the runs, print the table and whatever was left."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    chance = random.Random(options.seed)
    counts: dict[str, collections.Counter[str]] = {}
    bad = 0
    with tempfile.TemporaryDirectory(prefix="hard-limits-") as place:
        found = machines(Path(place))
        spans = {name: _span_s(capping, name) for name, capping in found.items()}
        for at in range(options.runs):
            name = list(found)[at % len(found)]
            capping, mark = found[name], f"hard-{os.getpid()}-{at}"
            # A third of a run is Python's start, where nothing is made yet.
            delay_s = chance.uniform(0.3, 1.0) * spans[name]
            stage, problems = kill_one(capping, mark, delay_s)
            count = counts.setdefault(name, collections.Counter())
            count.update(("runs", stage))
            count["left by the kill"] += bool(leftovers(capping))
            left = next_call(capping, f"{mark}-next")
            count["left by the next call"] += len(left)
            for problem in (*problems, *left):
                bad += 1
                print(f"run {at}: {name}, after {delay_s:.3f} s ({stage}): {problem}")
    _print(counts)
    return int(bad > 0)


def _span_s(capping: Capping, name: str) -> float:
    """Return how long a whole run takes here, and a little more."""
    begun = time.monotonic()
    subprocess.run(
        [*HARD, "--", *COMMAND],
        env=environment(capping, f"span-{name}"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    return 1.1 * (time.monotonic() - begun)


def _print(counts: Mapping[str, collections.Counter[str]]) -> None:
    columns = ("runs", *STAGES, "left by the kill", "left by the next call")
    print("| groups | " + " | ".join(columns) + " |")
    print("|--|" + "--:|" * len(columns))
    total: collections.Counter[str] = sum(counts.values(), collections.Counter())
    for name, count in (*counts.items(), ("all", total)):
        print(f"| {name} | " + " | ".join(str(count[column]) for column in columns) + " |")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
