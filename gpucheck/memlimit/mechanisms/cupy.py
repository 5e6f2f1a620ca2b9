"""CuPy: its default pool reads a limit in bytes or percent from the environment."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.memlimit.mechanisms.setting import (
    PlanInput,
    Setting,
    format_decimal,
    parse_number,
    variable_setting,
)
from gpucheck.memlimit.model import MemoryLimit
from gpucheck.report.text import shown

CUPY_LIMIT = "CUPY_GPU_MEMORY_LIMIT"


def plan(inputs: PlanInput) -> tuple[Setting]:
    """Return the mechanism by environment."""
    return (_environment_setting(inputs),)


def _environment_setting(inputs: PlanInput) -> Setting:
    """Cap CuPy's default pool: bytes or percent of each device's total."""
    ours = _value(inputs)
    theirs = inputs.environment.get(CUPY_LIMIT)
    if ours is None:
        return _set(inputs, None, "it rounds to 0%, which CuPy takes as no limit")
    if theirs is None:
        held = "default pool only; for the asynchronous pool the limit is soft"
        return _set(inputs, ours, held)
    if _is_tighter(theirs, inputs):
        return _set(inputs, theirs, f"{CUPY_LIMIT} is already set and no wider, so it is kept")
    trap = _problem(theirs)
    return _set(inputs, ours, f"replaces {shown(theirs)}, which {trap}")


def _set(inputs: PlanInput, value: str | None, reason: str) -> Setting:
    return variable_setting(inputs, "cupy", CUPY_LIMIT, value, reason)


def _value(inputs: PlanInput) -> str | None:
    """Return bytes for an amount in bytes, and a percentage for a share."""
    if inputs.amount.share is None:
        sizes = [gpu.allocator_limit_bytes for gpu in inputs.limits]
        return str(min(size for size in sizes if size is not None))
    fraction = inputs.fraction()
    text = "0" if fraction is None else format_decimal(fraction * 100)
    return None if text == "0" else f"{text}%"


def _problem(theirs: str) -> str:
    if theirs in ("0", "0%"):
        return "CuPy takes as no limit"
    value = parse_number(theirs)
    if value is not None and not theirs.isdigit():
        return "CuPy does not understand: it takes bytes or a percentage"
    return "is not within the limit"


def _is_tighter(text: str, inputs: PlanInput) -> bool:
    """Return whether CuPy would take `text` as a limit within ours on every GPU."""
    if text.endswith("%"):
        percent, fraction = parse_number(text[:-1]), inputs.fraction()
        return percent is not None and fraction is not None and 0 < percent <= fraction * 100
    size = parse_number(text) if text.isdigit() else None
    limits = [gpu.allocator_limit_bytes for gpu in inputs.limits]
    return size is not None and all(limit is not None and 0 < size <= limit for limit in limits)


def code_lines(sizes: Sequence[int], plan: MemoryLimit) -> list[str]:
    """Return the lines for a program, from the sizes in CUDA's order."""
    return [
        "import cupy",
        "",
        "# set_limit applies to the default pool of the current device only.",
        f"for device, size in enumerate({list(sizes)}):",
        "    with cupy.cuda.Device(device):",
        "        cupy.get_default_memory_pool().set_limit(size=size)",
    ]
