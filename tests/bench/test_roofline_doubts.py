"""Doubts about rows beyond their roofline or in another arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.kernels.matmul import Matmul
from gpucheck.bench.model import Doubt, DtypeSpec, Fact, Measurement, Scope, Throughput, Verified
from gpucheck.bench.numerics import FORMATS
from gpucheck.bench.roofline import TENSOR_FORMATS, board_from, load_table
from gpucheck.bench.roofline_doubts import (
    doubts_about_roofline,
)
from gpucheck.drivers.gpu import BenchGpu, Board
from tests.fakes.bench import FLOAT32, FakeClock, FakeGpu

TF32 = DtypeSpec(input="float32", accumulate="float32", output="float32", math_mode="tf32")
BOARD = Board(
    name="some",
    source="datasheet",
    uncertainty={"float32": "two sheets disagree", "bytes_per_s": "half the chips were faster"},
)
GPU = replace(FakeGpu(FakeClock()).facts, board=BOARD)


def row(percent: float | None, **changes: object) -> Measurement:
    made = Measurement(
        kernel="matmul",
        variant="cublas",
        device="gpu:0",
        gpu_uuid=None,
        dtype=FLOAT32,
        shape=(8, 8, 8),
        scope=Scope.RESIDENT,
        percent_of_peak=percent,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("percent", "expected"), [(99.0, []), (100.9, []), (130.0, ["above-peak"]), (None, [])]
)
def test_more_than_the_peak_is_doubted(percent: float | None, expected: list[str]) -> None:
    assert [doubt.code for doubt in doubts_about_roofline(row(percent), None)] == expected


def test_more_than_the_memory_is_no_news_for_a_row_in_the_cache() -> None:
    cached = Doubt(code="l2-resident", message="it may stay in the L2", next="take a larger one")

    assert doubts_about_roofline(row(300.0, doubts=(cached,)), None) == ()


def test_an_uncertain_peak_makes_the_percentage_uncertain() -> None:
    (doubt,) = doubts_about_roofline(row(70.0), GPU)

    assert doubt.code == "peak-uncertain"
    assert "two sheets disagree" in doubt.message
    assert doubts_about_roofline(row(None), GPU) == ()


def test_the_uncertainty_is_that_of_the_rows_own_peak() -> None:
    memory = row(70.0, kernel="copy", throughput=Throughput(value=1e12, unit="B/s"))

    (doubt,) = doubts_about_roofline(memory, GPU)

    assert "half the chips were faster" in doubt.message
    assert doubts_about_roofline(row(70.0, dtype=TF32), GPU) == ()


@pytest.mark.parametrize(
    ("percent", "expected"), [(97.0, []), (100.9, []), (124.0, ["above-copy"]), (None, [])]
)
def test_more_than_the_fastest_copy_is_doubted(percent: float | None, expected: list[str]) -> None:
    moved = row(None, kernel="triad", percent_of_copy=percent)

    assert [doubt.code for doubt in doubts_about_roofline(moved, None)] == expected


def test_more_than_a_copy_is_no_news_for_a_row_in_the_cache() -> None:
    cached = Doubt(code="cache-resident", message="it may stay there", next="take a larger one")
    moved = row(None, kernel="softmax", percent_of_copy=300.0, doubts=(cached,))

    assert doubts_about_roofline(moved, None) == ()


FACTS = FakeGpu(FakeClock()).facts


def gpu_of(name: str) -> BenchGpu:
    entry = next(entry for entry in load_table().boards if entry.name == name)
    capability = entry.rates.removesuffix("-half")
    return replace(FACTS, compute_capability=capability, board=board_from(entry))


H100 = gpu_of("H100 SXM")


def product(
    dtype: str, edge: int, flops_per_s: float, error: float | None = None, **changes: object
) -> Measurement:
    shape = (edge, edge, edge)
    work = Matmul().work(shape, dtype)
    checked = None
    if error is not None:
        bound = 1.5e-5 if dtype == "float32" else 4e-3
        checked = Verified(error=error, bound=bound, ok=error <= bound, reference="float64")
    made = Measurement(
        kernel="matmul",
        variant="cublas",
        device="gpu:0",
        gpu_uuid=None,
        dtype=FORMATS[dtype].spec,
        shape=shape,
        scope=Scope.RESIDENT,
        flops=work.flops,
        bytes_moved=work.bytes_moved,
        median_s=work.flops / flops_per_s,
        verified=checked,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def codes(row: Measurement, gpu: BenchGpu | None = H100) -> list[str]:
    return [doubt.code for doubt in doubts_about_roofline(row, gpu)]


@pytest.mark.parametrize("dtype", sorted(TENSOR_FORMATS))
def test_a_large_product_at_the_rate_of_cuda_cores_is_doubted(dtype: str) -> None:
    assert codes(product(dtype, 8192, 60e12)) == ["tensor-cores-unused"]
    assert codes(product(dtype, 8192, 300e12)) == []


def test_the_doubt_says_how_fast_it_was_what_cuda_cores_do_and_what_to_expect() -> None:
    (doubt,) = doubts_about_roofline(product("bfloat16", 8192, 60e12), H100)

    facts: dict[str, Fact] = doubt.facts
    assert facts["flops_per_s"] == pytest.approx(60e12)
    assert facts["cuda_cores_flops_per_s"] == 67e12
    assert 400e12 < float(facts["expected_flops_per_s"]) < 989.4e12 / 2
    assert "60 TFLOP/s" in doubt.message
    assert "67" in doubt.message
    assert doubt.next == "compare with --dtype float32 at this --size; try another cuBLAS"


def test_edges_that_tensor_cores_do_not_take_are_the_first_thing_to_change() -> None:
    (doubt,) = doubts_about_roofline(product("bfloat16", 8190, 60e12), H100)

    assert doubt.next.startswith("choose a --size that is a multiple of 16; ")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_formats_without_tensor_cores_are_not_compared_with_them(dtype: str) -> None:
    assert codes(product(dtype, 8192, 10e12)) == []


@given(dtype=st.sampled_from(sorted(TENSOR_FORMATS)), edge=st.integers(1, 512))
def test_small_products_are_slow_without_a_doubt(dtype: str, edge: int) -> None:
    assert codes(product(dtype, edge, 1e12)) == []


@given(
    name=st.sampled_from([entry.name for entry in load_table().boards]),
    dtype=st.sampled_from(sorted(TENSOR_FORMATS)),
    edge=st.integers(8, 1024).map(lambda sixteenths: 16 * sixteenths),
)
def test_half_of_a_board_s_peak_is_never_doubted(name: str, dtype: str, edge: int) -> None:
    gpu = gpu_of(name)
    assert gpu.board is not None
    peak = gpu.board.flops_per_s.get(dtype)
    if peak is None:
        assert codes(product(dtype, edge, 1e12), gpu) == []
        return

    # What is left of half the peak when each product takes another 10 microseconds.
    flops = 2 * edge**3
    reached = flops / (flops / (peak / 2) + 10e-6)
    memory = gpu.board.bytes_per_s
    assert memory is not None
    moved = product(dtype, edge, 1e12).bytes_moved or 0
    reached = min(reached, flops / (moved / (0.6 * memory) + 10e-6))

    assert codes(product(dtype, edge, reached), gpu) == []


def test_where_tensor_cores_are_hardly_faster_the_rate_shows_nothing() -> None:
    ada = gpu_of("RTX 3090")  # tf32 at the rate of float32

    assert codes(product("tf32", 8192, 20e12), ada) == []
    assert codes(product("int8", 8192, 20e12), ada) == ["tensor-cores-unused"]


def test_a_slow_clock_explains_a_slow_product() -> None:
    held = product("tf32", 8192, 60e12)

    assert codes(replace(held, sm_clock_mhz=1980.0)) == ["tensor-cores-unused"]
    assert codes(replace(held, sm_clock_mhz=990.0)) == []
    assert codes(replace(product("tf32", 8192, 20e12), sm_clock_mhz=990.0)) == [
        "tensor-cores-unused"
    ]


@pytest.mark.parametrize(
    ("pids", "expected"), [("7", ["tensor-cores-unused"]), ("1, 2, 3, 4, 5, 6", [])]
)
def test_processes_that_share_the_gpu_leave_less_to_expect(pids: str, expected: list[str]) -> None:
    shared = Doubt(code="gpu-shared", message="others", next="wait", facts={"processes": pids})

    assert codes(product("bfloat16", 8192, 60e12, doubts=(shared,))) == expected


@pytest.mark.parametrize("code", ["starved", "throttled"])
def test_a_rate_with_another_explanation_is_not_doubted_twice(code: str) -> None:
    known = Doubt(code=code, message="it was slow", next="wait")

    assert codes(product("bfloat16", 8192, 10e12, doubts=(known,))) == []


def test_transfers_other_kernels_and_unknown_boards_are_left_alone() -> None:
    slow = product("bfloat16", 8192, 1e12)

    assert codes(replace(slow, scope=Scope.END_TO_END)) == []
    assert codes(replace(slow, kernel="softmax")) == []
    assert codes(replace(slow, median_s=None)) == []
    assert codes(slow, replace(H100, board=None)) == []
    assert codes(slow, None) == []


@pytest.mark.parametrize(
    ("dtype", "error", "expected"),
    [
        ("tf32", 3e-4, []),
        ("tf32", 9e-7, ["other-precision"]),
        ("tf32", 0.0, []),  # zeros leave no error in any format
        ("float32", 9e-7, []),
        ("float32", 3e-4, ["other-precision"]),
        ("float32", 0.5, []),  # simply wrong
        ("bfloat16", 9e-7, []),
    ],
)
def test_an_error_of_another_format_reveals_the_arithmetic(
    dtype: str, error: float, expected: list[str]
) -> None:
    assert codes(product(dtype, 8192, 300e12, error=error)) == expected


def test_a_product_in_tf32_that_should_be_float32_is_named_with_a_remedy() -> None:
    (doubt,) = doubts_about_roofline(product("float32", 4096, 40e12, error=3e-4), H100)

    assert doubt.message == "its error of 3e-04 is typical of TF32: float32 would leave about 1e-06"
    assert "CUPY_TF32" in doubt.next
    assert doubt.facts == {"error": 3e-4, "math_mode": "fp32"}


def test_few_rows_may_be_exact_by_chance() -> None:
    assert codes(product("tf32", 8, 1e9, error=1e-7)) == []


def test_a_row_that_is_not_verified_or_not_finite_says_nothing_of_its_error() -> None:
    infinite = Verified(error=None, bound=1e-5, ok=False, reference="float64")

    assert codes(product("float32", 8192, 40e12)) == []
    assert codes(product("float32", 8192, 40e12, verified=infinite)) == []
