"""Reasons to distrust a figure, each a value with its facts and the next step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpucheck.core.bench import stats
from gpucheck.core.bench.gpu_case import ROTATION_IN_L2
from gpucheck.core.bench.runner import Record
from gpucheck.core.bench.telemetry import TROUBLE, GpuState
from gpucheck.models.bench import Board, Doubt, DtypeSpec, Fill, Measurement

#: Fewer samples than this and the interval is wide whatever they say.
_FEWEST = 10
#: Other programs' share of the processor, and the hypervisor's, that can bend a figure by 1 %.
_OTHERS_PERCENT, _STEAL_PERCENT = 10.0, 2.0
#: Correlation of neighbours from which even the widened interval holds less than 95 %.
_CORRELATED, _FEWEST_FOR_CORRELATION = 0.2, 12
#: Share of the readings, and of the time that the driver counts, from which a limit matters.
_LIMITED_READINGS, _LIMITED_TIME = 0.05, 0.01
#: Measurement and datasheet agree this well: beyond it something else is wrong.
_ABOVE_PERCENT = 101.0
#: A gap between two groups of samples that no noise of one group leaves.
_MODE_GAP = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What else the host did while the group ran, in percent of its cores; None if unreadable."""

    others_percent: float | None
    steal_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What else is known of a row's surroundings; `gpu` is None without sensors."""

    host: HostState
    gpu: GpuState | None = None
    fill: Fill = Fill.NORMAL


def doubts_about(record: Record, around: Around) -> tuple[Doubt, ...]:
    """Return every doubt about one row, in the order of their weight."""
    if not record.samples_s:
        return ()
    found = [doubt(record, around) for doubt in _DOUBTS]
    return tuple(doubt for doubt in found if doubt is not None)


def _too_few_samples(record: Record, _: Around) -> Doubt | None:
    count = len(record.samples_s)
    if count >= _FEWEST:
        return None
    return Doubt(
        code="too-few-samples",
        message=f"only {count} {'sample' if count == 1 else 'samples'} fitted into the time",
        next="give more time with --budget, or a smaller --size",
        facts={"samples": count, "wanted": _FEWEST},
    )


def _unconverged(record: Record, _: Around) -> Doubt | None:
    width = stats.half_width_share(record.samples_s)
    if record.converged or width is None:
        return None
    return Doubt(
        code="unconverged",
        message=f"the median is known to ±{width:.1%} only when the time ended",
        next="give more time with --budget, or quieten the machine",
        facts={"half_width_share": width},
    )


def _cache_resident(record: Record, _: Around) -> Doubt | None:
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


def _starved(record: Record, _: Around) -> Doubt | None:
    share = record.case.starved_share
    if share < 0.05:
        return None
    return Doubt(
        code="starved",
        message=f"in {share:.0%} of the runs the GPU may have waited for the host",
        next="choose a larger --size, or quieten the host",
        facts={"starved_share": share},
    )


def _drifting(record: Record, _: Around) -> Doubt | None:
    count = len(record.samples_s)
    if count < _FEWEST_FOR_CORRELATION:
        return None
    correlation = stats.autocorrelation(record.samples_s)
    # Independent samples stay within 2.5 standard deviations of zero, each 1 / sqrt(n).
    if correlation < max(_CORRELATED, 2.5 / math.sqrt(count)):
        return None
    return Doubt(
        code="autocorrelated",
        message="the samples drift: neighbours are alike, and the widened interval may still miss",
        next="run it again and compare the medians",
        facts={"autocorrelation": correlation},
    )


def _bimodal(record: Record, _: Around) -> Doubt | None:
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


def _throttled(record: Record, around: Around) -> Doubt | None:
    limits = _limits(around.gpu)
    reasons = {name: share for name, share in limits.items() if name in TROUBLE}
    if not reasons:
        return None
    worst = max(reasons, key=lambda name: reasons[name])
    return Doubt(
        code="throttled",
        message=f"the GPU held its clock down for {reasons[worst]:.0%} of the time: "
        f"{', '.join(sorted(reasons))}",
        next="look at the temperature, the fans and the power supply; gpucheck detect says more",
        facts={f"{name}_share": share for name, share in reasons.items()},
    )


def _power_capped(record: Record, around: Around) -> Doubt | None:
    share = _limits(around.gpu).get("power-cap")
    if share is None:
        return None
    return Doubt(
        code="power-capped",
        message=f"the GPU was at its power limit for {share:.0%} of the time, which is normal for "
        "products of random numbers",
        next="compare the percent of peak at the measured clock (-v)",
        facts={"power_cap_share": share},
    )


def _limits(gpu: GpuState | None) -> dict[str, float]:
    """Return the reasons that held the clock down long enough, with their share of the time."""
    if gpu is None:
        return {}
    seen = {name: share for name, share in gpu.reasons.items() if share >= _LIMITED_READINGS}
    counted = {
        name: min(1.0, share) for name, share in gpu.limited_share.items() if share >= _LIMITED_TIME
    }
    return counted | seen


