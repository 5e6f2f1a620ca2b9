"""CuPy client: GPU arrays, matrix products, own kernels, event times, pinned transfers.

CuPy is imported only when a GPU is opened. Its errors become ours, and none of its types get out:
callers hold opaque arrays that only this client opens.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.drivers.cupy.blas import Products, cublas_version
from gpucheck.drivers.cupy.errors import BUSY, as_failure, cache_variables, quiet, translated
from gpucheck.drivers.cupy.install import install_cupy
from gpucheck.drivers.gpu import (
    NO_DEFINES,
    PLAIN_PRODUCT,
    BenchGpu,
    GpuArray,
    GpuDevice,
    GpuFunction,
    OpenedGpus,
    Product,
    Span,
)
from gpucheck.drivers.host.clock import Clock, monotonic_s
from gpucheck.drivers.host.cpu import LinuxCpu
from gpucheck.report.errors import GpucheckError, MissingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: The way on without CuPy.
OTHER_FRAMEWORK = (
    "Or, where PyTorch is installed, measure with it: gpucheck bench --framework pytorch"
)
_EMPTY_SOURCE = 'extern "C" __global__ void empty() {}'
#: Bytes for poisoning: NaN in every floating-point format, also in bfloat16 and float8 as unsigned
#: bits; and a large number in every signed integer type.
_NAN_BYTE, _SIGNED_BYTE = 0xFF, 0x80


class CupyDevice:
    """One GPU through CuPy, on a stream of its own."""

    def __init__(self, cuda_index: int, known_uuid: str | None = None) -> None:
        with translated("opening the GPU"), quiet():
            self._cupy: Any = import_module("cupy")
            self._cupyx: Any = import_module("cupyx")
            self._device: Any = self._cupy.cuda.Device(cuda_index)
            with self._device:
                self._stream: Any = self._cupy.cuda.Stream(non_blocking=True)
                self._facts = read_facts(self._cupy, cuda_index, known_uuid)
        self._products = Products(self._cupy)
        self._timer: SpanTimer | None = None
        self._side: Any = None
        self._lanes: list[Any] = []
        self._empty: Any = None

    @property
    def facts(self) -> BenchGpu:
        """Return the card's facts; its free memory is that at opening."""
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
        """Fill an array with NaN, or with a conspicuous number if its type has no NaN.

        It fills with one byte, since CuPy's `fill` compiles a kernel, which needs CUDA's headers.
        """
        with self._here("filling an array"):
            opened = _opened(array)
            byte = _SIGNED_BYTE if opened.dtype.kind == "i" else _NAN_BYTE
            opened.data.memset_async(byte, opened.nbytes, self._stream)

    def copy(self, source: GpuArray, out: GpuArray) -> None:
        """Enqueue cudaMemcpyAsync within the GPU's memory."""
        with self._here("copying an array on the GPU"):
            origin, other, runtime = _opened(source), _opened(out), self._cupy.cuda.runtime
            kind, stream = runtime.memcpyDeviceToDevice, self._stream.ptr
            runtime.memcpyAsync(other.data.ptr, origin.data.ptr, origin.nbytes, kind, stream)

    def multiply(
        self, left: GpuArray, right: GpuArray, out: GpuArray, product: Product = PLAIN_PRODUCT
    ) -> None:
        """Enqueue a matrix product by cuBLAS, in exactly the requested arithmetic."""
        with self._here("multiplying matrices"):
            self._products.multiply(_opened(left), _opened(right), _opened(out), product)

    def softmax(self, source: GpuArray, out: GpuArray, temperature: float) -> None:
        """Enqueue a row softmax in CuPy's array operations: five kernels and their temporaries."""
        import numpy as np

        with self._here("computing the library's softmax"):
            scaled: Any = _opened(source) / np.float32(temperature)
            raised: Any = self._cupy.exp(scaled - scaled.max(axis=1, keepdims=True))
            total: Any = raised.sum(axis=1, keepdims=True)
            self._cupy.divide(raised, total, out=_opened(out))

    def compile(
        self, source: str, name: str, defines: Mapping[str, int] = NO_DEFINES
    ) -> GpuFunction:
        """Compile with NVRTC for this GPU and return the kernel `name`."""
        options = ("--std=c++17", *(f"-D{key}={value}" for key, value in defines.items()))
        with self._here("compiling a kernel"), quiet():
            kernel: Any = self._cupy.RawKernel(source, name, options=options)
            kernel.compile()

        def launch(grid: int, block: int, args: tuple[object, ...]) -> None:
            with self._here("launching a kernel"):
                kernel((grid,), (block,), args)

        return launch

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Record the work of `enqueue` as a CUDA graph and return its launcher."""
        with self._here("capturing a graph"):
            self._stream.begin_capture()
            try:
                enqueue()
            except BaseException:
                # A capturing stream takes nothing else. The error that broke the capture also makes
                # its end fail; only the first error is useful.
                with suppress(Exception):
                    self._stream.end_capture()
                raise
            graph: Any = self._stream.end_capture()
            # Otherwise the first launch uploads it, between the events that time it.
            graph.upload(self._stream)

        def launch() -> None:
            with self._here("launching a graph"):
                graph.launch(self._stream)

        return launch

    def launch_empty(self, count: int, *, waiting: bool = False) -> None:
        """Enqueue `count` launches of an empty kernel, with no code of ours between them."""
        with self._here("launching an empty kernel"):
            if self._empty is None:
                self._empty = self._cupy.RawKernel(_EMPTY_SOURCE, "empty")
            kernel, single = self._empty, (1,)
            for _ in range(count):
                kernel(single, single, ())
                if waiting:
                    self._stream.synchronize()

    def span(self, enqueue: Callable[[], None], *, held: bool = True) -> Span:
        """Run the work of `enqueue`, wait for it, and return its device time by CUDA events."""
        with self._here("running a kernel"):
            if self._timer is None:
                sm_count = self._facts.sm_count
                self._timer = SpanTimer(self._cupy, self._stream, self.compile, sm_count)
            return self._timer.span(enqueue, held=held)

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

    def side_by_side(self, works: Sequence[Callable[[], None]]) -> None:
        """Enqueue each piece of work on its own stream; they start and end together.

        This works during graph capture: the streams join it from the first event on.
        """
        main = self._stream
        with self._here("working on several streams"):
            while len(self._lanes) < len(works):
                self._lanes.append(self._cupy.cuda.Stream(non_blocking=True))
            begun = main.record()
            try:
                for lane, work in zip(self._lanes, works, strict=False):
                    lane.wait_event(begun)
                    self._stream = lane
                    work()
            finally:
                self._stream = main
            for lane in self._lanes[: len(works)]:
                main.wait_event(lane.record())

    def copy_from(self, peer: GpuDevice, source: GpuArray, out: GpuArray) -> None:
        """Enqueue cudaMemcpyPeerAsync on this GPU's stream."""
        with self._here("copying from another GPU"):
            origin, other = _opened(source), _opened(out)
            self._cupy.cuda.runtime.memcpyPeerAsync(
                *(other.data.ptr, self._facts.cuda_index, origin.data.ptr, peer.facts.cuda_index),
                *(origin.nbytes, self._stream.ptr),
            )

    def reaches(self, peer: GpuDevice) -> bool:
        """Return whether direct access is possible, and enable it."""
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
        """Return the bytes that CuPy's pool has handed out on this GPU."""
        with self._here("asking for the memory in use"):
            return int(self._cupy.get_default_memory_pool().used_bytes())

    def synchronize(self) -> None:
        """Wait until all enqueued work has run."""
        with self._here("waiting for the GPU"):
            self._stream.synchronize()

    def release(self) -> None:
        """Return unused memory to the driver."""
        with self._here("releasing memory"):
            self._stream.synchronize()
            self._products.release()
            self._cupy.get_default_memory_pool().free_all_blocks()
            self._cupy.get_default_pinned_memory_pool().free_all_blocks()

    @contextmanager
    def _here(self, doing: str) -> Iterator[None]:
        """Make this device and its stream current."""
        with translated(doing), self._device, self._stream:
            yield


