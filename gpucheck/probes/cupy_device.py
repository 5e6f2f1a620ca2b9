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
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from gpucheck.models.bench import BenchGpu
from gpucheck.models.errors import GpucheckError, InconclusiveError, MissingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: The hold kernel starts at this length and grows to the second one; see `CupyDevice.span`.
_FIRST_HOLD_S, _LONGEST_HOLD_S = 50e-6, 50e-3

_EMPTY_SOURCE = 'extern "C" __global__ void empty() {}'
#: bfloat16's NaN.
_NAN_BITS = 0x7FC0
_SOURCE = Path(__file__).with_name("timing.cu")

#: cuBLAS: the transposition flags, and its default choice of algorithm (cublas_api.h).
_NORMAL, _TRANSPOSED, _DEFAULT_ALGORITHM = 0, 1, -1
#: By arithmetic: the types of the factors and the product (library_types.h), cuBLAS' compute type
#: (cublas_api.h), and NumPy's type for its scalars.
_GEMM_TYPES = {
    "fp64": (1, 1, 70, "float64"),
    "fp32": (0, 0, 68, "float32"),
    "tf32": (0, 0, 77, "float32"),
    "fp16": (2, 2, 68, "float32"),
    "bf16": (14, 14, 68, "float32"),
    "int8": (3, 10, 72, "int32"),
}

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
    """Device time between two events; `starved` if the GPU may have waited for the host in it.

    `sm_clock_mhz` is the clock that the SMs really had meanwhile, None if it could not be read.
    """

    seconds: float
    starved: bool
    sm_clock_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """How cuBLAS multiplies: the arithmetic, which factor is stored transposed, and the scaling.

    out = alpha (left right) + beta out; `math_mode` is one of fp64, fp32, tf32, fp16, bf16, int8.
    """

    math_mode: str = "fp32"
    left_transposed: bool = False
    right_transposed: bool = False
    alpha: float = 1.0
    beta: float = 0.0


_NOTHING: Mapping[str, int] = MappingProxyType({})
#: The product without scaling or transposition, in float32.
_PLAIN = Product()


