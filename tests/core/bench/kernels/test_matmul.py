from __future__ import annotations

import numpy as np
import pytest

from gpucheck.core.bench.gpu_case import EndToEndCase, ResidentCase
from gpucheck.core.bench.kernels.matmul import (
    CpuMatmul,
    Matmul,
    draw_inputs,
    float32_bound,
    verify_product,
)
from gpucheck.models.bench import DtypeSpec
from tests.fakes.bench import FakeBlas, FakeClock, FakeGpu, order


def test_work_counts_each_term_twice_and_each_matrix_once() -> None:
    work = Matmul().work((2, 3, 5))

    assert work.flops == 2 * 2 * 3 * 5
    assert work.bytes_moved == 4 * (6 + 15 + 10)
    assert work.amount == work.flops


@pytest.mark.parametrize("edge", [1, 2, 63, 64, 600])
def test_the_cpu_product_is_right(edge: int) -> None:
    case = CpuMatmul(order((edge, edge, edge)), threads=1)
    case.prepare()
    case.poison()

    case.run(1)

    found = case.check()
    assert found.ok
    assert found.error is not None
    case.release()


def test_a_product_that_was_never_computed_is_caught() -> None:
    case = CpuMatmul(order((64, 64, 64)), threads=1)
    case.prepare()
    case.poison()

    found = case.check()

    assert not found.ok
    assert found.error is None


@pytest.mark.parametrize("edge", [16, 700])
def test_one_wrong_entry_is_caught(edge: int) -> None:
    given = order((edge, edge, edge))
    left, right = draw_inputs(given)
    out = left @ right
    bound = float32_bound(edge)
    assert verify_product(given, out, bound).ok

    out[edge // 2, edge // 3] += 0.1 * np.sqrt(edge)

    assert not verify_product(given, out, bound).ok


def test_half_precision_products_exceed_the_float32_bound() -> None:
    given = order((256, 256, 256))
    left, right = draw_inputs(given)
    half = (left.astype(np.float16).astype(np.float32)) @ (right.astype(np.float16))

    assert not verify_product(given, half.astype(np.float32), float32_bound(256)).ok


def test_thread_counts_are_stated_and_set() -> None:
    given = order((8, 8, 8))
    blas = given.blas
    assert isinstance(blas, FakeBlas)
    cases = Matmul().cpu_cases(given)
    assert [(case.label.variant, case.label.threads) for case in cases] == [
        ("blas", 2),
        ("blas-1-thread", 1),
    ]

    for case in cases:
        case.prepare()
        case.run(1)

    assert blas.limits == [2, 1]


def test_gpu_cases_rotate_through_three_times_the_l2() -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock, l2_bytes=10 * 3 * 4 * 64 * 64)
    case, moved = Matmul().gpu_cases(order((64, 64, 64), clock=clock), gpu)
    assert isinstance(case, ResidentCase)
    assert isinstance(moved, EndToEndCase)
    case.prepare()
    case.poison()

    # 31 operations walk through all of the 30 sets, so that each output is written.
    seconds = case.run(31)

    assert seconds == pytest.approx(31e-4)
    assert case.check().ok
    assert case.cache_fit is not None
    assert case.cache_fit.walked_bytes == 3 * gpu.facts.l2_bytes


def test_little_gpu_memory_shortens_the_rotation_and_says_so() -> None:
    clock = FakeClock()
    set_bytes = 3 * 4 * 64 * 64
    gpu = FakeGpu(clock, l2_bytes=10 * set_bytes, memory_free_bytes=4 * set_bytes)
    case = Matmul().gpu_cases(order((64, 64, 64), clock=clock), gpu)[0]

    assert case.cache_fit is not None
    assert case.cache_fit.walked_bytes == 2 * set_bytes


def test_tf32_is_labelled_and_judged_by_its_own_bound() -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock, float32_math="tf32", wrong_by=1e-3)
    case = Matmul().gpu_cases(order((64, 64, 64), clock=clock), gpu)[0]
    case.prepare()
    case.run(1)

    found = case.check()

    assert case.label.dtype == DtypeSpec(
        input="float32", accumulate="float32", output="float32", math_mode="tf32"
    )
    assert found.ok
    assert found.bound > float32_bound(64)


def test_release_works_before_prepare() -> None:
    clock = FakeClock()
    given = order((8, 8, 8), clock=clock)

    for case in [*Matmul().cpu_cases(given), *Matmul().gpu_cases(given, FakeGpu(clock))]:
        case.release()
