"""Variables in the environment that look like a memory limit and are none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpucheck.core.memlimit.pytorch import TORCH_UNCACHED
from gpucheck.core.memlimit.situation import shown
from gpucheck.models.report import Notice

_NOBODY_READS = "no TensorFlow that was looked at reads it"

#: Variable -> what it really does.
NO_LIMIT = {
    "CUDA_MEMORY_LIMIT": "nothing of CUDA's reads it",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "it is about compute, not memory",
    "PER_PROCESS_GPU_MEMORY_FRACTION": f"{_NOBODY_READS}; it is an option of a Session",
    "TF_FORCE_GPU_ALLOW_GROWTH": "memory then grows on demand, without an end",
    "TF_FORCE_UNIFIED_MEMORY": "memory then spills to the host instead of being refused",
    "TF_GPU_MEMORY_FRACTION": f"{_NOBODY_READS}; TensorFlow Serving's is an option",
    "TF_GPU_MEMORY_LIMIT": _NOBODY_READS,
    "TF_MEMORY_ALLOCATION": _NOBODY_READS,
    "TF_PER_DEVICE_MEMORY_LIMIT_MB": "it refuses one large allocation, never their sum",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "memory is then taken on demand, up to the same share",
    "per_process_gpu_memory_fraction": f"{_NOBODY_READS}; it is an option of a Session",
}
#: Values of these that ask for the usual behaviour, and so for no limit.
_USUAL = {
    "TF_FORCE_GPU_ALLOW_GROWTH": ("false",),
    "TF_FORCE_UNIFIED_MEMORY": ("0", "false"),
    "XLA_PYTHON_CLIENT_PREALLOCATE": ("true", "1"),
}

_HAMI = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT(_[0-9]+)?")
#: Theano's two ways to say with which size its pool starts.
_THEANO = re.compile(r"(?:^|,)\s*(gpuarray[.]preallocate|lib[.]cnmem)\s*=")


def warn_of_folklore(environment: Mapping[str, str]) -> tuple[Notice, ...]:
    """Return a warning for each setting that caps nothing, or that would be misread."""
    return tuple(_warnings(environment))


def _warnings(environment: Mapping[str, str]) -> Iterator[Notice]:
    for name, truth in NO_LIMIT.items():
        value = environment.get(name)
        if value and value.lower() not in _USUAL.get(name, ()):
            yield _notice(name, value, truth)
    for name in sorted(environment):
        if _HAMI.fullmatch(name) and "vgpu" not in environment.get("LD_PRELOAD", ""):
            truth = "only HAMi's libvgpu.so reads it, and LD_PRELOAD does not name that"
            yield _notice(name, environment[name], truth)
    theano = environment.get("THEANO_FLAGS", "")
    option = _THEANO.search(theano)
    if option is not None:
        yield _notice(
            "THEANO_FLAGS", theano, f"{option[1]} is the size to start with, not the most"
        )
    if TORCH_UNCACHED in environment:
        truth = "PyTorch has no allocator then that could hold a limit"
        yield _notice(TORCH_UNCACHED, environment[TORCH_UNCACHED], truth)
    if environment.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async":
        truth = "TensorFlow's limit is then only the size above which memory is given back"
        yield _notice("TF_GPU_ALLOCATOR", "cuda_malloc_async", truth)


def _notice(name: str, value: str, truth: str) -> Notice:
    message = f"{name}={shown(value)} is no memory limit: {truth}."
    return Notice(code="no-memory-limit", message=message)
