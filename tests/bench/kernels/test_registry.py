from __future__ import annotations

import pytest

from gpucheck.bench import mnist, training
from gpucheck.bench.gpu_case import pinned_bytes
from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.numerics import FORMATS
from gpucheck.bench.request_model import BenchMode, BenchRequest
from tests.fakes.bench import FakeClock, FakeGpu, order


@pytest.mark.parametrize("name", KERNELS)
def test_id_sizes_and_memory_are_stated(name: str) -> None:
    kernel = KERNELS[name]
    shape = kernel.shape(64)

    assert kernel.id == name
    assert set(kernel.sizes) == set(kernel.dtypes) == set(BenchMode)
    for dtype in kernel.dtypes[BenchMode.FULL]:
        work = kernel.work(shape, dtype)
        assert work.amount > 0
        assert kernel.host_bytes(shape, dtype, 2) > kernel.host_bytes(shape, dtype, 0) > 0
        assert kernel.device_bytes(shape, dtype) >= work.bytes_moved


@pytest.mark.parametrize("name", KERNELS)
def test_the_full_mode_has_every_format_that_another_mode_has(name: str) -> None:
    dtypes = KERNELS[name].dtypes

    assert set(dtypes[BenchMode.QUICK]) | set(dtypes[BenchMode.DEFAULT]) <= set(
        dtypes[BenchMode.FULL]
    )
    assert set(dtypes[BenchMode.FULL]) <= set(FORMATS)


#: Their check takes a few steps of its own from zero: there is no result that could be left over.
TRAINED = {"train", "batch", "towers"}
#: Fewer images than the default.
QUICK = BenchRequest(mode=BenchMode.QUICK)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_right_on_every_device_and_a_wrong_gpu_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "TRAINED_STEPS", 50)  # the accuracy is not looked at here
    monkeypatch.setitem(mnist._GENERATED, BenchMode.QUICK, 640)
    monkeypatch.setattr(mnist, "_TESTED", 100)
    kernel = KERNELS[name]
    for wrong_by in (0.0, 7.0):
        clock = FakeClock()
        gpus = [FakeGpu(clock, cuda_index=number, wrong_by=wrong_by) for number in range(2)]
        given = order(kernel.shape(64), clock=clock, gpus=gpus, request=QUICK)
        cases = [] if wrong_by else [*kernel.cpu_cases(given)]
        for gpu in gpus:
            cases.extend(kernel.gpu_cases(given, gpu))
        assert cases
        for case in cases:
            if wrong_by and name == "launch":
                continue  # an empty kernel writes nothing that could be wrong
            case.prepare()
            case.poison()
            assert case.check().ok is (name in TRAINED and not wrong_by), case.label
            assert case.run(2) >= 0
            assert case.check().ok is (wrong_by == 0), case.label
            assert all(isinstance(value, str | int | float) for value in case.facts.values())
            assert case.label.text
            case.release()


@pytest.mark.parametrize("name", KERNELS)
def test_every_case_can_be_released_before_it_was_prepared(name: str) -> None:
    kernel, clock = KERNELS[name], FakeClock()
    gpus = [FakeGpu(clock, cuda_index=number) for number in range(2)]
    given = order(kernel.shape(64), clock=clock, gpus=gpus)

    for case in [*kernel.cpu_cases(given), *kernel.gpu_cases(given, gpus[0])]:
        case.release()


@pytest.mark.parametrize("name", KERNELS)
def test_no_two_rows_of_a_device_have_one_id_and_every_gpu_has_the_same(name: str) -> None:
    kernel, clock = KERNELS[name], FakeClock()
    gpus = [FakeGpu(clock, cuda_index=number) for number in range(3)]
    request = BenchRequest(mode=BenchMode.FULL)
    by_device: dict[str, list[str]] = {}
    for dtype in kernel.dtypes[BenchMode.FULL]:
        given = order(kernel.shape(64), clock=clock, dtype=dtype, request=request, gpus=gpus)
        cpu = [] if kernel.cpu_refusal(dtype) else kernel.cpu_cases(given)
        for case in [*cpu, *(case for gpu in gpus for case in kernel.gpu_cases(given, gpu))]:
            by_device.setdefault(case.label.device, []).append(case.label.id)

    for found in by_device.values():
        assert len(found) == len(set(found))
        assert all(one.startswith(f"{name}/") and one.count("/") == 6 for one in found)
    if name not in ("p2p", "towers"):  # those name their peers, or only the first GPU has rows
        assert by_device["gpu:1"] == by_device["gpu:2"]


@pytest.mark.parametrize("name", ["matmul", "softmax", "transfer"])
def test_page_locked_arrays_count_as_cupys_pool_rounds_them(name: str) -> None:
    kernel = KERNELS[name]

    def of_a_gpu(size: int) -> int:
        shape = kernel.shape(size)
        return kernel.host_bytes(shape, "float32", 1) - kernel.host_bytes(shape, "float32", 0)

    # 36 MiB take 64: as much as 4096 x 4096, but for what is not page-locked.
    assert pinned_bytes(4 * 3072**2) == pinned_bytes(4 * 4096**2) == 64 * 2**20
    assert pinned_bytes(1) == 512
    # A transfer has a pageable pair besides, and each of the others a copy for its check.
    pinned, others = {"matmul": (3, 0), "softmax": (2, 1), "transfer": (2, 3)}[name]
    assert of_a_gpu(3072) == pinned * 64 * 2**20 + others * 36 * 2**20
