"""The matrix product: its formats, its cases, and the check of its entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpucheck.bench.gpu_case import EndToEndCase, ResidentCase
from gpucheck.bench.kernels.matmul import (
    CpuMatmul,
    Matmul,
    draw_inputs,
    product_bound,
    verify_product,
)
from gpucheck.bench.kernels.softmax import Softmax
from gpucheck.bench.model import DtypeSpec
from gpucheck.bench.numerics import FORMATS, STORAGES, decode, encode
from gpucheck.bench.request_model import BenchMode, BenchRequest, Fill
from gpucheck.bench.sampler import CaseState
from gpucheck.bench.scheduler import Settings, measure
from gpucheck.report.errors import WrongUseError
from tests.fakes.bench import FakeBlas, FakeClock, FakeGpu, order

QUICK = BenchRequest(mode=BenchMode.QUICK)
FLOAT32_BOUND = product_bound(FORMATS["float32"], 64)


def test_work_counts_each_term_twice_and_each_matrix_once() -> None:
    work = Matmul().work((2, 3, 5), "float32")

    assert work.flops == 2 * 2 * 3 * 5
    assert work.bytes_moved == 4 * (6 + 15 + 10)
    assert work.amount == work.flops


def test_bytes_follow_the_format_of_the_factors_and_of_the_product() -> None:
    assert Matmul().work((2, 3, 5), "float64").bytes_moved == 8 * (6 + 15 + 10)
    assert Matmul().work((2, 3, 5), "bfloat16").bytes_moved == 2 * (6 + 15 + 10)
    assert Matmul().work((2, 3, 5), "int8").bytes_moved == 1 * (6 + 15) + 4 * 10
    assert Matmul().work((2, 3, 5), "float8").bytes_moved == 1 * (6 + 15) + 2 * 10


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 5), (64, 63, 62), (600, 40, 700)])
def test_the_cpu_product_is_right(
    shape: tuple[int, int, int], transposed: bool, dtype: str
) -> None:
    case = CpuMatmul(order(shape, dtype=dtype), 1, transposed=transposed)
    case.prepare()
    case.poison()

    case.run(1)

    found = case.check()
    assert found.ok
    assert found.error is not None
    case.release()


@pytest.mark.parametrize(
    ("columns", "dtype", "lines"),
    [(1, "float64", 1), (2048, "float32", 129), (2048, "float64", 257), (1000, "float32", 63)],
)
def test_the_rows_of_the_cpu_product_are_an_odd_number_of_cache_lines_apart(
    columns: int, dtype: str, lines: int
) -> None:
    case = CpuMatmul(order((2, 3, columns), dtype=dtype), threads=1)
    case.prepare()

    assert case._out.shape == (2, columns)
    assert case._out.strides == (64 * lines, case._out.itemsize)


def test_a_product_that_was_never_computed_is_caught() -> None:
    case = CpuMatmul(order((64, 64, 64)), threads=1)
    case.prepare()
    case.poison()

    found = case.check()

    assert not found.ok
    assert found.error is None


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_format_on_the_gpu_is_within_its_bound_and_a_planted_error_is_not(
    dtype: str,
) -> None:
    clock = FakeClock()
    for wrong_by, ok in ((0.0, True), (40.0, False)):
        given = order((96, 64, 80), clock=clock, dtype=dtype)
        cases = Matmul().gpu_cases(given, FakeGpu(clock, wrong_by=wrong_by))
        assert cases
        for case in cases:
            case.prepare()
            case.poison()
            case.run(1)
            found = case.check()
            assert found.ok is ok
            # A right result is far within the bound, but no closer than the format rounds.
            assert found.error is not None
            case.release()


def test_an_output_left_over_from_before_is_caught_in_every_format() -> None:
    clock = FakeClock()
    for dtype in FORMATS:
        given = order((32, 32, 32), clock=clock, dtype=dtype)
        for case in Matmul().gpu_cases(given, FakeGpu(clock)):
            case.prepare()
            case.poison()
            assert not case.check().ok


@pytest.mark.parametrize("dtype", ["tf32", "float16", "bfloat16", "float8", "int8"])
def test_numpy_is_no_opponent_where_it_has_no_blas(dtype: str) -> None:
    assert Matmul().cpu_refusal(dtype)
    assert Matmul().cpu_refusal("float64") is None


@pytest.mark.parametrize(
    ("capability", "dtype", "refused"),
    [
        ("7.0", "bfloat16", True),
        ("7.0", "int8", True),
        ("7.5", "int8", False),
        ("7.5", "tf32", True),
        ("8.0", "tf32", False),
        ("12.0", "bfloat16", False),
        ("8.6", "float8", True),
        ("8.9", "float8", False),
        ("9.0", "float8", False),
    ],
)
def test_a_format_that_the_gpu_does_not_have_is_refused(
    capability: str, dtype: str, refused: bool
) -> None:
    facts = replace(FakeGpu(FakeClock()).facts, compute_capability=capability)

    assert (Matmul().gpu_refusal(dtype, facts) is not None) is refused


@pytest.mark.parametrize(
    ("dtypes", "size", "step"),
    [
        (("fp8",), 1000, "--size 992"),
        (("int8",), 1001, "--size 1000"),
        (("float8", "int8"), 1001, "--size 992"),
        (("fp8",), 3, "--size 16"),
    ],
)
def test_a_size_that_no_format_asked_for_has_is_refused_with_the_nearest(
    dtypes: tuple[str, ...], size: int, step: str
) -> None:
    with pytest.raises(WrongUseError) as caught:
        Matmul().validate(BenchRequest(dtypes=dtypes, size=size))

    assert caught.value.code == "edge-unsupported"
    assert f"not {size}" in caught.value.message
    assert step in caught.value.remedy[0]


@pytest.mark.parametrize(
    ("dtypes", "size"), [(("fp8",), 992), (("fp8", "float32"), 1000), ((), 1000), (("fp8",), None)]
)
def test_a_size_that_one_format_has_is_not_refused(
    dtypes: tuple[str, ...], size: int | None
) -> None:
    Matmul().validate(BenchRequest(dtypes=dtypes, size=size))


def test_the_formats_that_a_size_leaves_out_say_why() -> None:
    assert Matmul().size_refusal("float8", 1000) == (
        "cuBLAS multiplies float8 only where edges are multiples of 16, not 1000"
    )
    assert Matmul().size_refusal("float8", 1008) is None
    assert Matmul().size_refusal("int8", 1002) is not None
    assert all(Matmul().size_refusal(name, 7) is None for name in ("float32", "bfloat16", "tf32"))


def test_stored_formats_have_a_type_in_numpy() -> None:
    for form in FORMATS.values():
        stored = encode(np.linspace(-2, 2, 9, dtype=np.float32), form)
        assert stored.dtype == form.storage
        assert stored.itemsize == form.itemsize
        assert form.output in STORAGES


def test_thread_counts_are_stated_and_set() -> None:
    given = order((8, 8, 8), request=QUICK)
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


def test_both_layouts_are_measured_unless_quick() -> None:
    clock = FakeClock()
    given = order((8, 8, 8), clock=clock)

    cpu = [case.label.variant for case in Matmul().cpu_cases(given)]
    gpu = [case.label.variant for case in Matmul().gpu_cases(given, FakeGpu(clock))]

    assert cpu == ["blas", "blas-1-thread", "blas-nt"]
    assert gpu == ["cublas", "cublas", "cublas-nt"]


@pytest.mark.parametrize(
    ("capability", "variants"),
    [
        ("8.9", ["cublaslt-nt", "cublaslt-nt", "cublaslt-nt-fast-accum"]),
        ("9.0", ["cublaslt-nt", "cublaslt-nt", "cublaslt-nt-fast-accum"]),
        ("10.0", ["cublaslt-nt", "cublaslt-nt"]),  # where it would change nothing
    ],
)
def test_float8_has_one_layout_and_fast_accumulation_where_that_is_another_product(
    capability: str, variants: list[str]
) -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock, compute_capability=capability)

    cases = Matmul().gpu_cases(order((32, 32, 32), clock=clock, dtype="float8"), gpu)
    quick = order((32, 32, 32), clock=clock, dtype="float8", request=QUICK)

    assert [case.label.variant for case in cases] == variants
    assert [case.label.variant for case in Matmul().gpu_cases(quick, gpu)] == variants[:2]
    assert cases[0].label.dtype == DtypeSpec(
        input="float8", accumulate="float32", output="bfloat16", math_mode="fp8"
    )
    assert [case.label.dtype.accumulate for case in cases[2:]] == ["float32 (fast)"] * (
        len(variants) - 2
    )


def test_gpu_cases_rotate_through_three_times_the_l2() -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock, l2_bytes=10 * 3 * 4 * 64 * 64)
    case, moved = Matmul().gpu_cases(order((64, 64, 64), clock=clock, request=QUICK), gpu)
    assert isinstance(case, ResidentCase)
    assert isinstance(moved, EndToEndCase)
    case.prepare()
    case.poison()

    # 31 operations walk through all of the 30 sets, so that each output is written.
    seconds = case.run(31)

    assert seconds == pytest.approx(31e-4)
    assert case.check().ok
    assert gpu.captured == 0  # CuPy does not capture cuBLAS
    assert case.sm_clock_mhz == 1500.0
    assert case.walked_and_cache_bytes == (3 * gpu.facts.l2_bytes, gpu.facts.l2_bytes)


def test_little_gpu_memory_shortens_the_rotation_and_says_so() -> None:
    clock = FakeClock()
    set_bytes = 3 * 4 * 64 * 64
    gpu = FakeGpu(clock, l2_bytes=10 * set_bytes, memory_free_bytes=4 * set_bytes)
    case = Matmul().gpu_cases(order((64, 64, 64), clock=clock), gpu)[0]

    assert case.walked_and_cache_bytes == (2 * set_bytes, gpu.facts.l2_bytes)


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
    assert found.bound > FLOAT32_BOUND


def test_release_works_before_prepare() -> None:
    clock = FakeClock()
    given = order((8, 8, 8), clock=clock)

    for case in [*Matmul().cpu_cases(given), *Matmul().gpu_cases(given, FakeGpu(clock))]:
        case.release()


@pytest.mark.parametrize("skipping", [False, True])
def test_every_set_of_buffers_must_be_written_so_that_half_of_the_loops_does_not_pass(
    skipping: bool,
) -> None:
    class Half(FakeGpu):
        """A GPU that leaves out every second product of a batch."""

        calls = 0

        def multiply(self, *arguments: Any, **options: Any) -> None:
            self.calls += 1
            if not (skipping and self.calls % 2 == 0):
                super().multiply(*arguments, **options)

    clock = FakeClock()
    gpu = Half(clock)
    case = Matmul().gpu_cases(order((64, 64, 64), clock=clock), gpu)[0]
    case.prepare()
    case.poison()
    case.run(1)

    assert case.check().ok is not skipping
    case.release()


def test_a_graph_is_captured_once_for_each_number_of_operations() -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock)
    record = CaseState(case=Softmax().gpu_cases(order((64, 100), clock=clock), gpu)[0])

    measure(
        [[record]],
        Settings(budget_s=1.0, warmup_s=0.01),
        clock,
        lambda label, fraction, seconds_left: None,
    )

    # 62 sets: without whole rounds of them each sample would begin at another one.
    assert record.error is None
    assert record.loops % 62 == 0
    assert gpu.captured <= 12 + 2 * len(record.rounds)


@pytest.mark.parametrize("edge", [16, 700])
def test_one_wrong_entry_is_caught(edge: int) -> None:
    given = order((edge, edge, edge))
    left, right = draw_inputs(given)
    out = left @ right
    assert verify_product(given, out).ok

    out[edge // 2, edge // 3] += 0.1 * np.sqrt(edge)

    assert not verify_product(given, out).ok


def test_a_product_in_lower_precision_exceeds_the_bound_of_the_higher() -> None:
    given = order((256, 256, 256))
    left, right = draw_inputs(given)
    half = (left.astype(np.float16).astype(np.float32)) @ (right.astype(np.float16))
    assert not verify_product(given, half.astype(np.float32)).ok

    given = order((256, 256, 256), dtype="float64")
    left, right = draw_inputs(given)
    single = left.astype(np.float32) @ right.astype(np.float32)
    assert not verify_product(given, single.astype(np.float64)).ok


def test_an_integer_product_that_is_off_by_one_is_caught() -> None:
    given = order((512, 512, 512), dtype="int8")
    left, right = (side.astype(np.int32) for side in draw_inputs(given))
    out = left @ right
    assert verify_product(given, out).ok

    out[511, 3] += 1

    assert not verify_product(given, out).ok


def test_zeros_are_multiplied_to_zero_and_anything_else_is_wrong() -> None:
    request = BenchRequest(fill=Fill.ZEROS)
    given = order((32, 32, 32), request=request)
    out = np.zeros((32, 32), dtype=np.float32)
    assert verify_product(given, out).ok

    out[3, 4] = 1e-3

    assert not verify_product(given, out).ok


def test_a_float8_product_may_be_as_far_off_as_bfloat16_rounds_and_sums_are_cut() -> None:
    exact = product_bound(FORMATS["float8"], 4096)

    assert exact == product_bound(FORMATS["bfloat16"], 4096)
    # Six times a tenth of what 128 additions cut off.
    assert product_bound(FORMATS["float8"], 4096, fast_accumulation=True) == pytest.approx(
        exact + 6 * 0.1 * 128 * 2**-13
    )


def test_a_float8_product_whose_scales_were_left_out_is_caught() -> None:
    given = order((64, 64, 64), dtype="float8")
    left, right = (decode(side, "float8") for side in draw_inputs(given, transposed=True))
    out = left @ right.T
    stored = encode(out, FORMATS["bfloat16"])
    assert verify_product(given, stored, transposed=True).ok

    unscaled = encode(np.asarray(out * 256), FORMATS["bfloat16"])

    assert not verify_product(given, unscaled, transposed=True).ok


def cut_short(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> object:
    """Return numbers with fourteen bits, cut off towards zero, as fast accumulation keeps them."""
    fractions, exponents = np.frexp(values)
    return np.ldexp(np.trunc(np.ldexp(fractions, 14)), exponents - 14)


@pytest.mark.parametrize("terms", [64, 1024, 8192])
def test_sums_that_are_cut_short_are_within_the_bound_of_fast_accumulation(terms: int) -> None:
    given = order((96, terms, 80), dtype="float8")
    left, right = (
        decode(side, "float8").astype(np.float64) for side in draw_inputs(given, transposed=True)
    )
    sums = np.zeros((96, 80))
    for low in range(0, terms, 32):
        part = slice(low, low + 32)
        sums = np.asarray(cut_short(sums + left[:, part] @ right[:, part].T))
    out = encode(sums.astype(np.float32), FORMATS["bfloat16"])

    found = verify_product(given, out, transposed=True, fast_accumulation=True)

    assert found.ok
    assert found.error is not None
    # Near enough to the error that it leaves that a wrong sum shows.
    assert terms < 8192 or found.error > found.bound / 20
