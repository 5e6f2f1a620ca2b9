"""PyTorch: a fraction in its allocator's variable since 2.10, a line of code before."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from gpucheck.memlimit.mechanisms.setting import (
    PlanInput,
    Setting,
    code_setting,
    format_decimal,
    parse_number,
    variable_setting,
)
from gpucheck.memlimit.model import MemoryLimit
from gpucheck.report.text import shown

TORCH_CONF = "PYTORCH_ALLOC_CONF"
TORCH_CONF_OLD = "PYTORCH_CUDA_ALLOC_CONF"
TORCH_KEY = "per_process_memory_fraction"
#: The first version that knows the key; an unknown key is fatal when CUDA starts.
TORCH_KEY_SINCE = (2, 10)
#: Set to any value, it makes every tensor a separate cudaMalloc (c10/cuda).
TORCH_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_NO_ALLOCATOR = (
    f"{TORCH_UNCACHED} is set, which turns off the allocator that would enforce the limit"
)
#: PyTorch's other allocator: it obeys a fraction set in code, and never reads the key.
_ASYNCHRONOUS = "backend:cudaMallocAsync"

_ENTRY = re.compile(rf"(?:^|(?<=,))\s*{TORCH_KEY}\s*:\s*([^,]*)")
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


def plan(inputs: PlanInput) -> tuple[Setting, Setting]:
    """Return the mechanism by environment and the one by code."""
    first = _environment_setting(inputs)
    return first, _code_setting(inputs, needed=not first[0].applies)


def _environment_setting(inputs: PlanInput) -> Setting:
    # PyTorch reads the older name whenever it is set, even if it is empty.
    name = TORCH_CONF_OLD if TORCH_CONF_OLD in inputs.environment else TORCH_CONF
    theirs = inputs.environment.get(name) or ""
    obstacle = _obstacle(inputs, theirs)
    fraction = inputs.fraction(of_cards=True)
    if obstacle is None and fraction is None:
        obstacle = "it needs a fraction, and a GPU's total is unknown"
    if obstacle is not None or fraction is None:
        return _set(inputs, name, None, obstacle or "")
    ours = format_decimal(fraction)
    entry = _ENTRY.search(theirs)
    if entry is None:
        added = f"{theirs.rstrip(',')},{TORCH_KEY}:{ours}" if theirs else f"{TORCH_KEY}:{ours}"
        pool = inputs.describe_pool("the caching allocator")
        reason = f"added to the existing settings; {pool}" if theirs else pool
        return _set(inputs, name, added, reason)
    value = parse_number(entry[1].strip())
    if value is not None and 0 < value <= fraction:
        reason = f"{TORCH_KEY} is already set and no wider, so it is kept"
        return _set(inputs, name, theirs, reason)
    replaced = f"{theirs[: entry.start(1)]}{ours}{theirs[entry.end(1) :]}"
    reason = f"replaces the fraction {shown(entry[1])}, which is not within the limit"
    return _set(inputs, name, replaced, reason)


def _set(inputs: PlanInput, name: str, value: str | None, reason: str) -> Setting:
    return variable_setting(inputs, "torch", name, value, reason, framework="pytorch")


def _obstacle(inputs: PlanInput, theirs: str) -> str | None:
    """Return why the variable must not be set or would have no effect."""
    if TORCH_UNCACHED in inputs.environment:
        return _NO_ALLOCATOR
    if _ASYNCHRONOUS in theirs.replace(" ", ""):
        return f"{_ASYNCHRONOUS} does not read the key; it obeys only a fraction set in code"
    since = ".".join(map(str, TORCH_KEY_SINCE))
    missing = inputs.missing_reason("torch")
    if missing is not None:
        return f"{missing}, and before PyTorch {since} the key is fatal"
    version = inputs.version("torch")
    if version is None:
        return f"the version of PyTorch is unknown, and before {since} the key is fatal"
    match = _VERSION.match(version)
    if match is None or (int(match[1]), int(match[2])) < TORCH_KEY_SINCE:
        return f"the key is fatal to PyTorch {shown(version)}; {since} is the first to know it"
    return None


def _code_setting(inputs: PlanInput, *, needed: bool) -> Setting:
    """Return the line of code: a float fraction for each device (PyTorch refuses an int)."""
    value = _fraction_text(inputs)
    line, reason = None, "a GPU's limit is unknown"
    if TORCH_UNCACHED in inputs.environment:
        reason = _NO_ALLOCATOR
    elif value is not None:
        loop = "for device in range(torch.cuda.device_count())"
        line = f"{loop}: torch.cuda.set_per_process_memory_fraction({value}, device)"
        reason = "at the first use of a GPU, with a context on each visible one"
    mechanism, _ = code_setting(
        inputs, "torch", "set_per_process_memory_fraction", line, reason, framework="pytorch"
    )
    if needed or not mechanism.applies:
        return mechanism, {}
    spared = (
        "the environment already does it; the hook covers a program that changes the environment"
    )
    return dataclasses.replace(mechanism, applies=False, reason=spared), {}


def _fraction_text(inputs: PlanInput) -> str | None:
    """Return the fraction as Python code, of a total that only the program knows if need be."""
    fraction = inputs.fraction(of_cards=True)
    if fraction is not None:
        return format_decimal(fraction) if fraction < 1 else "1.0"
    sizes = [gpu.allocator_limit_bytes for gpu in inputs.limits]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    return f"min(1.0, {min(known)} / torch.cuda.get_device_properties(device).total_memory)"


def code_lines(sizes: Sequence[int], plan: MemoryLimit) -> list[str]:
    """Return the lines for a program, from the sizes in CUDA's order."""
    return [
        "import torch",
        "",
        "# The fraction is of CUDA's total and must be a float.",
        f"for device, size in enumerate({list(sizes)}):",
        "    total = torch.cuda.get_device_properties(device).total_memory",
        "    torch.cuda.set_per_process_memory_fraction(min(1.0, size / total), device)",
    ]
