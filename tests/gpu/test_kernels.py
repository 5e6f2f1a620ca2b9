"""Every kernel on a real card against float64: all formats, edge cases, and a printed speed.

The speeds are printed (`pytest -s`), never asserted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpucheck.bench.case import Case, CaseOrder
from gpucheck.bench.gpu_case import ResidentCase
from gpucheck.bench.gpu_training import CopiedTraining, GpuTraining
from gpucheck.bench.kernels.copy import DriverCopy, KernelCopy
from gpucheck.bench.kernels.matmul import Matmul, missing_format
from gpucheck.bench.kernels.softmax import (
    GpuSoftmax,
    SoftmaxRows,
    choose_softmax,
    source_text,
)
from gpucheck.bench.kernels.transfer import TransferCase
from gpucheck.bench.kernels.triad import GpuTriad
from gpucheck.bench.numerics import FORMATS, decode, encode
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.bench.training import TrainingPlan
from gpucheck.drivers.cupy.device import open_gpus
from gpucheck.drivers.gpu import GpuDevice
from gpucheck.drivers.host.clock import monotonic_s
from tests.fakes.bench import order

pytestmark = pytest.mark.gpu

HostArray = NDArray[Any]
ELEMENTS = ("float32", "float16", "bfloat16")
LOG2_E = 1.4426950408889634
QUICK = BenchRequest(mode=BenchMode.QUICK)


@pytest.fixture(name="gpu", scope="module")
def _gpu() -> Iterator[GpuDevice]:
    pytest.importorskip("cupy")
    opened = open_gpus((0,))
    if not opened.devices:
        pytest.skip(f"no GPU can be measured: {opened.unavailable}")
    yield opened.devices[0]
    opened.devices[0].release()


def exact(values: HostArray, temperature: float) -> HostArray:
    with np.errstate(all="ignore"):
        raised = values.astype(np.float64) / temperature
        raised = np.exp(raised - raised.max(axis=1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def softmax_on(
    gpu: GpuDevice, values: HostArray, dtype: str, temperature: float, skip: int = 0
) -> HostArray:
    """Return the softmax of rows that begin `skip` elements behind the arrays' begin."""
    form = FORMATS[dtype]
    rows, columns = values.shape
    stored = np.zeros(skip + values.size, dtype=form.storage)
    stored[skip:] = encode(values, form).reshape(-1)
    x, y = gpu.upload(stored), gpu.allocate((skip + values.size,), form.storage)
    gpu.poison(y)
    aligned = (skip * form.itemsize) % 16 == 0 and (columns * form.itemsize) % 16 == 0
    problem = SoftmaxRows(rows=rows, columns=columns, itemsize=form.itemsize, aligned=aligned)
    launch = choose_softmax(problem)
    defines = {"ELEMENT": ELEMENTS.index(dtype), **launch.defines}
    kernel = gpu.compile(source_text(), launch.name, defines)
    size = skip + values.size
    numbers = (np.int64(rows), np.int64(columns), np.float32(LOG2_E / temperature))
    arguments = (gpu.rows(x, skip, size), gpu.rows(y, skip, size), *numbers)
    kernel(launch.grid, launch.block, arguments)
    return decode(gpu.download(y)[skip:].reshape(rows, columns), dtype)


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize(
    "columns",
    [
        *(1, 2, 7, 33, 64, 100, 1000, 1024, 1025, 4096, 4099, 16384, 30_001, 32768, 32769, 65536),
        *(100_003, 131_072, 262_144, 262_145, 600_001),
    ],
)
def test_softmax_of_every_length_agrees_with_float64(
    gpu: GpuDevice, dtype: str, columns: int
) -> None:
    rows = max(3, min(300, 2**20 // columns))
    values = np.random.default_rng(columns).standard_normal((rows, columns), dtype=np.float32)
    stored = decode(encode(values, FORMATS[dtype]), dtype)
    for skip, temperature in ((0, 0.7), (1, 1.0), (3, 0.01)):
        found = softmax_on(gpu, values, dtype, temperature, skip)
        relative = {"float32": 3e-5, "float16": 2.0**-10, "bfloat16": 2.0**-8}[dtype]
        np.testing.assert_allclose(
            found.astype(np.float64), exact(stored, temperature), rtol=relative, atol=2.0**-24
        )


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("columns", [40, 5000, 70_000, 300_000])
def test_infinities_and_nan_spoil_their_own_row_only(
    gpu: GpuDevice, dtype: str, columns: int
) -> None:
    values = np.random.default_rng(1).standard_normal((7, columns), dtype=np.float32)
    values[1] = -np.inf
    values[2, columns // 2] = np.nan
    values[3, -1] = np.inf
    values[4, 1:] = -np.inf
    values[5, 0] = 6e4
    stored = decode(encode(values, FORMATS[dtype]), dtype)
    for temperature in (1e-30, 1.0):
        found = softmax_on(gpu, values, dtype, temperature)
        np.testing.assert_allclose(
            found.astype(np.float64), exact(stored, temperature), rtol=2.0**-8, atol=2.0**-24
        )


def test_the_same_softmax_twice_is_the_same_bit_for_bit(gpu: GpuDevice) -> None:
    for columns in (1000, 8192, 65536, 400_000):
        values = np.random.default_rng(2).standard_normal((64, columns), dtype=np.float32)
        found = {softmax_on(gpu, values, "float32", 1.0).tobytes() for _ in range(5)}
        assert len(found) == 1


@pytest.mark.parametrize("storage", ["float16", "float32", "float64", "uint16", "int32", "int8"])
def test_what_is_poisoned_cannot_be_taken_for_a_result(gpu: GpuDevice, storage: str) -> None:
    array = gpu.upload(np.zeros(1000, dtype=storage))

    gpu.poison(array)

    found = gpu.download(array)
    if found.dtype.kind == "f":
        assert np.isnan(found).all()
    elif storage == "uint16":  # bfloat16 as its bits
        assert np.isnan(decode(found, "bfloat16")).all()
    else:
        assert (found < -100).all()


def test_the_clock_of_the_sms_is_read_where_the_timer_is_fine_enough(gpu: GpuDevice) -> None:
    operation = KernelCopy(order((4096, 4096)), gpu)
    case = ResidentCase(gpu, operation)
    try:
        case.prepare()
        case.run(100)
        clock = case.sm_clock_mhz
    finally:
        case.release()

    if clock is None:
        pytest.skip("the GPU's timer steps too coarsely for 100 copies")
    assert 100 < clock < 5000


def square(dtype: str) -> CaseOrder:
    return order((1024, 1024, 1024), dtype=dtype, clock=monotonic_s)


def cases(gpu: GpuDevice) -> dict[str, Case]:
    """Return one case of each kind, large enough for a meaningful speed."""
    found: dict[str, Case] = {}
    for dtype in ELEMENTS:
        for columns in (1024, 4096, 32768, 131_072):
            shape = (2**24 // columns, columns)
            operation = GpuSoftmax(order(shape, dtype=dtype), gpu)
            found[f"softmax {dtype} {columns}"] = ResidentCase(gpu, operation)
    for dtype, form in FORMATS.items():
        if missing_format(form, gpu.facts) is None:
            for case in Matmul().gpu_cases(square(dtype), gpu):
                found[f"{case.label.variant} {dtype} {case.label.scope}"] = case
    for make in (DriverCopy, KernelCopy, GpuTriad):
        operation = make(order((4096, 4096)), gpu)
        found[operation.label.text] = ResidentCase(gpu, operation)
    batches = order((100,), request=QUICK, clock=monotonic_s)
    plan = TrainingPlan(kernel="train", batch=100)
    found["train fused"] = GpuTraining(batches, plan, gpu, "fused", fused=True)
    found["train cublas"] = GpuTraining(batches, plan, gpu, "cublas")
    found["train copied"] = CopiedTraining(batches, plan, gpu, "copied")
    two = TrainingPlan(kernel="towers", batch=200, towers=2)
    found["two towers"] = GpuTraining(batches, two, gpu, "towers", fused=True)
    for way in ("to-gpu", "from-gpu", "both-ways"):
        found[f"transfer {way}"] = TransferCase(order((2**22,)), gpu, way, (2**22,))
    return found


def test_every_case_is_right_before_and_after_it_is_timed(gpu: GpuDevice) -> None:
    wrong = []
    for name, case in cases(gpu).items():
        try:
            case.prepare()
            case.poison()
            case.run(1)
            first = case.check()
            case.run(20)
            seconds = case.run(20) / 20
            last = case.check()
        finally:
            case.release()
        speed = case.work.amount / seconds / 1e9
        print(f"{name:<28} {1e6 * seconds:10.1f} us {speed:12.1f} G{case.work.unit}")  # noqa: T201
        if not (first.ok and last.ok):
            wrong.append((name, first, last))
    assert not wrong
