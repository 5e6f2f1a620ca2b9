"""Streams of samples on quiet and busy processors, and what each estimator makes of them.

A stream holds the rounds of the processor's rows as the sampler took them for some minutes: the
wall time and the CPU time of every sample. So estimators can be compared on the same samples:

    python -m benchmarks.streams record quiet4 --seconds 240
    python -m benchmarks.streams record spin4 --seconds 240 --load spin4
    python -m benchmarks.streams table

`--load` is none, spinN (N loops that only count), hogs (two copies through all of the caches) or
build (Python's compiler over this checkout). Nothing else should run meanwhile. `table` writes
docs/measurements/estimators.md from the committed streams in a few seconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

from gpucheck.bench import stats
from gpucheck.bench.sampler import CaseState
from tests.fakes.bench import FakeCase, label

ROOT = Path(__file__).parents[1]
STREAMS = ROOT / "tests" / "data" / "streams"
TABLE = ROOT / "docs" / "measurements" / "estimators.md"
#: Kernels and sizes: in the cache and beyond it, shorter and longer than a time slice.
PROBLEMS = (
    *(("matmul", 256), ("matmul", 512), ("matmul", 1024), ("softmax", 512), ("softmax", 2048)),
    *(("copy", 1024), ("copy", 4096), ("triad", 3072), ("train", 100)),
)
#: Seconds and most samples of a slice, and its first warm-up.
SLICE_S, MOST_SAMPLES, WARMUP_S = 0.045, 12, 0.01
#: Numbers of rounds in a run, samples that a round keeps, and half of the width that settles.
RUN_ROUNDS, ROUND_SAMPLES, SETTLED = (3, 6, 12, 16), 8, 0.10
QUIET = "none"
_SPIN = "while True: pass"
_HOG = "import numpy as n\na, b = n.ones(2**25), n.zeros(2**25)\nwhile True: n.copyto(b, a)"
_BUILD = (
    "import compileall, tempfile\n"
    "import sys; sys.pycache_prefix = tempfile.mkdtemp()\n"
    "while True: compileall.compile_dir('gpucheck', quiet=2, force=True, workers=2)"
)


# ------------------------------------------------------------------------------- recording


def record(name: str, seconds: float, load: str) -> None:
    """Write a stream of so many seconds under a load."""
    with running(load):
        rows = take_rounds(seconds)
    facts = processor()
    found = {"load": load, "cpu": facts[0], "usable_cores": facts[1], "rows": rows}
    text = json.dumps(found, separators=(",", ":")).encode()
    STREAMS.mkdir(exist_ok=True)
    with (STREAMS / f"{name}.json.gz").open("wb") as file:
        file.write(gzip.compress(text, mtime=0))


def processor() -> tuple[str | None, int]:
    """Return the processor's name and the cores that may be used."""
    from gpucheck.drivers.host.cpu import LinuxCpu

    facts = LinuxCpu().facts()
    return facts.model, facts.usable_cores


def take_rounds(seconds: float) -> dict[str, list[tuple[float, list[list[float]]]]]:
    """Return each row's rounds: when it began, and its samples' wall and CPU times."""
    from gpucheck.bench.case import CaseOrder
    from gpucheck.bench.kernels import KERNELS
    from gpucheck.bench.numerics import HostData
    from gpucheck.bench.request_model import BenchRequest
    from gpucheck.bench.sampler import Sampler
    from gpucheck.drivers.host.blas import Blas, load_numpy
    from gpucheck.drivers.host.clock import monotonic_s
    from gpucheck.drivers.host.cpu import LinuxCpu

    load_numpy()
    cpu, blas, data = LinuxCpu().facts(), Blas(), HostData(0)
    states = []
    for name, size in PROBLEMS:
        order = CaseOrder(
            request=BenchRequest(kernels=(name,)),
            shape=KERNELS[name].shape(size),
            dtype="float32",
            data=data,
            cpu=cpu,
            clock=monotonic_s,
            blas=blas,
        )
        states += [CaseState(case=case) for case in KERNELS[name].cpu_cases(order)]
    sampler, begin_s, turn = Sampler(monotonic_s, MOST_SAMPLES), monotonic_s(), 1
    while turn == 1 or monotonic_s() - begin_s < seconds:
        for state in states[:: 1 if turn % 2 else -1]:
            sampler.take_slice(state, SLICE_S, WARMUP_S)
        turn += 1
    return {
        row_name(state): [
            (round(start_s - begin_s, 2), [rounded(pair) for pair in zip(*taken, strict=True)])
            for (start_s, _), *taken in zip(
                state.slices_s, state.rounds, state.cpu_rounds, strict=True
            )
        ]
        for state in states
        if state.error is None
    }


