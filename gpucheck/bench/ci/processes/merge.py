"""Merge of several processes: the rows of one process for each device, and all sensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpucheck.bench.ci.run_model import ProcessRun
from gpucheck.bench.model import BenchResult, Extent, GpuTelemetry, Telemetry


def merged(runs: Sequence[ProcessRun]) -> BenchResult | None:
    """Return one result for all processes, None if none of them has one.

    The rows, comparisons and GPUs are those of each device's first process, preferring one that
    measured together with the others. Sensor readings are joined over the processes.
    """
    best: dict[str, BenchResult] = {}
    for run in sorted(runs, key=lambda run: (not run.together, run.number)):
        if run.result is not None:
            best.setdefault(run.device, run.result)
    if not best:
        return None
    results = [best[device] for device in dict.fromkeys(run.device for run in runs if run.result)]
    answered = [run.result for run in runs if run.result is not None]
    first = results[0]
    environment = replace(
        first.environment,
        gpus=tuple(gpu for one in results for gpu in one.environment.gpus),
        rooflines=tuple(line for one in results for line in one.environment.rooflines),
        duration_s=sum(one.environment.duration_s for one in answered),
    )
    return replace(
        first,
        measurements=tuple(row for one in results for row in one.measurements),
        comparisons=tuple(one for result in results for one in result.comparisons),
        conclusions=tuple(one for result in results for one in result.conclusions),
        corruption=tuple(check for one in answered for check in one.corruption),
        environment=environment,
        telemetry=merged_telemetry(answered),
        notes=tuple(dict.fromkeys(note for one in answered for note in one.notes)),
        interrupted=any(one.interrupted for one in answered),
    )


def merged_telemetry(results: Sequence[BenchResult | None]) -> Telemetry | None:
    """Return each GPU's sensors over all processes, None if no GPU took part."""
    parts = [one.telemetry for one in results if one is not None and one.telemetry is not None]
    found: dict[str, list[GpuTelemetry]] = {}
    for part in parts:
        for gpu in part.gpus:
            found.setdefault(gpu.uuid, []).append(gpu)
    # Only processes that read a GPU count; if none did, the reason is kept.
    read = {uuid: [one for one in of if one.reading_count] or of for uuid, of in found.items()}
    if not parts:
        return None
    reason = next((part.unavailable for part in parts if part.unavailable is not None), None)
    gpus = tuple(_merged(of) for of in read.values())
    return Telemetry(gpus=gpus, unavailable=None if gpus else reason)


def _merged(found: Sequence[GpuTelemetry]) -> GpuTelemetry:
    """Return one GPU's readings of several processes: extremes, sums, and the longest shares."""
    errors: Counter[str] = Counter()
    limited: dict[str, float] = {}
    reasons: dict[str, float] = {}
    for one in found:
        errors.update(one.new_errors)
        for name, seconds in one.limited_s.items():
            limited[name] = limited.get(name, 0.0) + seconds
        for name, share in one.reasons.items():
            reasons[name] = max(reasons.get(name, 0.0), share)
    return replace(
        found[0],
        reading_count=sum(one.reading_count for one in found),
        clock_sm_mhz=_widest([one.clock_sm_mhz for one in found]),
        clock_memory_mhz=_widest([one.clock_memory_mhz for one in found]),
        power_w=_widest([one.power_w for one in found]),
        temperature_c=_widest([one.temperature_c for one in found]),
        reasons=reasons,
        limited_s=limited,
        energy_j=_sum([one.energy_j for one in found]),
        new_errors=dict(errors),
        other_processes=tuple(sorted({pid for one in found for pid in one.other_processes})),
    )


def _widest(extents: Sequence[Extent | None]) -> Extent | None:
    known = [one for one in extents if one is not None]
    if not known:
        return None
    medians = sorted(one.median for one in known)
    return Extent(
        low=min(one.low for one in known),
        median=medians[len(medians) // 2],
        high=max(one.high for one in known),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
