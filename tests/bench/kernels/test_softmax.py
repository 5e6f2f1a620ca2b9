"""The softmax kernel: CPU versions, launch choice and checks against float64."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpucheck.bench.case import row_parts
from gpucheck.bench.kernels import softmax
from gpucheck.bench.kernels.softmax import (
    HELD_NUMBERS,
    MOST_THREADS,
    BlockedSoftmax,
    FusedSoftmax,
    NaiveSoftmax,
    Scaling,
    Softmax,
    SoftmaxLaunch,
    SoftmaxRows,
    choose_scaling,
    choose_softmax,
    fastest_s,
    launch_for,
    rows_per_block,
    softmax_rows,
    verify_softmax,
)
from gpucheck.bench.model import Measurement, Scope, Throughput
from gpucheck.bench.numerics import FORMATS, encode
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.drivers.host.clock import monotonic_s
from tests.fakes.bench import FakeClock, FakeGpu, order
from tests.fakes.bench_results import measurement

HostArray = NDArray[Any]


def exact(source: HostArray, temperature: float) -> HostArray:
    """Return the softmax in float64, NaN where the formula gives NaN."""
    with np.errstate(all="ignore"):
        raised = source.astype(np.float64) / temperature
        raised = np.exp(raised - raised.max(axis=1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def scalings(temperature: float) -> list[Scaling]:
    return [
        Scaling(np.exp2, 1.4426950408889634 / temperature, 30.0),
        Scaling(np.exp, 1 / temperature, 20.0),
    ]


def assert_softmax(source: HostArray, temperature: float, block: int = 4) -> None:
    expected = exact(source, temperature)
    for scaling in scalings(temperature):
        out = np.full_like(source, -7)
        softmax_rows(source, out, scaling, block)
        np.testing.assert_allclose(out, expected, rtol=0, atol=4e-6)


@settings(max_examples=60)
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 300),
    temperature=st.sampled_from([1e-30, 1e-6, 0.01, 0.7, 1.0, 30.0, 1e30]),
    spread=st.sampled_from([0.0, 1.0, 100.0, 1e6]),
    seed=st.integers(0, 2**31),
    block=st.integers(1, 12),
)
def test_every_shape_and_temperature_agrees_with_float64(
    rows: int, columns: int, temperature: float, spread: float, seed: int, block: int
) -> None:
    generator = np.random.default_rng(seed)
    source = generator.standard_normal((rows, columns), dtype=np.float32)
    # Rows whose maxima lie far apart must not share one maximum.
    source += generator.standard_normal((rows, 1), dtype=np.float32) * np.float32(spread)

    assert_softmax(source, temperature, block)


@settings(max_examples=60)
@given(
    columns=st.integers(1, 40),
    places=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 39), st.sampled_from([-np.inf, np.inf, np.nan]))
    ),
    empty=st.integers(0, 5),
)
def test_infinities_and_nan_spoil_their_own_row_only(
    columns: int, places: list[tuple[int, int, float]], empty: int
) -> None:
    source = np.random.default_rng(1).standard_normal((6, columns), dtype=np.float32)
    for row, column, value in places:
        source[row, column % columns] = value
    source[empty] = -np.inf

    assert_softmax(source, 0.7)


@pytest.mark.parametrize("columns", [32768, 32769, 100_001])
def test_long_rows_keep_their_accuracy(columns: int) -> None:
    source = np.random.default_rng(2).standard_normal((3, columns), dtype=np.float32)
    out = np.empty_like(source)

    for scaling in scalings(0.7):
        softmax_rows(source, out, scaling, 1)
        found = verify_softmax(source, out, 0.7)
        assert found.ok
        assert found.error is not None
        assert found.error < 2e-6


def test_the_extremes_of_float32_do_not_overflow() -> None:
    most = np.finfo(np.float32).max
    source = np.array([[-most, most, 0.0], [most, most, -most], [0.0, 0.0, 0.0]], dtype=np.float32)

    assert_softmax(source, 1.0)


def test_no_rows_and_no_columns_are_no_error() -> None:
    for shape in ((0, 5), (5, 0)):
        softmax_rows(
            np.zeros(shape, dtype=np.float32), np.zeros(shape, np.float32), scalings(1.0)[0], 2
        )


@pytest.mark.parametrize(
    ("columns", "itemsize", "aligned", "exact"),
    [
        (4096, 4, True, 1),
        (32768, 2, True, 1),
        (4096, 4, False, 0),
        # A block of 160 threads holds 4160 numbers with one pack less in some.
        (4100, 4, True, 0),
        (5120, 4, True, 1),
    ],
)
def test_packs_are_unchecked_only_where_a_row_fills_them_all(
    columns: int, itemsize: int, aligned: bool, exact: int
) -> None:
    rows = SoftmaxRows(rows=7, columns=columns, itemsize=itemsize, aligned=aligned)
    launch = choose_softmax(rows)

    assert launch.name == "softmax_long"
    assert launch.defines["EXACT"] == exact
    held = launch.block * launch.defines["PACKS"] * 16 // itemsize
    assert (held == columns and aligned) == bool(exact)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(64, 100), (1, 1), (512, 1024), (3, 40_000)])
def test_the_cpu_cases_are_right(shape: tuple[int, int], threads: int) -> None:
    for case in (BlockedSoftmax(order(shape), threads), NaiveSoftmax(order(shape))):
        case.prepare()
        case.poison()

        case.run(2)

        assert case.check().ok
        case.release()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Let a test look for numba anew, and forget what it found."""
    softmax.compiled_rows.cache_clear()
    yield
    softmax.compiled_rows.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_numba_numpy_works_on_blocks_and_the_case_says_what_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(softmax, "find_spec", lambda _: None)

    first, *_, naive = Softmax().cpu_cases(order((64, 100)))

    assert isinstance(first, BlockedSoftmax)
    assert "[cpu]" in (first.faster_version or "")
    assert naive.faster_version is None


