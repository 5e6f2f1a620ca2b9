"""CuPy: its default pool reads a limit in bytes or percent from the environment."""

from __future__ import annotations

from fractions import Fraction

from gpucheck.memlimit.situation import Setting, Situation, by_variable, decimal, number_of, shown

CUPY_LIMIT = "CUPY_GPU_MEMORY_LIMIT"


def plan(situation: Situation) -> Setting:
    """Cap CuPy's default pool: bytes or percent of each device's total."""
    ours = _value(situation)
    theirs = situation.environment.get(CUPY_LIMIT)
    if ours is None:
        return _set(situation, None, "it rounds to 0%, which CuPy takes as no limit")
    if theirs is None:
        held = "default pool only; for the asynchronous pool the limit is soft"
        return _set(situation, ours, held)
    if _is_tighter(theirs, situation):
        return _set(situation, theirs, f"{CUPY_LIMIT} is already set and no wider, so it is kept")
    trap = _trap(theirs)
    return _set(situation, ours, f"replaces {shown(theirs)}, which {trap}")


def _set(situation: Situation, value: str | None, reason: str) -> Setting:
    return by_variable(situation, "cupy", CUPY_LIMIT, value, reason)


def _value(situation: Situation) -> str | None:
    """Return bytes for an amount in bytes, and a percentage for a share."""
    if situation.amount.share is None:
        sizes = [gpu.allocator_limit_bytes for gpu in situation.limits]
        return str(min(size for size in sizes if size is not None))
    fraction = situation.fraction()
    text = "0" if fraction is None else decimal(fraction * 100)
    return None if text == "0" else f"{text}%"


def _trap(theirs: str) -> str:
    if theirs in ("0", "0%"):
        return "CuPy takes as no limit"
    value = number_of(theirs)
    if value is not None and not theirs.isdigit():
        return "CuPy does not understand: it takes bytes or a percentage"
    return "is not within the limit"


def _is_tighter(text: str, situation: Situation) -> bool:
    """Return whether CuPy would take `text` as a limit within ours on every GPU."""
    if not text.endswith("%"):
        size = number_of(text) if text.isdigit() else None
        return size is not None and all(
            _is_within(size, gpu.allocator_limit_bytes) for gpu in situation.limits
        )
    percent = number_of(text[:-1])
    if percent is None or not 0 < percent <= 100:
        return False
    fraction = situation.fraction()
    if situation.amount.share is not None and fraction is not None:
        return percent <= fraction * 100
    return all(
        gpu.memory_total_bytes is not None
        and _is_within(percent / 100 * gpu.memory_total_bytes, gpu.allocator_limit_bytes)
        for gpu in situation.limits
    )


def _is_within(size: Fraction, limit_bytes: int | None) -> bool:
    return limit_bytes is not None and 0 < size <= limit_bytes
