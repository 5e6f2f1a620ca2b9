"""Environment of a limited command: settings, hook, mark of the run; variables without effect."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpucheck.drivers.python.interpreters import Interpreter
from gpucheck.memlimit.mechanisms.cupy import CUPY_LIMIT
from gpucheck.memlimit.mechanisms.jax import JAX_FRACTION, JAX_FRACTION_OLD
from gpucheck.memlimit.mechanisms.pytorch import (
    TORCH_CONF,
    TORCH_CONF_OLD,
    TORCH_KEY,
    TORCH_UNCACHED,
)
from gpucheck.memlimit.mechanisms.setting import Presence
from gpucheck.memlimit.model import MemoryLimit
from gpucheck.report.envelope import Notice
from gpucheck.report.text import shown

#: Variable that the hook reads. The hook's file runs by path elsewhere and repeats the name.
HOOK_VARIABLE = "GPUCHECK_MEMORY_LIMIT"
PYTHONPATH = "PYTHONPATH"
FRAMEWORKS = ("torch", "tensorflow", "cupy", "onnxruntime", "jax")
#: Marks of the runs around a command, by which a watcher recognises its descendants.
RUNS_VARIABLE = "GPUCHECK_LIMIT_RUNS"


def limited_environment(
    plan: MemoryLimit, environment: Mapping[str, str], *, hook: bool, mark: str | None = None
) -> dict[str, str]:
    """Return the whole environment of the command."""
    limited = {**environment, **plan.environment}
    if mark is not None:
        outer = environment.get(RUNS_VARIABLE)
        limited[RUNS_VARIABLE] = f"{outer},{mark}" if outer else mark
    return {**limited, **hook_environment(plan, environment)} if hook else limited


def new_mark() -> str:
    """Return a mark that no other run has."""
    return os.urandom(16).hex()


# --------------------------------------------------------------------------------- the import hook


def hook_folder() -> str:
    """Return the folder whose `sitecustomize` installs the hook."""
    return os.fspath(Path(__file__).absolute().parent / "hook")


def hook_state(interpreter: Interpreter | None, *, wanted: bool) -> Presence:
    """Return whether the hook will run in the command, judged by its command line."""
    if not wanted:
        return False, "--no-hook turns the import hook off"
    if os.pathsep in hook_folder():
        return False, f"the path of the import hook's folder contains {os.pathsep!r}"
    if interpreter is not None and interpreter.isolated:
        return False, "with -I or -E, Python ignores PYTHONPATH"
    if interpreter is not None and interpreter.bare:
        return False, "with -S, Python does not run sitecustomize"
    if interpreter is None:
        return True, "the import hook runs it in every Python that the command starts"
    return True, "the import hook runs it"


def hook_environment(plan: MemoryLimit, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the hook's variables, for a program that would inherit `environment`.

    Empty if a GPU's limit is unknown. An existing limit is never widened.
    """
    document = hook_document(plan, environment)
    if document is None:
        return {}
    # The limits of an outer `memlimit` hold where they are lower, GPU by GPU.
    outer = _outer_bytes(environment.get(HOOK_VARIABLE))
    gpus = document["gpus"]
    if isinstance(gpus, list):
        for gpu in gpus:
            gpu["bytes"] = min(gpu["bytes"], outer.get(gpu["uuid"], gpu["bytes"]))
    theirs = environment.get(PYTHONPATH) or ""
    first, _, rest = theirs.partition(os.pathsep)
    if first == hook_folder():  # of an outer `memlimit`
        theirs = rest
    # An empty entry would be the current directory.
    folders = (hook_folder(), theirs) if theirs else (hook_folder(),)
    return {
        HOOK_VARIABLE: json.dumps(document, separators=(",", ":")),
        PYTHONPATH: os.pathsep.join(folders),
    }


def hook_document(plan: MemoryLimit, environment: Mapping[str, str]) -> dict[str, object] | None:
    """Return the hook's document, or None if a GPU's limit is unknown."""
    gpus = [{"uuid": gpu.uuid, "bytes": gpu.allocator_limit_bytes} for gpu in plan.gpus]
    if any(gpu["bytes"] is None for gpu in gpus):
        return None
    after = {**environment, **plan.environment}
    return {
        "text": plan.request.text,
        "visible": after.get("CUDA_VISIBLE_DEVICES"),
        "gpus": gpus,
        "frameworks": list(FRAMEWORKS),
        "torch": _torch(plan, environment),
        "jax": _jax(plan),
        "cupy": plan.environment.get(CUPY_LIMIT),
    }


def _jax(plan: MemoryLimit) -> dict[str, str] | None:
    """Return the variables set for JAX, for a program that sets its own later."""
    for name in (JAX_FRACTION, JAX_FRACTION_OLD):
        if name in plan.environment:
            return {"variable": name, "value": plan.environment[name]}
    return None


def _torch(plan: MemoryLimit, before: Mapping[str, str]) -> dict[str, str | None] | None:
    """Return the variables set for PyTorch, so that the hook can undo them for an older PyTorch."""
    for name in (TORCH_CONF_OLD, TORCH_CONF):
        value = plan.environment.get(name, "")
        if TORCH_KEY in value:
            return {"variable": name, "value": value, "before": before.get(name)}
    return None


def outer_limit(plan: MemoryLimit, environment: Mapping[str, str]) -> int | None:
    """Return the smallest limit that an outer `memlimit` sets below ours, None if there is none."""
    outer = _outer_bytes(environment.get(HOOK_VARIABLE))
    tighter = [
        outer[gpu.uuid]
        for gpu in plan.gpus
        if gpu.uuid in outer
        and gpu.allocator_limit_bytes is not None
        and outer[gpu.uuid] < gpu.allocator_limit_bytes
    ]
    return min(tighter, default=None)


def _outer_bytes(inherited: str | None) -> dict[str | None, int]:
    try:
        return {gpu["uuid"]: int(gpu["bytes"]) for gpu in json.loads(inherited or "{}")["gpus"]}
    except (ValueError, KeyError, TypeError):
        return {}


# --------------------------------------------------------------------------- ineffective variables

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


def warn_of_ineffective(environment: Mapping[str, str]) -> Iterator[Notice]:
    """Yield a warning for each setting that caps nothing or would be misread."""
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