@pytest.mark.usefixtures("fresh")
def test_a_broken_numba_is_named_and_numpy_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, "gpucheck.bench.compiled_softmax", None)

    first, *_ = Softmax().cpu_cases(order((64, 100)))

    assert isinstance(first, BlockedSoftmax)
    assert "numba does not work here (ModuleNotFoundError: " in (first.faster_version or "")


def test_with_the_compiled_softmax_nothing_faster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "compiled_rows", lambda: (print, 1.5))

    first, *_ = Softmax().cpu_cases(order((64, 100)))

    assert isinstance(first, FusedSoftmax)
    assert first.facts == {"compile_s": 1.5}
    assert first.faster_version is None


@pytest.mark.parametrize("mode", [BenchMode.QUICK, BenchMode.DEFAULT])
@pytest.mark.parametrize(("slowdown", "crowded"), [(1.0, False), (4.9, False), (5.1, True)])
def test_a_quick_run_on_a_crowded_processor_compiles_nothing(
    mode: BenchMode, slowdown: float, *, crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "compiled_rows", lambda: (print, 1.5))
    made_for = replace(order((64, 100), request=BenchRequest(mode=mode)), slowdown=slowdown)

    first, *_ = Softmax().cpu_cases(made_for)

    left_out = crowded and mode is BenchMode.QUICK
    assert isinstance(first, BlockedSoftmax if left_out else FusedSoftmax)
    assert (first.faster_version is not None) == left_out


def test_why_a_gpu_gains_little_is_said_with_the_figures_that_there_are() -> None:
    cpu, gpu = (measurement("softmax", value, device=device)
                for device, value in (("cpu", 15e9), ("gpu:0", 2.7e12)))  # fmt: skip
    moved = replace(measurement("softmax", 12e9, device="gpu:0"), scope=Scope.END_TO_END)
    slower = replace(cpu, throughput=Throughput(value=9e9, unit="B/s"))
    (all_three,) = _said(cpu, slower, gpu, moved)
    (resident,) = _said(cpu, gpu)
    (pays,) = _said(slower, gpu, moved)
    (alone,) = _said(cpu)

    start = "softmax reads and writes each number once, so memory's bandwidth decides its speed"
    assert all_three == (
        f"{start}: gpu:0 makes 2.70 TB/s where the data stays, 12.0 GB/s with both ways over PCIe, "
        "this processor 15.0 GB/s: the way there costs more than it saves"
    )
    assert resident == (
        f"{start}: gpu:0 makes 2.70 TB/s where the data stays, this processor 15.0 GB/s"
    )
    assert pays.endswith("this processor 9.00 GB/s")
    gained = "; a GPU gains little: PCIe, which the data crosses twice, is slower than memory"
    assert alone == f"{start}: this processor makes 15.0 GB/s{gained}"
    assert _said(replace(cpu, percent_of_copy=75.0)) == [
        f"{start}: this processor makes 15.0 GB/s, a copy 20.0 GB/s{gained}"
    ]
    assert _said(replace(cpu, percent_of_copy=75.0, percent_of_peak=100.0)) == [
        "softmax reads and writes each number once, but this processor's exponentials decide its "
        f"speed, not memory: 15.0 GB/s of 15.0 GB/s, a copy 20.0 GB/s{gained}"
    ]
    assert _said() == []


def _said(*rows: Measurement) -> list[str]:
    found = Softmax().conclude(rows)
    return [one.sentence for one in found if one.code.endswith(("-decides", "-decide"))]


def test_a_softmax_that_was_never_computed_is_caught() -> None:
    case = NaiveSoftmax(order((64, 100)))
    case.prepare()
    case.poison()

    found = case.check()

    assert not found.ok
    assert found.error is None


