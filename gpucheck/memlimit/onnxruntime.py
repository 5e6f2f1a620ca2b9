"""ONNX Runtime: an option of the CUDA provider, session by session; no variable sets it."""

from __future__ import annotations

from gpucheck.memlimit.situation import Setting, Situation, by_hook


def plan(situation: Situation) -> Setting:
    """Return the provider with its option for the first GPU."""
    size = situation.limits[0].allocator_limit_bytes
    line = None
    if size is not None:
        line = f'providers=[("CUDAExecutionProvider", {{"gpu_mem_limit": {size}}})]'
    reason = "the arena of each session; cuDNN's search for algorithms is extra"
    missing = "a GPU's limit is unknown"
    return by_hook(situation, "onnxruntime", "gpu_mem_limit", line, reason if line else missing)
