from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.bench.limits import held_against, rooflines_of
from gpucheck.bench.model import Doubt, Measurement, Scope, Throughput
from gpucheck.bench.stats import summarise
from gpucheck.drivers.gpu import Board
from tests.fakes.bench import FLOAT32, RIGHT, WRONG, FakeClock, FakeGpu

BOARD = Board(
    name="H100 SXM",
    source="datasheet",
    flops_per_s={"float32": 67e12, "bfloat16": 989e12},
    high_flops_per_s={"float32": 67e12, "bfloat16": 989e12},
    bytes_per_s=3350e9,
    clock_mhz=1980.0,
    tensor_clock_mhz=1830.0,
)
GPU = replace(FakeGpu(FakeClock()).facts, board=BOARD)


def row(
    kernel: str, unit: str, amount: float, *, device: str = "cpu", threads: int | None = 2
) -> Measurement:
    """Return a good row that moves or computes `amount` in one second."""
    return Measurement(
        kernel=kernel,
        variant="any",
        device=device,
        gpu_uuid=None,
        dtype=FLOAT32,
        shape=(8, 8),
        scope=Scope.RESIDENT,
        threads=threads,
        flops=int(amount) if unit != "B/s" else 0,
        bytes_moved=int(amount),
        median_s=1.0,
        ci95_s=(0.9, 1.1),
        summary=summarise([0.5, 1.0, 1.5]),
        throughput=Throughput(value=amount, unit=unit),
        verified=RIGHT,
        unavailable={"percent_of_peak": "not yet", "percent_of_copy": "not yet"},
    )


COPY = row("copy", "B/s", 10e9)
PRODUCT = row("matmul", "FLOP/s", 100e9)
GPU_COPY = row("copy", "B/s", 3e12, device="gpu:0", threads=None)


def test_the_fastest_sample_of_good_rows_is_the_limit() -> None:
    slow = row("copy", "B/s", 1e9)
    wrong = replace(row("copy", "B/s", 99e9), verified=WRONG)

    (limit,) = rooflines_of([slow, COPY, wrong, PRODUCT])

    assert (limit.device, limit.threads) == ("cpu", 2)
    assert limit.copy_bytes_per_s == 20e9
    assert limit.gemm_flops_per_s == 200e9


def test_a_copy_that_stayed_in_a_cache_is_no_limit_and_that_is_said() -> None:
    doubt = Doubt(code="l2-resident", message="in the L2", next="choose a larger --size")
    cached = replace(GPU_COPY, doubts=(doubt,), bytes_moved=int(9e12))

    (alone,) = rooflines_of([cached])
    (beside,) = rooflines_of([cached, GPU_COPY])
    found = held_against(cached, (alone,), [GPU])

    assert alone.copy_bytes_per_s is None
    assert "cache" in alone.unavailable["copy_bytes_per_s"]
    assert found.percent_of_copy is None
    assert "cache" in found.unavailable["percent_of_copy"]
    assert beside.copy_bytes_per_s == 6e12
    assert beside.unavailable == {}


def test_the_largest_copy_counts_not_the_fastest() -> None:
    small = replace(GPU_COPY, shape=(2, 2), bytes_moved=2**20, summary=summarise([1e-9]))

    (limit,) = rooflines_of([small, GPU_COPY])

    assert limit.copy_bytes_per_s == 6e12


def test_each_number_of_threads_and_each_gpu_has_its_own_limit() -> None:
    one = replace(COPY, threads=1)

    limits = rooflines_of([COPY, one, GPU_COPY])

    assert [(limit.device, limit.threads) for limit in limits] == [
        ("cpu", 2),
        ("cpu", 1),
        ("gpu:0", None),
    ]


def test_a_processors_rows_are_shares_of_what_it_did_in_this_run() -> None:
    limits = rooflines_of([COPY, PRODUCT])

    softmax = held_against(row("softmax", "B/s", 5e9), limits, [])
    train = held_against(replace(row("train", "image/s", 1e9), flops=int(50e9)), limits, [])

    assert softmax.percent_of_copy == pytest.approx(25.0)
    assert softmax.percent_of_peak is None
    assert "memory" in softmax.unavailable["percent_of_peak"]
    assert train.percent_of_peak == pytest.approx(25.0)
    assert "percent_of_peak" not in train.unavailable
    assert train.limits["peak"] == "the best float32 product of this run"


