"""False alarms and misses of `fleet report` on synthetic fleets, through the program's own code.

    python -m benchmarks.fleet_statistics [--quick] [--output docs/measurements/fleet.md]

Documents of `bench` are drawn for fleets of 100, 1,000 and 10,000 nodes of 8 GPUs, collected and
judged as `gpucheck fleet report` does. A healthy GPU has a speed of its own in each of six tests,
partly shared between them, and each run some noise. A planted GPU is slower in two of the six. No
card has been measured for this: the figures say how the rule decides, not how cards are.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpucheck.fleet.collect import Collected
from gpucheck.fleet.documents import Entry
from gpucheck.fleet.model import (
    Correction,
    FleetReport,
    GpuSpeed,
    JudgementRule,
    Outcome,
    Scope,
)
from gpucheck.fleet.report import report
from gpucheck.fleet.speeds import Baseline
from gpucheck.report.host import Host

GPUS, TESTS, PER_RACK = 8, 6, 16
NAMES = [f"test{number}/kernel/-/-/float32/1024/resident" for number in range(TESTS)]
#: Share of a healthy GPU's deviation that all of its tests have in common, and a run's noise.
SHARED, NOISE = 0.7, 0.003
#: At least so many GPUs stand behind each row of a table.
LEAST_GPUS = 80_000
SIZES = (100, 1_000, 10_000)
#: arXiv 2605.09370, a cluster of 504 B200.
PUBLISHED = (
    "Published for another fleet and another method, on real failures: 504 B200 "
    "(arXiv 2605.09370): 10 of 10 failures found, 0.84 false alarms a day. The tables here are "
    "about drawn speeds: they neither confirm nor contradict it."
)


@dataclass
class Fleet:
    """Drawn fleet: speeds by node, GPU, test and run, what was planted, and the set-up."""

    speeds: Any
    planted: Any
    power: Any
    missing: frozenset[int] = frozenset()
    bad_rack: int | None = None
    bad_nodes: frozenset[int] = frozenset()
    baseline: Baseline | None = None


@dataclass
class Tally:
    """What was decided about all GPUs of a row."""

    healthy: int = 0
    false: int = 0
    watched: int = 0
    planted: int = 0
    found: int = 0
    suspected: int = 0
    missing: int = 0
    named: int = 0
    places: int = 0
    placed: int = 0
    misplaced: int = 0
    seconds: float = field(default=0.0)


def draw(nodes: int, deviation: float, random: np.random.Generator, *, runs: int = 1) -> Fleet:
    """Return a healthy fleet."""
    shape = (nodes, GPUS, TESTS)
    own = np.sqrt(SHARED) * random.standard_normal((nodes, GPUS, 1))
    own = own + np.sqrt(1 - SHARED) * random.standard_normal(shape)
    # Of the whole deviation a part is the run's noise.
    silicon = 1 + np.sqrt(max(0.0, deviation**2 - NOISE**2)) * own
    noise = 1 + NOISE * random.standard_normal((*shape, runs))
    return Fleet(
        speeds=silicon[..., None] * noise,
        planted=np.zeros((nodes, GPUS), dtype=bool),
        power=np.full(nodes, 700.0),
    )


def slow(fleet: Fleet, planted: Any, percent: float, random: np.random.Generator) -> None:
    """Make these GPUs slower in two of their tests."""
    fleet.planted |= planted
    for node, gpu in np.argwhere(planted).tolist():
        tests = random.choice(TESTS, 2, replace=False)
        fleet.speeds[node, gpu, tests] *= 1 - percent / 100


def some(fleet: Fleet, share: float, random: np.random.Generator) -> Any:
    """Return a share of the fleet's GPUs, at least one."""
    count = max(1, round(share * fleet.planted.size))
    chosen = np.zeros(fleet.planted.size, dtype=bool)
    chosen[random.choice(fleet.planted.size, count, replace=False)] = True
    return chosen.reshape(fleet.planted.shape)