class GpuDevice(Protocol):
    """One GPU as the kernels use it. Every method raises GpucheckError for what CUDA refuses.

    Arrays are C-contiguous; `storage` is NumPy's name of their type.
    """

    @property
    def facts(self) -> BenchGpu:
        """Return what the card is; the free memory is as of the opening."""
        ...

    @property
    def cupy_version(self) -> str:
        """Return the version of the library behind this door."""
        ...

    def allocate(self, shape: tuple[int, ...], storage: str = "float32") -> GpuArray:
        """Allocate an array without initialising it."""
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

    def rows(self, array: GpuArray, low: int, high: int) -> GpuArray:
        """Return rows of an array, in the same memory."""
        ...

    def poison(self, array: GpuArray) -> None:
        """Fill an array with NaN, or with the smallest number where its type has no NaN."""
        ...

    def copy(self, source: GpuArray, out: GpuArray) -> None:
        """Enqueue the driver's own copy within GPU memory."""
        ...

    def multiply(
        self, left: GpuArray, right: GpuArray, out: GpuArray, product: Product = _PLAIN
    ) -> None:
        """Enqueue a matrix product by cuBLAS."""
        ...

    def softmax(self, source: GpuArray, out: GpuArray, temperature: float) -> None:
        """Enqueue a row softmax as one writes it with the library's array operations."""
        ...

    def compile(self, source: str, name: str, defines: Mapping[str, int] = _NOTHING) -> GpuFunction:
        """Compile CUDA C++ and return its `extern "C"` kernel `name`; calls enqueue a launch."""
        ...

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Record what `enqueue` enqueues as a graph and return what launches it; nothing runs."""
        ...

    def launch_empty(self, count: int, *, waiting: bool = False) -> None:
        """Enqueue `count` launches of a kernel that does nothing, waiting for each if asked to."""
        ...

    def span(self, enqueue: Callable[[], None]) -> Span:
        """Run what `enqueue` enqueues, wait for it, and return its device time by CUDA events."""
        ...

    def pinned(self, shape: tuple[int, ...], storage: str = "float32") -> HostArray:
        """Allocate a page-locked host array."""
        ...

    def send(self, host: HostArray, array: GpuArray) -> None:
        """Enqueue the copy of a host array into a GPU array."""
        ...

    def fetch(self, array: GpuArray, host: HostArray) -> None:
        """Enqueue the copy of a GPU array into a host array."""
        ...

    def exchange(
        self, sent: HostArray, target: GpuArray, source: GpuArray, fetched: HostArray
    ) -> None:
        """Enqueue a copy to the GPU and one from it, at the same time."""
        ...

    def copy_from(self, peer: GpuDevice, source: GpuArray, out: GpuArray) -> None:
        """Enqueue the copy of another GPU's array into one of this GPU."""
        ...

    def reaches(self, peer: GpuDevice) -> bool:
        """Return whether this GPU reads the other's memory directly, and let it do so."""
        ...

    def memory_used_bytes(self) -> int:
        """Return the GPU memory that arrays of this process take."""
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
        self._timing_parts: tuple[GpuFunction, GpuFunction, GpuArray] | None = None
        self._hold_s = _FIRST_HOLD_S
        self._side: Any = None
        self._empty: Any = None

    @property
    def facts(self) -> BenchGpu:
        """Return what the card is; the free memory is as of the opening."""
        return self._facts

    @property
    def cupy_version(self) -> str:
        """Return CuPy's version."""
        return str(self._cupy.__version__)

    def allocate(self, shape: tuple[int, ...], storage: str = "float32") -> GpuArray:
        """Allocate an array without initialising it."""
        with self._here("allocating an array"):
            array: GpuArray = self._cupy.empty(shape, dtype=storage)
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

    def rows(self, array: GpuArray, low: int, high: int) -> GpuArray:
        """Return rows of an array, in the same memory."""
        opened: Any = array
        view: GpuArray = opened[low:high]
        return view

    def poison(self, array: GpuArray) -> None:
        """Fill an array with NaN, or with a conspicuous number where its type has no NaN."""
        import numpy as np

        with self._here("filling an array"):
            opened: Any = array
            if opened.dtype.kind == "f":
                opened.fill(float("nan"))
            else:  # 16-bit integers hold bfloat16, whose NaN this is
                opened.fill(_NAN_BITS if opened.dtype == np.uint16 else np.iinfo(opened.dtype).min)

    def copy(self, source: GpuArray, out: GpuArray) -> None:
        """Enqueue cudaMemcpyAsync within the GPU's memory."""
        with self._here("copying an array on the GPU"):
            one, other, runtime = _opened(source), _opened(out), self._cupy.cuda.runtime
            kind, stream = runtime.memcpyDeviceToDevice, self._stream.ptr
            runtime.memcpyAsync(other.data.ptr, one.data.ptr, one.nbytes, kind, stream)

    def multiply(
        self, left: GpuArray, right: GpuArray, out: GpuArray, product: Product = _PLAIN
    ) -> None:
        """Enqueue a matrix product by cublasGemmEx, in exactly the arithmetic that is asked for.

        cuBLAS thinks in columns: it is given the transposed problem, out' = right' left'.
        """
        import numpy as np

        one, other, into = _opened(left), _opened(right), _opened(out)
        factor, result, compute, scalar = _GEMM_TYPES[product.math_mode]
        scales = np.array([product.alpha, product.beta], dtype=scalar)
        (m, n), k = into.shape, one.shape[0 if product.left_transposed else 1]
        flags = (
            _TRANSPOSED if product.right_transposed else _NORMAL,
            _TRANSPOSED if product.left_transposed else _NORMAL,
        )
        with self._here("the matrix product"):
            self._cublas().gemmEx(
                *(self._cupy.cuda.device.get_cublas_handle(), *flags, n, m, k),
                *(scales.ctypes.data, other.data.ptr, factor, other.shape[1]),
                *(one.data.ptr, factor, one.shape[1]),
                *(scales.ctypes.data + scales.itemsize, into.data.ptr, result, n),
                *(compute, _DEFAULT_ALGORITHM),
            )

    def _cublas(self) -> Any:
        """Return CuPy's binding of cuBLAS, which loads the library at its import."""
        return import_module("cupy_backends.cuda.libs.cublas")

    def softmax(self, source: GpuArray, out: GpuArray, temperature: float) -> None:
        """Enqueue a row softmax in CuPy's array operations: five kernels and their temporaries."""
        import numpy as np

        with self._here("the library's softmax"):
            scaled: Any = _opened(source) / np.float32(temperature)
            raised: Any = self._cupy.exp(scaled - scaled.max(axis=1, keepdims=True))
            total: Any = raised.sum(axis=1, keepdims=True)
            self._cupy.divide(raised, total, out=_opened(out))

    def compile(self, source: str, name: str, defines: Mapping[str, int] = _NOTHING) -> GpuFunction:
        """Compile with NVRTC for this GPU and return the kernel `name`."""
        options = ("--std=c++17", *(f"-D{key}={value}" for key, value in defines.items()))
        with self._here("compiling a kernel"), _quiet():
            kernel: Any = self._cupy.RawKernel(source, name, options=options)
            kernel.compile()

        def launch(grid: int, block: int, args: tuple[object, ...]) -> None:
            with self._here("launching a kernel"):
                kernel((grid,), (block,), args)

        return launch

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Record what `enqueue` enqueues as a CUDA graph and return what launches it."""
        with self._here("capturing a graph"):
            self._stream.begin_capture()
            try:
                enqueue()
            finally:
                # Also after a failure: the stream takes nothing else while it captures.
                graph: Any = self._stream.end_capture()

        def launch() -> None:
            with self._here("launching a graph"):
                graph.launch(self._stream)

        return launch

    def launch_empty(self, count: int, *, waiting: bool = False) -> None:
        """Enqueue `count` launches of a kernel that does nothing, with nothing of ours between."""
        with self._here("launching an empty kernel"):
            if self._empty is None:
                self._empty = self._cupy.RawKernel(_EMPTY_SOURCE, "empty")
            kernel, one = self._empty, (1,)
            for _ in range(count):
                kernel(one, one, ())
                if waiting:
                    self._stream.synchronize()

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

        hold, tick, ticks = self._timing()
        with self._here("running a kernel"):
            _opened(ticks).fill(0)
            hold(1, 1, (np.uint64(self._hold_s * 1e9),))
            tick(self._facts.sm_count, 1, (_opened(ticks)[0],))
            self._begin.record(self._stream)
            enqueue()
            self._end.record(self._stream)
            starved = bool(self._begin.done)
            tick(self._facts.sm_count, 1, (_opened(ticks)[1],))
            self._stream.synchronize()
            elapsed_ms = self._cupy.cuda.get_elapsed_time(self._begin, self._end)
            clock_mhz = _clock_mhz(_opened(ticks).get(stream=self._stream))
            return Span(seconds=elapsed_ms / 1e3, starved=starved, sm_clock_mhz=clock_mhz)

    def _timing(self) -> tuple[GpuFunction, GpuFunction, GpuArray]:
        """Return the kernels that the timing needs and where they write, made once."""
        if self._timing_parts is None:
            source = _SOURCE.read_text(encoding="utf-8")
            kernels = (self.compile(source, "hold"), self.compile(source, "tick"))
            self._timing_parts = (*kernels, self.allocate((2, 2), "uint64"))
        return self._timing_parts

    def pinned(self, shape: tuple[int, ...], storage: str = "float32") -> HostArray:
        """Allocate a page-locked host array."""
        with self._here("allocating page-locked memory"):
            array: HostArray = self._cupyx.empty_pinned(shape, dtype=storage)
            return array

    def send(self, host: HostArray, array: GpuArray) -> None:
        """Enqueue the copy of a host array into a GPU array."""
        with self._here("copying an array to the GPU"):
            _opened(array).set(host, stream=self._stream)

    def fetch(self, array: GpuArray, host: HostArray) -> None:
        """Enqueue the copy of a GPU array into a host array."""
        with self._here("copying an array from the GPU"):
            _opened(array).get(stream=self._stream, out=host, blocking=False)

    def exchange(
        self, sent: HostArray, target: GpuArray, source: GpuArray, fetched: HostArray
    ) -> None:
        """Enqueue a copy each way on two streams that start and end together."""
        with self._here("copying both ways"):
            if self._side is None:
                self._side = self._cupy.cuda.Stream(non_blocking=True)
            self._side.wait_event(self._stream.record())
            _opened(source).get(stream=self._side, out=fetched, blocking=False)
            _opened(target).set(sent, stream=self._stream)
            self._stream.wait_event(self._side.record())

    def copy_from(self, peer: GpuDevice, source: GpuArray, out: GpuArray) -> None:
        """Enqueue cudaMemcpyPeerAsync on this GPU's stream."""
        with self._here("copying from another GPU"):
            one, other = _opened(source), _opened(out)
            self._cupy.cuda.runtime.memcpyPeerAsync(
                *(other.data.ptr, self._facts.cuda_index, one.data.ptr, peer.facts.cuda_index),
                *(one.nbytes, self._stream.ptr),
            )

    def reaches(self, peer: GpuDevice) -> bool:
        """Return whether direct access is possible; it is switched on then."""
        runtime, number = self._cupy.cuda.runtime, peer.facts.cuda_index
        with self._here("asking for direct access to another GPU"):
            if not runtime.deviceCanAccessPeer(self._facts.cuda_index, number):
                return False
            try:
                runtime.deviceEnablePeerAccess(number)
            except runtime.CUDARuntimeError as error:
                if "AlreadyEnabled" not in str(error):
                    raise
            return True

    def memory_used_bytes(self) -> int:
        """Return what CuPy's pool has handed out on this GPU."""
        with self._here("asking for the memory in use"):
            return int(self._cupy.get_default_memory_pool().used_bytes())

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
            clock_sm_max_mhz=_megahertz(properties.get("clockRate")),
            clock_memory_max_mhz=_megahertz(properties.get("memoryClockRate")),
            memory_bus_bits=int(properties.get("memoryBusWidth", 0)) or None,
        )


def _opened(array: GpuArray) -> Any:
    """Return one of our opaque arrays as what it is to CuPy."""
    return array


def _megahertz(kilohertz: object) -> float | None:
    """Return a clock of CUDA's properties; newer drivers leave some at zero."""
    return kilohertz / 1e3 if isinstance(kilohertz, int) and kilohertz > 0 else None


def _clock_mhz(ticks: HostArray) -> float | None:
    """Return cycles over microseconds between two readings of (nanoseconds, cycles) on SM 0."""
    (start_ns, start_cycles), (end_ns, end_cycles) = ticks.tolist()
    if not start_ns or end_ns <= start_ns or end_cycles <= start_cycles:
        return None
    return float(1e3 * (end_cycles - start_cycles) / (end_ns - start_ns))


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