def _opened(array: GpuArray) -> Any:
    """Return one of our opaque arrays as CuPy's array."""
    return array


def _load_cupy() -> Any:
    # CuPy reads them on import; child processes inherit them.
    os.environ.update(cache_variables(os.environ))
    # With it, a driver older than the compiler refuses every kernel (CUDA Compatibility: minor
    # version compatibility leaves PTX out).
    os.environ.pop("CUPY_COMPILE_WITH_PTX", None)
    try:
        with quiet():
            return import_module("cupy")
    except ModuleNotFoundError as error:
        raise MissingError(
            code="cupy-missing",
            message="CuPy is not installed",
            remedy=(*install_cupy(), OTHER_FRAMEWORK),
        ) from error
    except Exception as error:
        raise as_failure(error, "loading CuPy") from error


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
                message="there is no NVIDIA driver, or it is too old for CuPy's CUDA version",
                remedy=("Run: gpucheck detect",),
            ) from error
        raise as_failure(error, "counting the GPUs") from error


def _indices_to_open(requested: Sequence[int] | None, count: int) -> Sequence[int]:
    """Return the CUDA indices to open."""
    if count == 0:
        raise MissingError(
            code="no-gpu", message="CUDA sees no GPU", remedy=("Run: gpucheck detect",)
        )
    for index in requested or ():
        if index >= count:
            raise MissingError(
                code="no-such-gpu",
                message=f"there is no gpu:{index}: a CUDA program started now sees {count}",
                remedy=("See the indices: gpucheck list",),
            )
    return range(count) if requested is None else tuple(dict.fromkeys(requested))


