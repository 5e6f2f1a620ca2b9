"""CUDA in this very process, which other code may have started."""

from __future__ import annotations

import os

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
