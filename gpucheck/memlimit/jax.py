"""JAX: one fraction of CUDA's total sizes its pool on every device, under one of two names."""

from __future__ import annotations

from collections.abc import Mapping

from gpucheck.memlimit.model import Strength
from gpucheck.memlimit.situation import Setting, Situation, by_variable, decimal, number_of, shown

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


def plan(situation: Situation) -> Setting:
    """Cap JAX's pool, with or without preallocation."""
    fraction = situation.fraction()
    if fraction is None:
        return _set(
            situation, JAX_FRACTION, None, "it needs a fraction, and a GPU's total is unknown"
        )
    name, theirs = _name(situation)
    if name is None:
        reason = f"{JAX_FRACTION} and {JAX_FRACTION_OLD} are both set, which JAX refuses; unset one"
        return _set(situation, JAX_FRACTION, None, reason)
    ours = decimal(fraction)
    allocator = situation.environment.get(JAX_ALLOCATOR, "").lower()
    if allocator in _POOLLESS:
        return _set(situation, name, None, f"{JAX_ALLOCATOR}={allocator} allocates without a pool")
    if ours == "0":
        return _set(situation, name, None, "the fraction rounds to 0")
    if theirs is None:
        return _set(situation, name, ours, _reason(situation))
    value = number_of(theirs)
    if value is not None and 0 < value <= fraction:
        return _set(situation, name, theirs, f"{name} is already set and no wider, so it is kept")
    reason = f"replaces {shown(theirs)}, which is not within the limit"
    return _set(situation, name, ours, reason)


def _set(situation: Situation, name: str, value: str | None, reason: str) -> Setting:
    soft = _SOFT.get(situation.environment.get(JAX_ALLOCATOR, "").lower())
    return by_variable(
        situation,
        "jax",
        name,
        value,
        f"{soft}; {reason}" if soft else reason,
        strength=Strength.SOFT if soft else Strength.ALLOCATOR,
    )


def _name(situation: Situation) -> tuple[str | None, str | None]:
    """Return the name to set and its present value; JAX refuses to start with both names."""
    inherited: Mapping[str, str] = situation.environment
    new, old = inherited.get(JAX_FRACTION), inherited.get(JAX_FRACTION_OLD)
    if new and old:
        return None, None
    if old:
        return JAX_FRACTION_OLD, old
    if new:
        return JAX_FRACTION, new
    return (JAX_FRACTION if _knows_the_new_name(situation) else JAX_FRACTION_OLD), None


def _knows_the_new_name(situation: Situation) -> bool:
    """Return whether this JAX certainly reads the new name; an unknown name is silently ignored."""
    parts = (situation.version("jax") or "").split(".")[:2]
    known = len(parts) == 2 and all(part.isascii() and part.isdigit() for part in parts)
    return known and (int(parts[0]), int(parts[1])) >= NEW_NAME_SINCE


def _reason(situation: Situation) -> str:
    pool = "the pool only; memory for collectives is extra"
    return (
        f"one fraction for all GPUs, the smallest of them; {pool}" if situation.unlike() else pool
    )