def test_without_a_limit_for_its_threads_a_row_says_so() -> None:
    found = held_against(replace(PRODUCT, threads=7), rooflines_of([COPY, PRODUCT]), [])

    assert found.percent_of_peak is None
    assert "threads" in found.unavailable["percent_of_peak"]


def test_a_gpus_rows_are_shares_of_the_board_and_of_its_copy() -> None:
    limits = rooflines_of([GPU_COPY])
    softmax = row("softmax", "B/s", 2.68e12, device="gpu:0", threads=None)
    product = replace(
        row("matmul", "FLOP/s", 494.5e12, device="gpu:0", threads=None),
        dtype=replace(FLOAT32, input="bfloat16", math_mode="bf16"),
        sm_clock_mhz=1525.0,
    )

    softmax = held_against(softmax, limits, [GPU])
    product = held_against(product, limits, [GPU])

    assert softmax.percent_of_peak == pytest.approx(80.0)
    assert softmax.percent_of_copy == pytest.approx(100 * 2.68 / 6)
    assert softmax.limits["peak"] == "H100 SXM, datasheet"
    assert product.percent_of_peak == pytest.approx(50.0)
    assert product.percent_of_peak_at_clock == pytest.approx(60.0)


def test_of_a_range_the_upper_end_counts_and_the_range_is_told() -> None:
    wide = replace(BOARD, high_flops_per_s={"float32": 134e12}, source="computed")
    found = held_against(
        row("matmul", "FLOP/s", 67e12, device="gpu:0", threads=None),
        (),
        [replace(GPU, board=wide)],
    )

    assert found.percent_of_peak == pytest.approx(50.0)
    assert "67 to 134 TFLOP/s" in found.limits["peak"]


@pytest.mark.parametrize("kernel", ["transfer", "p2p"])
def test_a_link_is_held_against_no_memory(kernel: str) -> None:
    found = held_against(
        row(kernel, "B/s", 5e10, device="gpu:0", threads=None), rooflines_of([GPU_COPY]), [GPU]
    )

    assert found.percent_of_peak is None
    assert found.percent_of_copy is None


def test_a_row_with_transfers_is_held_against_nothing() -> None:
    moved = replace(PRODUCT, device="gpu:0", threads=None, scope=Scope.END_TO_END)

    found = held_against(moved, rooflines_of([GPU_COPY]), [GPU])

    assert found.percent_of_peak is None
    assert found.unavailable["percent_of_peak"] == "transfers limit its speed"


def test_an_unknown_board_and_an_empty_row_have_no_percentages() -> None:
    product = row("matmul", "FLOP/s", 1e12, device="gpu:0", threads=None)

    unknown = held_against(product, (), [replace(GPU, board=None)])
    empty = held_against(replace(product, median_s=None, throughput=None), (), [GPU])

    assert "not in the table" in unknown.unavailable["percent_of_peak"]
    assert empty.percent_of_peak is None


def test_a_row_without_an_interval_is_a_share_of_nothing() -> None:
    unknown = replace(PRODUCT, ci95_s=None, unavailable={"ci95_s": "an interval needs 3 rounds"})

    found = held_against(unknown, rooflines_of([COPY, PRODUCT]), [])

    assert found.percent_of_peak is found.percent_of_copy is None
    assert found.unavailable["percent_of_peak"] == "an interval needs 3 rounds"


def test_a_triad_faster_than_every_copy_is_the_limit() -> None:
    triad = row("triad", "B/s", 15e9)

    (limit,) = rooflines_of([COPY, triad])

    assert limit.copy_bytes_per_s == 30e9
    # So that its own median is no more than what its fastest sample showed to be possible.
    found = held_against(triad, (limit,), [])
    assert found.percent_of_copy == pytest.approx(50.0)
