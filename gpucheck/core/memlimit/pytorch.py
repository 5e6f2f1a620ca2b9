"""PyTorch: a fraction in its allocator's variable from 2.10 on, a line of code before."""

from __future__ import annotations

import dataclasses
import re

from gpucheck.core.memlimit.situation import (
    Setting,
    Situation,
    by_hook,
    by_variable,
    decimal,
    number_of,
    shown,
)
from gpucheck.models.memory import Strength

TORCH_CONF = "PYTORCH_ALLOC_CONF"
TORCH_CONF_OLD = "PYTORCH_CUDA_ALLOC_CONF"
TORCH_KEY = "per_process_memory_fraction"
#: The first version that knows the key; an unknown key is fatal when CUDA starts.
TORCH_KEY_SINCE = (2, 10)

_ENTRY = re.compile(rf"(?:^|(?<=,))\s*{TORCH_KEY}\s*:\s*([^,]*)")
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


def plan(situation: Situation) -> tuple[Setting, Setting]:
    """Return the way by the environment and the way by code."""
    first = _by_environment(situation)
    return first, _by_code(situation, needed=not first.mechanism.applies)


def _by_environment(situation: Situation) -> Setting:
    name = TORCH_CONF_OLD if situation.environment.get(TORCH_CONF_OLD) else TORCH_CONF
    obstacle = _obstacle(situation)
    fraction = situation.fraction()
    if obstacle is None and fraction is None:
        obstacle = "it needs a fraction, and a GPU's total is unknown"
    if obstacle is not None or fraction is None:
        return _set(situation, name, None, obstacle or "")
    ours = decimal(fraction)
    theirs = situation.environment.get(name) or ""
    entry = _ENTRY.search(theirs)
    if entry is None:
        added = f"{theirs.rstrip(',')},{TORCH_KEY}:{ours}" if theirs else f"{TORCH_KEY}:{ours}"
        return _set(situation, name, added, _reason(situation, theirs))
    value = number_of(entry[1].strip())
    if value is not None and 0 < value <= fraction:
        reason = f"{TORCH_KEY} is set already and is no wider; it stays"
        return _set(situation, name, theirs, reason)
    replaced = f"{theirs[: entry.start(1)]}{ours}{theirs[entry.end(1) :]}"
    reason = f"replaces the fraction {shown(entry[1])}, which does not keep to the limit"
    return _set(situation, name, replaced, reason)


def _set(situation: Situation, name: str, value: str | None, reason: str) -> Setting:
    asynchronous = "backend:cudaMallocAsync" in (value or "").replace(" ", "")
    return by_variable(
        situation,
        "torch",
        name,
        value,
        f"{reason}; whether cudaMallocAsync keeps to it is not known" if asynchronous else reason,
        framework="pytorch",
        strength=Strength.SOFT if asynchronous else Strength.ALLOCATOR,
    )


def _obstacle(situation: Situation) -> str | None:
    """Return why the variable must not be set."""
    since = ".".join(map(str, TORCH_KEY_SINCE))
    lacking = situation.lacks("torch")
    if lacking is not None:
        return f"{lacking}, and before PyTorch {since} the key is fatal"
    version = situation.version("torch")
    if version is None:
        return f"which PyTorch is used is not known, and before {since} the key is fatal"
    found = _VERSION.match(version)
    if found is None or (int(found[1]), int(found[2])) < TORCH_KEY_SINCE:
        return f"PyTorch {shown(version)} does not know the key, which is fatal; {since} does"
    return None


def _reason(situation: Situation, theirs: str) -> str:
    pool = "the caching allocator"
    if situation.unlike():
        pool = f"one fraction for all GPUs, the smallest of theirs; {pool}"
    return f"added to the settings that are there; {pool}" if theirs else pool


def _by_code(situation: Situation, *, needed: bool) -> Setting:
    """Give the line: a float fraction of the total, for each device (an int is refused)."""
    fraction = situation.fraction()
    line = None
    if fraction is not None:
        value = decimal(fraction) if fraction < 1 else "1.0"
        line = f"torch.cuda.set_per_process_memory_fraction({value}, device)"
    reason = "for each device" if line else "it needs a fraction, and a GPU's total is unknown"
    setting = by_hook(
        situation, "torch", "set_per_process_memory_fraction", line, reason, framework="pytorch"
    )
    if needed or not setting.mechanism.applies:
        return setting
    spared = "the environment does it already; the hook is for an older PyTorch"
    return Setting(mechanism=dataclasses.replace(setting.mechanism, applies=False, reason=spared))
