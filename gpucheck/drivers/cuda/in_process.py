"""CUDA in this very process, which other code may have started, and the limits of CuPy's pools."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

#: The driver's status for success.
SUCCESS = 0


def is_cuda_started() -> bool:
    """Return whether something in this process has initialised CUDA.

    From then on CUDA_VISIBLE_DEVICES is not read again. A call that needs the initialisation tells;
    it makes none, and a libcuda that is not loaded yet is not loaded for this.
    Source: cuInit and cuDeviceGetCount in the CUDA Driver API.
    """
    import ctypes

    try:
        libcuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return bool(libcuda.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == SUCCESS)


def active_devices() -> list[int]:
    """Return the ordinals on which this process has a CUDA context, from the driver.

    Source: cuDevicePrimaryCtxGetState, which creates no context. Empty if CUDA was not started.
    """
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")
        ask = driver.cuDevicePrimaryCtxGetState
        count = ctypes.c_int()
        if driver.cuDeviceGetCount(ctypes.byref(count)) != SUCCESS:
            return []
    except (OSError, AttributeError):
        return []
    ordinals = []
    for ordinal in range(count.value):
        device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        driver.cuDeviceGet(ctypes.byref(device), ordinal)
        code = ask(device, ctypes.byref(flags), ctypes.byref(active))
        if code == SUCCESS and active.value:
            ordinals.append(ordinal)
    return ordinals


def limit_pools(cupy: Any, size_of: Callable[[int], int], devices: list[int]) -> dict[int, int]:
    """Set the limit on these devices, in bytes; return each former limit (0: none)."""
    before = {}
    pool = cupy.get_default_memory_pool()
    for ordinal in devices:
        with cupy.cuda.Device(ordinal):
            before[ordinal] = int(pool.get_limit())
            size = size_of(ordinal)
            if not 0 < before[ordinal] <= size:
                pool.set_limit(size=size)
    return before


def restore_pools(cupy: Any, before: dict[int, int]) -> None:
    """Restore the former limits."""
    pool = cupy.get_default_memory_pool()
    for ordinal, size in before.items():
        with cupy.cuda.Device(ordinal):
            pool.set_limit(size=size)
