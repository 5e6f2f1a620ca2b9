"""TensorFlow: logical devices by code; by environment, only the memory to leave free."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.memlimit.mechanisms.setting import (
    MIB,
    PlanInput,
    Setting,
    code_setting,
    variable_setting,
)
from gpucheck.memlimit.model import MemoryLimit, Strength
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import shown

TF_LEAVE_FREE = "TF_DEVICE_MIN_SYS_MEMORY_IN_MB"
TF_ALLOCATOR = "TF_GPU_ALLOCATOR"


def plan(inputs: PlanInput) -> tuple[Setting, Setting]:
    """Return the mechanism by environment and the one by code."""
    return _environment_setting(inputs), _code_setting(inputs)


def _environment_setting(inputs: PlanInput) -> Setting:
    """Set how much of the memory free now to leave: the environment can set nothing else.

    It is one number for all GPUs. TensorFlow ignores it where less is free beside the context that
    it has made by then, and takes the context's memory from the pool (gpu_device.cc).
    """
    ranges = []
    for gpu in inputs.limits:
        if gpu.memory_free_bytes is None or gpu.allocator_limit_bytes is None:
            reason = "it is relative to the free memory, and a GPU's is unknown"
            return _set(inputs, None, reason)
        context = gpu.context_estimate_bytes or 0
        free = gpu.memory_free_bytes // MIB
        # Overhead that counts as part of the limit has been taken off: not the context once more.
        taken = gpu.allocator_limit_bytes + (context if inputs.overhead_included else 0)
        least = free - taken // MIB
        if least <= 0:
            continue
        if taken < context:
            reason = (
                "its context takes more than the limit, and TensorFlow ignores a number that leaves"
                " nothing for the pool"
            )
            return _set(inputs, None, reason)
        ranges.append(range(least, free - context // MIB + 1))
    if not ranges:
        return _set(inputs, None, "less than the limit is free, so there is nothing to leave")
    inherited = inputs.environment.get(TF_LEAVE_FREE)
    # TensorFlow ignores anything but a whole number.
    plain = (
        inherited is not None
        and inherited.isascii()
        and inherited.isdigit()
        and len(inherited) < 15
    )
    theirs = int(inherited or "") if plain else None
    if theirs is not None and all(theirs in fitting for fitting in ranges):
        reason = f"{TF_LEAVE_FREE} is already set and leaves as much, so it is kept"
        return _set(inputs, str(theirs), reason)
    ours = max(fitting.start for fitting in ranges)
    if not all(ours in fitting for fitting in ranges):
        return _set(inputs, None, "no single number leaves the right amount free on each GPU")
    if inherited:
        why = "leaves less" if theirs is not None and theirs < ours else "TensorFlow ignores here"
        return _set(inputs, str(ours), f"replaces {shown(inherited)}, which {why}")
    reason = (
        "the MiB to leave of what is free now, so a program that starts meanwhile shifts the limit;"
        " overrides a Session's per_process_gpu_memory_fraction"
    )
    return _set(inputs, str(ours), reason)


def _is_soft(inputs: PlanInput) -> bool:
    return inputs.environment.get(TF_ALLOCATOR) == "cuda_malloc_async"


def _reason(inputs: PlanInput, reason: str) -> str:
    soft = "for cuda_malloc_async it is the size above which memory is released"
    return f"{soft}; {reason}" if _is_soft(inputs) else reason


def _set(inputs: PlanInput, value: str | None, reason: str) -> Setting:
    strength = Strength.SOFT if _is_soft(inputs) else Strength.ALLOCATOR
    reason = _reason(inputs, reason)
    return variable_setting(inputs, "tensorflow", TF_LEAVE_FREE, value, reason, strength=strength)


def _code_setting(inputs: PlanInput) -> Setting:
    """Return the line of code, in whole MiB: the runtime truncates to an integer."""
    sizes = [
        None if gpu.allocator_limit_bytes is None else gpu.allocator_limit_bytes // MIB
        for gpu in inputs.limits
    ]
    known = [size for size in sizes if size]
    usable = len(known) == len(sizes)
    missing = "a GPU's limit is unknown" if None in sizes else "it counts whole MiB"
    reason = _reason(inputs, "before TensorFlow starts its devices")
    return code_setting(
        inputs,
        "tensorflow",
        "set_logical_device_configuration",
        tensorflow_line(known) if usable else None,
        reason if usable else missing,
        strength=Strength.SOFT if _is_soft(inputs) else Strength.ALLOCATOR,
    )


def tensorflow_line(sizes: Sequence[int]) -> str:
    """Return a statement that caps each GPU at its size in MiB."""
    size, *others = set(sizes)
    equal = len(sizes) > 1 and not others
    listed = f"[{size}] * {len(sizes)}" if equal else str(list(sizes))
    pairs = f'zip(tf.config.list_physical_devices("GPU"), {listed})'
    logical = "tf.config.LogicalDeviceConfiguration(memory_limit=mib)"
    return f"for gpu, mib in {pairs}: tf.config.set_logical_device_configuration(gpu, [{logical}])"


def code_lines(sizes: Sequence[int], plan: MemoryLimit) -> list[str]:
    """Return the lines for a program, from the sizes in CUDA's order."""
    small = [size for size in sizes if size < MIB]
    if small:
        raise WrongUseError(
            code="limit-too-small",
            message=f"TensorFlow counts whole MiB, and {small[0]} bytes are less than one.",
        )
    return [
        "import tensorflow as tf",
        "",
        "# Run this before any GPU work. memory_limit is in MiB: 0.3 is rounded down to 0.",
        f"sizes = {[size // MIB for size in sizes]}",
        'for gpu, mib in zip(tf.config.list_physical_devices("GPU"), sizes):',
        "    device = tf.config.LogicalDeviceConfiguration(memory_limit=mib)",
        "    tf.config.set_logical_device_configuration(gpu, [device])",
    ]
