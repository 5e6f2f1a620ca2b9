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

TORCH_CONF = "PYTORCH_ALLOC_CONF"
TORCH_CONF_OLD = "PYTORCH_CUDA_ALLOC_CONF"
TORCH_KEY = "per_process_memory_fraction"
#: The first version that knows the key; an unknown key is fatal when CUDA starts.
TORCH_KEY_SINCE = (2, 10)
#: Set to whatever it is, it makes every tensor a cudaMalloc of its own (c10/cuda).
TORCH_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_NO_ALLOCATOR = f"{TORCH_UNCACHED} is set: PyTorch has no allocator then that could hold a limit"
#: PyTorch's other allocator: it keeps to the fraction that code sets, and never reads the key.
_ASYNCHRONOUS = "backend:cudaMallocAsync"

_ENTRY = re.compile(rf"(?:^|(?<=,))\s*{TORCH_KEY}\s*:\s*([^,]*)")
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


def plan(situation: Situation) -> tuple[Setting, Setting]:
    """Return the way by the environment and the way by code."""
    first = _by_environment(situation)
    return first, _by_code(situation, needed=not first.mechanism.applies)


def _by_environment(situation: Situation) -> Setting:
    # The older name is the one that is read where both are set, and even where it is empty.
    name = TORCH_CONF_OLD if TORCH_CONF_OLD in situation.environment else TORCH_CONF
    theirs = situation.environment.get(name) or ""
    obstacle = _obstacle(situation, theirs)
    fraction = situation.fraction()
    if obstacle is None and fraction is None:
        obstacle = "it needs a fraction, and a GPU's total is unknown"
    if obstacle is not None or fraction is None:
        return _set(situation, name, None, obstacle or "")
    ours = decimal(fraction)
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
    return by_variable(situation, "torch", name, value, reason, framework="pytorch")


def _obstacle(situation: Situation, theirs: str) -> str | None:
    """Return why the variable must not be set, or would do nothing."""
    if TORCH_UNCACHED in situation.environment:
        return _NO_ALLOCATOR
    if _ASYNCHRONOUS in theirs.replace(" ", ""):
        return f"{_ASYNCHRONOUS} does not read the key; it keeps to what code sets"
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
    value = _fraction_text(situation)
    line, reason = None, "a GPU's limit is unknown"
    if TORCH_UNCACHED in situation.environment:
        reason = _NO_ALLOCATOR
    elif value is not None:
        each = "for device in range(torch.cuda.device_count())"
        line = f"{each}: torch.cuda.set_per_process_memory_fraction({value}, device)"
        reason = "at the first use of a GPU, with a context on each visible one"
    setting = by_hook(
        situation, "torch", "set_per_process_memory_fraction", line, reason, framework="pytorch"
    )
    if needed or not setting.mechanism.applies:
        return setting
    spared = "the environment does it already; the hook is there for a program that changes it"
    return Setting(mechanism=dataclasses.replace(setting.mechanism, applies=False, reason=spared))


def _fraction_text(situation: Situation) -> str | None:
    """Write the fraction as Python; of a total that only the program will know, if need be."""
    fraction = situation.fraction()
    if fraction is not None:
        return decimal(fraction) if fraction < 1 else "1.0"
    sizes = [gpu.allocator_limit_bytes for gpu in situation.limits]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    return f"min(1.0, {min(known)} / torch.cuda.get_device_properties(device).total_memory)"
