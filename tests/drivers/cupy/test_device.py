"""CuPy client against a scripted `cupy`, and against the real one if installed."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpucheck.drivers.cupy.device import CupyDevice, open_gpus
from gpucheck.drivers.cupy.install import install_cupy
from gpucheck.drivers.gpu import Product
from gpucheck.drivers.host.cpu import LinuxCpu
from gpucheck.report.errors import GpucheckError, InconclusiveError, MissingError
from tests.fakes.cupy_child import run_lines
from tests.fakes.machine import Machine, load_machine

UUID = bytes.fromhex("0123456789abcdef0123456789abcdef")


class CUDARuntimeError(RuntimeError):
    """Named as CuPy names its own."""


class CUDADriverError(RuntimeError):
    """Named as CuPy names its own."""


class OutOfMemoryError(MemoryError):
    """Named as CuPy names its own."""


class CompileException(Exception):
    """Named as CuPy names its own."""


#: What NVRTC says of CuPy's own kernels where CUDA's headers are not installed.
NO_HEADER = 'catastrophic error: cannot open source file "cuda_fp16.h"'
NO_TARGET = "ptxas: error   : Modifier '.no_allocate' on 'ld' requires .target sm_70 or higher"


class Context:
    """A device or a stream: something to enter."""

    ptr = 7

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def record(self) -> str:
        return "event"

    def wait_event(self, event: str) -> None:
        assert event == "event"

    def begin_capture(self) -> None:
        self.capturing = True

    def end_capture(self) -> Any:
        self.capturing = False
        return SimpleNamespace(
            launch=lambda stream: self.launched.append(stream),
            upload=lambda stream: self.uploaded.append(stream),
        )

    def __init__(self) -> None:
        self.capturing = False
        self.launched: list[object] = []
        self.uploaded: list[object] = []


class Array(np.ndarray[Any, Any]):
    """NumPy's array with what CuPy's has beyond it."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        def memset_async(value: int, size: int, stream: object = None) -> None:
            ctypes.memset(self.ctypes.data, value, size)

        return SimpleNamespace(ptr=self.ctypes.data, memset_async=memset_async)

    def fill(self, value: Any) -> None:
        raise CompileException(NO_HEADER)

    def set(self, host: Any, stream: object = None) -> None:
        self[...] = host

    def get(self, stream: object = None, out: Any = None, blocking: bool = True) -> Any:
        if out is None:
            return np.asarray(self).copy()
        out[...] = self
        return out


def array(values: Any, dtype: str = "float32") -> Any:
    return np.array(values, dtype=dtype).view(Array)


