"""Reasons to distrust a figure, each a value with its facts and the next step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpucheck.core.bench import stats
from gpucheck.core.bench.gpu_case import ROTATION_IN_L2
from gpucheck.core.bench.runner import Record
from gpucheck.models.bench import Doubt, DtypeSpec

#: Fewer samples than this and the interval is wide whatever they say.
_FEWEST = 10
#: Other programs' share of the processor, and the hypervisor's, that can bend a figure by 1 %.
_OTHERS_PERCENT, _STEAL_PERCENT = 10.0, 2.0
#: Correlation of neighbours from which the interval is too narrow to be called a 95 % one.
_CORRELATED, _FEWEST_FOR_CORRELATION = 0.5, 12
#: A gap between two groups of samples that no noise of one group leaves.
_MODE_GAP = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What else the host did while the group ran, in percent of its cores; None if unreadable."""

    others_percent: float | None
    steal_percent: float | None


def doubts_about(record: Record, host: HostState) -> tuple[Doubt, ...]:
    """Return every doubt about one row, in the order of their weight."""
    if not record.samples_s:
        return ()
    found = [doubt(record, host) for doubt in _DOUBTS]
    return tuple(doubt for doubt in found if doubt is not None)


def _too_few_samples(record: Record, _: HostState) -> Doubt | None:
    count = len(record.samples_s)
    if count >= _FEWEST:
        return None
    return Doubt(
        code="too-few-samples",
        message=f"only {count} {'sample' if count == 1 else 'samples'} fitted into the time",
        next="give more time with --budget, or a smaller --size",
        facts={"samples": count, "wanted": _FEWEST},
    )


def _unconverged(record: Record, _: HostState) -> Doubt | None:
    width = stats.half_width_share(record.samples_s)
    if record.converged or width is None:
        return None
    return Doubt(
        code="unconverged",
        message=f"the median is known to ±{width:.1%} only when the time ended",
        next="give more time with --budget, or quieten the machine",
        facts={"half_width_share": width},
    )


def _cache_resident(record: Record, _: HostState) -> Doubt | None:
    fit = record.case.cache_fit
    if fit is None or fit.walked_bytes >= ROTATION_IN_L2 * fit.cache_bytes:
        return None
    code = "l2-resident" if fit.cache == "L2" else "cache-resident"
    return Doubt(
        code=code,
        message=f"the data may stay in the {fit.cache}: this is not the speed of the memory",
        next="choose a larger --size to see the memory",
        facts={"walked_bytes": fit.walked_bytes, "cache_bytes": fit.cache_bytes},
    )


def _starved(record: Record, _: HostState) -> Doubt | None:
    share = record.case.starved_share
    if share < 0.05:
        return None
    return Doubt(
        code="starved",
        message=f"in {share:.0%} of the runs the GPU may have waited for the host",
        next="choose a larger --size, or quieten the host",
        facts={"starved_share": share},
    )


def _drifting(record: Record, _: HostState) -> Doubt | None:
    count = len(record.samples_s)
    if count < _FEWEST_FOR_CORRELATION:
        return None
    correlation = stats.autocorrelation(record.samples_s)
    # Independent samples stay within 2.5 standard deviations of zero, each 1 / sqrt(n).
    if correlation < max(_CORRELATED, 2.5 / math.sqrt(count)):
        return None
    return Doubt(
        code="autocorrelated",
        message="the samples drift: neighbours are alike, so the interval is too narrow",
        next="run it again and compare the medians",
        facts={"autocorrelation": correlation},
    )


def _bimodal(record: Record, _: HostState) -> Doubt | None:
    if len(record.samples_s) < _FEWEST:
        return None
    gap = stats.mode_gap(record.samples_s)
    # With few samples chance leaves gaps too, as wide as the noise.
    noise = stats.quantile(record.samples_s, 0.75) - stats.quantile(record.samples_s, 0.25)
    if gap < _MODE_GAP or gap * stats.median(record.samples_s) < 0.5 * noise:
        return None
    return Doubt(
        code="bimodal",
        message=f"the samples fall into two groups {gap:.0%} apart: the median is one of them",
        next="look at p10 and p90, and run it again when the machine is idle",
        facts={"gap_share": gap},
    )


def _host_busy(record: Record, host: HostState) -> Doubt | None:
    others, steal = host.others_percent or 0.0, host.steal_percent or 0.0
    if others < _OTHERS_PERCENT and steal < _STEAL_PERCENT:
        return None
    who = "other programs" if others >= _OTHERS_PERCENT else "other virtual machines"
    share = others if others >= _OTHERS_PERCENT else steal
    return Doubt(
        code="host-busy",
        message=f"{who} took {share:.0f} % of the processor meanwhile",
        next="run it again when the machine is idle",
        facts={"others_percent": others, "steal_percent": steal},
    )


_DOUBTS: tuple[Callable[[Record, HostState], Doubt | None], ...] = (
    _too_few_samples,
    _unconverged,
    _host_busy,
    _bimodal,
    _drifting,
    _starved,
    _cache_resident,
)


def different_precision(one: DtypeSpec, other: DtypeSpec) -> tuple[Doubt, ...]:
    """Return the doubt that two sides of a comparison do not compute the same thing."""
    if one == other:
        return ()
    return (
        Doubt(
            code="different-precision",
            message=f"the CPU computes in {one.math_mode}, the GPU in {other.math_mode}",
            next="unset CUPY_TF32 to compare the same precision",
            facts={"cpu": one.math_mode, "gpu": other.math_mode},
        ),
    )
