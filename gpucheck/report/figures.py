"""Durations and rates for people: three digits and a fitting unit."""

from __future__ import annotations

from collections.abc import Sequence


def duration(seconds: float, micro: str = "µ") -> str:
    """Return seconds with three digits and a fitting unit: 0.00831 -> "8.31 ms"."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, f"{micro}s"), (1e-9, "ns"))
    return _scaled(seconds, units)


def rate(value: float, unit: str) -> str:
    """Return work per second with three digits and a prefix: 2.07e11 FLOP/s -> "207 GFLOP/s"."""
    short = "img/s" if unit == "image/s" else unit
    prefixes = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
    return _scaled(value, tuple((scale, f"{prefix}{short}") for scale, prefix in prefixes))


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Return the value in the largest unit of which it holds at least one, else in the smallest."""
    # 0.9995 and not 1: 999.7 would be shown as "1000" of the smaller unit.
    fitting = [(scale, unit) for scale, unit in units if value >= 0.9995 * scale]
    scale, unit = fitting[0] if fitting else units[-1]
    number = value / scale
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"