def test_no_run_of_the_plain_softmax_takes_new_memory_for_an_array() -> None:
    """New pages take longer than the softmax, where a round has time for a single run."""
    case = NaiveSoftmax(order((512, 512)))
    case.prepare()
    case.poison()
    tracemalloc.start()
    try:
        case.run(1)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert case.check().ok
    assert peak_bytes < 4 * 512 * 512 / 4
    case.release()


@pytest.mark.parametrize("row", [0, 1, 499])
def test_a_planted_error_is_caught_in_any_row(row: int) -> None:
    source = np.random.default_rng(4).standard_normal((500, 64), dtype=np.float32)
    out = exact(source, 0.7).astype(np.float32)
    assert verify_softmax(source, out, 0.7).ok

    out[row, 5] += 1e-3

    assert not verify_softmax(source, out, 0.7).ok


def test_a_softmax_of_the_wrong_temperature_is_caught() -> None:
    source = np.random.default_rng(4).standard_normal((50, 64), dtype=np.float32)

    assert not verify_softmax(source, exact(source, 1.0).astype(np.float32), 0.7).ok


@given(rows=st.integers(1, 10_000), columns=st.integers(1, 10_000), threads=st.integers(1, 256))
def test_parts_cover_every_row_once(rows: int, columns: int, threads: int) -> None:
    parts = row_parts(rows, columns, threads)

    assert 1 <= len(parts) <= threads
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))


def test_blocks_fill_twice_the_l2_and_hold_at_least_one_row() -> None:
    assert rows_per_block(4096, 2**20) == 128
    assert rows_per_block(10**9, 2**20) == 1
    assert rows_per_block(4096, None) == 128


def test_the_chosen_exponential_is_one_of_the_two() -> None:
    scaling = choose_scaling(monotonic_s, 0.5)

    if scaling.raise_to is np.exp2:
        assert scaling.factor == pytest.approx(1.4426950408889634 / 0.5)
    else:
        assert scaling.raise_to is np.exp
        assert scaling.factor == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("columns", "dtype", "aligned"),
    [(100, "float32", 1), (101, "float32", 0), (102, "float16", 0), (104, "bfloat16", 1)],
)
def test_wide_accesses_are_used_only_where_rows_are_aligned(
    columns: int, dtype: str, aligned: int
) -> None:
    launch = launch_for(order((7, columns), dtype=dtype))

    assert launch.defines["ALIGNED"] == aligned


def test_gpu_cases_compile_once_and_are_checked() -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock)
    for case in Softmax().gpu_cases(order((64, 100), clock=clock), gpu):
        case.prepare()
        case.poison()
        case.run(3)
        assert case.check().ok
        case.release()

    # Three for the graph, one for each of 62 sets of buffers to be checked, three end to end; the
    # library's way launches its own. Eight lanes hold a row of 100, so that a block of 128 threads
    # takes sixteen rows.
    assert gpu.launches == [(4, 128)] * (3 + 62 + 3)
    assert gpu.captured == 2


def test_a_graph_is_captured_once_for_each_place_in_the_rotation() -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock, l2_bytes=64 * 100 * 4 * 2)
    case = Softmax().gpu_cases(order((64, 100), clock=clock), gpu)[0]
    case.prepare()
    case.poison()

    seconds = [case.run(2) for _ in range(9)]

    assert seconds == pytest.approx([2e-4] * 9)
    assert gpu.captured == 3  # three sets of buffers, two steps at a time
    assert case.check().ok
    assert case.facts["launched_as"] == "graph"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_16_bit_formats_are_checked_by_their_own_rounding(dtype: str) -> None:
    clock = FakeClock()
    for wrong_by, ok in ((0.0, True), (0.05, False)):
        given = order((64, 100), clock=clock, dtype=dtype)
        for case in Softmax().gpu_cases(given, FakeGpu(clock, wrong_by=wrong_by)):
            case.prepare()
            case.poison()
            assert not case.check().ok
            case.run(1)
            assert case.check().ok is ok


def test_a_result_of_bfloat16s_precision_is_no_float16() -> None:
    source = encode(
        np.random.default_rng(4).standard_normal((50, 64), dtype=np.float32), FORMATS["float16"]
    )
    right = exact(source, 0.7).astype(np.float32)
    rough = (encode(right, FORMATS["bfloat16"]).astype(np.uint32) << 16).view(np.float32)

    assert verify_softmax(source, right.astype(np.float16), 0.7, "float16").ok
    assert not verify_softmax(source, rough.astype(np.float16), 0.7, "float16").ok


