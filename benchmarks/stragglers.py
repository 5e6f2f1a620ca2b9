"""How often healthy and slow GPUs are taken for stragglers: synthetic nodes in `acceptance`.

    python -m benchmarks.stragglers                both tables, a quarter of an hour
    python -m benchmarks.stragglers --only rule    the rule alone, some minutes
    python -m benchmarks.stragglers --write        ... written into the documents

`rule` repeats the rule of `gpucheck/bench/ci/gates.py` in NumPy for thousands of nodes of five
processes; its table is in docs/measurements/stragglers.md. `gates` draws fewer nodes and lets them
through `judge`, with as many processes as that takes; its table is in docs/reference/profiles.md. A
test holds that both say the same.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.decision import DOCUMENT, written
from gpucheck.bench import stats
from gpucheck.bench.ci import decision, gates
from gpucheck.bench.model import GateStatus, Severity
from tests.fakes.nodes import CHECKS, AcceptanceNode

MEASUREMENTS = Path(__file__).parents[1] / "docs" / "measurements" / "stragglers.md"
#: What `acceptance` demands, and the processes of its shortest and its longest run.
TOLERANCE, SPREAD, FEWEST, MOST = 0.05, 0.018, 5, 10
_LINE = math.log(1 - TOLERANCE)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


# ------------------------------------------------------------------------------------- streams
# Each gives the logarithms of processes, in the last axis.


def normal(noise: float, dice: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return processes that are independent of each other."""
    return noise * dice.standard_normal(shape)