class Cublas(ModuleType):
    """gemmEx as BLAS defines it, on host memory: op(A) op(B) in columns, with leading edges."""

    types = {0: "float32", 1: "float64", 2: "float16", 3: "int8", 10: "int32", 14: "uint16"}  # noqa: RUF012
    scalars = {68: "float32", 70: "float64", 72: "int32", 77: "float32"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__("cublas")
        self.calls: list[tuple[Any, ...]] = []

    def gemmEx(self, handle: int, ta: int, tb: int, m: int, n: int, k: int, *rest: Any) -> None:
        alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, compute, algorithm = rest
        self.calls.append((ta, tb, m, n, k, a_type, c_type, compute))
        assert (handle, algorithm) == (99, -1)
        scalar = np.dtype(self.scalars[compute])
        one, other = self.columns(a, a_type, lda, k if ta == 0 else m), None
        other = self.columns(b, b_type, ldb, n if tb == 0 else k)
        left = (one[:m, :k] if ta == 0 else one[:k, :m].T).astype(np.float64)
        right = (other[:k, :n] if tb == 0 else other[:n, :k].T).astype(np.float64)
        out = self.columns(c, c_type, ldc, n)
        factor, kept = (self.memory(place, scalar, 1)[0] for place in (alpha, beta))
        old = np.nan_to_num(out.astype(np.float64)) * kept
        out[...] = (factor * (left @ right) + old).astype(out.dtype)

    def columns(self, place: int, kind: int, leading: int, count: int) -> Any:
        flat = self.memory(place, np.dtype(self.types[kind]), leading * count)
        return flat.reshape(count, leading).T

    @staticmethod
    def memory(place: int, dtype: Any, count: int) -> Any:
        raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(place)
        return np.frombuffer(raw, dtype=dtype)


class Event:
    """An event that has fired by the time it is asked, as often as the script says."""

    def __init__(self, fired: list[bool]) -> None:
        self._fired = fired

    @property
    def done(self) -> bool:
        return self._fired.pop(0) if self._fired else False

    def record(self, stream: object) -> None:
        assert isinstance(stream, Context)

    def synchronize(self) -> None:
        return None


class FakeClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def take(self, seconds: float) -> None:
        self.seconds += seconds


class FakeCupy(ModuleType):
    """As much of CuPy as opening a device and timing need."""

    __version__ = "14.2.0"

    def __init__(self) -> None:
        super().__init__("cupy")
        self.count: int | Exception = 1
        self.fired: list[bool] = []
        self.launched: list[tuple[Any, ...]] = []
        self.ticks = 0
        self.ticks_move = True
        self.step_ns = 1000
        self.properties: dict[str, Any] = {
            "name": b"NVIDIA H100 80GB HBM3",
            "major": 9,
            "minor": 0,
            "multiProcessorCount": 132,
            "l2CacheSize": 50 * 2**20,
            "uuid": UUID,
        }
        runtime = SimpleNamespace(
            getDeviceCount=self._count,
            getDeviceProperties=lambda index: self.properties,
            memGetInfo=lambda: (70 * 2**30, 80 * 2**30),
            memcpyAsync=self._memcpy,
            memcpyDeviceToDevice=3,
            memcpyPeerAsync=lambda *call: self.peer_calls.append(call),
            deviceCanAccessPeer=lambda device, peer: self.reachable,
            deviceEnablePeerAccess=self._enable,
            CUDARuntimeError=CUDARuntimeError,
        )
        self.peer_calls: list[tuple[Any, ...]] = []
        self.reachable = 1
        self.enabling: Exception | None = None
        self.exp, self.divide = np.exp, np.divide
        self.cuda = SimpleNamespace(
            runtime=runtime,
            Device=lambda index: Context(),
            Stream=lambda non_blocking: Context(),
            device=SimpleNamespace(get_cublas_handle=lambda: 99),
            Event=lambda: Event(self.fired),
            get_elapsed_time=lambda begin, end: 2.5,
        )

    def empty(self, shape: Any, dtype: str) -> Any:
        return np.empty(shape, dtype=dtype).view(Array)

    def _memcpy(self, target: int, source: int, count: int, kind: int, stream: int) -> None:
        assert (kind, stream) == (3, 7)
        ctypes.memmove(target, source, count)

    def _enable(self, peer: int) -> None:
        if self.enabling is not None:
            raise self.enabling

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(used_bytes=lambda: 4096, free_all_blocks=lambda: None)

    get_default_pinned_memory_pool = get_default_memory_pool

    def _count(self) -> int:
        if isinstance(self.count, Exception):
            raise self.count
        return self.count

    def RawKernel(self, source: str, name: str, options: tuple[str, ...] = ()) -> Any:
        assert name in source

        class Kernel:
            def compile(self) -> None:
                return None

            def __call__(_, *launch: Any) -> None:
                self.launched.append((name, *launch))
                if name == "step":
                    launch[2][0][0] = self.step_ns
                if name == "tick":
                    self.ticks += self.ticks_move
                    launch[2][0][...] = (1_000_000 * self.ticks, 1_980_000 * self.ticks)

        return Kernel()


@pytest.fixture(name="cupy")
def _cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "cupyx", ModuleType("cupyx"))
    monkeypatch.delenv("CUPY_TF32", raising=False)
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    return fake


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*args: object, **keywords: object) -> Any:
        raise error

    return fail


