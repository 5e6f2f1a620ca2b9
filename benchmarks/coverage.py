"""Coverage of the median's 95 % interval: how often it holds the true median.

Each run is the real engine on a scripted stream of times: rounds, warm-up, samples, and its own
rule of when to stop. Streams: normal, log-normal, heavy-tailed, rounds that differ, and
autocorrelated ones. A processor's figure is no median: `benchmarks.streams` counts how often its
interval holds.

    python -m benchmarks.coverage [--runs 4000]
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpucheck.bench import stats
from gpucheck.bench.plan import PRECISIONS
from gpucheck.bench.request_model import BenchMode
from gpucheck.bench.sampler import CaseState
from gpucheck.bench.scheduler import Settings, measure
from tests.fakes.bench import FakeCase, FakeClock, label

#: The true median of every stream, in seconds.
MEDIAN_S = 0.02
SETTINGS = Settings(budget_s=20.0, warmup_s=0.05, rounds=12, wanted=PRECISIONS[BenchMode.DEFAULT])

Stream = Callable[[random.Random], Iterable[float]]


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


class Steps:
    """Times that are off by a factor of their own in each round, as new memory makes them."""

    def __init__(self, source: random.Random, between: float, spread: float) -> None:
        self._source = source
        self._between = between
        self._spread = spread
        self.renew()

    def renew(self) -> None:
        """Draw the factor of the next round."""
        self._step = math.exp(self._between * self._source.gauss(0, 1))

    def __iter__(self) -> Iterator[float]:
        """Yield times for ever."""
        while True:
            yield MEDIAN_S * self._step * math.exp(self._spread * self._source.gauss(0, 1))


def stepping(between: float, spread: float) -> Stream:
    """Return a stream with such steps."""
    return lambda source: Steps(source, between, spread)


STREAMS: dict[str, Stream] = {
    "normal, 1 %": normal(0.01),
    "normal, 3 %": normal(0.03),
    "log-normal, 2 %": log_normal(0.02),
    "log-normal, 5 %": log_normal(0.05),
    "heavy-tailed, 1 %": heavy_tailed(0.01),
    "heavy-tailed, 3 %": heavy_tailed(0.03),
    "rounds 1 % apart": stepping(0.01, 0.005),
    "rounds 2 % apart": stepping(0.02, 0.005),
    "autocorrelated 0.3, 3 %": correlated(0.03, 0.3),
    "autocorrelated 0.6, 3 %": correlated(0.03, 0.6),
    "autocorrelated 0.9, 3 %": correlated(0.03, 0.9),
}


@dataclass(frozen=True)
class Coverage:
    """Shares: of all runs whose interval held the true median; of those that converged."""

    held: float
    converged: float
    converged_held: float
    rounds: float


def run_once(stream: Stream, seed: int) -> CaseState:
    """Return the record of one run on a stream."""
    clock = FakeClock()
    script = stream(random.Random(seed))
    case = FakeCase(script, clock, label=label("gpu:0"), prepare=getattr(script, "renew", None))
    record = CaseState(case=case)
    measure([[record]], SETTINGS, clock, lambda label, fraction, seconds_left: None)
    return record


def cover(stream: Stream, runs: int) -> Coverage:
    """Count over so many runs, each with a seed of its own."""
    held, converged, rounds = [], [], 0
    for seed in range(runs):
        record = run_once(stream, seed)
        low, high = stats.interval(record.medians_s) or (0.0, 0.0)
        held.append(low <= MEDIAN_S <= high)
        converged.append(record.converged)
        rounds += len(record.medians_s)
    return Coverage(
        held=share(held),
        converged=share(converged),
        converged_held=share([good for good, known in zip(held, converged, strict=True) if known]),
        rounds=rounds / runs,
    )


def share(answers: list[bool]) -> float:
    """Return the share of those that are true; 0 of none."""
    return sum(answers) / max(1, len(answers))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4000)
    runs = parser.parse_args().runs
    print(f"{runs} runs each")
    print("| stream | rounds | holds | converged | of these hold |")
    print("|--|--|--|--|--|")
    for name, stream in STREAMS.items():
        found = cover(stream, runs)
        print(
            f"| {name} | {found.rounds:.0f} | {found.held:.1%} | {found.converged:.1%} "
            f"| {found.converged_held:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