def open_gpus(
    requested: Sequence[int] | None = None,
    *,
    uuids: Mapping[int, str] | None = None,
    read_cublas_version: bool = True,
) -> OpenedGpus:
    """Open the GPUs with these CUDA indices, or all of them for None.

    `uuids` gives the driver's UUIDs by CUDA index, if the caller knows them. To read cuBLAS'
    version a handle is created. Never raises: the result holds the reasons, and a GPU that cannot
    be opened does not affect the others.
    """
    version = None
    known = uuids or {}
    devices: list[CupyDevice] = []
    refused: dict[int, GpucheckError] = {}
    try:
        cupy = _load_cupy()
        version = str(cupy.__version__)
        for index in _indices_to_open(requested, _count_gpus(cupy)):
            try:
                devices.append(CupyDevice(index, known.get(index)))
            except GpucheckError as error:
                refused[index] = error
        if not devices:
            raise next(iter(refused.values()))
    except GpucheckError as error:
        return OpenedGpus(
            unavailable=error.message,
            remedy=error.remedy,
            busy=error.code == BUSY,
            cupy_version=version,
        )
    return OpenedGpus(
        devices=devices,
        refused={index: error.message for index, error in refused.items()},
        busy=bool(refused) and all(error.code == BUSY for error in refused.values()),
        cupy_version=version,
        cublas_version=cublas_version(cupy, devices[0].facts.cuda_index)
        if read_cublas_version
        else None,
    )


# ------------------------------------------------------------------------------- facts


def read_facts(cupy: Any, cuda_index: int, known_uuid: str | None) -> BenchGpu:
    """Return CUDA's facts about a GPU, which must be the current one."""
    properties: Mapping[str, Any] = cupy.cuda.runtime.getDeviceProperties(cuda_index)
    free_bytes, total_bytes = cupy.cuda.runtime.memGetInfo()
    integrated = bool(properties["integrated"]) if "integrated" in properties else None
    available_bytes = LinuxCpu().facts().memory_available_bytes if integrated else None
    if available_bytes is not None:
        # CUDA does not count the page cache, which the kernel gives up when memory is needed.
        free_bytes = min(total_bytes, available_bytes)
    major, name = int(properties["major"]), properties["name"]
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    return BenchGpu(
        cuda_index=cuda_index,
        uuid=known_uuid or _uuid_of(cuda_index, name, properties.get("uuid")),
        name=name,
        compute_capability=f"{major}.{int(properties['minor'])}",
        sm_count=int(properties["multiProcessorCount"]),
        l2_bytes=int(properties["l2CacheSize"]),
        memory_total_bytes=int(total_bytes),
        memory_free_bytes=int(free_bytes),
        float32_math="tf32" if major >= 8 and _tf32_requested(os.environ) else "fp32",
        clock_sm_max_mhz=_megahertz(properties.get("clockRate")),
        clock_memory_max_mhz=_megahertz(properties.get("memoryClockRate")),
        memory_bus_bits=int(properties.get("memoryBusWidth", 0)) or None,
        integrated=integrated,
    )


def _megahertz(kilohertz: object) -> float | None:
    """Return a clock from CUDA's properties; newer drivers leave some at zero."""
    return kilohertz / 1e3 if isinstance(kilohertz, int) and kilohertz > 0 else None


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

    device, digits = ctypes.c_int(), (ctypes.c_char * 16)()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        refused = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), cuda_index)
        refused = refused or driver.cuDeviceGetUuid_v2(ctypes.byref(digits), device)
    except (OSError, AttributeError):
        return None
    return None if refused else digits.raw