def test_the_facts_of_a_card(cupy: FakeCupy) -> None:
    opened = open_gpus()

    assert opened.unavailable is None
    assert opened.cupy_version == cupy.__version__
    (device,) = opened.devices
    assert device.facts.name == "NVIDIA H100 80GB HBM3"
    assert device.facts.compute_capability == "9.0"
    assert device.facts.uuid == "GPU-01234567-89ab-cdef-0123-456789abcdef"
    assert device.facts.memory_free_bytes == 70 * 2**30
    assert device.facts.float32_math == "fp32"


@pytest.mark.parametrize(
    ("integrated", "available_gib", "free_gib"),
    [(1, 75, 75), (1, 200, 80), (1, None, 70), (0, 75, 70)],
)
def test_free_memory_that_the_host_shares_is_what_the_kernel_can_give(
    cupy: FakeCupy,
    monkeypatch: pytest.MonkeyPatch,
    integrated: int,
    available_gib: int | None,
    free_gib: int,
) -> None:
    available = None if available_gib is None else available_gib * 2**30
    monkeypatch.setattr(LinuxCpu, "_memory_available_bytes", lambda _: available)
    cupy.properties["integrated"] = integrated

    assert open_gpus().devices[0].facts.memory_free_bytes == free_gib * 2**30


def test_a_uuid_cut_at_a_zero_byte_is_not_believed(cupy: FakeCupy) -> None:
    cupy.properties["uuid"] = UUID[:7]

    assert open_gpus().devices[0].facts.uuid is None
    assert open_gpus(uuids={0: "GPU-known"}).devices[0].facts.uuid == "GPU-known"


@pytest.mark.parametrize(
    ("variables", "major", "mode"),
    [
        ({"CUPY_TF32": "1"}, 8, "tf32"),
        ({"CUPY_TF32": "1"}, 7, "fp32"),
        ({"CUPY_TF32": "0"}, 8, "fp32"),
        ({"CUPY_TF32": "1", "NVIDIA_TF32_OVERRIDE": "0"}, 9, "fp32"),
    ],
)
def test_tf32_is_noticed(
    cupy: FakeCupy,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    major: int,
    mode: str,
) -> None:
    cupy.properties["major"] = major
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert open_gpus().devices[0].facts.float32_math == mode


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (CUDARuntimeError("cudaErrorInsufficientDriver: too old"), "no NVIDIA driver"),
        (CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device"), "CUDA sees no GPU"),
        (CUDARuntimeError("cudaErrorUnknown: unknown error"), "stopped answering"),
        (ImportError("libcudart.so.13 not found"), "libcudart.so.13"),
        (0, "CUDA sees no GPU"),
    ],
)
def test_no_gpu_is_a_reason_and_no_exception(
    cupy: FakeCupy, count: int | Exception, words: str
) -> None:
    cupy.count = count

    opened = open_gpus()

    assert opened.devices == ()
    assert opened.unavailable is not None
    assert words in opened.unavailable
    assert opened.cupy_version == cupy.__version__


def test_a_gpu_that_is_not_there_is_named(cupy: FakeCupy) -> None:
    opened = open_gpus([0, 3])

    assert opened.devices == ()
    assert opened.unavailable is not None
    assert "gpu:3" in opened.unavailable


