"""Python code that caps one framework on each visible GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from gpucheck.memlimit.jax import JAX_FRACTION, JAX_FRACTION_OLD
from gpucheck.memlimit.model import MemoryLimit
from gpucheck.memlimit.situation import MIB
from gpucheck.report.errors import WrongUseError


def write_code(framework: str, plan: MemoryLimit) -> str:
    """Return Python lines that end in a newline.

    Raises:
        WrongUseError: the framework has no code here, or a GPU's limit is unknown.
    """
    write = WRITERS.get(framework.lower())
    if write is None:
        raise WrongUseError(
            code="unknown-framework",
            message=f"--code takes {', '.join(WRITERS)}, not {framework!a}.",
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


def _pytorch(sizes: Sequence[int], plan: MemoryLimit) -> list[str]:
    return [
        "import torch",
        "",
        "# The fraction is of CUDA's total and must be a float.",
        f"for device, size in enumerate({list(sizes)}):",
        "    total = torch.cuda.get_device_properties(device).total_memory",
        "    torch.cuda.set_per_process_memory_fraction(min(1.0, size / total), device)",
    ]


def _tensorflow(sizes: Sequence[int], plan: MemoryLimit) -> list[str]:
    small = [size for size in sizes if size < MIB]
    if small:
        raise WrongUseError(
            code="limit-too-small",
            message=f"TensorFlow counts whole MiB, and {small[0]} bytes are less than one.",
        )
    return [
        "import tensorflow as tf",
        "",
        "# Run this before any GPU work. memory_limit is in MiB: 0.3 is 0 bytes, not 30 %.",
        f"sizes = {[size // MIB for size in sizes]}",
        'for gpu, mib in zip(tf.config.list_physical_devices("GPU"), sizes):',
        "    device = tf.config.LogicalDeviceConfiguration(memory_limit=mib)",
        "    tf.config.set_logical_device_configuration(gpu, [device])",
    ]


def _cupy(sizes: Sequence[int], plan: MemoryLimit) -> list[str]:
    return [
        "import cupy",
        "",
        "# set_limit applies to the default pool of the current device only.",
        f"for device, size in enumerate({list(sizes)}):",
        "    with cupy.cuda.Device(device):",
        "        cupy.get_default_memory_pool().set_limit(size=size)",
    ]


def _jax(sizes: Sequence[int], plan: MemoryLimit) -> list[str]:
    for name in (JAX_FRACTION, JAX_FRACTION_OLD):
        if name in plan.environment:
            return [
                "import os",
                "",
                "# Run this before importing jax: only the environment sets the size of its pool.",
                f'os.environ["{name}"] = "{plan.environment[name]}"',
                "import jax",
            ]
    reason = next((each.reason for each in plan.mechanisms if each.framework == "jax"), "")
    raise WrongUseError(code="limit-unknown", message=f"JAX cannot be limited here: {reason}.")


def _onnxruntime(sizes: Sequence[int], plan: MemoryLimit) -> list[str]:
    return [
        "import onnxruntime",
        "",
        "# Set this for each session. The sizes are in CUDA's order of the GPUs.",
        f"sizes = {list(sizes)}",
        "device = 0",
        'options = {"device_id": device, "gpu_mem_limit": sizes[device]}',
        'providers = [("CUDAExecutionProvider", options), "CPUExecutionProvider"]',
        'session = onnxruntime.InferenceSession("model.onnx", providers=providers)',
    ]


#: Framework -> writer of its lines, from the sizes in CUDA's order.
WRITERS: MappingProxyType[str, Callable[[Sequence[int], MemoryLimit], list[str]]] = (
    MappingProxyType(
        {
            "tensorflow": _tensorflow,
            "pytorch": _pytorch,
            "jax": _jax,
            "cupy": _cupy,
            "onnxruntime": _onnxruntime,
        }
    )
)
