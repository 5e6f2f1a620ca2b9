"""CuPy client: errors and timer against a script, what it computes on the pretended CuPy."""

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
OOM = "gpu-out-of-memory"
NO_TARGET = "ptxas: error   : Modifier '.no_allocate' on 'ld' requires .target sm_70 or higher"


class Context:
    """A device or a stream: something to enter."""

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def begin_capture(self) -> None:
        return None

    def end_capture(self) -> None:
        return None


class Array(np.ndarray[Any, Any]):
    """NumPy's array with what the timer needs of CuPy's."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        def memset_async(value: int, size: int, stream: object = None) -> None:
            ctypes.memset(self.ctypes.data, value, size)

        return SimpleNamespace(memset_async=memset_async)

    def get(self, stream: object = None) -> Any:
        return np.asarray(self).copy()


class Event:
    """An event that has fired by the time it is asked, as often as the script says."""

    def __init__(self, fired: list[bool]) -> None:
        self._fired = fired

    @property
    def done(self) -> bool:
        return self._fired.pop(0) if self._fired else False

    def record(self, stream: object) -> None:
        assert isinstance(stream, Context)


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
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                getDeviceCount=self._count,
                getDeviceProperties=lambda index: self.properties,
                memGetInfo=lambda: (70 * 2**30, 80 * 2**30),
                CUDARuntimeError=CUDARuntimeError,
            ),
            Device=lambda index: Context(),
            Stream=lambda non_blocking: Context(),
            device=SimpleNamespace(get_cublas_handle=lambda: 99),
            Event=lambda: Event(self.fired),
            get_elapsed_time=lambda begin, end: 2.5,
        )

    def empty(self, shape: Any, dtype: str) -> Any:
        return np.empty(shape, dtype=dtype).view(Array)

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


BUSY = CUDARuntimeError("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy")


def test_one_that_another_process_has_for_itself_leaves_the_others(cupy: FakeCupy) -> None:
    cupy.count = 3
    cupy.cuda.Device = lambda index: raising(BUSY)() if index == 1 else Context()

    opened, second = open_gpus(), open_gpus([1])

    assert [gpu.facts.cuda_index for gpu in opened.devices] == [0, 2]
    assert (opened.unavailable, opened.busy, list(opened.refused)) == (None, True, [1])
    assert "cudaErrorDevicesUnavailable" in opened.refused[1]
    assert "gpucheck list --processes" in " ".join(second.remedy)
    assert (second.busy, list(second.devices)) == (True, [])


def test_a_gpu_is_opened_once_and_one_that_is_not_there_is_named(cupy: FakeCupy) -> None:
    assert len(open_gpus([0, 0]).devices) == 1
    opened = open_gpus([0, 3])

    assert opened.devices == ()
    assert "gpu:3" in (opened.unavailable or "")


def test_none_that_can_be_opened_is_a_reason_with_what_to_do(cupy: FakeCupy) -> None:
    cupy.cuda.Stream = raising(CUDARuntimeError("cudaErrorDevicesUnavailable: busy"))

    opened = open_gpus()

    assert opened.devices == ()
    assert "cudaErrorDevicesUnavailable" in (opened.unavailable or "")
    assert opened.remedy


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
    assert opened.remedy == (
        *install_cupy(),
        "Or, where PyTorch is installed, measure with it: gpucheck bench --framework pytorch",
    )
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
        (OutOfMemoryError("Out of memory allocating 8 bytes"), InconclusiveError, OOM),
        (CUDARuntimeError("cudaErrorMemoryAllocation: oom"), InconclusiveError, OOM),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), InconclusiveError, OOM),
        (RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED"), InconclusiveError, OOM),
        (CUDADriverError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), InconclusiveError, OOM),
        (CUDARuntimeError("cudaErrorDevicesUnavailable: busy"), InconclusiveError, "gpu-busy"),
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


def test_what_broke_a_capture_is_told_and_not_that_its_end_failed(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = CupyDevice(0)
    invalid = raising(CUDARuntimeError("cudaErrorStreamCaptureInvalidated"))
    monkeypatch.setattr(device._stream, "end_capture", invalid)

    with pytest.raises(InconclusiveError, match="cudaErrorInvalidValue"):
        device.capture(raising(CUDARuntimeError("cudaErrorInvalidValue: no")))


def test_the_clocks_of_the_properties_are_megahertz(cupy: FakeCupy) -> None:
    assert CupyDevice(0).facts.clock_sm_max_mhz is None
    cupy.properties |= {"clockRate": 1_980_000, "memoryClockRate": 0, "memoryBusWidth": 5120}

    facts = CupyDevice(0).facts

    assert facts.clock_sm_max_mhz == 1980.0
    assert facts.clock_memory_max_mhz is None
    assert facts.memory_bus_bits == 5120


#: What the client does on two pretended cards, in one process, and what it says to cuBLAS.
HEAD = """
import cupy
import numpy as np
from gpucheck.drivers.cupy.device import open_gpus
from gpucheck.drivers.gpu import Product
from gpucheck.report.errors import GpucheckError

calls, gemm = [], cupy.cuda.cublas.gemmEx
cupy.cuda.cublas.gemmEx = lambda *words: (calls.append(words), gemm(*words))
gpu, other = open_gpus().devices[:2]

def array(values, dtype="float32"):
    return cupy.asarray(np.ascontiguousarray(np.asarray(values), dtype=dtype))

def fetched(array):
    gpu.synchronize()
    return array.get()

def error_of(function, *arguments):
    try:
        function(*arguments)
    except GpucheckError as error:
        return [error.message, *error.remedy]
