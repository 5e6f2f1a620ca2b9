"""ONNX Runtime: an option of the CUDA provider, session by session; no variable sets it."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.memlimit.mechanisms.setting import PlanInput, Setting, code_setting
from gpucheck.memlimit.model import MemoryLimit


def plan(inputs: PlanInput) -> tuple[Setting]:
    """Return the mechanism by code: the provider with its option for the first GPU."""
    size = inputs.limits[0].allocator_limit_bytes
    line, reason = None, "a GPU's limit is unknown"
    if size is not None:
        line = f'providers=[("CUDAExecutionProvider", {{"gpu_mem_limit": {size}}})]'
        reason = "the arena of each session; cuDNN's search for algorithms is extra"
    return (code_setting(inputs, "onnxruntime", "gpu_mem_limit", line, reason),)


def code_lines(sizes: Sequence[int], plan: MemoryLimit) -> list[str]:
    """Return the lines for a program, from the sizes in CUDA's order."""
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