def row_name(state: CaseState) -> str:
    """Return kernel, variant, shape and threads, with slashes between them."""
    what = state.case.label
    shape = "x".join(map(str, what.shape))
    return f"{what.kernel}/{what.variant}/{shape}/{what.threads}"


def rounded(times: Sequence[float]) -> list[float]:
    """Return times with four digits."""
    return [float(f"{seconds:.4g}") for seconds in times]


@contextmanager
def running(load: str) -> Iterator[None]:
    """Run other programs meanwhile."""
    spinners = re.fullmatch(r"spin(\d+)", load)
    programs = [_SPIN] * int(spinners[1]) if spinners else {
        QUIET: [], "hogs": [_HOG] * 2, "build": [_BUILD],
    }[load]  # fmt: skip
    begun = [
        subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, start_new_session=True)
        for text in programs
    ]
    try:
        time.sleep(1 if begun else 0)
        yield
    finally:
        for process in begun:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# ------------------------------------------------------------------------------ estimators

#: Rounds of wall and of CPU times.
Rounds = Sequence[tuple[list[float], list[float]]]
#: Figure, range of a further run's figure, and half of the width that decides whether it settled.
Estimate = tuple[float, tuple[float, float], float]


@dataclass(frozen=True)
class Stream:
    """Rows of a recorded stream; the name of a row ends with its number of threads."""

    name: str
    load: str
    rows: dict[str, Rounds]


@cache
def read_streams() -> tuple[Stream, ...]:
    """Return the committed streams, the quiet ones first; a round keeps its first samples."""
    found = []
    for path in sorted(STREAMS.glob("*.json.gz")):
        text = json.loads(gzip.decompress(path.read_bytes()))
        rows: dict[str, Rounds] = {
            name: [
                ([wall for wall, _ in kept], [cpu for _, cpu in kept])
                for _, samples in rounds
                for kept in [samples[:ROUND_SAMPLES]]
            ]
            for name, rounds in text["rows"].items()
        }
        found.append(Stream(path.name.removesuffix(".json.gz"), text["load"], rows))
    return tuple(sorted(found, key=lambda one: one.load != QUIET))


def by_medians(figure: Callable[[Sequence[float]], float], clock: int) -> Callable[..., Estimate]:
    """Return the median of the rounds' figures by one of the clocks, with Student's interval."""

    def estimate(row: str, rounds: Rounds) -> Estimate:
        return estimate_by(stats.MEDIAN, [[figure(samples[clock])] for samples in rounds])

    return estimate


def pooled(share: float) -> Callable[..., Estimate]:
    """Return a quantile of all samples; its interval is as wide as that of the rounds' ones."""
    of_rounds = by_medians(lambda samples: stats.quantile(samples, share), 0)

    def estimate(row: str, rounds: Rounds) -> Estimate:
        middle, (low, high), width = of_rounds(row, rounds)
        figure = stats.quantile([wall for walls, _ in rounds for wall in walls], share)
        return figure, (low / middle * figure, high / middle * figure), width

    return estimate


def bound(row: str, rounds: Rounds, *, by_wall: bool = False) -> Estimate:
    """Return the figure of gpucheck: the fastest sample, by CPU time where one thread waited."""
    case = FakeCase([])
    case.label = replace(label("cpu"), threads=int(row.rpartition("/")[2]))
    walls, cpus = ([list(one) for one in each] for each in zip(*rounds, strict=True))
    state = CaseState(case=case, rounds=walls, cpu_rounds=[[]] if by_wall else cpus)
    return estimate_by(state.estimator, state.rounds_s)


