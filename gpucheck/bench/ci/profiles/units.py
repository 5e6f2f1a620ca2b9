"""Units of a profile's figures, by what a kernel counts."""

from __future__ import annotations

from types import MappingProxyType

from gpucheck.bench.ci.gate_model import Direction
from gpucheck.bench.ci.profile_model import Metric

#: For each base unit, the units that people write and their size in base units.
UNITS = MappingProxyType(
    {
        "FLOP/s": MappingProxyType({"GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15}),
        "B/s": MappingProxyType({"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}),
        "image/s": MappingProxyType({"image/s": 1.0}),
        "launch/s": MappingProxyType({"launch/s": 1.0}),
        "s": MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}),
    }
)
#: The unit of a report if the profile names none.
_USUAL = MappingProxyType(
    {"FLOP/s": "TFLOP/s", "B/s": "GB/s", "image/s": "image/s", "launch/s": "launch/s", "s": "ms"}
)


def base_unit(metric: Metric, kernel: str, dtype: str) -> str | None:
    """Return the base unit of a check's figure, None for a fact or an unknown kernel."""
    if metric is Metric.TIME:
        return "s"
    if metric is Metric.FACT:
        return None
    from gpucheck.bench.kernels import KERNELS
    from gpucheck.bench.model import BenchMode

    known = KERNELS.get(kernel)
    if known is None:
        return None
    try:
        return known.work(known.shape(known.sizes[BenchMode.QUICK]), dtype).unit
    except KeyError:  # a dtype that nobody knows
        return None


def default_unit(metric: Metric, kernel: str, dtype: str) -> str:
    """Return the unit for a check that names none."""
    return _USUAL.get(base_unit(metric, kernel, dtype) or "", "")


def known_units(metric: Metric, kernel: str, dtype: str) -> tuple[str, ...]:
    """Return the units that a check's value may be in; none for a fact, which may be in any."""
    return tuple(UNITS.get(base_unit(metric, kernel, dtype) or "", {}))


def scale_of(unit: str) -> float:
    """Return how many base units one of this unit is; 1 for an unknown unit."""
    return next((units[unit] for units in UNITS.values() if unit in units), 1.0)


def direction_of(metric: Metric) -> Direction:
    """Return which side is the good one: a shorter time, a higher anything else."""
    return Direction.LOWER if metric is Metric.TIME else Direction.HIGHER
