"""JAX: one fraction of CUDA's total sizes its pool on every device, under one of two names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpucheck.memlimit.mechanisms.setting import (
    PlanInput,
    Setting,
    format_decimal,
    parse_number,
    variable_setting,
)
from gpucheck.memlimit.model import MemoryLimit, Strength
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import shown

JAX_FRACTION = "XLA_CLIENT_MEM_FRACTION"
JAX_FRACTION_OLD = "XLA_PYTHON_CLIENT_MEM_FRACTION"
JAX_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
#: Oldest version seen to read the new name. XLA added it in August 2024 (openxla/xla#16457).
#: The old one has been deprecated since, but every version up to 0.10.2 reads it.
NEW_NAME_SINCE = (0, 10)
#: Allocators without a pool, for which the fraction has no effect.
_POOLLESS = ("platform", "address")
#: Allocators not known to refuse at the fraction, and what they do.
_SOFT = {
    "cuda_async": "for cuda_async it is the size above which memory is released",
    "vmm": "whether the vmm allocator enforces it is unknown",
}


def plan(inputs: PlanInput) -> tuple[Setting]:
    """Return the mechanism by environment."""
    return (_environment_setting(inputs),)


def _environment_setting(inputs: PlanInput) -> Setting:
    """Cap JAX's pool, with or without preallocation."""
    fraction = inputs.fraction()
    if fraction is None:
        return _set(inputs, JAX_FRACTION, None, "it needs a fraction, and a GPU's total is unknown")
    name, theirs = _name(inputs)
    if name is None:
        reason = f"{JAX_FRACTION} and {JAX_FRACTION_OLD} are both set, which JAX refuses; unset one"
        return _set(inputs, JAX_FRACTION, None, reason)
    ours = format_decimal(fraction)
    allocator = inputs.environment.get(JAX_ALLOCATOR, "").lower()
    if allocator in _POOLLESS:
        return _set(inputs, name, None, f"{JAX_ALLOCATOR}={allocator} allocates without a pool")
    if ours == "0":
        return _set(inputs, name, None, "the fraction rounds to 0")
    if theirs is None:
        pool = inputs.describe_pool("the pool only; memory for collectives is extra")
        return _set(inputs, name, ours, pool)
    value = parse_number(theirs)
    if value is not None and 0 < value <= fraction:
        return _set(inputs, name, theirs, f"{name} is already set and no wider, so it is kept")
    reason = f"replaces {shown(theirs)}, which is not within the limit"
    return _set(inputs, name, ours, reason)


def _set(inputs: PlanInput, name: str, value: str | None, reason: str) -> Setting:
    soft = _SOFT.get(inputs.environment.get(JAX_ALLOCATOR, "").lower())
    return variable_setting(
        inputs,
        "jax",
        name,
        value,
        f"{soft}; {reason}" if soft else reason,
        strength=Strength.SOFT if soft else Strength.ALLOCATOR,
    )


def _name(inputs: PlanInput) -> tuple[str | None, str | None]:
    """Return the name to set and its present value; JAX refuses to start with both names."""
    inherited: Mapping[str, str] = inputs.environment
    new, old = inherited.get(JAX_FRACTION), inherited.get(JAX_FRACTION_OLD)
    if new and old:
        return None, None
    if old:
        return JAX_FRACTION_OLD, old
    if new:
        return JAX_FRACTION, new
    return (JAX_FRACTION if _knows_the_new_name(inputs) else JAX_FRACTION_OLD), None


def _knows_the_new_name(inputs: PlanInput) -> bool:
    """Return whether this JAX certainly reads the new name; an unknown name is silently ignored."""
    parts = (inputs.version("jax") or "").split(".")[:2]
    known = len(parts) == 2 and all(part.isascii() and part.isdigit() for part in parts)
    return known and (int(parts[0]), int(parts[1])) >= NEW_NAME_SINCE


def code_lines(sizes: Sequence[int], plan: MemoryLimit) -> list[str]:
    """Return the lines for a program, from the sizes in CUDA's order."""
    for name in (JAX_FRACTION, JAX_FRACTION_OLD):
        if name in plan.environment:
            return [
                "# Run this before importing jax: only the environment sets the size of its pool.",
                f'os.environ["{name}"] = "{plan.environment[name]}"',
                "import jax",
            ]
    reason = next((item.reason for item in plan.mechanisms if item.framework == "jax"), "")
    raise WrongUseError(code="limit-unknown", message=f"JAX cannot be limited here: {reason}.")
