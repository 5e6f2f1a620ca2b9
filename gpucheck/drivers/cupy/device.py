"""CuPy client: GPU arrays, matrix products, own kernels, event times, pinned transfers.

CuPy is imported only when a GPU is opened. Its errors become ours, and none of its types get out:
callers hold opaque arrays that only this client opens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpucheck.drivers.cupy.cache import cache_variables
from gpucheck.drivers.cupy.errors import BUSY, INSTALL_CUPY, as_failure, quiet, translated
from gpucheck.drivers.cupy.facts import read_facts
from gpucheck.drivers.cupy.products import Products, cublas_version
from gpucheck.drivers.cupy.timing import SpanTimer
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
from gpucheck.report.errors import GpucheckError, MissingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

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
            one, other, runtime = _opened(source), _opened(out), self._cupy.cuda.runtime
            kind, stream = runtime.memcpyDeviceToDevice, self._stream.ptr
            runtime.memcpyAsync(other.data.ptr, one.data.ptr, one.nbytes, kind, stream)

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
            kernel, one = self._empty, (1,)
            for _ in range(count):
                kernel(one, one, ())
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
            one, other = _opened(source), _opened(out)
            self._cupy.cuda.runtime.memcpyPeerAsync(
                *(other.data.ptr, self._facts.cuda_index, one.data.ptr, peer.facts.cuda_index),
                *(one.nbytes, self._stream.ptr),
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
    try:
        with quiet():
            return import_module("cupy")
    except ModuleNotFoundError as error:
        raise MissingError(
            code="cupy-missing",
            message="CuPy is not installed: in the checkout, run pip install '.[cuda12]'",
            remedy=(INSTALL_CUPY,),
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
                remedy=("run gpucheck detect",),
            ) from error
        raise as_failure(error, "counting the GPUs") from error


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
                remedy=("see the indices: gpucheck list",),
            )
    return range(count) if asked is None else tuple(dict.fromkeys(asked))


def open_gpus(
    asked: Sequence[int] | None = None,
    *,
    uuids: Mapping[int, str] | None = None,
    ask_cublas: bool = True,
) -> OpenedGpus:
    """Open the GPUs with these CUDA indices, or all of them for None.

    `uuids` gives the driver's UUIDs by CUDA index, if the caller knows them. `ask_cublas` creates a
    cuBLAS handle to read its version. Never raises: the result holds the reasons, and a GPU that
    cannot be opened does not affect the others.
    """
    version = None
    known = uuids or {}
    devices: list[CupyDevice] = []
    refused: dict[int, GpucheckError] = {}
    try:
        cupy = _load_cupy()
        version = str(cupy.__version__)
        for index in _existing(asked, _count_gpus(cupy)):
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
        cublas_version=cublas_version(cupy, devices[0].facts.cuda_index) if ask_cublas else None,
    )