"""
COMPUTED = """
numbers = np.random.default_rng(1)
left, right = numbers.standard_normal((3, 5)), numbers.standard_normal((5, 4))
before = numbers.standard_normal((3, 4))
said["wrong products"] = []
for first, second in ((False, False), (False, True), (True, False), (True, True)):
    for alpha, beta in ((1.0, 0.0), (-0.5, 1.0)):
        out = array(before)
        product = Product(left_transposed=first, right_transposed=second, alpha=alpha, beta=beta)
        gpu.multiply(
            array(left.T if first else left), array(right.T if second else right), out, product
        )
        wanted = alpha * left @ right + beta * before
        if not np.allclose(fetched(out), wanted, rtol=1e-4, atol=1e-5):
            said["wrong products"].append([first, second, alpha, beta])
said["types"] = {}
whole = np.arange(16).reshape(4, 4)
for mode, stored, result in (
    ("fp64", "float64", "float64"), ("fp32", "float32", "float32"), ("tf32", "float32", "float32"),
    ("fp16", "float16", "float16"), ("bf16", "uint16", "uint16"), ("int8", "int8", "int32"),
):
    calls.clear()
    out = array(np.zeros((4, 4)), result)
    gpu.multiply(array(whole, stored), array(whole.T, stored), out, Product(math_mode=mode))
    said["types"][mode] = [calls[0][at] for at in (8, 11, 15, 17, 18)]
    if mode != "bf16" and not np.array_equal(fetched(out), whole @ whole.T):
        said["wrong products"].append(mode)
odd = array([[1]] * 5, "int8"), array([[1] * 8], "int8"), array([[1] * 8] * 5, "int32")
said["odd int8"] = error_of(gpu.multiply, *odd, Product(math_mode="int8"))
scores = array([[0.0, 1.0], [2.0, 2.0]])
out = array(np.zeros((2, 2)))
gpu.softmax(scores, out, 0.5)
said["softmax"] = [f"{value:.4f}" for value in fetched(out).ravel()]
"""
MOVED = """
source, out = array(np.arange(6).reshape(3, 2)), array(np.zeros((3, 2)))
gpu.copy(source, out)
said["copied"] = fetched(out).tolist()
said["rows"] = fetched(gpu.rows(source, 1, 2)).tolist()
said["used"] = gpu.memory_used_bytes()
said["poison"] = {}
for dtype in ("float16", "uint16", "int32"):
    spoilt = array(np.zeros(2), dtype)
    gpu.poison(spoilt)
    said["poison"][dtype] = str(fetched(spoilt)[0])
sent, fetched_here = np.ones(3, dtype=np.float32), np.zeros(3, dtype=np.float32)
target, source = array(np.zeros(3)), array(np.full(3, 2))
gpu.exchange(sent, target, source, fetched_here)
said["both ways"] = [fetched(target).tolist(), fetched_here.tolist()]
out = array(np.zeros(3))
launch = gpu.capture(lambda: gpu.copy(source, out))
said["captured"] = fetched(out).tolist()
launch()
said["launched"] = fetched(out).tolist()
said["broken capture"] = error_of(gpu.capture, gpu.synchronize)
said["capture after it"] = gpu.capture(lambda: gpu.copy(source, out)) is not None
said["reaches"] = [gpu.reaches(other), gpu.reaches(other)]
with cupy.cuda.Device(1):
    far = array([5, 6, 7])
gpu.copy_from(other, far, out)
said["from the other"] = fetched(out).tolist()
gpu.launch_empty(3)
gpu.launch_empty(2, waiting=True)
"""


def test_it_computes_what_is_meant_in_the_arithmetic_that_is_meant(
    c_compiler: str, tmp_path: Path
) -> None:
    said = run_lines(HEAD, COMPUTED, tmp_path, "h100x8")

    assert said["wrong products"] == []
    # Left, right and result, what it computes in, and the algorithm: cublas_api.h, library_types.h.
    assert said["types"] == {
        "fp64": [1, 1, 1, 70, -1],
        "fp32": [0, 0, 0, 68, -1],
        "tf32": [0, 0, 0, 77, -1],
        "fp16": [2, 2, 2, 68, -1],
        "bf16": [14, 14, 14, 68, -1],
        "int8": [3, 3, 10, 72, -1],
    }
    message, remedy = said["odd int8"]
    assert "multiples of 4, not 5" in message
    assert remedy == "Choose --size 4."
    assert said["softmax"] == ["0.1192", "0.8808", "0.5000", "0.5000"]


def test_it_copies_poisons_and_replays(c_compiler: str, tmp_path: Path) -> None:
    said = run_lines(HEAD, MOVED, tmp_path, "h100x8")

    assert said["copied"] == [[0, 1], [2, 3], [4, 5]]
    assert said["rows"] == [[2, 3]]
    assert said["used"] >= 1024
    assert said["poison"] == {"float16": "nan", "uint16": "65535", "int32": "-2139062144"}
    assert said["both ways"] == [[1, 1, 1], [2, 2, 2]]
    assert said["captured"] == [0, 0, 0]
    assert said["launched"] == [2, 2, 2]
    assert "cudaErrorStreamCaptureUnsupported" in said["broken capture"][0]
    assert said["capture after it"]
    assert said["reaches"] == [True, True]
    assert said["from the other"] == [5, 6, 7]


def test_a_gpu_that_cannot_be_reached_is_said(c_compiler: str, tmp_path: Path) -> None:
    lines = 'said["reaches"] = gpu.reaches(other)'

    assert not run_lines(HEAD, lines, tmp_path, "h100x8", script="no-peers")["reaches"]


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
