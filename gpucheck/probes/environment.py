"""Environment variables that matter to GPU programs, and the operating system's own name."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gpucheck.models.report import Host
from gpucheck.probes.sysfs import read_text

#: Only these are read or recorded: the rest of an environment may hold secrets.
PREFIXES = ("CUDA_", "NVIDIA_", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS", "XLA_")
NAMES = frozenset(
    {
        "COMPUTE_PROFILE",
        "CUPY_GPU_MEMORY_LIMIT",
        "JAX_CUDA_VISIBLE_DEVICES",
        "JAX_PLATFORMS",
        "KUBERNETES_SERVICE_HOST",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "NSIGHT_CUDA_DEBUGGER",
        "NUMBA_DISABLE_CUDA",
        "NUMBA_ENABLE_CUDASIM",
        "OPENCL_PROFILE",
        "PER_PROCESS_GPU_MEMORY_FRACTION",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        "SLURM_JOB_ID",
        "TF_CPP_MIN_LOG_LEVEL",
        "TF_DEVICE_MIN_SYS_MEMORY_IN_MB",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "TF_FORCE_UNIFIED_MEMORY",
        "TF_GPU_ALLOCATOR",
        "TF_GPU_MEMORY_FRACTION",
        "TF_GPU_MEMORY_LIMIT",
        "TF_MEMORY_ALLOCATION",
        "TF_PER_DEVICE_MEMORY_LIMIT_MB",
        "THEANO_FLAGS",
        "per_process_gpu_memory_fraction",
    }
)
#: Parts of names whose values are nobody's business, NVIDIA_API_KEY for one.
SECRETS = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH")


def gpu_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environment` that GPU programs and their launchers read."""
    return {name: value for name, value in sorted(environment.items()) if _is_ours(name)}


def _is_ours(name: str) -> bool:
    known = name in NAMES or name.startswith(PREFIXES)
    return known and not any(word in name for word in SECRETS)


def _os_name(root: Path, release: str) -> str:
    name = "Linux"
    for line in (read_text(root / "etc/os-release") or "").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            name = value.strip().strip("\"'") or name
    return f"{name} (WSL2)" if "microsoft" in release.lower() else name


def _container(root: Path, environment: Mapping[str, str]) -> str | None:
    """Name the container engine around us; None means that no sign of one was found."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    for marker, engine in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if (root / marker).exists():
            return engine
    groups = read_text(root / "proc/1/cgroup") or ""
    for word in ("kubepods", "docker", "lxc", "containerd"):
        if word in groups:
            return word
    return None


def read_host(root: Path, environment: Mapping[str, str]) -> Host:
    """Describe the operating system; the driver's versions are filled in by who asks NVML."""
    kernel = os.uname()
    release = read_text(root / "proc/sys/kernel/osrelease") or kernel.release
    return Host(
        name=read_text(root / "proc/sys/kernel/hostname") or kernel.nodename,
        os=_os_name(root, release),
        kernel=release,
        python=".".join(str(part) for part in sys.version_info[:3]),
        container=_container(root, environment),
    )
