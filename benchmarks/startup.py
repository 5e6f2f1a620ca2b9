"""Start-up cost of whole processes, and of other tools on the same pretended GPUs.

Run it from the checkout: `.venv/bin/python -m benchmarks.startup`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.libraries import build_libraries
from tests.fakes.machine import load_machine

MACHINE = "h100x8"
GPU_COUNTS = (8, 64)

METER = Path(__file__).with_name("meter.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A command to measure; `gpus` is how many pretended GPUs it finds."""

    label: str
    words: tuple[str, ...]
    gpus: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What a ratio between two subjects' medians should not exceed."""

    subject: str
    beside: str
    quantity: str
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one run took: `peak_bytes` is the largest single process's resident memory."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


class FailedError(Exception):
    """A measured command did not end with code 0."""

    def __init__(self, words: tuple[str, ...], code: str) -> None:
        super().__init__(f"{' '.join(words)} ended with code {code}")


SUBJECTS = (
    Subject(label="python -c pass", words=("python", "-c", "pass")),
    Subject(label="gpucheck --version", words=("gpucheck", "--version")),
    Subject(label="gpucheck --help", words=("gpucheck", "--help")),
    Subject(label="gpucheck list --json", words=("gpucheck", "list", "--json")),
    Subject(label="gpucheck list", words=("gpucheck", "list")),
    Subject(label="nvitop -1", words=("nvitop", "-1")),
    Subject(label="gpustat --json", words=("gpustat", "--json")),
    Subject(label="gpucheck list --json, 64 GPUs", words=("gpucheck", "list", "--json"), gpus=64),
    Subject(label="gpucheck list, 64 GPUs", words=("gpucheck", "list"), gpus=64),
)

BARS = (
    Bar(subject="gpucheck --version", beside="python -c pass", quantity="wall", limit=8),
    Bar(subject="gpucheck --help", beside="python -c pass", quantity="wall", limit=8),
    Bar(subject="gpucheck list --json", beside="nvitop -1", quantity="wall", limit=0.75),
    Bar(subject="gpucheck list --json", beside="nvitop -1", quantity="peak memory", limit=1),
    Bar(subject="gpucheck list", beside="nvitop -1", quantity="wall", limit=1),
    Bar(
        subject="gpucheck list --json, 64 GPUs",
        beside="gpucheck list --json",
        quantity="wall",
        limit=2.5,
    ),
    Bar(subject="gpucheck list, 64 GPUs", beside="gpucheck list", quantity="wall", limit=2.5),
)


def executable(name: str) -> Path:
    """Return a program of the environment that this script runs in."""
    return Path(sys.executable) if name == "python" else Path(sys.executable).with_name(name)


def measure(words: tuple[str, ...], environment: Mapping[str, str]) -> Cost:
    """Run a command to its end and return what it cost.

    Raises:
        FailedError: it ended with another code than 0; its standard error has been shown.
    """
    command = [str(executable(words[0])), *words[1:]]
    meter = [sys.executable, "-I", "-S", str(METER), *command]
    metered = subprocess.run(meter, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    wall_s, cpu_s, peak_bytes, code = metered.stdout.split()
    if code != "0":
        raise FailedError(words, code)
    return Cost(wall_s=float(wall_s), cpu_s=float(cpu_s), peak_bytes=int(peak_bytes))


def environments(directory: Path) -> dict[int, dict[str, str]]:
    """Return, by number of GPUs, an environment in which the pretended driver is found."""
    machine = load_machine(MACHINE)
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    base = {**kept, "LANG": "C.UTF-8", "TERM": "xterm-256color"}
    return {
        count: {**base, **build_libraries(machine.with_gpus(count), directory / str(count))}
        for count in GPU_COUNTS
    }


def run_rounds(
    subjects: list[Subject], rounds: int, environment_by_gpus: Mapping[int, Mapping[str, str]]
) -> dict[str, list[Cost]]:
    """Run all subjects in turn, once unmeasured and then `rounds` times."""
    costs: dict[str, list[Cost]] = {subject.label: [] for subject in subjects}
    for number in range(rounds + 1):
        for subject in subjects:
            cost = measure(subject.words, environment_by_gpus[subject.gpus])
            if number > 0:
                costs[subject.label].append(cost)
    return costs


def medians(costs: list[Cost]) -> dict[str, float]:
    """Return the median of each quantity: seconds, seconds, bytes."""
    return {
        "wall": statistics.median(cost.wall_s for cost in costs),
        "cpu": statistics.median(cost.cpu_s for cost in costs),
        "peak memory": statistics.median(cost.peak_bytes for cost in costs),
    }


def print_medians(middle: Mapping[str, Mapping[str, float]]) -> None:
    """Print one line per subject."""
    print(f"{'median of whole processes':32}{'wall ms':>9}{'cpu ms':>9}{'peak MB':>9}")
    for label, cost in middle.items():
        wall_ms, cpu_ms, peak_mb = cost["wall"] * 1e3, cost["cpu"] * 1e3, cost["peak memory"] / 1e6
        print(f"{label:32}{wall_ms:9.0f}{cpu_ms:9.0f}{peak_mb:9.1f}")


def print_ratios(middle: Mapping[str, Mapping[str, float]]) -> None:
    """Print each ratio beside its bar, and the one to gpustat, which has none."""
    print(f"\n{'ratio':66}{'is':>6}{'bar':>6}")
    for bar in BARS:
        name = f"{bar.subject} / {bar.beside}, {bar.quantity}"
        if bar.beside not in middle:
            print(f"{name:66}{'-':>6}{bar.limit:6g}  {bar.beside} is not installed")
            continue
        ratio = middle[bar.subject][bar.quantity] / middle[bar.beside][bar.quantity]
        print(f"{name:66}{ratio:6.2f}{bar.limit:6g}  {'ok' if ratio <= bar.limit else 'over'}")
    if "gpustat --json" in middle:
        ratio = middle["gpucheck list --json"]["wall"] / middle["gpustat --json"]["wall"]
        print(f"{'gpucheck list --json / gpustat --json, wall':66}{ratio:6.2f}{'none':>6}")


def main() -> int:
    """Measure, print, and return 1 only if a command failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9, help="measured runs of each command")
    rounds = max(1, parser.parse_args().rounds)
    if not executable("gpucheck").exists():
        print(f"gpucheck is not installed beside {sys.executable}", file=sys.stderr)
        return 1
    present = [subject for subject in SUBJECTS if executable(subject.words[0]).exists()]
    with tempfile.TemporaryDirectory(prefix="gpucheck-startup-") as directory:
        try:
            costs = run_rounds(present, rounds, environments(Path(directory)))
        except FailedError as error:
            print(error, file=sys.stderr)
            return 1
    middle = {label: medians(runs) for label, runs in costs.items()}
    print_medians(middle)
    print_ratios(middle)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
