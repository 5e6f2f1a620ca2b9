"""The one door to CuPy: GPU arrays, matrix product, own kernels, event times, pinned transfers.

CuPy is imported only when a GPU is opened. Its errors become ours, and none of its types pass:
callers hold arrays that they can only hand back to this door.
"""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from gpucheck.models.bench import BenchGpu
from gpucheck.models.errors import GpucheckError, InconclusiveError, MissingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: The hold kernel starts at this length and grows to the second one; see `CupyDevice.span`.
_FIRST_HOLD_S, _LONGEST_HOLD_S = 50e-6, 50e-3

_HOLD_SOURCE = r"""
extern "C" __global__ void hold(unsigned long long nanoseconds)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
"""

#: CUDA errors after which no call on the device can succeed in this process.
_LOST = (
    "cudaErrorECCUncorrectable",
    "cudaErrorDevicesUnavailable",
    "cudaErrorHardwareStackError",
    "cudaErrorIllegalAddress",
    "cudaErrorLaunchFailure",
    "cudaErrorLaunchTimeout",
    "cudaErrorNvlinkUncorrectable",
    "cudaErrorUnknown",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_UNKNOWN",
)


class GpuArray(Protocol):
    """An array in GPU memory, opaque but for its size."""

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        ...


#: A compiled kernel: call it with the grid, the block and the arguments (arrays, NumPy scalars).
GpuFunction = Callable[[int, int, tuple[object, ...]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Device time between two events; `starved` if the GPU may have waited for the host in it."""

    seconds: float
    starved: bool


class GpuDevice(Protocol):
    """One GPU as the kernels use it. Every method raises GpucheckError for what CUDA refuses."""

    @property
    def facts(self) -> BenchGpu:
        """Return what the card is; the free memory is as of the opening."""
        ...

    @property
    def cupy_version(self) -> str:
        """Return the version of the library behind this door."""
        ...

    def allocate(self, shape: tuple[int, ...]) -> GpuArray:
        """Allocate a float32 array without initialising it."""
        ...

    def upload(self, host: HostArray) -> GpuArray:
        """Copy a host array into new GPU memory."""
        ...

    def clone(self, array: GpuArray) -> GpuArray:
        """Copy a GPU array into new GPU memory."""
        ...

    def download(self, array: GpuArray) -> HostArray:
        """Copy a GPU array to the host and wait for it."""
        ...

    def poison(self, array: GpuArray) -> None:
        """Fill an array with NaN."""
        ...

    def matmul(self, left: GpuArray, right: GpuArray, out: GpuArray) -> None:
        """Enqueue out = left @ right."""
        ...

    def compile(self, source: str, name: str) -> GpuFunction:
        """Compile CUDA C++ and return its `extern "C"` kernel `name`; calls enqueue a launch."""
        ...

    def span(self, enqueue: Callable[[], None]) -> Span:
        """Run what `enqueue` enqueues, wait for it, and return its device time by CUDA events."""
        ...

    def pinned(self, shape: tuple[int, ...]) -> HostArray:
        """Allocate a page-locked float32 host array."""
        ...

    def send(self, host: HostArray, array: GpuArray) -> None:
        """Enqueue the copy of a pinned host array into a GPU array."""
        ...

    def fetch(self, array: GpuArray, host: HostArray) -> None:
        """Enqueue the copy of a GPU array into a pinned host array."""
        ...

    def synchronize(self) -> None:
        """Wait until everything enqueued has run."""
        ...

    def release(self) -> None:
        """Give unused memory back to the driver."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedGpus:
    """The GPUs that can be measured, or why there is none."""

    devices: Sequence[GpuDevice] = ()
    unavailable: str | None = None
    cupy_version: str | None = None


def _failure(error: Exception, doing: str) -> GpucheckError:
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
            remedy=("install the extra that fits the driver: gpucheck-cli[cuda12] or [cuda13]",),
        )
    return InconclusiveError(
        code="gpu-error",
        message=f"the GPU refused {doing}: {kind}: {text}",
        remedy=("run gpucheck detect",),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep CuPy's advice about its installation off the terminal: that is detect's work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Turn CuPy's errors into ours.

    CuPy has no common base class for them, so everything but our own errors is its failure here.
    """
    try:
        yield
    except GpucheckError:
        raise
    except Exception as error:
        raise _failure(error, doing) from error


class CupyDevice:
    """One GPU through CuPy, on a stream of its own."""

    def __init__(self, cuda_index: int, known_uuid: str | None = None) -> None:
        with _translated("opening the GPU"), _quiet():
            self._cupy: Any = import_module("cupy")
            self._cupyx: Any = import_module("cupyx")
            self._device: Any = self._cupy.cuda.Device(cuda_index)
            with self._device:
                self._stream: Any = self._cupy.cuda.Stream(non_blocking=True)
                self._begin: Any = self._cupy.cuda.Event()
                self._end: Any = self._cupy.cuda.Event()
                self._facts = self._read_facts(cuda_index, known_uuid)
        self._hold: GpuFunction | None = None
        self._hold_s = _FIRST_HOLD_S

    @property
    def facts(self) -> BenchGpu:
        """Return what the card is; the free memory is as of the opening."""
        return self._facts

    @property
    def cupy_version(self) -> str:
        """Return CuPy's version."""
        return str(self._cupy.__version__)

    def allocate(self, shape: tuple[int, ...]) -> GpuArray:
        """Allocate a float32 array without initialising it."""
        with self._here("allocating an array"):
            array: GpuArray = self._cupy.empty(shape, dtype="float32")
            return array

    def upload(self, host: HostArray) -> GpuArray:
        """Copy a host array into new GPU memory and wait for it."""
        with self._here("copying an array to the GPU"):
            array: Any = self._cupy.empty(host.shape, dtype=host.dtype)
            array.set(host, stream=self._stream)
            self._stream.synchronize()
            uploaded: GpuArray = array
            return uploaded

    def clone(self, array: GpuArray) -> GpuArray:
        """Copy a GPU array into new GPU memory."""
        with self._here("copying an array on the GPU"):
            copied: GpuArray = self._cupy.array(array, copy=True)
            return copied

    def download(self, array: GpuArray) -> HostArray:
        """Copy a GPU array to the host and wait for it."""
        with self._here("copying an array from the GPU"):
            host: HostArray = self._cupy.asnumpy(array, stream=self._stream)
            self._stream.synchronize()
            return host

    def poison(self, array: GpuArray) -> None:
        """Fill an array with NaN."""
        with self._here("filling an array"):
            opened: Any = array
            opened.fill(float("nan"))

    def matmul(self, left: GpuArray, right: GpuArray, out: GpuArray) -> None:
        """Enqueue out = left @ right by cuBLAS (sgemm, or TF32 if CUPY_TF32 asks for it)."""
        with self._here("the matrix product"):
            self._cupy.matmul(left, right, out=out)

    def compile(self, source: str, name: str) -> GpuFunction:
        """Compile with NVRTC for this GPU and return the kernel `name`."""
        with self._here("compiling a kernel"), _quiet():
            kernel: Any = self._cupy.RawKernel(source, name, options=("--std=c++17",))
            kernel.compile()

        def launch(grid: int, block: int, args: tuple[object, ...]) -> None:
            with self._here("launching a kernel"):
                kernel((grid,), (block,), args)

        return launch

    def span(self, enqueue: Callable[[], None]) -> Span:
        """Run what `enqueue` enqueues, wait for it, and return its device time by CUDA events.

        A kernel that only waits is put in front, so that the work is queued up before the first
        event fires; otherwise the time would hold the host's launches (starvation). If the first
        event has fired by the end of the enqueuing, the wait was too short: it is made longer and
        the work is run again, up to a longest wait.
        """
        while True:
            span = self._one_span(enqueue)
            if not span.starved or self._hold_s >= _LONGEST_HOLD_S:
                return span
            self._hold_s = min(self._hold_s * 4, _LONGEST_HOLD_S)

    def _one_span(self, enqueue: Callable[[], None]) -> Span:
        import numpy as np

        if self._hold is None:
            self._hold = self.compile(_HOLD_SOURCE, "hold")
        with self._here("running a kernel"):
            self._hold(1, 1, (np.uint64(self._hold_s * 1e9),))
            self._begin.record(self._stream)
            enqueue()
            self._end.record(self._stream)
            starved = bool(self._begin.done)
            self._end.synchronize()
            elapsed_ms = self._cupy.cuda.get_elapsed_time(self._begin, self._end)
            return Span(seconds=elapsed_ms / 1e3, starved=starved)

    def pinned(self, shape: tuple[int, ...]) -> HostArray:
        """Allocate a page-locked float32 host array."""
        with self._here("allocating page-locked memory"):
            array: HostArray = self._cupyx.empty_pinned(shape, dtype="float32")
            return array

    def send(self, host: HostArray, array: GpuArray) -> None:
        """Enqueue the copy of a pinned host array into a GPU array."""
        with self._here("copying an array to the GPU"):
            opened: Any = array
            opened.set(host, stream=self._stream)

    def fetch(self, array: GpuArray, host: HostArray) -> None:
        """Enqueue the copy of a GPU array into a pinned host array."""
        with self._here("copying an array from the GPU"):
            opened: Any = array
            opened.get(stream=self._stream, out=host, blocking=False)

    def synchronize(self) -> None:
        """Wait until everything enqueued has run."""
        with self._here("waiting for the GPU"):
            self._stream.synchronize()

    def release(self) -> None:
        """Give unused memory back to the driver."""
        with self._here("releasing memory"):
            self._stream.synchronize()
            self._cupy.get_default_memory_pool().free_all_blocks()
            self._cupy.get_default_pinned_memory_pool().free_all_blocks()

    @contextmanager
    def _here(self, doing: str) -> Iterator[None]:
        """Make this device and its stream current."""
        with _translated(doing), self._device, self._stream:
            yield

    def _read_facts(self, cuda_index: int, known_uuid: str | None) -> BenchGpu:
        properties: Mapping[str, Any] = self._cupy.cuda.runtime.getDeviceProperties(cuda_index)
        free_bytes, total_bytes = self._cupy.cuda.runtime.memGetInfo()
        major = int(properties["major"])
        return BenchGpu(
            cuda_index=cuda_index,
            uuid=known_uuid or _uuid_text(properties.get("uuid")),
            name=_text(properties["name"]),
            compute_capability=f"{major}.{int(properties['minor'])}",
            sm_count=int(properties["multiProcessorCount"]),
            l2_bytes=int(properties["l2CacheSize"]),
            memory_total_bytes=int(total_bytes),
            memory_free_bytes=int(free_bytes),
            float32_math="tf32" if major >= 8 and _tf32_asked(os.environ) else "fp32",
        )


def _text(name: bytes | str) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def _uuid_text(raw: object) -> str | None:
    """Return `GPU-…` for CUDA's sixteen bytes, None if they were cut at a zero byte."""
    if not isinstance(raw, bytes) or len(raw) != 16:
        return None
    return f"GPU-{uuid.UUID(bytes=raw)}"


def _tf32_asked(environment: Mapping[str, str]) -> bool:
    """Return whether CuPy's float32 products run in TF32 (CUPY_TF32; the override 0 forbids it)."""
    if environment.get("NVIDIA_TF32_OVERRIDE") == "0":
        return False
    return environment.get("CUPY_TF32", "0") not in ("", "0")


def _load_cupy() -> Any:
    try:
        with _quiet():
            return import_module("cupy")
    except ModuleNotFoundError as error:
        raise MissingError(
            code="cupy-missing",
            message="CuPy is not installed, so no GPU can be measured",
            remedy=("install the extra that fits the driver: gpucheck-cli[cuda12] or [cuda13]",),
        ) from error
    except Exception as error:
        raise _failure(error, "loading CuPy") from error


def _count_gpus(cupy: Any) -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:
        text = str(error)
        if "NoDevice" in text:
            return 0
        if "InsufficientDriver" in text:
            raise MissingError(
                code="no-driver",
                message="there is no NVIDIA driver, or it is too old for the CUDA that CuPy brings",
                remedy=("run gpucheck detect",),
            ) from error
        raise _failure(error, "counting the GPUs") from error


def _existing(asked: Sequence[int] | None, count: int) -> Sequence[int]:
    """Return the CUDA indices to open."""
    if count == 0:
        raise MissingError(
            code="no-gpu",
            message="CUDA sees no GPU",
            remedy=("run gpucheck detect",),
        )
    for index in asked or ():
        if index >= count:
            raise MissingError(
                code="no-such-gpu",
                message=f"there is no gpu:{index}: a CUDA program started now sees {count}",
                remedy=("see the numbers with gpucheck list",),
            )
    return range(count) if asked is None else asked


def open_gpus(
    asked: Sequence[int] | None = None, *, uuids: Mapping[int, str] | None = None
) -> OpenedGpus:
    """Open the GPUs with these CUDA indices, all of them for None.

    `uuids` gives the driver's UUIDs by CUDA index, where the caller knows them: CUDA's runtime
    hands them out cut at a zero byte. Never raises: the reason stands in the result.
    """
    version = None
    known = uuids or {}
    try:
        cupy = _load_cupy()
        version = str(cupy.__version__)
        indices = _existing(asked, _count_gpus(cupy))
        devices = [CupyDevice(index, known.get(index)) for index in indices]
    except GpucheckError as error:
        return OpenedGpus(unavailable=error.message, cupy_version=version)
    return OpenedGpus(devices=devices, cupy_version=version)
