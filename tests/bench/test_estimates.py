from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.bench.estimates import HostRates, expect, measure_host
from gpucheck.bench.kernel import Work
from gpucheck.bench.model import Scope
from gpucheck.bench.record import Record
from gpucheck.drivers.gpu import Board
from tests.fakes.bench import FLOAT32, FakeBlas, FakeCase, FakeClock, FakeGpu, label

HOST = HostRates(flops_per_s=100e9, bytes_per_s=10e9)
PRODUCT = Work(flops=2 * 4096**3, bytes_moved=3 * 4 * 4096**2, unit="FLOP/s")
BOARD = Board(
    name="any",
    source="datasheet",
    flops_per_s={"float32": 50e12},
    high_flops_per_s={"float32": 50e12},
    bytes_per_s=2e12,
    clock_mhz=1000.0,
    tensor_clock_mhz=1000.0,
)
GPU = replace(FakeGpu(FakeClock()).facts, board=BOARD)


def expected_s(
    *,
    threads: int | None = 1,
    device: str = "cpu",
    dtype: str = "float32",
    scope: Scope = Scope.RESIDENT,
) -> float:
    named = replace(
        label(device), threads=threads, scope=scope, dtype=replace(FLOAT32, input=dtype)
    )
    case = FakeCase((), label=named)
    case.work = PRODUCT
    record = Record(case=case)
    expect([record], HOST, [GPU])
    assert record.expected_overhead_s > 0
    return record.expected_operation_s


def test_a_product_takes_what_its_threads_do_and_float64_twice_that() -> None:
    one = expected_s()

    assert one == pytest.approx(2 * 4096**3 / 100e9)
    assert expected_s(threads=2) == pytest.approx(one / 2)
    assert expected_s(dtype="float64") == pytest.approx(2 * one)


def test_a_gpu_is_taken_to_do_half_of_its_sheet_and_a_link_its_bytes() -> None:
    assert expected_s(device="gpu:0") == pytest.approx(2 * 4096**3 / 25e12)
    moved = expected_s(device="gpu:0", scope=Scope.END_TO_END)
    assert moved == pytest.approx(PRODUCT.bytes_moved / 5e9)


def test_a_clock_that_stands_gives_no_rates_and_no_estimates() -> None:
    assert measure_host(FakeClock(), FakeBlas()) is None
    record = Record(case=FakeCase(()))

    expect([record], None, [])

    assert record.expected_operation_s == record.expected_overhead_s == 0


def test_the_rates_are_measured_with_one_thread() -> None:
    class Ticking(FakeClock):
        def now_s(self) -> float:
            self.seconds += 0.01
            return self.seconds

    blas = FakeBlas()
    found = measure_host(Ticking(), blas)

    assert blas.limits == [1]
    assert found is not None
    assert found.flops_per_s == pytest.approx(2 * 384**3 / 0.01)
    assert found.bytes_per_s == pytest.approx(2 * 2**23 / 0.01)
