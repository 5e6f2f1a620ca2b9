"""Error rates of the verdicts: synthetic machines run through the program's own code.

    python -m benchmarks.decision                  the tables, some ten minutes
    python -m benchmarks.decision --runs 100       a quick look
    python -m benchmarks.decision --write          ... written into
                                                   docs/reference/profiles.md, docs/ci.md and
                                                   docs/measurements/decision.md

Figures of processes are drawn from several models and decided by `decide`, one more process at a
time up to the most, as `gpucheck bench --profile` and `--baseline` do. The two nearest alternatives
are counted as well: Student's interval over all processes, and Yuen's (1974) after 20 % trimming.
`benchmarks/stragglers.py` does it for the GPUs of a node.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gpucheck.bench.ci.decision import (
    LEAST_NOISE,
    Decision,
    corrected,
    decide,
)
from gpucheck.bench.model import GateStatus
from gpucheck.bench.stats import student_quantile

DOCUMENTS = Path(__file__).parents[1] / "docs"
DOCUMENT = DOCUMENTS / "reference" / "profiles.md"
MEASURED = DOCUMENTS / "measurements" / "decision.md"
TOLERANCE_PERCENT = 5.0
CHANGES_PERCENT = (0.0, 3.0, 5.0, 8.0, 12.0)
#: Processes of the baseline, and the fewest and most of the run that is held against it.
PROCESSES, MOST = 5, 10

Draw = Callable[[random.Random, int], list[float]]
Streams = tuple[Draw, Draw]
Status = Callable[[Sequence[float], Sequence[float]], GateStatus]


# ------------------------------------------------------------------------------------- streams
# Each gives the logarithms of some processes of one session.


def normal(noise: float) -> Draw:
    """Return processes that are independent of each other."""
    return lambda dice, count: [dice.gauss(0.0, noise) for _ in range(count)]


def heavy(noise: float) -> Draw:
    """Return processes by Student's t with two degrees of freedom."""

    def draw(dice: random.Random, count: int) -> list[float]:
        return [noise * dice.gauss(0, 1) / math.sqrt(dice.expovariate(1.0)) for _ in range(count)]

    return draw


def autocorrelated(share: float, noise: float) -> Draw:
    """Return processes each of which keeps a share of the one before."""

    def draw(dice: random.Random, count: int) -> list[float]:
        found = [dice.gauss(0.0, noise)]
        own = noise * math.sqrt(1 - share * share)
        while len(found) < count:
            found.append(share * found[-1] + dice.gauss(0.0, own))
        return found

    return draw


def session(between: float, within: float) -> Draw:
    """Return processes of a session that is off by a factor of its own."""

    def draw(dice: random.Random, count: int) -> list[float]:
        own = dice.gauss(0.0, between)
        return [own + dice.gauss(0.0, within) for _ in range(count)]

    return draw


def bimodal(share: float, low: float) -> Draw:
    """Return processes of which a share is slower, with 1 % of noise."""

    def draw(dice: random.Random, count: int) -> list[float]:
        return [
            (math.log(1 - low) if dice.random() < share else 0.0) + dice.gauss(0.0, 0.01)
            for _ in range(count)
        ]

    return draw


def drifting(total: float) -> Draw:
    """Return processes that get slower over the first five, with 1 % of noise."""

    def draw(dice: random.Random, count: int) -> list[float]:
        return [
            min(1.0, at / 4) * math.log(1 - total) + dice.gauss(0.0, 0.01) for at in range(count)
        ]

    return draw


def with_outliers(number: int) -> Draw:
    """Return processes with 1 % of noise, of the first five some 20 to 40 % slower."""

    def draw(dice: random.Random, count: int) -> list[float]:
        found = normal(0.01)(dice, count)
        for at in dice.sample(range(PROCESSES), number):
            found[at] += math.log(1 - dice.uniform(0.2, 0.4))
        return found

    return draw


def slowing(at: int, total: float) -> Draw:
    """Return processes with 1 % of noise that are slower from one on, counted from 1."""

    def draw(dice: random.Random, count: int) -> list[float]:
        return [
            (math.log(1 - total) if number >= at else 0.0) + dice.gauss(0.0, 0.01)
            for number in range(1, count + 1)
        ]

    return draw


def visited(comes: float, stays: float) -> Draw:
    """Return processes with 1 % of noise and a neighbour now and then, who takes 5 to 40 %.

    He comes and stays with these chances from one process to the next.
    """

    def draw(dice: random.Random, count: int) -> list[float]:
        found, taken = list[float](), 0.0
        for _ in range(count):
            if taken and dice.random() >= stays:
                taken = 0.0
            elif not taken and dice.random() < comes:
                taken = dice.uniform(0.05, 0.4)
            found.append(math.log(1 - taken) + dice.gauss(0.0, 0.01))
        return found

    return draw


