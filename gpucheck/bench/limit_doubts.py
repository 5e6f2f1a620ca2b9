"""Doubts about a row beyond its roofline, and about comparisons of two precisions."""

from __future__ import annotations

from gpucheck.bench.arithmetic_doubts import doubts_about_arithmetic
from gpucheck.bench.limits import in_cache
from gpucheck.bench.model import Doubt, DtypeSpec, Measurement
from gpucheck.bench.peaks import format_of
from gpucheck.drivers.gpu import BenchGpu

#: Margin between measurement and datasheet: beyond it something else is wrong.
_ABOVE_PERCENT = 101.0


def doubts_about_limits(row: Measurement, gpu: BenchGpu | None) -> tuple[Doubt, ...]:
    """Return the doubts from comparing a row with its GPU's roofline; `gpu` is None for the CPU."""
    doubts = list(doubts_about_arithmetic(row, gpu))
    # A row in the cache exceeds memory speed and already has its own doubt.
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
                message=f"the peak that this row is compared with is uncertain: {unsure}",
                next="treat the percentage as equally uncertain",
            )
        )
    return tuple(doubts)


def _uncertainty(row: Measurement, gpu: BenchGpu | None) -> str | None:
    """Return what speaks against the peak that the row is compared with."""
    if gpu is None or gpu.board is None:
        return None
    by_memory = row.throughput is not None and row.throughput.unit == "B/s"
    return gpu.board.uncertainty.get("bytes_per_s" if by_memory else format_of(row.dtype))


def _above_peak(row: Measurement) -> Doubt:
    percent = row.percent_of_peak or 0.0
    if row.device == "cpu":
        return Doubt(
            code="above-peak",
            message=f"{percent:.0f} % of the best product of this run: that product was disturbed",
            next="run it again when the machine is idle",
            facts={"percent_of_peak": percent},
        )
    return Doubt(
        code="above-peak",
        message=f"{percent:.0f} % of the peak should be impossible: the clock was above nominal, "
        "or another precision ran",
        next="see the percentage at the measured clock and the arithmetic (-v)",
        facts={"percent_of_peak": percent},
    )


def _above_copy(row: Measurement) -> Doubt:
    percent = row.percent_of_copy or 0.0
    return Doubt(
        code="above-copy",
        message=f"{percent:.0f} % of the fastest copy or triad of this run: those were disturbed, "
        "or this row moves fewer bytes than it counts",
        next="run it again when the machine is idle; choose a larger --size",
        facts={"percent_of_copy": percent},
    )


def different_precision(one: DtypeSpec, other: DtypeSpec) -> tuple[Doubt, ...]:
    """Doubt a comparison whose two sides compute in different precisions."""
    if one == other:
        return ()
    return (
        Doubt(
            code="different-precision",
            message=f"the CPU computes in {one.math_mode}, the GPU in {other.math_mode}",
            next="compare rows of the same precision: --dtype float32, with CUPY_TF32 unset",
            facts={"cpu": one.math_mode, "gpu": other.math_mode},
        ),
    )
