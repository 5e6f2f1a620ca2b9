"""The door to CuPy against a scripted `cupy`, and against the real one where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpucheck.models.errors import GpucheckError, InconclusiveError, MissingError
from gpucheck.probes.cupy_device import CupyDevice, open_gpus

UUID = bytes.fromhex("0123456789abcdef0123456789abcdef")


class CUDARuntimeError(RuntimeError):
    """Named as CuPy names its own."""


class OutOfMemoryError(MemoryError):
    """Named as CuPy names its own."""


class Context:
    """A device or a stream: something to enter."""

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def synchronize(self) -> None:
        return None


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


class FakeCupy(ModuleType):
    """As much of CuPy as opening a device and timing need."""

    __version__ = "14.2.0"

    def __init__(self) -> None:
        super().__init__("cupy")
        self.count: int | Exception = 1
        self.fired: list[bool] = []
        self.launched: list[tuple[Any, ...]] = []
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
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            Device=lambda index: Context(),
            Stream=lambda non_blocking: Context(),
            Event=lambda: Event(self.fired),
            get_elapsed_time=lambda begin, end: 2.5,
        )

    def _count(self) -> int:
        if isinstance(self.count, Exception):
            raise self.count
        return self.count

    def RawKernel(self, source: str, name: str, options: tuple[str, ...]) -> Any:
        assert name in source

        class Kernel:
            def compile(self) -> None:
                return None

            def __call__(_, *launch: Any) -> None:
                self.launched.append(launch)

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


def test_cupy_missing_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)

    opened = open_gpus()

    assert opened.unavailable == "CuPy is not installed, so no GPU can be measured"
    assert opened.cupy_version is None


def test_a_broken_cupy_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gpucheck.probes.cupy_device.import_module",
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
    cupy.matmul = raising(error)

    with pytest.raises(kind) as caught:
        device.matmul(np.zeros(1), np.zeros(1), np.zeros(1))

    assert caught.value.code == code
    assert caught.value.remedy
    assert "\n" not in caught.value.message


def test_a_span_is_in_seconds_and_behind_the_hold_kernel(cupy: FakeCupy) -> None:
    device = CupyDevice(0)
    calls: list[int] = []

    span = device.span(lambda: calls.append(len(cupy.launched)))

    assert span.seconds == 2.5e-3
    assert not span.starved
    assert calls == [1]
    assert cupy.launched[0][2] == (np.uint64(50_000),)


def test_a_starved_span_is_run_again_behind_a_longer_hold(cupy: FakeCupy) -> None:
    cupy.fired.extend([True, True, False])
    device = CupyDevice(0)

    span = device.span(lambda: None)

    assert not span.starved
    assert [int(args[0]) for _, _, args in cupy.launched] == [50_000, 200_000, 800_000]


def test_a_host_that_never_keeps_up_is_given_up_on_and_said(cupy: FakeCupy) -> None:
    cupy.fired.extend([True] * 100)

    assert CupyDevice(0).span(lambda: None).starved
    assert len(cupy.launched) < 10


def test_the_real_cupy_without_a_driver_or_with_one() -> None:
    pytest.importorskip("cupy")

    opened = open_gpus()

    assert bool(opened.devices) is (opened.unavailable is None)
    assert opened.cupy_version
