"""Mechanisms that hold programs to a memory limit, one module for each framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from gpucheck.memlimit.mechanisms import cupy, hard, jax, onnxruntime, pytorch, tensorflow
from gpucheck.memlimit.model import MemoryLimit
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import did_you_mean

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
    """Return Python lines that end in a newline.

    Raises:
        WrongUseError: the framework has no code here, or a GPU's limit is unknown.
    """
    write = WRITERS.get(framework.lower())
    if write is None:
        raise WrongUseError(
            code="unknown-framework",
            message=f"--code takes {', '.join(WRITERS)}, not {framework!a}."
            f" {did_you_mean(framework, WRITERS)}".strip(),
        )
    sizes = [gpu.allocator_limit_bytes for gpu in plan.gpus]
    known = [size for size in sizes if size is not None]
    if len(known) != len(sizes):
        raise WrongUseError(
            code="limit-unknown",
            message="A GPU's total memory is unknown, so a share of it cannot be computed.",
            remedy=("Give the amount in bytes, such as 8GiB.",),
        )
    lines = write(known, plan)
    return "\n".join((f"# {plan.request.text} of each visible GPU", *lines)) + "\n"