def test_one_that_cannot_be_opened_leaves_the_others(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy.count = 3

    def device(index: int) -> Context:
        if index == 1:
            raise CUDARuntimeError("cudaErrorDevicesUnavailable: busy")
        return Context()

    monkeypatch.setattr(cupy.cuda, "Device", device)

    opened = open_gpus()

    assert [gpu.facts.cuda_index for gpu in opened.devices] == [0, 2]
    assert opened.unavailable is None
    assert list(opened.refused) == [1]
    assert "cudaErrorDevicesUnavailable" in opened.refused[1]


def test_none_that_can_be_opened_is_a_reason_with_what_to_do(cupy: FakeCupy) -> None:
    cupy.cuda.Stream = raising(CUDARuntimeError("cudaErrorDevicesUnavailable: busy"))

    opened = open_gpus()

    assert opened.devices == ()
    assert "cudaErrorDevicesUnavailable" in (opened.unavailable or "")
    assert opened.remedy


def test_a_gpu_named_twice_is_opened_once(cupy: FakeCupy) -> None:
    assert len(open_gpus([0, 0]).devices) == 1


def test_kernels_are_not_compiled_to_ptx_that_an_older_driver_refuses(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_COMPILE_WITH_PTX", "1")

    open_gpus()

    assert "CUPY_COMPILE_WITH_PTX" not in os.environ


def test_cupy_missing_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)

    opened = open_gpus()

    assert opened.unavailable == "CuPy is not installed"
    assert opened.remedy == install_cupy()
    assert opened.cupy_version is None


def test_a_broken_cupy_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gpucheck.drivers.cupy.device.import_module",
        raising(ImportError("libcublas.so.12: cannot open shared object file")),
    )

    assert "libcublas.so.12" in (open_gpus().unavailable or "")


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (
            OutOfMemoryError("Out of memory allocating 8 bytes"),
            InconclusiveError,
            "gpu-out-of-memory",
        ),
        (
            CUDARuntimeError("cudaErrorMemoryAllocation: oom"),
            InconclusiveError,
            "gpu-out-of-memory",
        ),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), InconclusiveError, "gpu-out-of-memory"),
        (RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED"), InconclusiveError, "gpu-out-of-memory"),
        (
            CUDADriverError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
            InconclusiveError,
            "gpu-out-of-memory",
        ),
        (
            CUDARuntimeError("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy"),
            InconclusiveError,
            "gpu-busy",
        ),
        (CUDADriverError("CUDA_ERROR_DEVICE_UNAVAILABLE: busy"), InconclusiveError, "gpu-busy"),
        (CompileException(NO_HEADER), MissingError, "cuda-library-missing"),
        (CompileException(f"a warning\n{NO_TARGET}"), MissingError, "kernel-not-compiled"),
        (PermissionError(13, "Permission denied", "/.cupy"), MissingError, "file-refused"),
        (OSError(28, "No space left on device"), MissingError, "file-refused"),
        (CUDARuntimeError("cudaErrorECCUncorrectable: ecc"), InconclusiveError, "gpu-lost"),
        (CUDARuntimeError("cudaErrorIllegalAddress: bad"), InconclusiveError, "gpu-lost"),
        (OSError("libcublas.so.13: cannot open"), MissingError, "cuda-library-missing"),
        (CUDARuntimeError("cudaErrorInvalidValue: bad"), InconclusiveError, "gpu-error"),
    ],
)
def test_cupys_errors_become_ours(
    cupy: FakeCupy, error: Exception, kind: type[GpucheckError], code: str
) -> None:
    device = CupyDevice(0)
    cupy.empty = raising(error)  # type: ignore[method-assign]

    with pytest.raises(kind) as caught:
        device.allocate((1,))

    assert caught.value.code == code
    assert caught.value.remedy
    assert "\n" not in caught.value.message


def test_a_compiler_s_complaint_is_told_and_not_its_warnings(cupy: FakeCupy) -> None:
    cupy.RawKernel = raising(CompileException(f"a warning\n{NO_TARGET}"))  # type: ignore[method-assign]

    with pytest.raises(MissingError) as caught:
        CupyDevice(0).compile("", "empty")

    assert NO_TARGET in caught.value.message


