"""Variables in the environment that look like a memory limit and are none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpucheck.core.memlimit.situation import shown
from gpucheck.models.report import Notice

#: Variable -> what it really does.
NO_LIMIT = {
    "TF_GPU_MEMORY_LIMIT": "no TensorFlow that was looked at reads it",
    "TF_MEMORY_ALLOCATION": "no TensorFlow that was looked at reads it",
    "TF_PER_DEVICE_MEMORY_LIMIT_MB": "it refuses one large allocation, never their sum",
    "TF_FORCE_GPU_ALLOW_GROWTH": "memory then grows on demand, without an end",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "memory is then taken on demand, up to the same share",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "it is about compute, not memory",
}

_HAMI = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT(_[0-9]+)?")
_THEANO = re.compile(r"gpuarray[.]preallocate\s*=|lib[.]cnmem\s*=")


def warn_of_folklore(environment: Mapping[str, str]) -> tuple[Notice, ...]:
    """Return a warning for each setting that caps nothing, or that would be misread."""
    return tuple(_warnings(environment))


def _warnings(environment: Mapping[str, str]) -> Iterator[Notice]:
    for name, truth in NO_LIMIT.items():
        if environment.get(name):
            yield _notice(name, environment[name], truth)
    for name in sorted(environment):
        if _HAMI.fullmatch(name) and "vgpu" not in environment.get("LD_PRELOAD", ""):
            truth = "only HAMi's libvgpu.so reads it, and LD_PRELOAD does not name that"
            yield _notice(name, environment[name], truth)
    if _THEANO.search(environment.get("THEANO_FLAGS", "")):
        truth = "gpuarray.preallocate is the size to start with, not the most"
        yield _notice("THEANO_FLAGS", environment["THEANO_FLAGS"], truth)
    if environment.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async":
        truth = "TensorFlow's limit is then only the size above which memory is given back"
        yield _notice("TF_GPU_ALLOCATOR", "cuda_malloc_async", truth)


def _notice(name: str, value: str, truth: str) -> Notice:
    message = f"{name}={shown(value)} is no memory limit: {truth}."
    return Notice(code="no-memory-limit", message=message)
