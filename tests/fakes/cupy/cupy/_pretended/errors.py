"""Errors of CUDA's runtime and cuBLAS, with the names and words that CuPy raises."""

from __future__ import annotations

#: cudaError_t: number and text by name (driver_types.h, cudaGetErrorString).
RUNTIME_ERRORS = {
    "cudaErrorInvalidValue": (1, "invalid argument"),
    "cudaErrorMemoryAllocation": (2, "out of memory"),
    "cudaErrorInvalidConfiguration": (9, "invalid configuration argument"),
    "cudaErrorInsufficientDriver": (
        35,
        "CUDA driver version is insufficient for CUDA runtime version",
    ),
    "cudaErrorDevicesUnavailable": (46, "CUDA-capable device(s) is/are busy or unavailable"),
    "cudaErrorNoDevice": (100, "no CUDA-capable device is detected"),
    "cudaErrorInvalidDevice": (101, "invalid device ordinal"),
    "cudaErrorECCUncorrectable": (214, "uncorrectable ECC error encountered"),
    "cudaErrorInvalidResourceHandle": (400, "invalid resource handle"),
    "cudaErrorNotReady": (600, "device not ready"),
    "cudaErrorIllegalAddress": (700, "an illegal memory access was encountered"),
    "cudaErrorPeerAccessAlreadyEnabled": (704, "peer access is already enabled"),
    "cudaErrorPeerAccessUnsupported": (
        217,
        "peer access is not supported between these two devices",
    ),
    "cudaErrorLaunchFailure": (719, "unspecified launch failure"),
    "cudaErrorSystemNotReady": (802, "system not yet initialized"),
    "cudaErrorSystemDriverMismatch": (
        803,
        "system has unsupported display driver / cuda driver combination",
    ),
    "cudaErrorStreamCaptureUnsupported": (900, "operation not permitted when stream is capturing"),
    "cudaErrorStreamCaptureInvalidated": (
        901,
        "operation failed due to a previous error during capture",
    ),
    "cudaErrorIllegalState": (401, "the operation cannot be performed in the present state"),
    "cudaErrorUnknown": (999, "unknown error"),
}
_BY_NUMBER = {number: name for name, (number, _) in RUNTIME_ERRORS.items()}


class CUDARuntimeError(RuntimeError):
    """A call of CUDA's runtime that did not succeed; `status` is its number."""

    def __init__(self, status: int) -> None:
        self.status = status
        name = _BY_NUMBER.get(status, "cudaErrorUnknown")
        super().__init__(f"{name}: {RUNTIME_ERRORS[name][1]}")


def failed(name: str) -> CUDARuntimeError:
    """Return the error of this name."""
    return CUDARuntimeError(RUNTIME_ERRORS[name][0])


class CUDADriverError(RuntimeError):
    """A call of CUDA's driver that did not succeed, a kernel's launch for instance."""

    def __init__(self, status: int, name: str, text: str) -> None:
        self.status = status
        super().__init__(f"{name}: {text}")


#: cublasStatus_t (cublas_api.h).
BLAS_ERRORS = {
    "CUBLAS_STATUS_NOT_INITIALIZED": 1,
    "CUBLAS_STATUS_ALLOC_FAILED": 3,
    "CUBLAS_STATUS_INVALID_VALUE": 7,
    "CUBLAS_STATUS_ARCH_MISMATCH": 8,
    "CUBLAS_STATUS_EXECUTION_FAILED": 13,
    "CUBLAS_STATUS_NOT_SUPPORTED": 15,
}


class CUBLASError(RuntimeError):
    """A call of cuBLAS that did not succeed."""

    def __init__(self, status: int) -> None:
        self.status = status
        names = {number: name for name, number in BLAS_ERRORS.items()}
        super().__init__(names.get(status, f"CUBLAS_STATUS_{status}"))


class CompileException(Exception):
    """NVRTC refuses a source; named as CuPy's."""

    def __init__(self, message: str, source: str, name: str, options: tuple[str, ...]) -> None:
        self._message = message
        self.source = source
        self.name = name
        self.options = options
        super().__init__(message)


class FakeIncompleteError(BaseException):
    """The program does what the pretended GPU has not learnt; this is no fault of the program.

    No `Exception`: the program must not take it for an error of CuPy's.
    """
