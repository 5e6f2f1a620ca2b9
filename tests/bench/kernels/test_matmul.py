from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpucheck.bench.formats import FORMATS, STORAGES, encode
from gpucheck.bench.gpu_case import EndToEndCase, ResidentCase
from gpucheck.bench.kernels.matmul import CpuMatmul, Matmul
from gpucheck.bench.kernels.softmax import Softmax
from gpucheck.bench.model import BenchMode, BenchRequest, DtypeSpec
from gpucheck.bench.product_check import product_bound
from gpucheck.bench.sampler import CaseState
from gpucheck.bench.scheduler import CaseGroup, Settings, measure
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
        [CaseGroup(states=[record])],
        Settings(budget_s=1.0, warmup_s=0.01),
        clock,
        lambda label, fraction, seconds_left: None,
    )

    # 62 sets: without whole rounds of them each sample would begin at another one.
    assert record.error is None
    assert record.loops % 62 == 0
    assert gpu.captured <= 12 + 2 * len(record.rounds)
