"""Ineffective variables: they look like a memory limit but are none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpucheck.memlimit.mechanisms.pytorch import TORCH_UNCACHED
from gpucheck.memlimit.mechanisms.setting import shown
from gpucheck.report.envelope import Notice

_NOBODY_READS = "no TensorFlow version examined reads it"

#: Variable -> what it really does.
NO_LIMIT = {
    "CUDA_MEMORY_LIMIT": "nothing in CUDA reads it",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "it limits compute, not memory",
    "PER_PROCESS_GPU_MEMORY_FRACTION": f"{_NOBODY_READS}; it is an option of a Session",
    "TF_FORCE_GPU_ALLOW_GROWTH": "memory then grows on demand, without a limit",
    "TF_FORCE_UNIFIED_MEMORY": "allocations then spill to host memory instead of being refused",
    "TF_GPU_MEMORY_FRACTION": f"{_NOBODY_READS}; TensorFlow Serving has an option instead",
    "TF_GPU_MEMORY_LIMIT": _NOBODY_READS,
    "TF_MEMORY_ALLOCATION": _NOBODY_READS,
    "TF_PER_DEVICE_MEMORY_LIMIT_MB": "it refuses a single large allocation, never their sum",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "memory is then allocated on demand, up to the same share",
    "per_process_gpu_memory_fraction": f"{_NOBODY_READS}; it is an option of a Session",
}
#: Values that ask for the default behaviour, so there is nothing to warn about.
_USUAL = {
    "TF_FORCE_GPU_ALLOW_GROWTH": ("false",),
    "TF_FORCE_UNIFIED_MEMORY": ("0", "false"),
    "XLA_PYTHON_CLIENT_PREALLOCATE": ("true", "1"),
}

_HAMI = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT(_[0-9]+)?")
#: Theano's two options for the initial size of its pool.
_THEANO = re.compile(r"(?:^|,)\s*(gpuarray[.]preallocate|lib[.]cnmem)\s*=")


def warn_of_ineffective(environment: Mapping[str, str]) -> tuple[Notice, ...]:
    """Return a warning for each setting that caps nothing or would be misread."""
    return tuple(_warnings(environment))


def _warnings(environment: Mapping[str, str]) -> Iterator[Notice]:
    for name, truth in NO_LIMIT.items():
        value = environment.get(name)
        if value and value.lower() not in _USUAL.get(name, ()):
            yield _notice(name, value, truth)
    for name in sorted(environment):
        if _HAMI.fullmatch(name) and "vgpu" not in environment.get("LD_PRELOAD", ""):
            truth = "only HAMi's libvgpu.so reads it, and LD_PRELOAD does not load that"
            yield _notice(name, environment[name], truth)
    theano = environment.get("THEANO_FLAGS", "")
    option = _THEANO.search(theano)
    if option is not None:
        yield _notice("THEANO_FLAGS", theano, f"{option[1]} is the initial size, not the maximum")
    if TORCH_UNCACHED in environment:
        truth = "it turns off the PyTorch allocator that would enforce one"
        yield _notice(TORCH_UNCACHED, environment[TORCH_UNCACHED], truth)
    if environment.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async":
        truth = "TensorFlow's limit is then only the size above which memory is released"
        yield _notice("TF_GPU_ALLOCATOR", "cuda_malloc_async", truth)


def _notice(name: str, value: str, truth: str) -> Notice:
    message = f"{name}={shown(value)} is not a memory limit: {truth}."
    return Notice(code="no-memory-limit", message=message)