def test_a_gpu_that_another_process_has_for_itself_is_busy_and_the_others_are_opened(
    cupy: FakeCupy,
) -> None:
    busy = CUDARuntimeError("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy")
    cupy.count, opened_devices = 2, cupy.cuda.Device
    cupy.cuda.Device = lambda index: raising(busy)() if index else opened_devices(index)

    both, second = open_gpus(), open_gpus([1])

    assert [gpu.facts.cuda_index for gpu in both.devices] == [0]
    assert both.busy
    assert "gpucheck list --processes" in " ".join(second.remedy)
    assert not second.devices
    assert second.busy


def test_a_span_is_in_seconds_and_behind_the_hold_kernel(cupy: FakeCupy) -> None:
    device = CupyDevice(0)
    calls: list[int] = []

    span = device.span(lambda: calls.append(len(cupy.launched)))

    assert span.seconds == 2.5e-3
    assert not span.starved
    assert span.sm_clock_mhz == pytest.approx(1980.0)
    assert calls == [3]
    assert [launch[0] for launch in cupy.launched] == ["step", "hold", "tick", "tick"]
    assert cupy.launched[1][3] == (np.uint64(50_000),)


def test_a_starved_span_is_run_again_behind_a_longer_hold(cupy: FakeCupy) -> None:
    cupy.fired.extend([True, True, False])
    device = CupyDevice(0)

    span = device.span(lambda: None)

    assert not span.starved
    held = [int(launch[3][0]) for launch in cupy.launched if launch[0] == "hold"]
    assert held == [50_000, 200_000, 800_000]


