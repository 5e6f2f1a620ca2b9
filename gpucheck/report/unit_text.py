"""Byte counts as people read them. Inside the program and in JSON they are plain bytes."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def binary_bytes(value: int, *, digits: int = 1) -> str:
    """Return a byte count with a binary unit: 85899345920 -> "80.0 GiB"."""
    size = float(value)
    for unit in _BINARY[:-1]:
        # As it will be shown: 1023.99 KiB reads 1.0 MiB, not 1024.0 KiB.
        if abs(round(size, digits)) < 1024:
            return f"{value} B" if unit == "B" else f"{size:.{digits}f} {unit}"
        size /= 1024
    return f"{size:.{digits}f} {_BINARY[-1]}"


def gibibytes(value: int) -> str:
    """Return a byte count in GiB without the unit, in at most five characters."""
    size = value / 1024**3
    return f"{size:.1f}" if size < 999.95 else f"{size:.0f}"