def _tf32_requested(environment: Mapping[str, str]) -> bool:
    """Return whether CuPy's float32 products run in TF32 (CUPY_TF32; the override 0 forbids it)."""
    if environment.get("NVIDIA_TF32_OVERRIDE") == "0":
        return False
    return environment.get("CUPY_TF32", "0") not in ("", "0")


# ------------------------------------------------------------------------------- timing

_TIMING_SOURCE = Path(__file__).with_name("timing.cu")
#: Wait of the GPU: a multiple of the host's last enqueuing time, between these two bounds. A longer
#: wait cannot help, since the driver's queue is full before it ends.
_MARGIN, _SHORTEST_HOLD_S, _LONGEST_HOLD_S = 1.5, 50e-6, 50e-3
#: Fewest steps of the GPU's timer for a clock: each end may be off by one step, which gives 1 %.
#: Many timers step by a microsecond, and the shortest spans take 500.
_LEAST_STEPS = 250


class SpanTimer:
    """Timer of a device's work on its stream; made once for a device, which must be current.

    `compile_kernel` returns the kernel of a source with the given name.
    """

    def __init__(
        self,
        cupy: Any,
        stream: Any,
        compile_kernel: Callable[[str, str], GpuFunction],
        sm_count: int,
        clock: Clock | None = None,
    ) -> None:
        source = _TIMING_SOURCE.read_text(encoding="utf-8")
        self._cupy = cupy
        self._stream = stream
        self._sm_count = sm_count
        self._clock = clock or monotonic_s
        self._hold, self._tick, step = (
            compile_kernel(source, name) for name in ("hold", "tick", "step")
        )
        self._ticks = cupy.empty((2, 2), dtype="uint64")
        self._begin, self._end = cupy.cuda.Event(), cupy.cuda.Event()
        self._hold_s = _SHORTEST_HOLD_S
        step(1, 1, (self._ticks[0],))
        self._step_ns = int(self._ticks.get(stream=stream)[0, 0])

    def span(self, enqueue: Callable[[], None], *, held: bool) -> Span:
        """Run the work of `enqueue`, wait for it, and return its time by the events.

        A waiting kernel goes first, so that the work is queued before the first event fires.
        Otherwise the time would include the host's launches (starvation). It waits for the host's
        last enqueuing time, with a margin. If the first event has fired by the end of the
        enqueuing, the wait was too short: the work runs again behind a longer one, up to the
        longest.
        """
        if not held:
            return self._one_span(enqueue, None)[0]
        while True:
            span, enqueued_s = self._one_span(enqueue, self._hold_s)
            needed_s = max(_MARGIN * enqueued_s, 4 * self._hold_s if span.starved else 0.0)
            longest = self._hold_s >= _LONGEST_HOLD_S
            self._hold_s = min(max(needed_s, _SHORTEST_HOLD_S), _LONGEST_HOLD_S)
            if not span.starved or longest:
                return span

    def _one_span(self, enqueue: Callable[[], None], hold_s: float | None) -> tuple[Span, float]:
        """Return the span, and how long the host took to enqueue the work."""
        import numpy as np

        self._ticks.data.memset_async(0, self._ticks.nbytes, self._stream)
        if hold_s is not None:
            self._hold(1, 1, (np.uint64(hold_s * 1e9),))
        self._tick(self._sm_count, 1, (self._ticks[0],))
        start_s = self._clock()
        self._begin.record(self._stream)
        enqueue()
        self._end.record(self._stream)
        starved = hold_s is not None and bool(self._begin.done)
        enqueued_s = self._clock() - start_s
        self._tick(self._sm_count, 1, (self._ticks[1],))
        self._stream.synchronize()
        elapsed_ms = self._cupy.cuda.get_elapsed_time(self._begin, self._end)
        clock_mhz = _clock_mhz(self._ticks.get(stream=self._stream), self._step_ns)
        span = Span(seconds=elapsed_ms / 1e3, starved=starved, sm_clock_mhz=clock_mhz)
        return span, enqueued_s


def _clock_mhz(ticks: HostArray, step_ns: int) -> float | None:
    """Return cycles over microseconds between two readings of (nanoseconds, cycles) on SM 0.

    None if they were not read, or if the timer steps too coarsely for this span.
    """
    (start_ns, start_cycles), (end_ns, end_cycles) = ticks.tolist()
    if not start_ns or end_ns <= start_ns or end_cycles <= start_cycles:
        return None
    if not step_ns or end_ns - start_ns < _LEAST_STEPS * step_ns:
        return None
    return float(1e3 * (end_cycles - start_cycles) / (end_ns - start_ns))
