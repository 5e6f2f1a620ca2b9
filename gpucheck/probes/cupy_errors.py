"""CuPy's errors as ours: it has no common base class for them, so they go by name and text."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from gpucheck.models.errors import GpucheckError, InconclusiveError, MissingError

INSTALL_CUPY = (
    "In the checkout: pip install '.[cuda12]', or '.[cuda13]' with a driver from 580 on"
    " (gpucheck list names yours)."
)

#: CUDA errors after which no call on the device can succeed in this process.
#: The runtime's names, then the driver's, then cuBLAS' (driver_types.h, cuda.h, cublas_api.h).
_LOST = (
    "cudaErrorDevicesUnavailable",
    "cudaErrorECCUncorrectable",
    "cudaErrorHardwareStackError",
    "cudaErrorIllegalAddress",
    "cudaErrorIllegalInstruction",
    "cudaErrorInvalidAddressSpace",
    "cudaErrorInvalidPc",
    "cudaErrorLaunchFailure",
    "cudaErrorLaunchTimeout",
    "cudaErrorMisalignedAddress",
    "cudaErrorNvlinkUncorrectable",
    "cudaErrorUnknown",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_UNKNOWN",
    "CUBLAS_STATUS_EXECUTION_FAILED",
)


def as_failure(error: Exception, doing: str) -> GpucheckError:
    """Return our error for one of CuPy's, by its class and CUDA's own name for it."""
    kind, text = type(error).__name__, str(error).strip().split("\n")[0]
    if isinstance(error, MemoryError) or "emoryAllocation" in text or "ALLOC_FAILED" in text:
        return InconclusiveError(
            code="gpu-out-of-memory",
            message=f"the GPU has not enough free memory for {doing}: {text}",
            remedy=("choose a smaller --size", "see who uses it: gpucheck list --processes"),
        )
    if any(name in text for name in _LOST):
        return InconclusiveError(
            code="gpu-lost",
            message=f"the GPU stopped answering while {doing}: {text}",
            remedy=("run gpucheck detect", "look for Xid messages in the kernel log (dmesg)"),
        )
    if isinstance(error, ImportError | OSError) or kind in ("CompileException", "NVRTCError"):
        return MissingError(
            code="cuda-library-missing",
            message=f"CuPy could not do its part of {doing}: {kind}: {text}",
            remedy=(INSTALL_CUPY,),
        )
    return InconclusiveError(
        code="gpu-error",
        message=f"the GPU failed at {doing}: {kind}: {text}",
        remedy=("run gpucheck detect",),
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep CuPy's advice about its installation off the terminal: that is detect's work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn CuPy's errors into ours.

    CuPy has no common base class for them, so everything but our own errors is its failure here.
    """
    try:
        yield
    except GpucheckError:
        raise
    except Exception as error:
        raise as_failure(error, doing) from error