def _clocks_locked(record: Record, around: Around) -> Doubt | None:
    share = around.gpu.reasons.get("application-clocks", 0.0) if around.gpu is not None else 0.0
    if share < _LIMITED_READINGS:
        return None
    return Doubt(
        code="clocks-locked",
        message="the GPU's clocks are set by somebody, not by the GPU",
        next="nvidia-smi -q -d CLOCK shows them; compare only with runs at the same clocks",
        facts={"application_clocks_share": share},
    )


def _gpu_shared(record: Record, around: Around) -> Doubt | None:
    if around.gpu is None or not around.gpu.other_processes:
        return None
    pids = around.gpu.other_processes
    who = f"process {pids[0]} uses" if len(pids) == 1 else f"{len(pids)} other processes use"
    return Doubt(
        code="gpu-shared",
        message=f"{who} this GPU as well",
        next="see who: gpucheck list --processes; run it again when they are gone",
        facts={"processes": ", ".join(str(pid) for pid in pids)},
    )


def _claimed(record: Record, around: Around) -> Doubt | None:
    if around.gpu is None or around.gpu.claimed_by is None:
        return None
    return Doubt(
        code="gpu-claimed",
        message=f"this GPU is claimed by {around.gpu.claimed_by}",
        next="run it again when the claim is given back: gpucheck place --claims",
        facts={"claimed_by": around.gpu.claimed_by},
    )


def _new_errors(record: Record, around: Around) -> Doubt | None:
    if around.gpu is None or not around.gpu.new_errors:
        return None
    errors = around.gpu.new_errors
    counted = ", ".join(f"{name.replace('_', ' ')} +{count}" for name, count in errors.items())
    return Doubt(
        code="new-errors",
        message=f"the GPU counted errors meanwhile: {counted}",
        next="gpucheck detect says what they mean",
        facts=dict(errors),
    )


def _link_narrow(record: Record, around: Around) -> Doubt | None:
    gpu, kernel = around.gpu, record.case.label.kernel
    if gpu is None or gpu.link is None or gpu.link_max is None or kernel != "transfer":
        return None
    if gpu.link >= gpu.link_max:
        return None
    (generation, width), (best, widest) = gpu.link, gpu.link_max
    return Doubt(
        code="pcie-narrow",
        message=f"the PCIe link ran at generation {generation} x{width} under load, of "
        f"{best} x{widest}",
        next="look at the slot, the riser and the BIOS settings",
        facts={"generation": generation, "width": width},
    )


def _zeros(record: Record, around: Around) -> Doubt | None:
    if around.fill is Fill.NORMAL:
        return None
    return Doubt(
        code="zeros",
        message="the arrays hold zeros, which draw less power than real numbers",
        next="leave out --fill zeros for figures to compare",
    )


def _host_busy(record: Record, around: Around) -> Doubt | None:
    host = around.host
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


_DOUBTS: tuple[Callable[[Record, Around], Doubt | None], ...] = (
    _too_few_samples,
    _unconverged,
    _throttled,
    _gpu_shared,
    _claimed,
    _new_errors,
    _clocks_locked,
    _host_busy,
    _bimodal,
    _drifting,
    _starved,
    _cache_resident,
    _power_capped,
    _link_narrow,
    _zeros,
)


def doubts_about_limits(row: Measurement, board: Board | None) -> tuple[Doubt, ...]:
    """Return the doubts that a row's percentages raise."""
    doubts = []
    # A row in the cache beats the memory, and says so already.
    in_cache = any(doubt.code.endswith("-resident") for doubt in row.doubts)
    if row.percent_of_peak is not None and row.percent_of_peak > _ABOVE_PERCENT and not in_cache:
        doubts.append(_above_peak(row))
    unsure = board.uncertainty.get(row.dtype.input) if board is not None else None
    if unsure is not None and row.percent_of_peak is not None:
        doubts.append(
            Doubt(
                code="peak-uncertain",
                message=f"the peak that this is held against is uncertain: {unsure}",
                next="trust the percentage no further than that",
            )
        )
    return tuple(doubts)


def _above_peak(row: Measurement) -> Doubt:
    percent = row.percent_of_peak or 0.0
    if row.device == "cpu":
        return Doubt(
            code="above-peak",
            message=f"{percent:.0f} % of the best product of this run: that one was disturbed",
            next="run it again when the machine is idle",
            facts={"percent_of_peak": percent},
        )
    return Doubt(
        code="above-peak",
        message=f"{percent:.0f} % of the peak is more than there is: the clock is above the "
        "nominal one, or another precision ran",
        next="see the percent at the measured clock and the arithmetic (-v)",
        facts={"percent_of_peak": percent},
    )


def different_precision(one: DtypeSpec, other: DtypeSpec) -> tuple[Doubt, ...]:
    """Return the doubt that two sides of a comparison do not compute the same thing."""
    if one == other:
        return ()
    return (
        Doubt(
            code="different-precision",
            message=f"the CPU computes in {one.math_mode}, the GPU in {other.math_mode}",
            next="compare rows of one precision: --dtype float32, with CUPY_TF32 unset",
            facts={"cpu": one.math_mode, "gpu": other.math_mode},
        ),
    )