def now_and_then(share: float) -> Draw:
    """Return processes with 1 % of noise, of which a share is 5 to 40 % slower."""

    def draw(dice: random.Random, count: int) -> list[float]:
        return [
            (math.log(1 - dice.uniform(0.05, 0.4)) if dice.random() < share else 0.0)
            + dice.gauss(0.0, 0.01)
            for _ in range(count)
        ]

    return draw


def both(draw: Draw) -> Streams:
    """Return a stream for the baseline and the run alike."""
    return draw, draw


STREAMS: dict[str, Streams] = {
    "independent, 1 %": both(normal(0.01)),
    "independent, 2 %": both(normal(0.02)),
    "independent, 4 %": both(normal(0.04)),
    "heavy tails (t, 2), 1.5 %": both(heavy(0.015)),
    "autocorrelated 0.7, 2 %": both(autocorrelated(0.7, 0.02)),
    "autocorrelated 0.9, 3 %": both(autocorrelated(0.9, 0.03)),
    "bimodal, 30 % at -6 %": both(bimodal(0.3, 0.06)),
    "drift of -4 % in the run": (normal(0.01), drifting(0.04)),
    "session 3 %, process 1 %": both(session(0.03, 0.01)),
    "one process disturbed": (normal(0.01), with_outliers(1)),
    "two processes disturbed": (normal(0.01), with_outliers(2)),
    "three processes disturbed": (normal(0.01), with_outliers(3)),
    "one of the baseline disturbed": (with_outliers(1), normal(0.01)),
    "every tenth disturbed": both(now_and_then(0.1)),
    "a neighbour who stays": (normal(0.01), visited(0.1, 0.7)),
    "15 % slower from the 5th on": (normal(0.01), slowing(5, 0.15)),
}


# ----------------------------------------------------------------------------------- decisions


def of_the_program(now: Sequence[float], before: Sequence[float]) -> GateStatus:
    """Return the program's verdict on two runs' logarithms."""
    return decide(_figures(now), _figures(before), TOLERANCE_PERCENT).status


def _figures(logs: Sequence[float]) -> list[float]:
    return [math.exp(one) for one in logs]


def by_student(now: Sequence[float], before: Sequence[float]) -> GateStatus:
    """Return the verdict of Welch's interval of all processes."""
    return _by_welch(_trimmed(now, 0), _trimmed(before, 0))


