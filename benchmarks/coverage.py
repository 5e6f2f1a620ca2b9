"""How often the 95 % interval of the median holds the true median, over thousands of runs.

Each run is the real engine on a scripted stream of times: it warms up, takes its samples and stops
by its own rule. Streams: normal, log-normal, heavy-tailed, two modes, and autocorrelated ones,
where the interval must be too narrow and the doubt `autocorrelated` must say so.

    python -m benchmarks.coverage [--runs 4000]
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpucheck.core.bench import stats
from gpucheck.core.bench.doubts import Around, HostState, doubts_about
from gpucheck.core.bench.runner import Record, Settings, measure
from tests.fakes.bench import FakeCase, FakeClock

#: The true median of every stream, in seconds.
MEDIAN_S = 0.02
SETTINGS = Settings(budget_s=20.0, warmup_s=0.05)
QUIET = Around(host=HostState(others_percent=0.0, steal_percent=0.0))

Stream = Callable[[random.Random], Iterator[float]]


def normal(spread: float) -> Stream:
    """Return independent normal times."""

    def draw(source: random.Random) -> Iterator[float]:
        while True:
            yield MEDIAN_S * max(0.1, 1 + spread * source.gauss(0, 1))

    return draw


def log_normal(spread: float) -> Stream:
    """Return independent times that are skewed to the slow side."""

    def draw(source: random.Random) -> Iterator[float]:
        while True:
            yield MEDIAN_S * math.exp(spread * source.gauss(0, 1))

    return draw


def heavy_tailed(spread: float) -> Stream:
    """Return times after Student's t with two degrees of freedom: without a variance."""

    def draw(source: random.Random) -> Iterator[float]:
        while True:
            scale = math.sqrt((source.gauss(0, 1) ** 2 + source.gauss(0, 1) ** 2) / 2)
            yield MEDIAN_S * max(0.1, 1 + spread * source.gauss(0, 1) / max(scale, 1e-9))

    return draw


def correlated(spread: float, memory: float) -> Stream:
    """Return times each of which leans on the one before by `memory` (AR(1))."""

    def draw(source: random.Random) -> Iterator[float]:
        state = source.gauss(0, 1)
        while True:
            yield MEDIAN_S * max(0.1, 1 + spread * state)
            state = memory * state + math.sqrt(1 - memory * memory) * source.gauss(0, 1)

    return draw


STREAMS: dict[str, Stream] = {
    "normal, 1 %": normal(0.01),
    "normal, 3 %": normal(0.03),
    "log-normal, 2 %": log_normal(0.02),
    "log-normal, 5 %": log_normal(0.05),
    "heavy-tailed, 1 %": heavy_tailed(0.01),
    "heavy-tailed, 3 %": heavy_tailed(0.03),
    "autocorrelated 0.3, 3 %": correlated(0.03, 0.3),
    "autocorrelated 0.6, 3 %": correlated(0.03, 0.6),
    "autocorrelated 0.9, 3 %": correlated(0.03, 0.9),
}


@dataclass(frozen=True)
class Coverage:
    """Shares of the runs: converged; of those held, and doubted as autocorrelated.

    `trusted` is the share held of those that are not doubted.
    """

    runs: int
    converged: float
    held: float
    doubted: float
    trusted: float
    samples: float


def run_once(stream: Stream, seed: int) -> Record:
    """Return the record of one run on a stream."""
    clock = FakeClock()
    case = FakeCase(stream(random.Random(seed)), clock)
    (record,) = measure([case], SETTINGS, clock, lambda label, fraction, seconds_left: None)
    return record


def cover(stream: Stream, runs: int) -> Coverage:
    """Count over so many runs, each with a seed of its own."""
    converged = held = trusted = doubted = samples = 0
    for seed in range(runs):
        record = run_once(stream, seed)
        samples += len(record.samples_s)
        interval = stats.lasting_interval(record.samples_s)
        if not record.converged or interval is None:
            continue
        converged += 1
        codes = {doubt.code for doubt in doubts_about(record, QUIET)}
        inside = interval[0] <= MEDIAN_S <= interval[1]
        held += inside
        if "autocorrelated" in codes:
            doubted += 1
        else:
            trusted += inside
    return Coverage(
        runs=runs,
        converged=converged / runs,
        held=held / max(converged, 1),
        doubted=doubted / max(converged, 1),
        trusted=trusted / max(converged - doubted, 1),
        samples=samples / runs,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4000)
    runs = parser.parse_args().runs
    print("| stream | runs | samples | converged | interval holds | doubted | undoubted hold |")
    print("|--|--|--|--|--|--|--|")
    for name, stream in STREAMS.items():
        found = cover(stream, runs)
        print(
            f"| {name} | {found.runs} | {found.samples:.0f} | {found.converged:.1%} "
            f"| {found.held:.1%} | {found.doubted:.1%} | {found.trusted:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
