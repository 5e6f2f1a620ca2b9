"""CuPy's errors as ours, and settings that avoid the error of a cache that is not writable.

CuPy has no common base class for its errors, so they are told apart by name and text.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpucheck.drivers.cupy.install import install_cupy
from gpucheck.report.errors import GpucheckError, InconclusiveError, MissingError

#: CuPy's variables: the folder of its cache, and whether it keeps kernels only in memory.
FOLDER_VARIABLE, IN_MEMORY_VARIABLE = "CUPY_CACHE_DIR", "CUPY_CACHE_IN_MEMORY"
#: Bytes that a few kernels take.
_TRIED_BYTES = 256 * 1024

#: CUDA errors after which no call on the device can succeed in this process: names of the runtime,
#: then the driver, then cuBLAS (driver_types.h, cuda.h, cublas_api.h).
_LOST = (
    "cudaErrorContained", "cudaErrorECCUncorrectable", "cudaErrorHardwareStackError",
    "cudaErrorIllegalAddress", "cudaErrorIllegalInstruction", "cudaErrorInvalidAddressSpace",
    "cudaErrorInvalidPc", "cudaErrorLaunchFailure", "cudaErrorLaunchTimeout",
    "cudaErrorMisalignedAddress", "cudaErrorNvlinkUncorrectable", "cudaErrorUnknown",
    "CUDA_ERROR_CONTAINED", "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_UNKNOWN", "CUBLAS_STATUS_EXECUTION_FAILED",
)  # fmt: skip

#: The device has no memory left: names of the CUDA runtime, the driver (modules, graphs, launches)
#: and cuBLAS. A new cuBLAS handle needs memory, and reports only the last name without it.
_OUT_OF_MEMORY = (
    "cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
)
#: Another process uses the device exclusively, or its compute mode forbids use (driver_types.h).
_BUSY = (
    "cudaErrorDeviceAlreadyInUse",
    "cudaErrorDevicesUnavailable",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
)
#: CuPy's exceptions for code that NVRTC or nvcc could not compile.
_COMPILERS = ("CompileException", "NVRTCError", "NVCCException")
#: NVRTC's words for a missing CUDA header: a library is missing, the code is not wrong.
_NO_HEADER = ("cannot open source file", "cannot find", "file not found")

#: Code of a GPU that refuses another process.
BUSY = "gpu-busy"


def as_failure(error: Exception, doing: str) -> GpucheckError:
    """Return our error for one of CuPy's, by its class and CUDA's name for it."""
    kind, text = type(error).__name__, str(error).strip().split("\n")[0]
    if any(name in text for name in _BUSY):
        return InconclusiveError(
            code=BUSY,
            message=f"the GPU refused another process while {doing}: one uses it exclusively, "
            f"or its compute mode forbids use: {text}",
            remedy=(
                "See who uses it: gpucheck list --processes",
                "See its compute mode: nvidia-smi -q -d COMPUTE",
            ),
        )
    if isinstance(error, MemoryError) or any(name in text for name in _OUT_OF_MEMORY):
        return InconclusiveError(
            code="gpu-out-of-memory",
            message=f"the GPU does not have enough free memory for {doing}: {text}",
            remedy=(
                "Choose a smaller size (--size; size in a profile).",
                "See who uses it: gpucheck list --processes",
            ),
        )
    if any(name in text for name in _LOST):
        return InconclusiveError(
            code="gpu-lost",
            message=f"the GPU stopped answering while {doing}: {text}",
            remedy=("Run: gpucheck detect", "Look for Xid messages in the kernel log (dmesg)."),
        )
    if isinstance(error, OSError) and error.errno is not None:
        return _file_failure(error, doing)
    if kind in _COMPILERS and not any(words in str(error) for words in _NO_HEADER):
        return MissingError(
            code="kernel-not-compiled",
            message=f"a kernel did not compile for this GPU while {doing}: {_first_error(error)}",
            remedy=("Use a CUDA version that supports this GPU.", *install_cupy()),
        )
    if isinstance(error, ImportError | OSError) or kind in _COMPILERS:
        return MissingError(
            code="cuda-library-missing",
            message=f"CuPy failed while {doing}: {kind}: {text}",
            remedy=install_cupy(),
        )
    return InconclusiveError(
        code="gpu-error",
        message=f"the GPU failed while {doing}: {kind}: {text}",
        remedy=("Run: gpucheck detect",),
    )


def _file_failure(error: OSError, doing: str) -> MissingError:
    """Return the error for a refused file; a library that cannot be loaded has no errno."""
    where = f" ({error.filename})" if error.filename is not None else ""
    return MissingError(
        code="file-refused",
        message=f"CuPy could not read or write a file while {doing}: {error.strerror}{where}",
        remedy=(
            f"Set {FOLDER_VARIABLE} to a writable folder for CuPy's kernels.",
            "Check free space and quotas there and in the temporary folder: df -h",
        ),
    )


def _first_error(error: Exception) -> str:
    """Return the compiler's first complaint, which warnings may precede."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), next(iter(lines), "no reason"))


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress CuPy's advice about its installation: `detect` gives it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn CuPy's errors into ours.

    CuPy has no common base class for errors, so every error except ours counts as its own.
    """
    try:
        yield
    except GpucheckError:
        raise
    except Exception as error:
        raise as_failure(error, doing) from error


def cache_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which CuPy works without a writable cache.

    CuPy 14 creates its cache folder on import and fails if it cannot; it writes there whenever it
    has compiled a kernel. Examples of such places: containers with `HOME=/` or a user without a
    passwd entry, read-only roots, and full quotas.

    Empty if the cache is writable, or if the environment already configures it. Otherwise each
    process compiles its kernels again and keeps them in memory: CuPy then writes nothing, not even
    a temporary file. The folder only has to exist.
    """
    if FOLDER_VARIABLE in environment or _can_write(_default_folder(environment)):
        return {}
    return {IN_MEMORY_VARIABLE: "1", FOLDER_VARIABLE: "/"}


def _default_folder(environment: Mapping[str, str]) -> Path | None:
    """Return CuPy's default folder below the home, or None without a home."""
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  may find none
    return Path(home, ".cupy", "kernel_cache") if home.startswith("/") else None


def _can_write(folder: Path | None) -> bool:
    """Return whether a few kernels fit there; creates the folder, as CuPy does."""
    if folder is None:
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_TRIED_BYTES))
    except OSError:
        return False
    return True
