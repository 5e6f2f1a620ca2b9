"""ctypes binding of libcuda: loading it, calling it, and every way in which that can fail.

Only the child processes that call libcuda import it (worker.py, kernel_test_worker.py).
"""

from __future__ import annotations

import ctypes

from gpucheck.drivers.native import DriverError

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any

#: The errors that a person can act on; libcuda names the rest itself.
#: Source: cuda.h (CUresult).
REASONS = {
    2: ("out-of-memory", "the GPU is out of memory"),
    3: ("not-initialized", "the CUDA driver could not be initialised"),
    34: ("stub-library", "the libcuda.so.1 that was loaded is the stub of the CUDA toolkit"),
    35: ("insufficient-driver", "the driver is older than the CUDA version that the program needs"),
    36: ("newer-driver-needed", "this operation needs a newer driver"),
    46: ("devices-unavailable", "the GPU is busy or in a compute mode that refuses new programs"),
    100: ("no-device", "the CUDA driver sees no GPU in this environment"),
    101: ("invalid-device", "a device ordinal is out of range"),
    102: ("not-licensed", "this virtual GPU has no licence"),
    200: ("invalid-image", "the driver cannot load the kernel's code"),
    209: ("no-kernel-image", "the kernel's code does not fit this GPU's architecture"),
    214: ("ecc-uncorrectable", "the GPU had an uncorrectable memory error"),
    218: ("invalid-ptx", "the driver cannot compile the kernel"),
    220: ("nvlink-uncorrectable", "an NVLink had an uncorrectable error"),
    221: ("jit-compiler-missing", "the driver's compiler libnvidia-ptxjitcompiler.so is missing"),
    222: ("ptx-too-new", "the kernel's code is newer than the driver"),
    303: ("library-broken", "a library that the CUDA driver needs could not be initialised"),
    304: ("operating-system", "an operating system call of the CUDA driver failed"),
    700: ("illegal-address", "the kernel accessed memory outside its own"),
    702: ("launch-timeout", "the kernel ran for longer than the display driver allows"),
    719: ("launch-failed", "the kernel failed on the GPU"),
    800: ("not-permitted", "the operation is not permitted to this user"),
    802: ("system-not-ready", "the system is not ready: the fabric manager may not be running"),
    803: ("driver-mismatch", "libcuda and the loaded kernel module differ in version"),
    804: ("compat-not-supported", "a forward-compatibility libcuda is used on a GPU without it"),
    805: ("mps-connection-failed", "the MPS daemon could not be reached"),
    806: ("mps-rpc-failure", "the MPS server did not answer the program's call"),
    807: ("mps-not-ready", "the MPS server is not ready for new clients"),
    808: ("mps-too-many-clients", "the MPS server cannot take any more clients"),
    809: ("mps-no-connections", "the GPU has no connections left for another MPS client"),
    810: ("mps-client-terminated", "the MPS server ended this program's connection"),
    999: ("unknown", "the CUDA driver reported an unknown error"),
}


class CudaError(DriverError):
    """An error of libcuda, or the reason why it could not be called."""


class Binding:
    """libcuda.so.1, with every error raised as `CudaError`."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            function, slug = "dlopen", "library-not-found"
            text = f"libcuda.so.1 could not be loaded: {error}"
            raise CudaError(function, None, slug, text) from None

    def ask(self, function: str, *arguments: Any) -> None:
        """Call one function; raise `CudaError` if it is missing or does not return CUDA_SUCCESS."""
        call = getattr(self._library, function, None)
        if call is None:
            text = f"this libcuda has no {function}"
            raise CudaError(function, None, "function-not-found", text)
        code = int(call(*arguments))
        if code:
            slug, text = REASONS.get(code, ("error", "the CUDA driver reported an error"))
            raise CudaError(function, code, slug, f"{text} ({self._name(code)}CUDA {code})")

    def _name(self, code: int) -> str:
        """Return libcuda's own name of an error and a comma, or nothing if it has none."""
        name = ctypes.c_char_p()
        try:
            self._library.cuGetErrorName(code, ctypes.byref(name))
        except AttributeError:
            return ""
        return name.value.decode("ascii", "replace") + ", " if name.value else ""

    def integer(self, function: str, *arguments: Any) -> int:
        """Return the int that a function writes through its first argument."""
        value = ctypes.c_int()
        self.ask(function, ctypes.byref(value), *arguments)
        return value.value

    def release(self, function: str, *arguments: Any) -> None:
        """Call a function that releases something, ignoring its failure."""
        call = getattr(self._library, function, None)
        if call is not None:
            call(*arguments)
