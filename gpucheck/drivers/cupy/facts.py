"""Facts about a GPU from CUDA's properties, as CuPy returns them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

from gpucheck.drivers.gpu import BenchGpu


def read_facts(cupy: Any, cuda_index: int, known_uuid: str | None) -> BenchGpu:
    """Return CUDA's facts about a GPU, which must be the current one."""
    properties: Mapping[str, Any] = cupy.cuda.runtime.getDeviceProperties(cuda_index)
    free_bytes, total_bytes = cupy.cuda.runtime.memGetInfo()
    major, name = int(properties["major"]), _text(properties["name"])
    return BenchGpu(
        cuda_index=cuda_index,
        uuid=known_uuid or _uuid_of(cuda_index, name, properties.get("uuid")),
        name=name,
        compute_capability=f"{major}.{int(properties['minor'])}",
        sm_count=int(properties["multiProcessorCount"]),
        l2_bytes=int(properties["l2CacheSize"]),
        memory_total_bytes=int(total_bytes),
        memory_free_bytes=int(free_bytes),
        float32_math="tf32" if major >= 8 and _tf32_asked(os.environ) else "fp32",
        clock_sm_max_mhz=_megahertz(properties.get("clockRate")),
        clock_memory_max_mhz=_megahertz(properties.get("memoryClockRate")),
        memory_bus_bits=int(properties.get("memoryBusWidth", 0)) or None,
        integrated=bool(properties["integrated"]) if "integrated" in properties else None,
    )


def _megahertz(kilohertz: object) -> float | None:
    """Return a clock from CUDA's properties; newer drivers leave some at zero."""
    return kilohertz / 1e3 if isinstance(kilohertz, int) and kilohertz > 0 else None


def _text(name: bytes | str) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def _uuid_of(cuda_index: int, name: str, raw: object) -> str | None:
    """Return a device's UUID as NVML writes it; `raw` is CUDA's, cut at a zero byte.

    CUDA appends a MIG instance's profile to the name of its GPU.
    """
    whole = _driver_uuid(cuda_index) or raw
    if not isinstance(whole, bytes) or len(whole) != 16:
        return None
    return f"{'MIG' if ' MIG ' in name else 'GPU'}-{uuid.UUID(bytes=whole)}"


def _driver_uuid(cuda_index: int) -> bytes | None:
    """Return all sixteen bytes (cuDeviceGetUuid_v2, CUDA 11.4 and later), or None.

    The first version returns the UUID of a MIG instance's GPU.
    """
    import ctypes

    device, found = ctypes.c_int(), (ctypes.c_char * 16)()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        refused = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), cuda_index)
        refused = refused or driver.cuDeviceGetUuid_v2(ctypes.byref(found), device)
    except (OSError, AttributeError):
        return None
    return None if refused else found.raw


def _tf32_asked(environment: Mapping[str, str]) -> bool:
    """Return whether CuPy's float32 products run in TF32 (CUPY_TF32; the override 0 forbids it)."""
    if environment.get("NVIDIA_TF32_OVERRIDE") == "0":
        return False
    return environment.get("CUPY_TF32", "0") not in ("", "0")