def estimate_by(estimator: stats.Estimator, rounds: stats.Rounds) -> Estimate:
    """Return an estimate from the samples of rounds; what is unknown is infinite."""
    width = estimator.half_width_share(rounds)
    reach = estimator.repeat_interval(rounds) or (0, math.inf)
    return estimator.run_figure(rounds), reach, math.inf if width is None else width


ESTIMATORS: dict[str, Callable[..., Estimate]] = {
    "median of round medians": by_medians(stats.median, 0),
    "median of rounds' p25": by_medians(lambda samples: stats.quantile(samples, 0.25), 0),
    "median of rounds' p10": by_medians(lambda samples: stats.quantile(samples, 0.1), 0),
    "p25 of all samples": pooled(0.25),
    "p10 of all samples": pooled(0.1),
    "median of round medians, CPU time": by_medians(stats.median, 1),
    "fastest sample, wall": lambda row, rounds: bound(row, rounds, by_wall=True),
    "**fastest sample, the row's clock**": bound,
}


@dataclass(frozen=True)
class Score:
    """What an estimator does with a row's runs.

    `scatter` is the standard deviation between runs, `bias` the distance from the quiet streams,
    both of the logarithm; `reach` is half of the middle range as a share of the figure; `held` is
    the share of pairs whose range holds the other run's figure, `settled` that of the runs known
    well enough.
    """

    scatter: float
    bias: float
    reach: float
    held: float
    settled: float


def estimates(
    estimator: Callable[..., Estimate], row: str, rounds: Rounds, n: int
) -> list[Estimate]:
    """Return the estimates of every run of n successive rounds."""
    return [estimator(row, rounds[at : at + n]) for at in range(len(rounds) - n + 1)]


def held_share(found: Sequence[Estimate], n: int) -> float | None:
    """Return how often a run's range holds the figure of another that shares no round with it."""
    held = [
        low <= found[other][0] <= high
        for one, (_, (low, high), _) in enumerate(found)
        for other in range(len(found))
        if abs(one - other) >= n
    ]
    return sum(held) / len(held) if held else None


def score(
    estimator: Callable[..., Estimate], stream: Stream, row: str, n: int, quiet: float
) -> Score | None:
    """Return the score in one stream, None if it is too short for two runs."""
    found = estimates(estimator, row, stream.rows[row], n)
    held = held_share(found, n)
    if held is None:
        return None
    logarithms = [math.log(figure) for figure, _, _ in found]
    # Runs that share rounds are alike: only those a whole run apart show how runs differ.
    apart = [(two - one) ** 2 / 2 for one, two in pairwise(logarithms[::n])]
    return Score(
        scatter=math.sqrt(statistics.mean(apart)),
        bias=statistics.mean(logarithms) - quiet,
        reach=statistics.median((high - low) / 2 / figure for figure, (low, high), _ in found),
        held=held,
        settled=statistics.mean(width <= SETTLED for _, _, width in found),
    )


def quiet_level(estimator: Callable[..., Estimate], row: str, n: int) -> float:
    """Return the middle logarithm of a row's figures over the quiet streams."""
    streams = [one for one in read_streams() if one.load == QUIET]
    runs = [run for one in streams for run in estimates(estimator, row, one.rows[row], n)]
    return statistics.median(math.log(figure) for figure, _, _ in runs)


# ---------------------------------------------------------------------------------- table


def one_thread(row: str) -> bool:
    """Return whether a row has a single thread."""
    return row.endswith("/1")


