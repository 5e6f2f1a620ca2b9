"""Mechanisms that hold programs to a memory limit, one module for each framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from gpucheck.memlimit.mechanisms import cupy, hard, jax, onnxruntime, pytorch, tensorflow
from gpucheck.memlimit.model import MemoryLimit
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import FRAMEWORK_ALIASES, did_you_mean, framework_name, shown

#: Modules with `plan(inputs)`, which returns their settings; in the order of the report.
MECHANISMS = (cupy, jax, pytorch, tensorflow, onnxruntime, hard)

#: Framework -> writer of its lines, from the sizes in CUDA's order.
WRITERS: MappingProxyType[str, Callable[[Sequence[int], MemoryLimit], list[str]]] = (
    MappingProxyType(
        {
            "tensorflow": tensorflow.code_lines,
            "pytorch": pytorch.code_lines,
            "jax": jax.code_lines,
            "cupy": cupy.code_lines,
            "onnxruntime": onnxruntime.code_lines,
        }
    )
)


def write_code(framework: str, plan: MemoryLimit) -> str:
    """Return Python lines that limit the plan's GPUs and no others, ending in a newline.

    A framework counts devices from 0 in the order of the program's own environment. Where the
    GPUs were selected, or their limits differ, the code therefore names them by UUID first.

    Raises:
        WrongUseError: the framework has no code here, or a GPU's limit is unknown.
    """
    write = WRITERS.get(framework_name(framework))
    if write is None:
        raise WrongUseError(
            code="unknown-framework",
            message=f"--code takes {', '.join(WRITERS)}, not {framework!r}."
            f" {did_you_mean(framework, (*WRITERS, *FRAMEWORK_ALIASES))}".strip(),
        )
    sizes = [gpu.allocator_limit_bytes for gpu in plan.gpus]
    known = [size for size in sizes if size is not None]
    if len(known) != len(sizes):
        raise WrongUseError(
            code="limit-unknown",
            message="A GPU's total memory is unknown, so a share of it cannot be computed.",
            remedy=("Give the amount in bytes, such as 8GiB.",),
        )
    visible = _visible_devices(plan)
    lines = [*visible, *write(known, plan)]
    if any(line.startswith("os.environ[") for line in lines):
        lines = ["import os", "", *lines]
    cards = "each visible GPU"
    if visible:
        cards = "; ".join(
            f"GPU {gpu.number} ({shown(gpu.name or gpu.uuid or '')})" for gpu in plan.gpus
        )
    return "\n".join((f"# {plan.request.text} of {cards}", *lines)) + "\n"


def _visible_devices(plan: MemoryLimit) -> list[str]:
    """Return the lines that name the GPUs, none where every visible GPU has the same limit."""
    uuids = plan.environment.get("CUDA_VISIBLE_DEVICES")
    if uuids is None and len({gpu.allocator_limit_bytes for gpu in plan.gpus}) > 1:
        uuids = ",".join(gpu.uuid or "" for gpu in plan.gpus)
    # Without its UUID a GPU has no name that every order of devices keeps.
    if not uuids or not all(uuids.split(",")):
        return []
    seen = "this GPU alone, as its device 0" if len(plan.gpus) == 1 else "these GPUs in this order"
    return [
        f"# Before CUDA starts: the program then sees {seen}.",
        f'os.environ["CUDA_VISIBLE_DEVICES"] = "{uuids}"',
    ]
