"""Speeds of everything that was collected, judged: groups, slow GPUs, and where they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpucheck.fleet.baseline import Baseline
from gpucheck.fleet.collect import Collected, Gpu
from gpucheck.fleet.judge import GpuVerdict, Judgement, Sample, attribute, judge, shifts
from gpucheck.fleet.model import (
    Attribution,
    FleetGpu,
    GpuSpeed,
    Group,
    JudgedBy,
    JudgementRule,
    SlowGpu,
)
from gpucheck.fleet.node_facts import Config, Test
from gpucheck.report.text import count_of

#: So many slow GPUs are named in the reasons of a node.
MOST_NAMED = 4


class JudgedSpeeds(NamedTuple):
    """Judgement of all speeds; `reasons` says of each node with slow GPUs which they are."""

    groups: tuple[Group, ...] = ()
    slow: tuple[SlowGpu, ...] = ()
    attributions: tuple[Attribution, ...] = ()
    reasons: Mapping[str, tuple[str, ...]] = {}
    by_number: Mapping[int, tuple[GpuSpeed, float]] = {}

    def gpu(self, gpu: Gpu) -> FleetGpu:
        """Return a collected GPU with its verdict."""
        speed, percent = self.by_number.get(gpu.number, (GpuSpeed.NOT_JUDGED, None))
        if speed is GpuSpeed.NOT_JUDGED and gpu.busy:
            speed = GpuSpeed.BUSY
        return FleetGpu(gpu.uuid, gpu.index, gpu.name, gpu.state, speed, percent)


def judged_speeds(
    collected: Collected,
    racks: Mapping[str, str | None],
    rule: JudgementRule,
    baseline: Baseline | None = None,
) -> JudgedSpeeds:
    """Return the judgement of every speed."""
    if not collected.columns:
        return JudgedSpeeds()
    judgement = judge(
        list(_samples(collected)),
        len(collected.gpus),
        rule,
        baseline and baseline.references,
    )
    gpus = collected.gpus
    slow = tuple(_slow(judgement, gpus, racks))
    places = {gpu.number: (gpu.host, racks.get(gpu.host)) for gpu in gpus}
    judged = [number for number in places if judgement.judged_tests[number]]
    bad = [one.gpu for one in judgement.verdicts if one.speed is GpuSpeed.SLOW]
    speeds = {one.gpu: one.speed for one in judgement.verdicts}
    return JudgedSpeeds(
        groups=judgement.groups,
        slow=slow,
        attributions=(
            *shifts(judgement.groups, rule),
            *attribute(places, bad, judged, rule),
        ),
        reasons=_reasons(slow),
        by_number={
            number: (speeds.get(number, GpuSpeed.OK), round(worst, 2))
            for number, worst in enumerate(judgement.worst_percent.tolist())
            if not math.isnan(worst)
        },
    )


def _samples(collected: Collected) -> Iterator[Sample]:
    """Yield the speeds of each test and configuration."""
    import numpy as np

    configs = list(collected.configs)
    for test, column in sorted(collected.columns.items(), key=lambda item: str(item[0])):
        numbers = np.frombuffer(column.configs, dtype=np.uint32)
        gpus = np.frombuffer(column.gpus, dtype=np.uint32)
        values = np.frombuffer(column.values, dtype=np.float64)
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        for number, mine in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            yield Sample(_group(test, configs[number]), gpus[mine], values[mine])


def _group(test: Test, config: Config) -> Group:
    return Group(
        key=_key(test, config),
        test=test.test,
        gpus=0,
        judged_by=JudgedBy.PEERS,
        position=test.position,
        unit=test.unit,
        **config._asdict(),
    )


def _key(test: Test, config: Config) -> str:
    """Return the name of a group, the same in every report."""
    words = {
        "memory": config.memory_total_bytes,
        "power": config.power_limit_w,
        "mig": config.mig,
        "ecc": config.ecc_mode,
        "pcie": config.pcie,
        "driver": config.driver,
        "gpu": test.position,
        "unit": test.unit,
    }
    facts = [f"{name} {_plain(value)}" for name, value in words.items() if value is not None]
    return " | ".join((test.test, config.gpu_name, *facts))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _slow(
    judgement: Judgement, gpus: list[Gpu], racks: Mapping[str, str | None]
) -> Iterator[SlowGpu]:
    """Yield the GPUs that are not as fast as they should be, slow ones first, then the slowest."""
    order = (GpuSpeed.SLOW, GpuSpeed.UNSTABLE, GpuSpeed.WATCH)
    for one in sorted(judgement.verdicts, key=lambda it: (order.index(it.speed), it.z)):
        yield _named(one, judgement.groups[one.group], gpus[one.gpu], racks)


def _named(one: GpuVerdict, group: Group, gpu: Gpu, racks: Mapping[str, str | None]) -> SlowGpu:
    return SlowGpu(
        host=gpu.host,
        gpu_uuid=gpu.uuid,
        speed=one.speed,
        test=group.test,
        group=group.key,
        value=one.value,
        median=group.median or 0.0,
        unit=group.unit,
        slower_percent=round(one.slower_percent, 2),
        z=round(one.z, 2),
        index=gpu.index,
        rack=racks.get(gpu.host),
        runs=one.runs,
        slow_runs=one.slow_runs,
        tests=one.tests,
        judged_tests=one.judged_tests,
        facts=gpu.facts,
    )


def _reasons(slow: tuple[SlowGpu, ...]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[SlowGpu]] = {}
    for one in slow:
        if one.speed is GpuSpeed.SLOW:
            found.setdefault(one.host, []).append(one)
    return {host: tuple(_sentences(ones)) for host, ones in found.items()}


def _sentences(ones: list[SlowGpu]) -> Iterator[str]:
    """Yield which GPUs of a node are slow, by their numbers; of many only how many."""
    test = ones[0].test.partition("/")[0]
    if len(ones) > MOST_NAMED:
        yield f"{len(ones)} GPUs are slow, by up to {ones[0].slower_percent:.1f} % in {test}"
        return
    for one in sorted(ones, key=lambda one: one.index or 0):
        name = one.gpu_uuid if one.index is None else f"GPU {one.index}"
        more = f" and {count_of(one.tests - 1, 'more test')}" if one.tests > 1 else ""
        test = one.test.partition("/")[0]
        yield f"{name} is {one.slower_percent:.1f} % slower in {test}{more}"
