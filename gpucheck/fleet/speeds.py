"""Speeds of everything that was collected, judged: groups, slow GPUs, and where they are.

The files that a judgement takes are read here: an earlier report, the baseline; and the rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpucheck.drivers.host.files import MIB, read_file
from gpucheck.drivers.host.toml_file import read_toml
from gpucheck.fleet.collect import Collected, Gpu
from gpucheck.fleet.judge import GpuVerdict, GroupSpeeds, attribute, judge, shifts
from gpucheck.fleet.model import (
    Attribution,
    GpuSpeed,
    Group,
    JudgedBy,
    JudgementRule,
    SlowGpu,
)
from gpucheck.fleet.node_facts import Config, Test, word_of
from gpucheck.report.codec import DecodeError, from_plain
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import count_of, group_by, printable

#: So many slow GPUs are named in the reasons of a node.
MOST_NAMED = 4
#: A report names every node and GPU: about 20 MB for 10,000 nodes.
_MOST_BYTES = 256 * MIB
_SCHEMA = "gpucheck/fleet/1"
#: More than any group has.
_MOST_GPUS = 10**9
#: Name of an earlier report's file, and its groups by their keys.
Baseline = tuple[str, Mapping[str, Group]]


def judge_speeds(
    collected: Collected,
    racks: Mapping[str, str | None],
    rule: JudgementRule,
    baseline: Baseline | None = None,
) -> tuple[tuple[Group, ...], tuple[SlowGpu, ...], tuple[Attribution, ...]]:
    """Return the judged groups, the unhealthy GPUs, and where those are.

    Each GPU that was collected gets its verdict.
    """
    gpus = collected.gpus
    for gpu in gpus:
        gpu.speed, gpu.slower_percent = GpuSpeed.NOT_JUDGED, None
        if gpu.busy:
            gpu.speed = GpuSpeed.BUSY
    if not collected.columns:
        return (), (), ()
    samples = list(_samples(collected))
    groups, verdicts, percents = judge(samples, len(gpus), rule, baseline and baseline[1])
    judged = [gpu for gpu in gpus if not math.isnan(percents[gpu.number])]
    for gpu in judged:
        gpu.speed = GpuSpeed.OK
        gpu.slower_percent = round(float(percents[gpu.number]), 2)
    for verdict in verdicts:
        gpus[verdict.gpu].speed = verdict.speed
    places = {gpu.number: (gpu.host, racks.get(gpu.host)) for gpu in gpus}
    slow = [verdict.gpu for verdict in verdicts if verdict.speed is GpuSpeed.SLOW]
    return (
        groups,
        tuple(
            _named(verdict, groups[verdict.group], gpus[verdict.gpu], racks) for verdict in verdicts
        ),
        (*shifts(groups, rule), *attribute(places, slow, [gpu.number for gpu in judged], rule)),
    )


def _samples(collected: Collected) -> Iterator[GroupSpeeds]:
    """Yield the speeds of each test and configuration."""
    import numpy as np

    configs = list(collected.configs)
    for test, column in sorted(collected.columns.items(), key=lambda item: str(item[0])):
        numbers = np.frombuffer(column.configs, dtype=np.uint32)
        gpus = np.frombuffer(column.gpus, dtype=np.uint32)
        values = np.frombuffer(column.values, dtype=np.float64)
        order = np.argsort(numbers, kind="stable")
        config_numbers, starts = np.unique(numbers[order], return_index=True)
        for number, mine in zip(config_numbers.tolist(), np.split(order, starts[1:]), strict=True):
            yield _group(test, configs[number]), gpus[mine], values[mine]


def _group(test: Test, config: Config) -> Group:
    """Return the group of a test and a configuration; its key is the same in every report."""
    row, unit, position = test
    words = {
        "memory": config.memory_total_bytes,
        "power": config.power_limit_w,
        "mig": config.mig,
        "ecc": config.ecc_mode,
        "pcie": config.pcie,
        "driver": config.driver,
        "gpu": position,
        "unit": unit,
    }
    facts = [f"{name} {word_of(value)}" for name, value in words.items() if value is not None]
    return Group(
        key=" | ".join((row, config.gpu_name, *facts)),
        test=row,
        gpus=0,
        judged_by=JudgedBy.PEERS,
        position=position,
        unit=unit,
        **config._asdict(),
    )


def _named(verdict: GpuVerdict, group: Group, gpu: Gpu, racks: Mapping[str, str | None]) -> SlowGpu:
    return SlowGpu(
        host=gpu.host,
        gpu_uuid=gpu.uuid,
        speed=verdict.speed,
        test=group.test,
        group=group.key,
        value=verdict.value,
        median=group.median or 0.0,
        unit=group.unit,
        slower_percent=round(verdict.slower_percent, 2),
        z=round(verdict.z, 2),
        index=gpu.index,
        rack=racks.get(gpu.host),
        runs=verdict.runs,
        slow_runs=verdict.slow_runs,
        tests=verdict.tests,
        judged_tests=verdict.judged_tests,
        facts=gpu.facts,
    )


def describe_slow_nodes(slow: Sequence[SlowGpu]) -> dict[str, tuple[str, ...]]:
    """Return the nodes with slow GPUs, and of each which they are."""
    sure = (gpu for gpu in slow if gpu.speed is GpuSpeed.SLOW)
    by_host = group_by(sure, lambda gpu: gpu.host)
    return {host: tuple(_sentences(gpus)) for host, gpus in by_host.items()}


def _sentences(gpus: list[SlowGpu]) -> Iterator[str]:
    """Yield which GPUs of a node are slow, by their numbers; of many only how many."""
    test = gpus[0].test.partition("/")[0]
    if len(gpus) > MOST_NAMED:
        yield f"{len(gpus)} GPUs are slow, by up to {gpus[0].slower_percent:.1f} % in {test}"
        return
    for gpu in sorted(gpus, key=lambda gpu: gpu.index or 0):
        name = gpu.gpu_uuid if gpu.index is None else f"GPU {gpu.index}"
        more = f" and {count_of(gpu.tests - 1, 'more test')}" if gpu.tests > 1 else ""
        test = gpu.test.partition("/")[0]
        yield f"{name} is {gpu.slower_percent:.1f} % slower in {test}{more}"


# ------------------------------------------------------------------------- baseline and rule


def read_baseline(path: Path) -> Baseline:
    """Return the groups of a report that `gpucheck fleet report --json` wrote.

    A malformed group, or one with a median that no speed can have, is left out.

    Raises:
        WrongUseError: it cannot be read, is another document, or holds no group.
    """
    name = printable(str(path))
    try:
        document = json.loads(read_file(path, _MOST_BYTES))
    except OSError as error:
        raise _unusable(name, f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise _unusable(name, "is no JSON document") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != _SCHEMA:
        given = printable(str(schema)[:60]) if isinstance(schema, str) else "no schema"
        raise _unusable(name, f"has {given}, not {_SCHEMA}")
    result = document.get("result")
    plain_groups = result.get("groups") if isinstance(result, dict) else None
    groups: dict[str, Group] = {}
    for plain in plain_groups if isinstance(plain_groups, list) else ():
        try:
            group = from_plain(Group, plain, ignored=[])
        except DecodeError:
            continue
        scale = -1.0 if group.scale is None else group.scale
        if (group.median or 0.0) > 0 and scale >= 0 and 1 <= group.gpus <= _MOST_GPUS:
            groups[group.key] = group
    if not groups:
        raise _unusable(name, "has no group with a speed")
    return name, groups


def _unusable(name: str, problem: str) -> WrongUseError:
    return WrongUseError(
        code="baseline-unusable",
        message=f"The baseline {name!r} {problem}.",
        remedy=("Write one from a good day: gpucheck fleet report out/ --json -o baseline.json",),
    )


def read_rule(path: Path) -> JudgementRule:
    """Return the rule in a TOML file: its keys are the parameters, the others keep their default.

    Raises:
        WrongUseError: it cannot be read, or has a key or a value that there is not.
    """
    table = read_toml(path, "rule")
    rule = JudgementRule(**table.fields_of(JudgementRule, but=("source",)))
    table.finish()
    problem = next(_problems(rule), None)
    if problem is not None:
        raise table.source.error(problem=problem)
    return rule._replace(source=printable(str(path)))


def _problems(rule: JudgementRule) -> Iterator[str]:
    """Yield the contradictions in a rule."""
    if not rule.slow_z <= rule.watch_z < 0:
        yield "slow_z must be at most watch_z, and both below 0"
    if not 0 <= rule.least_percent < 100:
        yield "least_percent goes from 0 to 100"
    if rule.least_group < 3:
        yield "least_group must be at least 3"
    shares = (rule.confirmed_share, rule.risk, rule.node_share, rule.rack_risk)
    if not all(0 < share <= 1 for share in (*shares, rule.majority_share)):
        yield "the shares and risks go from above 0 to 1"
    positive = (rule.least_scale_percent, rule.most_scale_percent, rule.most_age_s)
    if not all(value > 0 for value in (*positive, rule.shift_percent)):
        yield "the percentages and most_age_s must be above 0"