def test_long_rows_in_float16_may_round_below_its_normal_numbers() -> None:
    source = encode(
        np.random.default_rng(4).standard_normal((3, 300_001), dtype=np.float32), FORMATS["float16"]
    )
    right = exact(source, 1.0)

    assert verify_softmax(source, right.astype(np.float16), 1.0, "float16").ok
    assert not verify_softmax(source, (1.1 * right).astype(np.float16), 1.0, "float16").ok


def test_a_wrong_gpu_softmax_is_caught() -> None:
    clock = FakeClock()
    for case in Softmax().gpu_cases(order((64, 100), clock=clock), FakeGpu(clock, wrong_by=1e-3)):
        case.prepare()
        case.run(1)
        assert not case.check().ok


def rows(columns: int, itemsize: int = 4, count: int = 1000, aligned: bool = True) -> SoftmaxRows:
    return SoftmaxRows(rows=count, columns=columns, itemsize=itemsize, aligned=aligned)


def held_packs(launch: SoftmaxLaunch) -> int:
    """Return how many packs of one row a launch holds in registers."""
    threads = launch.defines.get("LANES") or launch.block
    return threads * launch.defines["PACKS"]


@given(
    columns=st.one_of(st.integers(0, 3000), st.integers(0, 600_000)),
    count=st.integers(0, 2**33),
    itemsize=st.sampled_from([2, 4]),
    anywhere=st.booleans(),
)
def test_every_launch_holds_its_rows_and_fits_an_sm(
    columns: int, count: int, itemsize: int, anywhere: bool
) -> None:
    aligned = columns * itemsize % 16 == 0 and not anywhere
    problem = rows(columns, itemsize, count, aligned)

    launch = choose_softmax(problem)

    defines = launch.defines
    assert launch.block % 32 == 0
    assert 32 <= launch.block <= MOST_THREADS
    assert 1 <= launch.grid < 2**31
    assert defines["BLOCK"] == launch.block
    assert bool(defines["ALIGNED"]) == aligned
    # What the compiler is asked to fit an SM at once must fit.
    assert 1 <= defines["BLOCKS_PER_SM"] <= 16
    assert defines["BLOCKS_PER_SM"] * launch.block <= 1024
    if launch.name != "softmax_online":
        assert held_packs(launch) >= problem.packs
        assert defines["PACKS"] * 16 // itemsize <= HELD_NUMBERS


def test_rows_anywhere_count_the_pack_that_they_may_begin_in() -> None:
    assert rows(8).packs == 2
    assert rows(8, aligned=False).packs == 3
    assert rows(1, itemsize=2, aligned=False).packs == 1
    assert rows(2, itemsize=2, aligned=False).packs == 2
    assert rows(0).packs == 0


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(
    ("columns", "name", "block"),
    [
        (1, "softmax_short", 128),
        (1024, "softmax_short", 128),
        (1032, "softmax_long", 64),
        (4096, "softmax_long", 128),
        (32768, "softmax_long", 1024),
        (32776, "softmax_online", 512),
        (262_144, "softmax_online", 512),
    ],
)
def test_rows_stay_in_registers_as_long_as_there_are_any(
    columns: int, name: str, block: int, itemsize: int
) -> None:
    launch = choose_softmax(rows(columns, itemsize))

    assert (launch.name, launch.block) == (name, block)
    assert [macro for macro in launch.defines if macro.startswith("SOFTMAX")] == [name.upper()]


@pytest.mark.parametrize("columns", [1032, 32768, 600_000])
def test_a_long_row_has_a_block_of_its_own(columns: int) -> None:
    assert choose_softmax(rows(columns)).grid == 1000


@pytest.mark.parametrize("aligned", [True, False])
def test_two_blocks_of_the_longest_rows_fit_an_sm(aligned: bool) -> None:
    launch = choose_softmax(rows(600_000, aligned=aligned))

    assert launch.name == "softmax_online"
    assert launch.defines["BLOCKS_PER_SM"] == 2


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("columns", [520, 1032, 1536, 4097, 32_760])
def test_no_thread_holds_a_pack_that_no_row_fills(columns: int, itemsize: int) -> None:
    aligned = columns % 8 == 0
    problem = rows(columns, itemsize, aligned=aligned)

    launch = choose_softmax(problem)

    packs = launch.defines["PACKS"]
    assert held_packs(launch) // packs * (packs - 1) < problem.packs


def test_short_rows_share_a_warp() -> None:
    lanes = {
        columns: choose_softmax(rows(columns)).defines["LANES"]
        for columns in (1, 64, 68, 128, 132, 256, 260, 1024)
    }

    assert lanes == {1: 4, 64: 4, 68: 8, 128: 8, 132: 16, 256: 16, 260: 32, 1024: 32}


def test_the_fastest_of_several_times_counts() -> None:
    moments = iter([64.0, 67.0, 70.0, 71.0, 75.0, 77.0])

    assert fastest_s(moments.__next__, np.exp, times=3) == 1.0
