"""Long runs of the commands that wait or watch: memory, descriptors and processor time stay flat.

    python -m benchmarks.long_life --minutes 20       # prints a table

All at once on a pretended machine of eight GPUs: `list --watch`, `memlimit -- CMD`, 200 waiters of
`place --wait` behind one that holds every GPU, and `fleet run` whose 20 nodes do not answer. Memory
and descriptors are those of all processes of a command; processor time is that since the row above.
The exit code is 1 if a command ended too early, whose last words are printed, or grew by more than
a tenth after its first fifth.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.claims import prepare
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import load_machine

WAITERS, NODES, ROWS = 200, 20, 5
FLEET = f"fleet run --local {NODES}"


class Usage(NamedTuple):
    """Use of the machine by all processes of a command so far."""

    resident_mib: float
    descriptors: int
    cpu_s: float


def command_lines() -> Mapping[str, list[list[str]]]:
    """Return the processes of each command."""
    # So many starts at once keep every driver waiting.
    sleep = ["--deadline", "600", "--", "sleep", "infinity"]
    # Longer than any run: each node waits for a driver that hangs.
    nodes = ["--local", str(NODES), "--node-timeout", "80000", "--", "--deadline", "80000"]
    return {
        FLEET: [["fleet", "run", "list", *nodes]],
        "list --watch 2": [["list", "--watch", "2", "--json"]],
        "memlimit 30% -- CMD": [["memlimit", "30%", *sleep]],
        f"place --wait, {WAITERS} waiters": [
            ["place", "--count", "8", "--wait", *sleep],
            *[["place", "--count", "1", "--wait", "--quiet", *sleep]] * WAITERS,
        ],
    }


def uses_of(started: Mapping[str, Sequence[psutil.Popen]]) -> dict[str, Usage]:
    """Return what the processes of each command, and all below them, use."""
    owners = {process.pid: name for name, processes in started.items() for process in processes}
    uses = dict.fromkeys(started, Usage(0.0, 0, 0.0))
    # A parent comes before what it started.
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
            name = owners.get(process.pid) or owners[process.ppid()]
            owners[process.pid] = name
            times = process.cpu_times()
            uses[name] = Usage(
                uses[name].resident_mib + process.memory_info().rss / (1 << 20),
                uses[name].descriptors + process.num_fds(),
                # Children that have ended count for the one that waited for them.
                uses[name].cpu_s + sum(times[:4]),
            )
    return uses


def has_begun(process: psutil.Popen, words: Sequence[str]) -> bool:
    """Return whether the command after `--` runs, or the cluster's nodes do."""
    if words[0] == "fleet":
        # A nanny, a worker and a gpucheck each.
        return len(process.children(recursive=True)) > 2 * NODES
    return "sleep" not in words or any(child.name() == "sleep" for child in process.children())


def last_words(folder: Path, group: int, number: int) -> str:
    """Return the end of a process's standard error."""
    return (folder / f"{group}-{number}").read_text(encoding="utf-8")[-500:].strip()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, list[psutil.Popen]]]:
    """Start all commands, and end them after the block."""
    hung = build_libraries(load_machine("h100x8").broken(hang=["nvmlInit"]), folder / "hung")
    started: dict[str, list[psutil.Popen]] = {}
    for group, (name, lines) in enumerate(command_lines().items()):
        for number, words in enumerate(lines):
            process = psutil.Popen(
                [sys.executable, "-m", "gpucheck", *words],
                env={**os.environ, **(hung if name == FLEET else {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=(folder / f"{group}-{number}").open("wb"),
            )
            started.setdefault(name, []).append(process)
            # A cluster has only so long to start, and who runs a command first holds the GPUs.
            while number == 0 and process.poll() is None and not has_begun(process, words):
                time.sleep(0.1)
    try:
        yield started
    finally:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def main() -> int:
    """Run the commands and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    minutes = parser.parse_args().minutes
    history: dict[str, list[Usage]] = {}
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        with running(Path(name)) as started:
            for _ in range(ROWS):
                time.sleep(60 * minutes / ROWS)
                for command, use in uses_of(started).items():
                    history.setdefault(command, []).append(use)
            ended = [
                f"{command} (code {process.returncode}: {last_words(Path(name), group, number)})"
                for group, (command, processes) in enumerate(started.items())
                for number, process in enumerate(processes)
                if process.poll() is not None
            ]
    print("| command | minute | memory, MiB | descriptors | processor, s |\n|--|--:|--:|--:|--:|")
    for command, rows in history.items():
        earlier_s = 0.0
        for number, row in enumerate(rows, 1):
            print(
                f"| `{command}` | {minutes * number / ROWS:.0f} | {row.resident_mib:.1f}"
                f" | {row.descriptors} | {row.cpu_s - earlier_s:.1f} |"
            )
            earlier_s = row.cpu_s
    grown = [
        command
        for command, (first, *_, last) in history.items()
        if last.resident_mib > 1.1 * first.resident_mib
        or last.descriptors > 1.1 * first.descriptors
    ]
    for reason, commands in (("ended too early", ended), ("grew", grown)):
        if commands:
            print(f"{reason}: {', '.join(commands)}", file=sys.stderr)
    return int(bool(grown or ended))


if __name__ == "__main__":
    os.umask(0o022)
    raise SystemExit(main())
