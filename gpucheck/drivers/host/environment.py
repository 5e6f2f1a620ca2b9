"""Environment variables that matter to GPU programs, and facts about the operating system."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from gpucheck.drivers.host.sysfs import read_text
from gpucheck.report.host import Host

#: Variables whose values are numbers, sizes and fixed words.
SETTINGS = frozenset(
    {
        "COMPUTE_PROFILE", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
        "CUDA_MEMORY_LIMIT", "CUDA_MODULE_LOADING", "CUPY_GPU_MEMORY_LIMIT", "JAX_PLATFORMS",
        "JAX_PLATFORM_NAME", "NSIGHT_CUDA_DEBUGGER", "NUMBA_DISABLE_CUDA", "NUMBA_ENABLE_CUDASIM",
        "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "NVIDIA_REQUIRE_DRIVER",
        "OPENCL_PROFILE", "PER_PROCESS_GPU_MEMORY_FRACTION", "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "PYTORCH_NVML_BASED_CUDA_CHECK", "SLURM_GPUS", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS",
        "TF_DEVICE_MIN_SYS_MEMORY_IN_MB", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_FORCE_UNIFIED_MEMORY",
        "TF_GPU_ALLOCATOR", "TF_GPU_MEMORY_FRACTION", "TF_GPU_MEMORY_LIMIT",
        "TF_MEMORY_ALLOCATION", "TF_PER_DEVICE_MEMORY_LIMIT_MB", "XLA_CLIENT_MEM_FRACTION",
        "XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "XLA_PYTHON_CLIENT_PREALLOCATE", "per_process_gpu_memory_fraction",
    }
)  # fmt: skip
#: Others, whose values can hold paths and names. None but these two kinds are read or recorded: any
#: other variable may hold a secret.
OTHERS = frozenset(
    {
        "CUDA_AUTO_BOOST", "CUDA_CACHE_DISABLE", "CUDA_CACHE_MAXSIZE", "CUDA_CACHE_PATH",
        "CUDA_COREDUMP_FILE", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DEVICE_WAITS_ON_EXCEPTION", "CUDA_DISABLE_PTX_JIT",
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_FORCE_PTX_JIT", "CUDA_HOME",
        "CUDA_INJECTION32_PATH", "CUDA_INJECTION64_PATH", "CUDA_MANAGED_FORCE_DEVICE_ALLOC",
        "CUDA_MODULE_DATA_LOADING", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_CLIENT_PRIORITY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_MPS_PIPE_DIRECTORY", "CUDA_PATH", "CUDA_PROFILE", "CUDA_ROOT",
        "CUDA_SCALE_LAUNCH_QUEUES", "CUDA_VERSION", "CUDA_VISIBLE_DEVICES",
        "JAX_CUDA_VISIBLE_DEVICES", "KUBERNETES_SERVICE_HOST", "LD_LIBRARY_PATH", "LD_PRELOAD",
        "NVIDIA_CUDA_END_OF_LIFE", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_PRODUCT_NAME",
        "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_ID", "TF_CPP_MIN_LOG_LEVEL",
        "THEANO_FLAGS", "XLA_FLAGS",
    }
)  # fmt: skip
#: A limit for each device. Source: HAMi, which shares GPUs in Kubernetes.
_NUMBERED = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT_[0-9]{1,3}")


def gpu_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of `environment` that GPU programs and their launchers read."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in OTHERS or is_setting(name)
    }


def is_setting(name: str) -> bool:
    """Return whether a variable's values are numbers, sizes and fixed words."""
    return name in SETTINGS or _NUMBERED.fullmatch(name) is not None


def _os_name(root: Path, release: str) -> str:
    name = "Linux"
    for line in (read_text(root / "etc/os-release") or "").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            name = value.strip().strip("\"'") or name
    return f"{name} (WSL2)" if "microsoft" in release.lower() else name


def _container(root: Path, environment: Mapping[str, str]) -> str | None:
    """Return the container engine around us, None if there is no sign of one."""
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
    """Describe the operating system, leaving the driver's versions to NVML's reading."""
    kernel = os.uname()
    release = read_text(root / "proc/sys/kernel/osrelease") or kernel.release
    return Host(
        name=read_text(root / "proc/sys/kernel/hostname") or kernel.nodename,
        os=_os_name(root, release),
        kernel=release,
        python=".".join(str(part) for part in sys.version_info[:3]),
        container=_container(root, environment),
    )