def test_the_hold_is_as_long_as_the_host_needed(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("gpucheck.drivers.cupy.device.monotonic_s", clock)
    device = CupyDevice(0)

    for seconds in (1e-3, 1e-3, 0.0, 0.0):
        device.span(lambda seconds=seconds: clock.take(seconds))  # type: ignore[misc]

    held = [int(launch[3][0]) for launch in cupy.launched if launch[0] == "hold"]
    assert held == [50_000, 1_500_000, 1_500_000, 50_000]


def test_work_that_the_host_does_itself_is_not_held(cupy: FakeCupy) -> None:
    cupy.fired.extend([True] * 10)

    span = CupyDevice(0).span(lambda: None, held=False)

    assert not span.starved
    assert [launch[0] for launch in cupy.launched] == ["step", "tick", "tick"]


def test_a_host_that_never_keeps_up_is_given_up_on_and_said(cupy: FakeCupy) -> None:
    cupy.fired.extend([True] * 100)

    assert CupyDevice(0).span(lambda: None).starved
    assert len(cupy.launched) < 30


def test_a_clock_that_was_not_written_is_none(cupy: FakeCupy, monkeypatch: Any) -> None:
    monkeypatch.setattr(cupy, "ticks_move", False)
    device = CupyDevice(0)

    assert device.span(lambda: None).sm_clock_mhz is None


@pytest.mark.parametrize(
    ("step_ns", "known"), [(32, True), (4000, True), (4001, False), (0, False)]
)
def test_a_timer_that_steps_too_coarsely_tells_no_clock(
    cupy: FakeCupy, step_ns: int, known: bool
) -> None:
    cupy.step_ns = step_ns

    # A millisecond passes between two ticks.
    assert (CupyDevice(0).span(lambda: None).sm_clock_mhz is not None) == known


@pytest.fixture(name="cublas")
def _cublas(cupy: FakeCupy) -> Cublas:
    cupy.cuda.cublas = Cublas()
    fake: Cublas = cupy.cuda.cublas
    return fake


@pytest.mark.parametrize("left_transposed", [False, True])
@pytest.mark.parametrize("right_transposed", [False, True])
@pytest.mark.parametrize("scaling", [(1.0, 0.0), (-0.5, 1.0)])
def test_cublas_is_told_the_product_that_is_meant(
    cublas: Cublas, left_transposed: bool, right_transposed: bool, scaling: tuple[float, float]
) -> None:
    numbers = np.random.default_rng(1)
    left, right = numbers.standard_normal((3, 5)), numbers.standard_normal((5, 4))
    before = numbers.standard_normal((3, 4))
    out = array(before)
    alpha, beta = scaling
    product = Product(
        left_transposed=left_transposed,
        right_transposed=right_transposed,
        alpha=alpha,
        beta=beta,
    )

    CupyDevice(0).multiply(
        array(np.ascontiguousarray(left.T) if left_transposed else left),
        array(np.ascontiguousarray(right.T) if right_transposed else right),
        out,
        product,
    )

    np.testing.assert_allclose(out, alpha * left @ right + beta * before, rtol=1e-5)


@pytest.mark.parametrize(
    ("mode", "stored", "result", "types"),
    [
        ("fp64", "float64", "float64", (1, 1, 70)),
        ("fp32", "float32", "float32", (0, 0, 68)),
        ("tf32", "float32", "float32", (0, 0, 77)),
        ("fp16", "float16", "float16", (2, 2, 68)),
        ("bf16", "uint16", "uint16", (14, 14, 68)),
        ("int8", "int8", "int32", (3, 10, 72)),
    ],
)
def test_each_arithmetic_has_its_own_types(
    cublas: Cublas, mode: str, stored: str, result: str, types: tuple[int, int, int]
) -> None:
    numbers = np.arange(16).reshape(4, 4)
    other = np.ascontiguousarray(numbers.T)
    out = array(np.zeros((4, 4)), result)

    device = CupyDevice(0)
    device.multiply(array(numbers, stored), array(other, stored), out, Product(math_mode=mode))

    assert cublas.calls[0][5:] == types
    assert np.array_equal(out, numbers @ other)


def test_int8_edges_that_cublas_does_not_take_are_named(cublas: Cublas) -> None:
    left, right, out = array([[1]] * 5, "int8"), array([[1] * 8], "int8"), array([[1] * 8] * 5)

    with pytest.raises(MissingError, match=r"multiples of 4, not 5") as caught:
        CupyDevice(0).multiply(left, right, out, Product(math_mode="int8"))

    assert caught.value.remedy == ("Choose --size 4.",)


def test_copies_rows_and_poison(cupy: FakeCupy) -> None:
    device = CupyDevice(0)
    source, out = array(np.arange(6).reshape(3, 2)), array(np.zeros((3, 2)))

    device.copy(source, out)

    assert np.array_equal(out, source)
    view: Any = device.rows(source, 1, 2)
    assert np.asarray(view).tolist() == [[2, 3]]
    assert device.memory_used_bytes() == 4096
    for dtype, poisoned in (("float16", np.nan), ("uint16", 0xFFFF), ("int32", -0x7F7F7F80)):
        spoilt = array(np.zeros(2), dtype)
        device.poison(spoilt)
        assert np.array_equal(spoilt, np.full(2, poisoned, dtype), equal_nan=dtype == "float16")


def test_copies_both_ways_at_once(cupy: FakeCupy) -> None:
    sent, fetched = np.ones(3, dtype=np.float32), np.zeros(3, dtype=np.float32)
    target, source = array(np.zeros(3)), array(np.full(3, 2))

    CupyDevice(0).exchange(sent, target, source, fetched)

    assert np.asarray(target).tolist() == [1, 1, 1]
    assert fetched.tolist() == [2, 2, 2]


def test_a_graph_runs_nothing_until_it_is_launched(cupy: FakeCupy) -> None:
    device = CupyDevice(0)
    calls: list[bool] = []

    launch = device.capture(lambda: calls.append(device._stream.capturing))
    assert calls == [True]
    assert not device._stream.capturing
    # Before any launch, so that no timed one brings it to the GPU.
    assert (len(device._stream.uploaded), len(device._stream.launched)) == (1, 0)
    launch()
    launch()

    assert len(device._stream.launched) == 2
    assert calls == [True]


def test_a_failing_capture_lets_go_of_the_stream(cupy: FakeCupy) -> None:
    device = CupyDevice(0)

    with pytest.raises(InconclusiveError):
        device.capture(raising(CUDARuntimeError("cudaErrorStreamCaptureUnsupported")))

    assert not device._stream.capturing


def test_what_broke_a_capture_is_told_and_not_that_its_end_failed(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = CupyDevice(0)
    invalid = raising(CUDARuntimeError("cudaErrorStreamCaptureInvalidated"))
    monkeypatch.setattr(device._stream, "end_capture", invalid)

    with pytest.raises(InconclusiveError, match="cudaErrorInvalidValue"):
        device.capture(raising(CUDARuntimeError("cudaErrorInvalidValue: no")))


def test_empty_launches_are_counted(cupy: FakeCupy) -> None:
    device = CupyDevice(0)
    device.launch_empty(3)
    device.launch_empty(2, waiting=True)

    assert [launch[0] for launch in cupy.launched] == ["empty"] * 5


@pytest.mark.parametrize(
    ("reachable", "enabling", "answer"),
    [
        (0, None, False),
        (1, None, True),
        (1, CUDARuntimeError("cudaErrorPeerAccessAlreadyEnabled: again"), True),
    ],
)
def test_peers_are_asked_for_and_let_in_once(
    cupy: FakeCupy, reachable: int, enabling: Exception | None, answer: bool
) -> None:
    cupy.reachable, cupy.enabling = reachable, enabling
    one, two = CupyDevice(0), CupyDevice(1)

    assert one.reaches(two) is answer
    one.copy_from(two, array([1]), array([0]))

    _, to_gpu, _, from_gpu, count, stream = cupy.peer_calls[0]
    assert (to_gpu, from_gpu, count, stream) == (0, 1, 4, 7)


def test_the_clocks_of_the_properties_are_megahertz(cupy: FakeCupy) -> None:
    assert CupyDevice(0).facts.clock_sm_max_mhz is None
    cupy.properties |= {"clockRate": 1_980_000, "memoryClockRate": 0, "memoryBusWidth": 5120}

    facts = CupyDevice(0).facts

    assert facts.clock_sm_max_mhz == 1980.0
    assert facts.clock_memory_max_mhz is None
    assert facts.memory_bus_bits == 5120


def test_the_librarys_softmax_is_the_formula(cupy: FakeCupy) -> None:
    source, out = array([[0.0, 1.0], [2.0, 2.0]]), array(np.zeros((2, 2)))

    CupyDevice(0).softmax(source, out, 0.5)

    np.testing.assert_allclose(out[0], np.exp([0, 2]) / np.exp([0, 2]).sum(), rtol=1e-6)
    np.testing.assert_allclose(out[1], [0.5, 0.5])


def test_the_real_cupy_without_a_driver_or_with_one() -> None:
    pytest.importorskip("cupy")

    opened = open_gpus()

    assert bool(opened.devices) is (opened.unavailable is None)
    assert opened.cupy_version


LINES = """
from gpucheck.drivers.cupy.device import open_gpus
said["uuids"] = [gpu.facts.uuid for gpu in open_gpus().devices]
"""
#: CUDA's runtime ends it at its first zero byte.
WITH_ZERO = "GPU-25551a6f-0058-557c-8026-fcfd65883591"


def with_zero() -> Machine:
    machine = load_machine("t4")
    return replace(machine, gpus=(replace(machine.gpus[0], uuid=WITH_ZERO),))


@pytest.mark.parametrize(
    ("machine", "uuid"),
    [
        (with_zero(), WITH_ZERO),
        (load_machine("a100-mig"), "MIG-a1e3a6c4-1f35-5b0b-9a52-6f2f2bd2ec01"),
    ],
)
def test_where_nobody_knows_the_uuid_the_driver_is_asked(
    c_compiler: str, tmp_path: Path, machine: Machine, uuid: str
) -> None:
    assert run_lines("", LINES, tmp_path, machine)["uuids"] == [uuid]