def by_yuen(now: Sequence[float], before: Sequence[float]) -> GateStatus:
    """Return the verdict of Yuen's interval of those that 20 % trimming leaves."""
    return _by_welch(_trimmed(now, len(now) // 5), _trimmed(before, len(before) // 5))


def _trimmed(logs: Sequence[float], cut: int) -> tuple[float, float, int]:
    """Return the trimmed mean, its variance by the Winsorised values, and its freedom."""
    ordered = sorted(logs)
    kept = ordered[cut : len(ordered) - cut]
    winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
    middle = math.fsum(winsorised) / len(winsorised)
    squares = math.fsum((one - middle) ** 2 for one in winsorised)
    variance = squares / (len(kept) * (len(kept) - 1))
    least = LEAST_NOISE**2 / len(logs)
    return math.fsum(kept) / len(kept), max(variance, least), len(kept) - 1


def _by_welch(now: tuple[float, float, int], before: tuple[float, float, int]) -> GateStatus:
    variance = now[1] + before[1]
    freedom = variance**2 / (now[1] ** 2 / now[2] + before[1] ** 2 / before[2])
    half = student_quantile(0.05, int(freedom + 1e-9)) * math.sqrt(variance)
    beyond = math.log(1 - TOLERANCE_PERCENT / 100) - (now[0] - before[0])
    if beyond + half <= 0:
        return GateStatus.PASS
    return GateStatus.FAIL if beyond > half else GateStatus.INCONCLUSIVE


METHODS: dict[str, Status] = {
    "here": of_the_program,
    "Student": by_student,
    "Yuen": by_yuen,
}


def in_any_order(now: Sequence[float], before: Sequence[float]) -> GateStatus:
    """Return the program's verdict if it did not see which processes were the last."""
    return of_the_program(sorted(now), before)


#: The rule about the last processes, and the same without it.
ORDERS: dict[str, Status] = {"here": of_the_program, "in any order": in_any_order}


def run_once(
    dice: random.Random, streams: Streams, change_percent: float, status: Status
) -> tuple[GateStatus, int]:
    """Return the verdict on a machine that got slower, and after how many processes."""
    before = streams[0](dice, PROCESSES)
    slower = math.log(1 - change_percent / 100)
    now = [slower + one for one in streams[1](dice, MOST)]
    for count in range(PROCESSES, MOST + 1):
        found = status(now[:count], before)
        if found is not GateStatus.INCONCLUSIVE:
            return found, count
    return GateStatus.INCONCLUSIVE, MOST


def shares(found: Sequence[GateStatus]) -> tuple[float, float, float]:
    """Return the shares of fail, pass and inconclusive in percent."""
    counts = Counter(found)
    order = (GateStatus.FAIL, GateStatus.PASS, GateStatus.INCONCLUSIVE)
    return tuple(100 * counts[one] / len(found) for one in order)  # type: ignore[return-value]


def stream_cell(
    runs: int, streams: Streams, change_percent: float, status: Status, seed: int
) -> tuple[tuple[float, float, float], float]:
    """Return the shares of the verdicts in percent, and the mean of the processes used."""
    dice = random.Random(seed)
    found = [run_once(dice, streams, change_percent, status) for _ in range(runs)]
    return shares([one for one, _ in found]), sum(count for _, count in found) / runs


def stream_table(runs: int, seed: int, methods: Mapping[str, Status]) -> Iterator[str]:
    """Yield the table of streams, a line for each and each method."""
    changes = " | ".join(f"{change:.0f} %" for change in CHANGES_PERCENT)
    yield f"| noise | by | {changes} | processes at 0 / 8 % |"
    yield "|--" * (len(CHANGES_PERCENT) + 3) + "|"
    for name, streams in STREAMS.items():
        for method, status in methods.items():
            cells = {
                change: stream_cell(runs, streams, change, status, seed)
                for change in CHANGES_PERCENT
            }
            told = " | ".join(_three(found) for found, _ in cells.values())
            used = f"{cells[0.0][1]:.1f} / {cells[8.0][1]:.1f}"
            yield f"| {name} | {method} | {told} | {used} |"


def _three(found: Sequence[float]) -> str:
    return "/".join(map(_share, found))


def _share(percent: float) -> str:
    return f"{percent:.1f}" if 0 < percent < 10 else f"{percent:.0f}"


# ---------------------------------------------------------------------------------- tolerances

TOLERANCES_PERCENT = (1.0, 2.0, 3.0, 5.0)
NOISES = (0.005, 0.01, 0.02, 0.03)
#: Rows of `gpucheck bench --quick` on two cores.
ROWS = 17


def tolerance_cell(
    runs: int, tolerance_percent: float, noise: float, change_percent: float, seed: int, most: int
) -> tuple[float, float, float]:
    """Return how one row ends that got slower, after at most so many processes."""
    dice, draw, slower = random.Random(seed), normal(noise), math.log(1 - change_percent / 100)
    ends = []
    for _ in range(runs):
        before, now = draw(dice, PROCESSES), [slower + one for one in draw(dice, most)]
        ends.append(_end([before], [now], 1, tolerance_percent))
    return shares(ends)


def rows_cell(
    runs: int, tolerance_percent: float, noise: float, seed: int
) -> tuple[float, float, float]:
    """Return how runs of many rows end of which none got slower."""
    dice, draw = random.Random(seed), normal(noise)
    ends = []
    for _ in range(runs):
        befores = [draw(dice, PROCESSES) for _ in range(ROWS)]
        nows = [draw(dice, MOST) for _ in range(ROWS)]
        ends.append(_end(befores, nows, 1, tolerance_percent))
    return shares(ends)


def tolerance_table(runs: int, seed: int) -> Iterator[str]:
    """Yield what each tolerance finds at which noise: with 5 processes, and with 5 to 10."""
    yield (
        "| tolerance | noise | wrong fails | undecided | finds 3 % | 5 % | 8 % "
        f"| {ROWS} rows: wrong fails | undecided |"
    )
    yield "|--" * 9 + "|"
    for tolerance in TOLERANCES_PERCENT:
        for noise in NOISES:
            found = {
                change: [
                    tolerance_cell(runs, tolerance, noise, change, seed, most)
                    for most in (PROCESSES, MOST)
                ]
                for change in (0.0, 3.0, 5.0, 8.0)
            }
            told = [_pair(found[0.0], 0), _pair(found[0.0], 2)]
            told += [_pair(found[change], 0) for change in (3.0, 5.0, 8.0)]
            many = rows_cell(max(1, runs // 10), tolerance, noise, seed)
            told += [_share(many[0]), _share(many[2])]
            yield f"| {tolerance:g} % | {100 * noise:g} % | {' | '.join(told)} |"


def _pair(found: Sequence[Sequence[float]], which: int) -> str:
    return " / ".join(_share(one[which]) for one in found)


# ------------------------------------------------------------------------------------ sessions

SESSIONS: dict[str, tuple[float, float]] = {
    "session 0 %, process 1 %": (0.0, 0.01),
    "session 2 %, process 0.5 %": (0.02, 0.005),
    "session 3 %, process 1 %": (0.03, 0.01),
    "session 5 %, process 1 %": (0.05, 0.01),
}


def session_cell(
    runs: int, noise: tuple[float, float], count: int, rows: int, change_percent: float, seed: int
) -> tuple[float, float, float]:
    """Return how runs of so many rows end: with one that fails, with all passed, or open.

    The baseline has so many sessions of five processes. Each row is off by a factor of its own in
    each session; all of them got slower by the change.
    """
    dice = random.Random(seed)
    draw, slower = session(*noise), math.log(1 - change_percent / 100)
    ends = []
    for _ in range(runs):
        befores = [
            [one for _ in range(count) for one in draw(dice, PROCESSES)] for _ in range(rows)
        ]
        nows = [[slower + one for one in draw(dice, MOST)] for _ in range(rows)]
        ends.append(_end(befores, nows, count))
    return shares(ends)


def _end(
    befores: Sequence[Sequence[float]],
    nows: Sequence[Sequence[float]],
    count: int,
    tolerance_percent: float = TOLERANCE_PERCENT,
) -> GateStatus:
    """Return a run's worst verdict, after as many processes as it takes."""
    status = GateStatus.INCONCLUSIVE
    for processes in range(PROCESSES, len(nows[0]) + 1):
        found = corrected(
            [
                _held(now[:processes], before, count, tolerance_percent)
                for now, before in zip(nows, befores, strict=True)
            ]
        )
        told = {one.status for one in found}
        worst = (GateStatus.FAIL, GateStatus.INCONCLUSIVE, GateStatus.PASS)
        status = next(one for one in worst if one in told)
        if GateStatus.INCONCLUSIVE not in told:
            break
    return status


def _held(
    now: Sequence[float], before: Sequence[float], sessions: int, tolerance_percent: float
) -> Decision:
    counts = [PROCESSES] * sessions if sessions > 1 else []
    return decide(_figures(now), _figures(before), tolerance_percent, sessions=counts)


def session_table(runs: int, seed: int) -> Iterator[str]:
    """Yield the table of baselines of several sessions, for one row and for a run of 17."""
    yield "| noise | sessions | 1 row: 0 % | 3 % | 8 % | 12 % | 17 rows: 0 % | 12 % |"
    yield "|--|--|--|--|--|--|--|--|"
    for name, noise in SESSIONS.items():
        for count in (1, 2, 3, 5, 8):
            cells = [
                _three(session_cell(runs, noise, count, 1, change, seed))
                for change in (0.0, 3.0, 8.0, 12.0)
            ]
            cells += [
                _three(session_cell(max(1, runs // 8), noise, count, 17, change, seed))
                for change in (0.0, 12.0)
            ]
            yield f"| {name} | {count} | {' | '.join(cells)} |"


# -------------------------------------------------------------------------------------- output


#: Where each table stands.
WRITTEN: dict[str, tuple[Path, ...]] = {
    "streams": (DOCUMENT,),
    "orders": (MEASURED,),
    "tolerances": (DOCUMENTS / "ci.md", MEASURED),
    "sessions": (DOCUMENT,),
}


def written(text: str, mark: str, table: str) -> str:
    """Return a document with the table between its marks."""
    pattern = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", re.S)
    return pattern.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text)


def main() -> int:
    """Print the tables, or write them into the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="runs of a cell [2000]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=tuple(WRITTEN))
    parser.add_argument("--write", action="store_true", help="write into the documents")
    given = parser.parse_args()
    tables: dict[str, Callable[[], Iterator[str]]] = {
        "streams": lambda: stream_table(given.runs, given.seed, METHODS),
        "orders": lambda: stream_table(given.runs, given.seed, ORDERS),
        "tolerances": lambda: tolerance_table(given.runs, given.seed),
        "sessions": lambda: session_table(given.runs, given.seed),
    }
    for mark, table in tables.items():
        if given.only not in (None, mark):
            continue
        lines = []
        for line in table():
            print(line, flush=True)
            lines.append(line)
        print()
        if given.write:
            for path in WRITTEN[mark]:
                text = path.read_text(encoding="utf-8")
                path.write_text(written(text, mark, "\n".join(lines)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
