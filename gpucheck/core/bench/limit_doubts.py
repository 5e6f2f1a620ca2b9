"""Reasons to distrust a row held against its limits, or a comparison of two precisions."""

from __future__ import annotations

from gpucheck.core.bench.arithmetic_doubts import doubts_about_arithmetic
from gpucheck.core.bench.limits import in_cache
from gpucheck.core.bench.peaks import format_of
from gpucheck.models.bench import BenchGpu, Doubt, DtypeSpec, Measurement

#: Measurement and datasheet agree this well: beyond it something else is wrong.
_ABOVE_PERCENT = 101.0


def doubts_about_limits(row: Measurement, gpu: BenchGpu | None) -> tuple[Doubt, ...]:
    """Return the doubts that holding a row against its GPU's limits raises; None is the CPU."""
    doubts = list(doubts_about_arithmetic(row, gpu))
    # A row in the cache beats the memory, and says so already.
    above = row.percent_of_peak is not None and row.percent_of_peak > _ABOVE_PERCENT
    if above and not in_cache(row):
        doubts.append(_above_peak(row))
    above_copy = row.percent_of_copy is not None and row.percent_of_copy > _ABOVE_PERCENT
    if above_copy and not in_cache(row):
        doubts.append(_above_copy(row))
    unsure = _uncertainty(row, gpu)
    if unsure is not None and row.percent_of_peak is not None:
        doubts.append(
            Doubt(
                code="peak-uncertain",
                message=f"the peak that this is held against is uncertain: {unsure}",
                next="trust the percentage no further than that",
            )
        )
    return tuple(doubts)


def _uncertainty(row: Measurement, gpu: BenchGpu | None) -> str | None:
    """Return what speaks against the value that the row is held against."""
    if gpu is None or gpu.board is None:
        return None
    by_memory = row.throughput is not None and row.throughput.unit == "B/s"
    return gpu.board.uncertainty.get("bytes_per_s" if by_memory else format_of(row.dtype))


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


def _above_copy(row: Measurement) -> Doubt:
    percent = row.percent_of_copy or 0.0
    return Doubt(
        code="above-copy",
        message=f"{percent:.0f} % of the fastest copy or triad of this run: those were disturbed, "
        "or this row moves less than it counts",
        next="run it again when the machine is idle; choose a larger --size",
        facts={"percent_of_copy": percent},
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