Plant = Callable[[Fleet, np.random.Generator], None]


def planting(share: float, percent: float) -> Plant:
    """Return what makes a share of the GPUs slower."""
    return lambda fleet, random: slow(fleet, some(fleet, share, random), percent, random)


def capped(fleet: Fleet, random: np.random.Generator) -> None:
    """Cap the power of every second node, and plant slow GPUs in both halves."""
    fleet.power[::2] = 500.0
    fleet.speeds[::2] *= 0.88
    slow(fleet, some(fleet, 0.005, random), 8, random)


def bad_rack(fleet: Fleet, random: np.random.Generator) -> None:
    """Make one GPU of most nodes of one rack slower, as a rack that is too hot does."""
    nodes = len(fleet.planted)
    fleet.bad_rack = int(random.integers(max(1, nodes // PER_RACK)))
    chosen = np.zeros_like(fleet.planted)
    first = fleet.bad_rack * PER_RACK
    chosen[range(first, min(first + 12, nodes)), random.integers(GPUS, size=min(12, nodes))] = True
    slow(fleet, chosen, 10, random)


def bad_node(fleet: Fleet, random: np.random.Generator) -> None:
    """Make all GPUs of some nodes slower."""
    nodes = random.choice(len(fleet.planted), max(1, len(fleet.planted) // 200), replace=False)
    chosen = np.zeros_like(fleet.planted)
    chosen[nodes] = True
    fleet.bad_nodes = frozenset(nodes.tolist())
    slow(fleet, chosen, 10, random)


def absent(fleet: Fleet, random: np.random.Generator) -> None:
    """Take two nodes in a hundred away, and plant slow GPUs among the rest."""
    count = max(1, len(fleet.planted) // 50)
    fleet.missing = frozenset(random.choice(len(fleet.planted), count, replace=False).tolist())
    slow(fleet, some(fleet, 0.005, random), 8, random)
    fleet.planted[list(fleet.missing)] = False


def transient(fleet: Fleet, random: np.random.Generator) -> None:
    """Make one GPU in twenty slower in one of its three runs: none is to be called slow."""
    for node, gpu in np.argwhere(some(fleet, 0.05, random)).tolist():
        fleet.speeds[node, gpu, :, random.integers(fleet.speeds.shape[3])] *= 0.85


def with_baseline(plant: Plant, deviation: float) -> Plant:
    """Return what plants, and stores the groups of a healthy day."""

    def planted(fleet: Fleet, random: np.random.Generator) -> None:
        healthy = draw(100, deviation, random)
        groups = judged(healthy, JudgementRule()).groups
        fleet.baseline = "healthy.json", {group.key: group for group in groups}
        plant(fleet, random)

    return planted


def tailed(fleet: Fleet, random: np.random.Generator) -> None:
    """Replace the normal deviations by Student's with five degrees of freedom."""
    deviation = fleet.speeds.std()
    shape = (*fleet.planted.shape, 1, 1)
    fleet.speeds[:] = 1 + deviation * random.standard_t(5, shape) * np.sqrt(3 / 5)
    fleet.speeds *= 1 + NOISE * random.standard_normal(fleet.speeds.shape)
    slow(fleet, some(fleet, 0.005, random), 8, random)


# ------------------------------------------------------------------------------ the report


def documents(fleet: Fleet) -> Iterator[Entry]:
    """Yield a document of bench for each node and run, as a file that was parsed."""
    nodes, _, _, runs = fleet.speeds.shape
    for node in range(nodes):
        if node in fleet.missing:
            continue
        uuids = [f"GPU-{uuid.UUID(int=node * GPUS + gpu)}" for gpu in range(GPUS)]
        for run in range(runs):
            text = f"n{node}.json"
            yield Entry(text, None, document(fleet, node, run, uuids))


def document(fleet: Fleet, node: int, run: int, uuids: Sequence[str]) -> dict[str, Any]:
    """Return what bench prints on a node, without what the report does not read."""
    speeds = fleet.speeds[node, :, :, run].tolist()
    rows = [
        {
            "gpu_uuid": uuids[gpu], "id": NAMES[test], "time_s": 1e-3 / speeds[gpu][test],
            "throughput": {"value": 1e12 * speeds[gpu][test], "unit": "FLOP/s"},
            "device": f"gpu:{gpu}", "kernel": "matmul", "scope": "resident",
        }
        for gpu in range(GPUS)
        for test in range(TESTS)
    ]  # fmt: skip
    gpus = [
        {"cuda_index": gpu, "uuid": uuids[gpu], "name": "H100", "memory_total_bytes": 80 << 30}
        for gpu in range(GPUS)
    ]
    sensors = [
        {"uuid": name, "power_limit_w": float(fleet.power[node]), "ecc_mode": True}
        for name in uuids
    ]
    return {
        "schema": "gpucheck/bench/1",
        "time": f"2026-11-22T{run:02d}:00:00Z",
        "exit_code": 0,
        "host": {"name": f"n{node}", "driver_version": "580.95.05"},
        "result": {
            "measurements": rows,
            "environment": {"gpus": gpus},
            "telemetry": {"gpus": sensors},
        },
    }


def judged(fleet: Fleet, rule: JudgementRule) -> FleetReport:
    """Return the program's report over a drawn fleet."""
    hosts = tuple(f"n{node}" for node in range(len(fleet.planted)))
    racks: dict[str, str | None] = {host: f"r{node // PER_RACK}" for node, host in enumerate(hosts)}
    collected = Collected(hosts)
    for found in documents(fleet):
        collected.add(found)
    answer = report(collected, racks, Host(), rule=rule, baseline=fleet.baseline)
    assert isinstance(answer.result, FleetReport)
    return answer.result


def count(fleet: Fleet, found: FleetReport, tally: Tally) -> None:
    """Add what was decided about one fleet."""
    named: dict[GpuSpeed, set[int]] = {speed: set() for speed in GpuSpeed}
    for one in found.slow:
        named[one.speed].add(int(one.gpu_uuid[4:].replace("-", ""), 16))
    here = np.ones_like(fleet.planted)
    here[list(fleet.missing)] = False
    planted = set(np.flatnonzero(fleet.planted.ravel()).tolist())
    tally.planted += len(planted)
    tally.healthy += int(here.sum()) - len(planted)
    tally.false += len(named[GpuSpeed.SLOW] - planted)
    tally.watched += len(named[GpuSpeed.WATCH] - planted)
    tally.found += len(named[GpuSpeed.SLOW] & planted)
    tally.suspected += len(named[GpuSpeed.WATCH] & planted)
    missing = {node.host for node in found.nodes if node.outcome is Outcome.MISSING}
    tally.missing += len(fleet.missing)
    tally.named += len(missing & {f"n{node}" for node in fleet.missing})
    places = {(Scope.NODE, f"n{node}") for node in fleet.bad_nodes}
    if fleet.bad_rack is not None:
        places.add((Scope.RACK, f"r{fleet.bad_rack}"))
    said = {(one.scope, one.name) for one in found.attributions if one.scope is not Scope.GROUP}
    tally.places += len(places)
    tally.placed += len(said & places)
    tally.misplaced += len(said - places)


def run(
    nodes: int,
    deviation: float,
    plant: Plant | None,
    *,
    rule: JudgementRule | None = None,
    runs: int = 1,
    least: int = LEAST_GPUS,
    seed: int = 1,
) -> Tally:
    """Return what is decided about as many fleets as it takes."""
    tally, began = Tally(), time.process_time()
    random = np.random.default_rng([seed, nodes, round(1e4 * deviation), runs])
    while tally.healthy + tally.planted < least:
        fleet = draw(nodes, deviation, random, runs=runs)
        if plant is not None:
            plant(fleet, random)
        count(fleet, judged(fleet, rule or JudgementRule()), tally)
    tally.seconds = time.process_time() - began
    return tally


# ------------------------------------------------------------------------------- tables


def percent(part: int, whole: int) -> str:
    """Return a share, or nothing where there is none to have."""
    return f"{100 * part / whole:.1f} %" if whole else ""


def row(name: str, nodes: int, deviation: float, tally: Tally) -> str:
    """Return a row of the table of fleets."""
    cells = [
        name,
        f"{nodes:,}",
        f"{100 * deviation:g} %",
        f"{tally.healthy:,}",
        f"{1e4 * tally.false / max(1, tally.healthy):.2f}",
        f"{1e4 * tally.watched / max(1, tally.healthy):.1f}",
        f"{tally.planted:,}" if tally.planted else "",
        percent(tally.found, tally.planted),
        percent(tally.suspected, tally.planted),
        percent(tally.named, tally.missing),
        percent(tally.placed, tally.places),
        str(tally.misplaced),
    ]
    return f"| {' | '.join(cells)} |"


COLUMNS = (
    "fleet", "nodes", "healthy deviation", "healthy GPUs", "false `slow` per 10,000",
    "`watch` per 10,000", "planted", "found `slow`", "found `watch`", "missing nodes named",
    "places named", "wrong places",
)  # fmt: skip


def fleets(least: int) -> Iterator[str]:
    """Yield the table of fleets."""
    yield f"| {' | '.join(COLUMNS)} |\n|--{'|--:' * (len(COLUMNS) - 1)}|"
    for deviation in (0.01, 0.015, 0.02):
        kinds: list[tuple[str, Plant | None, int]] = [
            ("all healthy", None, 1),
            ("0.5 % of the GPUs 6 % slower", planting(0.005, 6), 1),
            ("0.5 % of the GPUs 8 % slower", planting(0.005, 8), 1),
            ("0.5 % of the GPUs 10 % slower", planting(0.005, 10), 1),
            ("half of the fleet at 500 W, 0.5 % 8 % slower", capped, 1),
            ("20 % of the GPUs 8 % slower", planting(0.2, 8), 1),
            ("40 % of the GPUs 8 % slower in two tests", planting(0.4, 8), 1),
            ("a rack with 12 of 16 nodes hit", bad_rack, 1),
            ("1 in 200 nodes slow as a whole", bad_node, 1),
            ("2 % of the nodes missing, 0.5 % 8 % slower", absent, 1),
            ("three runs, 5 % slow in one of them", transient, 3),
            ("three runs, 0.5 % 8 % slower", planting(0.005, 8), 3),
            ("heavy tails (Student, 5), 0.5 % 8 % slower", tailed, 1),
        ]
        for name, plant, runs in kinds:
            # What the size changes is seen at one deviation.
            for nodes in SIZES if deviation == 0.01 else SIZES[1:2]:
                tally = run(nodes, deviation, plant, runs=runs, least=least)
                print(name, nodes, deviation, f"{tally.seconds:.0f} s", file=sys.stderr)
                yield row(name, nodes, deviation, tally)


def corrections(least: int) -> Iterator[str]:
    """Yield the table of corrections, each on the same fleets."""
    yield (
        "| correction | nodes | false `slow` per 10,000 | 6 % slower found "
        "| false `slow` per 10,000, heavy tails | 8 % slower found |\n|--|--:|--:|--:|--:|--:|"
    )
    for nodes in SIZES[1:]:
        tallies = [(Tally(), Tally()) for _ in Correction]
        random = np.random.default_rng([9, nodes])
        while tallies[0][0].healthy < least:
            for number, plant in enumerate((planting(0.002, 6), tailed)):
                fleet = draw(nodes, 0.01, random)
                plant(fleet, random)
                for correction, tally in zip(Correction, tallies, strict=True):
                    rule = JudgementRule(correction=correction)
                    count(fleet, judged(fleet, rule), tally[number])
        for correction, (normal, heavy) in zip(Correction, tallies, strict=True):
            yield (
                f"| {correction} | {nodes:,} | {1e4 * normal.false / normal.healthy:.2f} "
                f"| {percent(normal.found, normal.planted)} "
                f"| {1e4 * heavy.false / heavy.healthy:.2f} "
                f"| {percent(heavy.found, heavy.planted)} |"
            )


def plain(values: Any, rule: JudgementRule) -> tuple[float, float]:
    """Return the median and the scale of a whole group: the rule that was not taken."""
    centre = float(np.median(values))
    spread = 1.4826 * float(np.median(np.abs(values - centre)))
    return centre, max(spread, rule.least_scale_percent / 100 * centre)


def scales(least: int) -> Iterator[str]:
    """Yield the table of the two scales where a part of one group is slow in one test."""
    from gpucheck.fleet.judge import healthy_part

    rule = JudgementRule()
    random = np.random.default_rng(7)
    yield (
        "| GPUs in the group | 8 % slower | found by median and MAD of all "
        "| found by those of the healthy part | false `slow` per 10,000, all | healthy part |\n"
        "|--:|--:|--:|--:|--:|--:|"
    )
    for size in (24, 100, 800, 8000):
        for share in (0.01, 0.1, 0.2, 0.3, 0.4, 0.45):
            bad = round(share * size)
            if not bad:
                continue
            found, false, total = np.zeros(2), np.zeros(2), 0
            while total < least:
                values = 1 + 0.01 * random.standard_normal(size)
                values[:bad] *= 0.92
                total += size
                for number, scale in enumerate((plain, healthy_part)):
                    centre, width = scale(values, rule)
                    named = ((values - centre) / width <= rule.slow_z) & (values <= 0.95 * centre)
                    found[number] += named[:bad].sum() * size / bad
                    false[number] += named[bad:].sum()
            yield (
                f"| {size:,} | {100 * share:g} % | {100 * found[0] / total:.1f} % "
                f"| {100 * found[1] / total:.1f} % | {1e4 * false[0] / total:.2f} "
                f"| {1e4 * false[1] / total:.2f} |"
            )


def halves(least: int) -> Iterator[str]:
    """Yield the table of fleets of which half is slow, with and without a baseline."""

    def half(fleet: Fleet, random: np.random.Generator) -> None:
        chosen = some(fleet, 0.5, random)
        fleet.planted |= chosen
        fleet.speeds[chosen] *= 0.9

    yield (
        "| half of the GPUs 10 % slower | nodes | false `slow` per 10,000 | found `slow` |\n"
        "|--|--:|--:|--:|"
    )
    for nodes in SIZES[:2]:
        for name, plant in (
            ("no baseline", half),
            ("baseline of 100 healthy nodes", with_baseline(half, 0.01)),
        ):
            tally = run(nodes, 0.01, plant, least=least // 4)
            false = 1e4 * tally.false / tally.healthy
            found = percent(tally.found, tally.planted)
            yield f"| {name} | {nodes:,} | {false:.2f} | {found} |"


PARTS = {"halves": halves, "scales": scales, "corrections": corrections, "fleets": fleets}


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of the GPUs")
    parser.add_argument("--only", action="append", choices=PARTS, help="this table, and others")
    parser.add_argument("--output", type=Path, help="the file whose tables are replaced")
    given = parser.parse_args()
    least = LEAST_GPUS // 20 if given.quick else LEAST_GPUS
    texts = {name: "\n".join(PARTS[name](least)) for name in given.only or PARTS}
    if given.output is None:
        print("\n\n".join([*texts.values(), PUBLISHED]))
        return
    text = given.output.read_text(encoding="utf-8")
    for name, table in texts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{table}\n{end}{after}"
    given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