def table(single: bool, n: int) -> Iterator[str]:
    """Yield a table of all estimators on all streams, for rows of one thread or the others."""
    streams = [one for one in read_streams() if min(map(len, one.rows.values())) >= 2 * n]
    yield "| estimator | " + " | ".join(one.name for one in streams) + " |"
    yield "|--" * (1 + len(streams)) + "|"
    for name, estimator in ESTIMATORS.items():
        cells = []
        for stream in streams:
            rows = [row for row in stream.rows if one_thread(row) == single]
            found = [
                one
                for row in rows
                if (one := score(estimator, stream, row, n, quiet_level(estimator, row, n)))
            ]
            cells.append(cell(found))
        yield f"| {name} | " + " | ".join(cells) + " |"


def cell(found: Sequence[Score]) -> str:
    """Return the scores of some rows: medians of scatter, bias and range, means of the shares."""
    scatter = statistics.median(one.scatter for one in found)
    bias = statistics.median(one.bias for one in found)
    held = statistics.mean(one.held for one in found)
    settled = statistics.mean(one.settled for one in found)
    reach = statistics.median(one.reach for one in found)
    around = f"±{reach:.0%}" if reach < 1 else "±>99%"
    return f"{percent(scatter)}, {percent(bias, sign='+')}, {around}, {held:.0%}, {settled:.0%}"


def percent(logarithm: float, sign: str = "") -> str:
    """Return a difference of logarithms as a percentage, as a factor if it is large."""
    if abs(logarithm) >= 1:
        return f"x{math.exp(abs(logarithm)):.0f}"
    return f"{100 * logarithm:{sign}.1f}%"


HEAD = """# Estimators of a processor's speed

Written by `python -m benchmarks.streams table` from the streams in `tests/data/streams`: rounds
of {rows} rows on {cpu} with {cores} cores, recorded in turn as `bench` does, with nothing else
running (quiet) and under other programs: spinN are N loops that count, hogs two copies that fill
the memory's bandwidth, build is Python's compiler. A round has {samples} samples at most, a run
so many rounds in succession. Each cell has:

- the scatter between runs (standard deviation of the logarithm; median over rows),
- the distance from the same estimator on the quiet streams (median over rows; x is a factor),
- the ± of the report, half of the stated range of a further run (`repeat95_s`; median),
- how often that range held the figure of another run, of all pairs that share no round,
- how many runs know their figure to 10 % (`ci95_s`).

What follows from it: the median of rounds scatters by 5 to 12 % even on a quiet machine, and on a
busy one it tells what others left. The fastest sample scatters least, and by the clock of a
thread that waited it is within a few percent of the quiet machine's whatever else runs. Threads
that work together wait for each other: under a load their fastest sample is a fifth to several
times too slow, and such a row never counts as `converged`. The longest thread's CPU time counts its
spinning: 10 % too much.

The range of one thread holds in 91 % or more of the pairs of every stream, and that of a team in
90 % or more where nothing else runs. Two things make it so. The samples within rounds narrow the
range of few rounds, and the lower half of the rounds alone sets it. By all rounds' fastest samples
it was ±44 % to beyond ±99 % after three rounds, and held in 80 % of a team's runs of 16. The stream
spin20 has 9 rounds, enough for runs of three only.
"""


def write_table() -> None:
    """Write the document."""
    text = json.loads(gzip.decompress((STREAMS / "quiet1.json.gz").read_bytes()))
    parts = [
        HEAD.format(
            rows=len(text["rows"]),
            cpu=text["cpu"],
            cores=text["usable_cores"],
            samples=ROUND_SAMPLES,
        )
    ]
    for single, said in ((True, "One thread"), (False, "Threads on all cores")):
        parts += [
            f"## {said}, runs of {n} rounds\n\n" + "\n".join(table(single, n)) + "\n"
            for n in RUN_ROUNDS
        ]
    TABLE.write_text("\n".join(parts), encoding="utf-8")


def main() -> None:
    """Record a stream, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(required=True, dest="what")
    recording = kinds.add_parser("record")
    recording.add_argument("name")
    recording.add_argument("--seconds", type=float, default=240.0)
    recording.add_argument("--load", default=QUIET)
    kinds.add_parser("table")
    chosen = parser.parse_args()
    if chosen.what == "record":
        record(chosen.name, chosen.seconds, chosen.load)
    else:
        write_table()


if __name__ == "__main__":
    main()