def heavy(noise: float, dice: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return processes by Student's t with two degrees of freedom."""
    return normal(noise, dice, shape) / np.sqrt(dice.exponential(1.0, shape))


def autocorrelated(
    share: float, noise: float, dice: np.random.Generator, shape: tuple[int, ...]
) -> Floats:
    """Return processes each of which keeps a share of the one before."""
    found = normal(noise, dice, shape)
    for at in range(1, shape[-1]):
        found[..., at] *= math.sqrt(1 - share * share)
        found[..., at] += share * found[..., at - 1]
    return found


def drifting(dice: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return processes that get 4 % slower over the first five, with 1 % of noise."""
    return np.minimum(1.0, np.arange(shape[-1]) / 4) * math.log(0.96) + normal(0.01, dice, shape)


def bimodal(dice: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return processes of which 30 % are 6 % slower, with 1 % of noise."""
    return np.where(dice.random(shape) < 0.3, math.log(0.94), 0.0) + normal(0.01, dice, shape)


def bursts(dice: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return processes of which a tenth is 5 to 40 % slower, with 1 % of noise."""
    slower = np.log(1 - dice.uniform(0.05, 0.4, shape))
    return np.where(dice.random(shape) < 0.1, slower, 0.0) + normal(0.01, dice, shape)


Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]
STREAMS: dict[str, Draw] = {
    "1 %": lambda dice, shape: normal(0.01, dice, shape),
    "2 %": lambda dice, shape: normal(0.02, dice, shape),
    "5 %": lambda dice, shape: normal(0.05, dice, shape),
    "heavy tails (t, 2), 1.5 %": lambda dice, shape: heavy(0.015, dice, shape),
    "autocorrelated 0.7, 2 %": lambda dice, shape: autocorrelated(0.7, 0.02, dice, shape),
    "autocorrelated 0.9, 3 %": lambda dice, shape: autocorrelated(0.9, 0.03, dice, shape),
    "drift of -4 %": drifting,
    "bimodal, 30 % at -6 %": bimodal,
    "every tenth 5 to 40 % slower": bursts,
}


class Cell(NamedTuple):
    """Nodes of one kind.

    Healthy GPUs differ by a normal factor of the deviation `spread`, the same in each check unless
    `by_check`. The first `slow` of them are slower by a share, in one check alone if `in_one`.
    """

    stream: str
    spread: float
    slower: float = 0.0
    gpus: int = 8
    by_check: bool = False
    in_one: bool = False
    slow: int = 1

    def drawn(self, dice: np.random.Generator, nodes: int, processes: int) -> Floats:
        """Return logarithms by node, GPU, check and process."""
        shape = (nodes, self.gpus, CHECKS if self.by_check else 1, 1)
        own = np.broadcast_to(normal(self.spread, dice, shape), (*shape[:2], CHECKS, 1)).copy()
        own[:, : self.slow, CHECKS - 1 if self.in_one else 0 :] += math.log(1 - self.slower)
        return own + STREAMS[self.stream](dice, (nodes, self.gpus, CHECKS, processes))

    @property
    def text(self) -> str:
        """Return the first columns of its line."""
        kind = "other" if self.by_check else "alike"
        slower = f"{self.slower:.0%}".replace("%", " %")
        if self.in_one:
            slower += ", one check"
        if self.slow > 1:
            slower += f", {self.slow} GPUs"
        spread = f"{100 * self.spread:g} %"
        return f"{self.stream} | {spread} | {kind} | {self.gpus} | {slower}"


HEAD = "| processes differ by | healthy GPUs by | by check | GPUs | slower by |"
_HEALTHY_STREAMS = tuple(STREAMS)[3:]
GATES = (
    *(Cell("1 %", spread, slower) for spread in (0.001, 0.01, 0.02, 0.03) for slower in (0, 0.08)),
    *(Cell("2 %", spread, slower) for spread in (0.01, 0.02) for slower in (0, 0.08)),
    *(Cell("1 %", 0.02, slower) for slower in (0.03, 0.05, 0.15)),
    *(Cell("1 %", 0.02, slower, by_check=True) for slower in (0, 0.08)),
    *(Cell("1 %", 0.01, slower, in_one=True) for slower in (0.08, 0.15)),
    *(Cell(stream, 0.01) for stream in _HEALTHY_STREAMS),
    *(Cell("1 %", 0.01, slower, gpus=3) for slower in (0, 0.08, 0.15)),
    *(Cell("1 %", 0.01, slower, gpus=2) for slower in (0, 0.08, 0.3)),
)
RULE = (
    *(
        Cell(stream, spread, slower)
        for stream in ("1 %", "2 %")
        for spread in (0.001, 0.01, 0.02, 0.03)
        for slower in (0, 0.03, 0.05, 0.08, 0.15, 0.25)
    ),
    *(
        Cell("1 %", spread, slower, by_check=True)
        for spread in (0.02, 0.03)
        for slower in (0, 0.05, 0.08)
    ),
    *(Cell(stream, 0.01, slower) for stream in ("5 %", *_HEALTHY_STREAMS) for slower in (0, 0.08)),
    *(
        Cell("1 %", spread, slower, in_one=True)
        for spread in (0.01, 0.02)
        for slower in (0.08, 0.15)
    ),
    *(Cell("1 %", 0.01, slower, slow=slow) for slow in (2, 3) for slower in (0.08, 0.15)),
    *(Cell("1 %", spread, slower, gpus=3) for spread in (0.01, 0.02) for slower in (0, 0.08, 0.15)),
)


# ---------------------------------------------------------------------------------------- rule


class _Mean(NamedTuple):
    """Mean of five processes without a stray, its variance, and the degrees of freedom of that."""

    mean: Floats
    variance: Floats
    freedom: Floats

    @classmethod
    def of(cls, logs: Floats) -> _Mean:
        apart = np.abs(logs - logs.mean(-1, keepdims=True))
        spread = np.maximum(logs.std(-1, ddof=1), decision.LEAST_NOISE)
        is_stray = apart.max(-1) / spread > decision._farthest(FEWEST)
        stray = is_stray[..., None] & (np.arange(FEWEST) == apart.argmax(-1)[..., None])
        count = (~stray).sum(-1)
        mean = np.where(stray, 0.0, logs).sum(-1) / count
        square = (np.where(stray, 0.0, logs - mean[..., None]) ** 2).sum(-1) / (count - 1)
        variance = np.maximum(square, decision.LEAST_NOISE**2) / count
        return cls(mean, variance, count - 1)


def judged(logs: Floats) -> tuple[Bools, Bools]:
    """Return by node and GPU whether it fails, and whether it fails or is warned about."""
    every = logs.mean(2, keepdims=True)
    fails, lags = zip(_compared(logs), _compared(every), strict=True)
    return np.logical_or(*fails), np.logical_or(*lags)


def _compared(logs: Floats) -> tuple[Bools, Bools]:
    """Return what each GPU is by the worst of these checks."""
    nodes, gpus, checks, _ = logs.shape
    fails, lags = np.zeros((2, nodes, gpus), dtype=bool)
    typical = _Mean.of(logs).mean
    for gpu in range(gpus):
        others = np.delete(logs, gpu, 1)
        own, median = _Mean.of(logs[:, gpu]), _Mean.of(np.median(others, 1))
        below = median.mean - own.mean
        is_slow = logs[:, gpu] - median.mean[..., None] < _LINE
        warning, failing = _reaches(np.delete(typical, gpu, 1), gpus * checks**2)
        surely = _is_surely_beyond(own, median, is_slow)
        lags[:, gpu] = (below > np.maximum(warning, -_LINE)).any(1)
        fails[:, gpu] = (surely & (below > failing)).any(1)
    return fails, lags | fails


def _reaches(others: Floats, tests: int) -> Iterator[Floats]:
    """Yield how far below the others a healthy GPU seldom is, and hardly ever."""
    freedom, prior = others.shape[1] - 1, gates._PRIOR_FREEDOM
    spread = np.minimum(others.std(1, ddof=1), gates._MOST_SPREAD * SPREAD)
    checks = others.shape[2]
    squares = prior * SPREAD**2 + freedom * (spread**2).sum(1, keepdims=True)
    scatter = np.sqrt(squares / (prior + freedom * checks))
    scatter = scatter * math.sqrt(1 + math.pi / (2 * others.shape[1] + math.pi - 2))
    for risk in (gates._WARNING_RISK, gates._FAILING_RISK):
        yield scatter * stats.student_quantile(risk / tests, prior + freedom)


def _is_surely_beyond(own: _Mean, others: _Mean, is_slow: Bools) -> Bools:
    """Return whether the interval is beyond the tolerance, and two thirds of the processes are."""
    variance = own.variance + others.variance
    welch = own.variance**2 / own.freedom + others.variance**2 / others.freedom
    quantiles = np.array([math.inf, *(stats.student_quantile(0.05, at) for at in range(1, 9))])
    half = quantiles[(variance**2 / welch + 1e-9).astype(int)] * np.sqrt(variance)
    found: Bools = others.mean - own.mean - half > -_LINE
    found &= is_slow.mean(-1) >= decision._MOST
    return found


def rule_table(nodes: int, seed: int) -> Iterator[str]:
    """Yield a line for each kind of nodes: percentages of slow GPUs, and of nodes."""
    kinds = " | ".join(f"{kind} GPU: fails | fails or warns" for kind in ("slow", "a healthy"))
    yield f"{HEAD} {kinds} |"
    yield "|--" * 9 + "|"
    for cell in RULE:
        slow = cell.slow if cell.slower else 0
        found = judged(cell.drawn(np.random.default_rng(seed), nodes, FEWEST))
        of_slow = [f"{100 * one[:, :slow].mean():.1f}" if slow else "" for one in found]
        of_nodes = [f"{100 * one[:, slow:].any(1).mean():.2f}" for one in found]
        yield f"| {cell.text} | {' | '.join((*of_slow, *of_nodes))} |"


# --------------------------------------------------------------------------------------- gates


class Counted(NamedTuple):
    """Nodes of one kind: how they ended, and in which a slow or a healthy GPU was named."""

    ends: Counter[int]
    slow: Counter[Severity]
    healthy: Counter[Severity]


def gates_cell(cell: Cell, nodes: int, seed: int) -> Counted:
    """Return what the gates of `acceptance` say of such nodes."""
    drawn = cell.drawn(np.random.default_rng(seed), nodes, MOST)
    slow = {f"gpu:{at}" for at in range(cell.slow if cell.slower else 0)}
    counted = Counted(Counter(), Counter(), Counter())
    for logs in drawn:
        code, gates = AcceptanceNode(logs.tolist()).judged()
        counted.ends[code] += 1
        bad = [one for one in gates if one.id == "straggler" and one.status is GateStatus.FAIL]
        counted.slow.update({one.severity for one in bad if one.device in slow})
        counted.healthy.update({one.severity for one in bad if one.device not in slow})
    return counted


def gates_table(nodes: int, seed: int) -> Iterator[str]:
    """Yield a line for each kind of nodes: percentages of them."""
    yield f"{HEAD} exit 1/0/3 | slow GPU: fails/warns | a healthy GPU: fails/warns |"
    yield "|--" * 8 + "|"
    for cell in GATES:
        ends, *named = gates_cell(cell, nodes, seed)
        parts = [[ends[code] for code in (1, 0, 3)]]
        parts += [[one[kind] for kind in (Severity.ERROR, Severity.WARN)] for one in named]
        code, slow, healthy = ("/".join(f"{100 * one / nodes:.3g}" for one in of) for of in parts)
        yield f"| {cell.text} | {code} | {slow if cell.slower else ''} | {healthy} |"


def main() -> int:
    """Print the tables, or write them into the documents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", type=int, default=10_000, help="nodes of a cell [10000]")
    parser.add_argument("--gates", type=int, default=300, help="nodes of a cell [300]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("rule", "gates"))
    parser.add_argument("--write", action="store_true", help="write into the documents")
    given = parser.parse_args()
    for name, table, document in (
        ("rule", rule_table(given.rule, given.seed), MEASUREMENTS),
        ("gates", gates_table(given.gates, given.seed), DOCUMENT),
    ):
        if given.only not in (None, name):
            continue
        lines = []
        for line in table:
            print(line := line.replace("|  |", "| |").replace("|  |", "| |"), flush=True)
            lines.append(line)
        print()
        if given.write:
            text = document.read_text(encoding="utf-8")
            document.write_text(written(text, name, "\n".join(lines)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
