"""Peaks of boards against their formula, percentages of rows, and doubts about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.boards import BoardPeaks, load_boards
from gpucheck.bench.doubt_table import find_wording
from gpucheck.bench.kernels.matmul import Matmul
from gpucheck.bench.model import Doubt, DtypeSpec, Fact, Measurement, Scope, Throughput, Verified
from gpucheck.bench.numerics import FORMATS
from gpucheck.bench.roofline import (
    TENSOR_FORMATS,
    board_from,
    bytes_by_formula,
    doubts_about_roofline,
    flops_by_formula,
    flops_of_cuda_cores,
    rooflines_of,
    with_board,
    with_percentages,
)
from gpucheck.bench.stats import summarise
from gpucheck.data import read_table
from gpucheck.drivers.gpu import BenchGpu, Board
from tests.fakes.bench import FLOAT32, RIGHT, WRONG, FakeClock, FakeGpu
from tests.report.formats.recorded import in_lines, recorded

BOARDS, TABLE = load_boards(), read_table("peaks")
#: Kind of board whose rates a board has, by its id.
KINDS = {row["id"]: row["rates"] for row in read_table("peaks")["row"]}
GPU = FakeGpu(FakeClock()).facts
#: As many SMs as any board of the table has.
_MANY = max(board.sm_count for board in BOARDS)


def assert_as_documented(value: float, computed: float, formula_percent: float | None) -> None:
    """The formula agrees within 1 %, or is off by as much as the table says."""
    off_percent = 100 * (computed / value - 1)
    if formula_percent is None:
        assert abs(off_percent) <= 1.0
    else:
        assert off_percent == pytest.approx(formula_percent, abs=0.1)
        assert abs(formula_percent) >= 0.95


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_every_cell_agrees_with_the_formula_or_gives_its_deviation(board: BoardPeaks) -> None:
    for key, peak in board.compute.items():
        rate = TABLE["rates"][KINDS[board.id]][key]
        clock_mhz = board.clock_tensor_mhz if key in TENSOR_FORMATS else board.clock_sm_mhz
        by_formula = flops_by_formula(board.sm_count, clock_mhz, rate)
        assert_as_documented(peak.flops_per_s, by_formula, peak.formula_percent)

    memory, by_formula = (
        board.memory,
        bytes_by_formula(board.clock_memory_mhz, board.memory_bus_bits),
    )
    assert_as_documented(memory.bytes_per_s, by_formula, memory.formula_percent)


def test_every_cell_has_a_source_and_every_board_its_own_ids() -> None:
    peaks = [peak for board in BOARDS for peak in (board.memory, *board.compute.values())]
    ids = [device for board in BOARDS for device in board.pci_device_ids]

    assert {peak.source for peak in peaks} == {
        *("datasheet", "whitepaper", "formula", "secondary"),
    }
    assert all(peak.flops_per_s > 0 for board in BOARDS for peak in board.compute.values())
    assert all(board.memory.bytes_per_s > 0 for board in BOARDS)
    assert len(ids) == len(set(ids))
    assert all(len(device) == 4 and int(device, 16) for device in ids)


def test_every_clock_has_a_source() -> None:
    for board in BOARDS:
        assert board.clock_sources.keys() == {"sm", "tensor", "memory"}, board.name
        assert set(board.clock_sources.values()) <= {
            *("driver", "published", "secondary", "derived", "assumed"),
        }, board.name


def test_tensor_peaks_are_dense_and_use_the_lower_clock() -> None:
    h100 = next(board for board in BOARDS if board.name == "H100 SXM")

    assert h100.compute["bfloat16"].flops_per_s == 989.4e12
    assert h100.clock_tensor_mhz < h100.clock_sm_mhz


def test_a_known_board_is_found_by_its_pci_device_id_whatever_its_name() -> None:
    board = with_board(
        replace(GPU, name="NVIDIA something", pci_device_id="233010DE".lower())
    ).board

    assert board is not None
    assert board.name == "H100 SXM"
    assert board.source == "datasheet"
    assert board.flops_per_s["float64"] == 67e12  # on tensor cores
    assert board.flops_per_s == board.high_flops_per_s
    assert board.bytes_per_s == 3350e9


@pytest.mark.parametrize(
    ("device", "name", "bfloat16"),
    [
        ("2329", "H20", 148e12),
        ("232c", "H20-3e", 148e12),
        ("2324", "H800 SXM", 989.4e12),
        ("20f3", "A800 SXM 80 GB", 312e12),
        ("26ba", "L20", 119.5e12),
    ],
)
def test_boards_that_were_cut_down_for_a_market_are_in_the_table(
    device: str, name: str, bfloat16: float
) -> None:
    board = with_board(replace(GPU, pci_device_id=f"{device}10de", sm_count=_MANY)).board

    assert board is not None
    assert (board.name, board.computed) == (name, False)
    assert board.flops_per_s["bfloat16"] == bfloat16


@pytest.mark.parametrize(
    ("device", "name", "float32"),
    [
        ("3182", "B300", 75e12),
        ("31c2", "GB300", 80.5e12),
        ("2bb4", "RTX PRO 6000 Max-Q", 110.1e12),
        ("2bb5", "RTX PRO 6000 Server", 120e12),
        ("1df6", "V100S PCIe", 16.4e12),
    ],
)
def test_newer_boards_and_variants_are_in_the_table(device: str, name: str, float32: float) -> None:
    board = with_board(replace(GPU, pci_device_id=f"{device}10de", sm_count=_MANY)).board

    assert board is not None
    assert board.name == name
    assert board.flops_per_s["float32"] == pytest.approx(float32)


@pytest.mark.parametrize(("capability", "wide"), [("10.3", False), ("11.0", False), ("12.1", True)])
def test_capabilities_whose_boards_have_no_row_have_computed_peaks(
    capability: str, wide: bool
) -> None:
    gpu = replace(GPU, pci_device_id="ffff10de", compute_capability=capability)
    board = with_board(replace(gpu, clock_sm_max_mhz=2000.0)).board

    assert board is not None
    assert board.computed
    assert board.flops_per_s["float32"] == gpu.sm_count * 2e9 * 256
    low, high = board.flops_per_s["bfloat16"], board.high_flops_per_s["bfloat16"]
    assert (low < high) is wide


def test_a_peak_is_named_with_its_own_source() -> None:
    v100 = with_board(replace(GPU, pci_device_id="1db110de")).board

    assert v100 is not None
    assert v100.source_of("int8") == "formula"
    assert v100.source_of("float16") == v100.source_of("bytes_per_s") == "datasheet"


def test_the_name_helps_only_where_there_is_no_id() -> None:
    named = replace(GPU, name="NVIDIA L40S", clock_sm_max_mhz=2520.0, sm_count=142)

    assert getattr(with_board(named).board, "name", None) == "L40S"
    # L40 is part of that name, and another board.
    assert getattr(with_board(replace(named, name="NVIDIA L40S-Q")).board, "name", None) != "L40"
    other = with_board(replace(named, pci_device_id="ffff10de")).board
    assert other is not None
    assert other.source.startswith("computed")


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("2182", "NVIDIA GeForce GTX 1660 Ti"),
        ("1fb9", "Quadro T1000"),
        ("1f0a", "NVIDIA GeForce GTX 1650"),  # TU106: what it has left of them is not known
    ],
)
def test_a_turing_without_tensor_cores_is_with_percentages_none(device: str, name: str) -> None:
    gpu = replace(
        GPU,
        name=name,
        pci_device_id=f"{device}10de",
        compute_capability="7.5",
        clock_sm_max_mhz=2100.0,
    )
    board = with_board(gpu).board

    assert board is not None
    assert board.flops_per_s.keys() == {"float64", "float32"}
    turing = with_board(
        replace(gpu, name="NVIDIA GeForce RTX 2060", pci_device_id="1f0310de")
    ).board
    assert turing is not None
    assert turing.flops_per_s.keys() > {"float16", "int8"}


@pytest.mark.parametrize(("capability", "wide"), [("8.6", True), ("8.9", True), ("9.0", False)])
def test_an_unknown_board_gets_a_range_where_the_capability_does_not_decide(
    capability: str, wide: bool
) -> None:
    gpu = replace(
        GPU,
        pci_device_id="ffff10de",
        compute_capability=capability,
        sm_count=100,
        clock_sm_max_mhz=2000.0,
        clock_memory_max_mhz=10_000.0,
        memory_bus_bits=256,
    )

    board = with_board(gpu).board

    assert board is not None
    low, high = board.flops_per_s["bfloat16"], board.high_flops_per_s["bfloat16"]
    assert (low < high) is wide
    assert high == 100 * 2e9 * TABLE["rates"][capability]["bfloat16"]
    assert board.bytes_per_s == 640e9


def test_a_board_of_which_nothing_is_known_has_no_limit() -> None:
    unknown = with_board(replace(GPU, compute_capability="99.0", clock_sm_max_mhz=2000.0))
    assert unknown.board is None
    assert "not in the table" in unknown.unavailable["board"]
    assert with_board(replace(GPU, clock_sm_max_mhz=None)).board is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"virtualization": "vgpu"}, "it is a vGPU, which has a share of its board"),
        ({"sm_count": 66}, "it has 66 of the 132 SMs of H100 SXM"),
        ({"virtualization": "pass-through"}, None),
        ({"sm_count": 132}, None),
    ],
)
def test_part_of_a_board_is_not_held_against_the_whole(
    changes: dict[str, Any], reason: str | None
) -> None:
    gpu = with_board(replace(GPU, pci_device_id="233010de", clock_sm_max_mhz=1980.0, **changes))

    assert gpu.unavailable == ({} if reason is None else {"board": reason})
    assert (gpu.board is None) is (reason is not None)
    found = with_percentages(GPU_COPY, [], [gpu]).unavailable.get("percent_of_peak")
    assert found == reason


def test_a_mig_instance_has_the_peaks_of_its_sms_and_none_of_its_memory() -> None:
    changes: dict[str, Any] = {
        **{"clock_sm_max_mhz": 1000.0, "clock_memory_max_mhz": 2619.0, "memory_bus_bits": 5120},
        **{"uuid": "MIG-0", "pci_device_id": "233010de", "sm_count": 16},
    }
    gpu = with_board(replace(GPU, **changes))

    assert gpu.board is not None
    assert gpu.board.bytes_per_s is None
    assert gpu.board.flops_per_s["float32"] == 16 * 1e9 * TABLE["rates"]["9.0"]["float32"]
    reason = "a MIG instance has a share of the memory"
    assert gpu.unavailable == {"board.bytes_per_s": reason}
    copy = with_percentages(GPU_COPY, [], [gpu])
    assert copy.unavailable["percent_of_peak"] == reason
    unknown = with_board(replace(GPU, **changes | {"clock_sm_max_mhz": None}))
    assert (unknown.board, list(unknown.unavailable)) == (None, ["board"])


@pytest.mark.parametrize("unknown", ["clock_memory_max_mhz", "memory_bus_bits"])
def test_without_the_memory_s_clock_or_bus_its_bandwidth_is_unknown(unknown: str) -> None:
    whole = replace(
        GPU,
        compute_capability="9.0",
        clock_sm_max_mhz=2000.0,
        clock_memory_max_mhz=2619.0,
        memory_bus_bits=5120,
    )
    changes: dict[str, Any] = {unknown: None}

    board, partial = with_board(whole).board, with_board(replace(whole, **changes)).board

    assert board is not None
    assert board.bytes_per_s == 2619e6 * 5120 / 8 * 2
    assert partial is not None
    assert partial.bytes_per_s is None


@pytest.mark.parametrize(
    ("capability", "name", "ratio"),
    [("9.0", "bfloat16", 1), ("9.0", "int8", 2), ("8.0", "int8", 4), ("7.5", "float16", 1)],
)
def test_cuda_cores_do_every_format_as_float32_and_int8_by_their_integer_units(
    capability: str, name: str, ratio: int
) -> None:
    gpu = replace(GPU, compute_capability=capability, clock_sm_max_mhz=1000.0)
    gpu = with_board(gpu)

    single = gpu.sm_count * 1e9 * TABLE["rates"][capability]["float32"]
    assert flops_of_cuda_cores(gpu, name) == ratio * single


def test_every_kind_of_board_has_its_rate_of_int8_on_cuda_cores() -> None:
    kinds = {rates.partition("-")[0] for rates in TABLE["rates"]}

    assert TABLE["int8_on_cuda_cores"].keys() == kinds
    # Volta has no other way, and so its peak is that of the CUDA cores.
    assert TABLE["rates"]["7.0"]["int8"] == 4 * TABLE["rates"]["7.0"]["float32"]


def test_nothing_is_known_of_the_cuda_cores_of_an_unknown_board() -> None:
    assert flops_of_cuda_cores(GPU, "bfloat16") is None
    board = with_board(replace(GPU, compute_capability="9.0", clock_sm_max_mhz=1000.0)).board
    assert flops_of_cuda_cores(replace(GPU, compute_capability="99.0", board=board), "int8") is None


def test_the_formats_of_the_table_are_those_that_are_measured() -> None:
    measured = set(FORMATS) | {"float64_tensor"}

    assert all(set(board.compute) <= measured for board in BOARDS)


BOARD = Board(
    name="H100 SXM",
    source="datasheet",
    flops_per_s={"float32": 67e12, "bfloat16": 989e12},
    high_flops_per_s={"float32": 67e12, "bfloat16": 989e12},
    bytes_per_s=3350e9,
    clock_mhz=1980.0,
    tensor_clock_mhz=1830.0,
)
H100 = replace(FakeGpu(FakeClock()).facts, board=BOARD)


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
        time_s=1.0,
        ci95_s=(0.9, 1.1),
        summary=summarise([0.5, 1.0, 1.5]),
        throughput=Throughput(value=amount, unit=unit),
        verified=RIGHT,
        unavailable={"percent_of_peak": "not yet", "percent_of_copy": "not yet"},
    )


TF32 = DtypeSpec(input="float32", accumulate="float32", output="float32", math_mode="tf32")
COPY = row("copy", "B/s", 10e9)
PRODUCT = row("matmul", "FLOP/s", 100e9)
GPU_COPY = row("copy", "B/s", 3e12, device="gpu:0", threads=None)


def test_the_fastest_of_good_rows_is_the_limit() -> None:
    slow = row("copy", "B/s", 1e9)
    wrong = replace(row("copy", "B/s", 99e9), verified=WRONG)
    moved = replace(row("copy", "B/s", 99e9), scope=Scope.END_TO_END)
    fast = row("matmul", "FLOP/s", 99e12)
    others = replace(fast, dtype=TF32), replace(fast, kernel="train")

    (limit,) = rooflines_of([slow, COPY, wrong, moved, PRODUCT, *others])

    assert (limit.device, limit.threads) == ("cpu", 2)
    assert limit.copy_bytes_per_s == 10e9
    assert limit.gemm_flops_per_s == 100e9


def test_a_copy_that_stayed_in_a_cache_is_no_limit_for_a_stated_reason() -> None:
    doubt = Doubt(code="l2-resident", message="in the L2", next="choose a larger --size")
    cached = replace(GPU_COPY, doubts=(doubt,), bytes_moved=int(9e12))

    (alone,) = rooflines_of([cached])
    (beside,) = rooflines_of([cached, GPU_COPY])
    found = with_percentages(cached, (alone,), [H100])

    assert alone.copy_bytes_per_s is None
    assert "cache" in alone.unavailable["copy_bytes_per_s"]
    assert found.percent_of_copy is None
    assert "cache" in found.unavailable["percent_of_copy"]
    assert beside.copy_bytes_per_s == 3e12
    assert beside.unavailable == {}


def test_the_largest_copy_counts_not_the_fastest() -> None:
    small = replace(row("copy", "B/s", 9e12, device="gpu:0", threads=None), shape=(2, 2))

    (limit,) = rooflines_of([small, GPU_COPY])

    assert limit.copy_bytes_per_s == 3e12


def test_without_a_copy_a_processor_has_the_limit_of_its_product_and_a_gpu_has_none() -> None:
    on_gpu = replace(PRODUCT, device="gpu:0", threads=None)

    (limit,) = rooflines_of([PRODUCT, on_gpu])

    assert (limit.device, limit.threads, limit.copy_bytes_per_s) == ("cpu", 2, None)
    assert limit.gemm_flops_per_s == 100e9


def test_each_number_of_threads_and_each_gpu_has_its_own_limit() -> None:
    one = replace(COPY, threads=1)

    limits = rooflines_of([COPY, one, GPU_COPY])

    assert [(limit.device, limit.threads) for limit in limits] == [
        ("cpu", 2),
        ("cpu", 1),
        ("gpu:0", None),
    ]


def test_what_fewer_threads_reach_is_possible_with_more() -> None:
    disturbed = row("matmul", "FLOP/s", 50e9), row("copy", "B/s", 5e9)
    alone = replace(PRODUCT, threads=1), replace(COPY, threads=1)

    two, one = rooflines_of([*disturbed, *alone])

    assert (two.threads, one.threads) == (2, 1)
    assert (two.gemm_flops_per_s, two.copy_bytes_per_s) == (100e9, 10e9)
    assert with_percentages(disturbed[0], (two, one), []).percent_of_peak == pytest.approx(50.0)


CACHED = Doubt(code="cache-resident", message="in the cache", next="choose a larger --size")


def softmax_row(speed: float, *, threads: int = 1, **facts: Fact) -> Measurement:
    """Return a softmax of 1 MB that may be in the cache, at so many bytes a second."""
    found = replace(row("softmax", "B/s", speed, threads=threads), facts=facts, doubts=(CACHED,))
    return replace(found, bytes_moved=2**20, shape=(2, 2**16))


def cached_copy(speed: float, size: int = 2**20, *, threads: int = 1) -> Measurement:
    found = replace(row("copy", "B/s", speed, threads=threads), doubts=(CACHED,))
    return replace(found, bytes_moved=size)


def test_data_that_fit_into_the_cache_are_held_against_a_copy_of_as_many_bytes() -> None:
    softmax, memory = softmax_row(60e9), replace(COPY, threads=1)
    others = cached_copy(90e9, 2**22), cached_copy(95e9, threads=2), memory
    rooflines = rooflines_of([memory])

    alone = with_percentages(softmax, rooflines, [], [softmax, *others])
    found = with_percentages(softmax, rooflines, [], [softmax, *others, cached_copy(80e9)])
    copied = with_percentages(cached_copy(80e9), rooflines, [], [*others, cached_copy(80e9)])

    assert alone.percent_of_copy is None
    assert "as many bytes" in alone.unavailable["percent_of_copy"]
    assert found.percent_of_copy == pytest.approx(75.0)
    assert (found.percent_of_peak, found.doubts) == (None, ())
    # Of a copy itself it matters that it does not show the memory.
    assert (copied.percent_of_copy, copied.doubts) == (100.0, (CACHED,))


def test_a_softmax_whose_exponentials_are_slower_than_a_copy_is_held_against_them() -> None:
    copies = cached_copy(80e9), cached_copy(80e9, threads=2)
    # 4 bytes a number here: 8 GB/s of one thread, 16 of two.
    one, two = softmax_row(6e9, exp_per_s=1e9), softmax_row(12e9, threads=2)
    faster = softmax_row(10e9, exp_per_s=1e9)

    found = [
        with_percentages(each, (), [], [*copies, *beside])
        for each, beside in ((one, (one, two)), (two, (one, two)), (one, (one, faster)))
    ]
    unlimited = with_percentages(one, (), [], [cached_copy(7e9), one])

    percents = [each.percent_of_peak for each in found]
    assert percents == pytest.approx([75.0, 75.0, 60.0])
    assert {each.limits["peak"] for each in found} == {"exponentials alone, in the cache"}
    assert unlimited.percent_of_peak is None
    assert "memory limits" in unlimited.unavailable["percent_of_peak"]


def test_a_processors_rows_are_shares_of_what_it_did_in_this_run() -> None:
    limits = rooflines_of([COPY, PRODUCT])

    softmax = with_percentages(row("softmax", "B/s", 5e9), limits, [])
    training = replace(row("train", "image/s", 1e9), flops=int(12.5e9), time_s=0.5)
    train = with_percentages(training, limits, [])

    assert softmax.percent_of_copy == pytest.approx(50.0)
    assert softmax.percent_of_peak is None
    assert "memory" in softmax.unavailable["percent_of_peak"]
    assert train.percent_of_peak == pytest.approx(25.0)
    assert "percent_of_peak" not in train.unavailable
    assert train.limits["peak"] == "the best float32 product of this run"


def test_without_a_limit_for_its_threads_a_row_says_so() -> None:
    found = with_percentages(replace(PRODUCT, threads=7), rooflines_of([COPY, PRODUCT]), [])

    assert found.percent_of_peak is None
    assert "threads" in found.unavailable["percent_of_peak"]


def test_a_gpus_rows_are_shares_of_the_board_and_of_its_copy() -> None:
    limits = rooflines_of([GPU_COPY])
    softmax = row("softmax", "B/s", 2.68e12, device="gpu:0", threads=None)
    product = replace(
        row("matmul", "FLOP/s", 494.5e12 / 4, device="gpu:0", threads=None),
        time_s=0.25,
        dtype=replace(FLOAT32, input="bfloat16", math_mode="bf16"),
        sm_clock_mhz=1525.0,
    )

    softmax = with_percentages(softmax, limits, [H100])
    product = with_percentages(product, limits, [H100])

    assert softmax.percent_of_peak == pytest.approx(80.0)
    assert softmax.percent_of_copy == pytest.approx(100 * 2.68 / 3)
    assert softmax.limits["peak"] == "H100 SXM, datasheet"
    assert product.percent_of_peak == pytest.approx(50.0)
    assert product.percent_of_peak_at_clock == pytest.approx(60.0)


def test_of_a_range_the_upper_end_counts_and_the_range_is_named() -> None:
    wide = replace(BOARD, high_flops_per_s={"float32": 134e12}, source="computed")
    found = with_percentages(
        row("matmul", "FLOP/s", 67e12, device="gpu:0", threads=None),
        (),
        [replace(H100, board=wide)],
    )

    assert found.percent_of_peak == pytest.approx(50.0)
    assert "67 to 134 TFLOP/s" in found.limits["peak"]


@pytest.mark.parametrize("kernel", ["transfer", "p2p"])
def test_a_link_is_with_percentages_no_memory(kernel: str) -> None:
    found = with_percentages(
        row(kernel, "B/s", 5e10, device="gpu:0", threads=None), rooflines_of([GPU_COPY]), [H100]
    )

    assert found.percent_of_peak is None
    assert found.percent_of_copy is None


def test_a_row_with_transfers_is_with_percentages_nothing() -> None:
    moved = replace(PRODUCT, device="gpu:0", threads=None, scope=Scope.END_TO_END)

    found = with_percentages(moved, rooflines_of([GPU_COPY]), [H100])

    assert found.percent_of_peak is None
    assert found.unavailable["percent_of_peak"] == "transfers limit its speed"


def test_an_unknown_board_and_an_empty_row_have_no_percentages() -> None:
    product = row("matmul", "FLOP/s", 1e12, device="gpu:0", threads=None)

    unknown = with_percentages(product, (), [replace(H100, board=None)])
    empty = with_percentages(replace(product, time_s=None, throughput=None), (), [H100])

    assert "not in the table" in unknown.unavailable["percent_of_peak"]
    assert empty.percent_of_peak is None


def test_a_row_without_an_interval_is_a_share_of_nothing() -> None:
    unknown = replace(PRODUCT, ci95_s=None, unavailable={"ci95_s": "an interval needs 3 rounds"})

    found = with_percentages(unknown, rooflines_of([COPY, PRODUCT]), [])

    assert found.percent_of_peak is found.percent_of_copy is None
    assert found.unavailable["percent_of_copy"] == found.unavailable["percent_of_peak"]
    assert found.unavailable["percent_of_peak"] == "an interval needs 3 rounds"


def test_a_triad_faster_than_every_copy_is_the_limit() -> None:
    triad = row("triad", "B/s", 15e9)

    (limit,) = rooflines_of([COPY, triad])

    assert limit.copy_bytes_per_s == 15e9
    found = with_percentages(triad, (limit,), [])
    assert found.percent_of_copy == pytest.approx(100.0)


UNSURE = Board(
    name="some",
    source="datasheet",
    uncertainty={"float32": "two sheets disagree", "bytes_per_s": "half the chips were faster"},
)
UNSURE_GPU = replace(FakeGpu(FakeClock()).facts, board=UNSURE)


def reaching(percent: float | None, **changes: object) -> Measurement:
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
    assert [doubt.code for doubt in doubts_about_roofline(reaching(percent), None)] == expected


def test_more_than_the_best_product_of_a_processor_is_doubted_in_words_without_a_card() -> None:
    (doubt,) = doubts_about_roofline(reaching(170.0, device="cpu"), None)

    assert doubt.code == "above-product"
    assert doubt.message.startswith("170 % of the best product of this run")
    assert find_wording(doubt.code)["short"] == "faster than the best product"


def test_more_than_the_memory_is_no_news_for_a_row_in_the_cache() -> None:
    cached = Doubt(code="l2-resident", message="it may stay in the L2", next="take a larger one")

    assert doubts_about_roofline(reaching(300.0, doubts=(cached,)), None) == ()


def test_an_uncertain_peak_makes_the_percentage_uncertain() -> None:
    (doubt,) = doubts_about_roofline(reaching(70.0), UNSURE_GPU)

    assert doubt.code == "peak-uncertain"
    assert "two sheets disagree" in doubt.message
    assert doubts_about_roofline(reaching(None), UNSURE_GPU) == ()


def test_the_uncertainty_is_that_of_the_rows_own_peak() -> None:
    memory = reaching(70.0, kernel="copy", throughput=Throughput(value=1e12, unit="B/s"))

    (doubt,) = doubts_about_roofline(memory, UNSURE_GPU)

    assert "half the chips were faster" in doubt.message
    assert doubts_about_roofline(reaching(70.0, dtype=TF32), UNSURE_GPU) == ()


@pytest.mark.parametrize(
    ("percent", "expected"), [(97.0, []), (100.9, []), (124.0, ["above-copy"]), (None, [])]
)
def test_more_than_the_fastest_copy_is_doubted(percent: float | None, expected: list[str]) -> None:
    moved = reaching(None, kernel="triad", percent_of_copy=percent)

    assert [doubt.code for doubt in doubts_about_roofline(moved, None)] == expected


def test_more_than_a_copy_is_no_news_for_a_row_in_the_cache() -> None:
    cached = Doubt(code="cache-resident", message="it may stay there", next="take a larger one")
    moved = reaching(None, kernel="softmax", percent_of_copy=300.0, doubts=(cached,))

    assert doubts_about_roofline(moved, None) == ()


FACTS = FakeGpu(FakeClock()).facts


def gpu_of(name: str) -> BenchGpu:
    entry = next(entry for entry in load_boards() if entry.name == name)
    capability = entry.compute_capability
    return replace(FACTS, compute_capability=capability, board=board_from(entry))


LISTED = gpu_of("H100 SXM")


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
        time_s=work.flops / flops_per_s,
        verified=checked,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def codes(row: Measurement, gpu: BenchGpu | None = LISTED) -> list[str]:
    return [doubt.code for doubt in doubts_about_roofline(row, gpu)]


@pytest.mark.parametrize("dtype", sorted(TENSOR_FORMATS))
def test_a_large_product_at_the_rate_of_cuda_cores_is_doubted(dtype: str) -> None:
    assert codes(product(dtype, 8192, 60e12)) == ["tensor-cores-unused"]
    assert codes(product(dtype, 8192, 300e12)) == []


def test_the_doubt_says_how_fast_it_was_what_cuda_cores_do_and_what_to_expect() -> None:
    (doubt,) = doubts_about_roofline(product("bfloat16", 8192, 60e12), LISTED)

    facts: dict[str, Fact] = doubt.facts
    assert facts["flops_per_s"] == pytest.approx(60e12)
    assert facts["cuda_cores_flops_per_s"] == 67e12
    assert 400e12 < float(facts["expected_flops_per_s"]) < 989.4e12 / 2
    assert "60 TFLOP/s" in doubt.message
    assert "67" in doubt.message
    assert doubt.next == "compare with float32 at this size; try another cuBLAS"


def test_edges_that_tensor_cores_do_not_take_are_the_first_thing_to_change() -> None:
    (doubt,) = doubts_about_roofline(product("bfloat16", 8190, 60e12), LISTED)

    assert doubt.next.startswith("choose a size that is a multiple of 16; ")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_formats_without_tensor_cores_are_not_compared_with_them(dtype: str) -> None:
    assert codes(product(dtype, 8192, 10e12)) == []


@given(dtype=st.sampled_from(sorted(TENSOR_FORMATS)), edge=st.integers(1, 512))
def test_small_products_are_slow_without_a_doubt(dtype: str, edge: int) -> None:
    assert codes(product(dtype, edge, 1e12)) == []


@given(
    name=st.sampled_from([entry.name for entry in load_boards()]),
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

    slow = product("bfloat16", 8192, 60e12)
    assert codes(replace(slow, doubts=(shared,))) == expected
    if expected:
        alone, among_two = (
            doubts_about_roofline(one, LISTED)[0].facts["expected_flops_per_s"]
            for one in (slow, replace(slow, doubts=(shared,)))
        )
        assert among_two == float(alone) / 2


@pytest.mark.parametrize("code", ["starved", "throttled"])
def test_a_rate_with_another_explanation_is_not_doubted_twice(code: str) -> None:
    known = Doubt(code=code, message="it was slow", next="wait")

    assert codes(product("bfloat16", 8192, 10e12, doubts=(known,))) == []


def test_transfers_other_kernels_and_unknown_boards_are_left_alone() -> None:
    slow = product("bfloat16", 8192, 1e12)

    assert codes(replace(slow, scope=Scope.END_TO_END)) == []
    assert codes(replace(slow, kernel="softmax")) == []
    assert codes(replace(slow, time_s=None)) == []
    assert codes(slow, replace(LISTED, board=None)) == []
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
    (doubt,) = doubts_about_roofline(product("float32", 4096, 40e12, error=3e-4), LISTED)

    assert doubt.message == "its error of 3e-04 is typical of TF32: float32 would leave about 1e-06"
    assert "CUPY_TF32" in doubt.next
    assert doubt.facts == {"error": 3e-4, "math_mode": "fp32"}


def test_arithmetic_is_judged_of_products_on_gpus_alone() -> None:
    wrong = product("float32", 4096, 40e12, error=3e-4)

    assert codes(wrong, None) == codes(replace(wrong, kernel="batch"), None) == []
    assert codes(replace(wrong, kernel="batch")) == []


def test_few_rows_may_be_exact_by_chance() -> None:
    assert codes(product("tf32", 8, 1e9, error=1e-7)) == []


def test_a_row_that_is_not_verified_or_not_finite_says_nothing_of_its_error() -> None:
    infinite = Verified(error=None, bound=1e-5, ok=False, reference="float64")

    assert codes(product("float32", 8192, 40e12)) == []
    assert codes(product("float32", 8192, 40e12, verified=infinite)) == []


# --------------------------------------------------------------------------------- whole texts


def told(row: Measurement) -> str:
    """Return what a row says of its limits."""
    percents = (row.percent_of_peak, row.percent_of_peak_at_clock, row.percent_of_copy)
    shown = ["-" if percent is None else f"{percent:.6g}" for percent in percents]
    return f"{' '.join(shown)}  {row.limits}  {row.unavailable}"


def fastest_doubted(dtype: str, edge: int, gpu: BenchGpu, **changes: object) -> str:
    """Return the highest rate at which tensor cores seem to be unused, in TFLOP/s."""

    def is_doubted(rate: float) -> bool:
        return "tensor-cores-unused" in codes(product(dtype, edge, rate, **changes), gpu)

    low, high = 1e10, 1e16
    if not is_doubted(low):
        return "none"
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_doubted(middle) else (low, middle)
    return f"{low / 1e12:.6g}"


SHARED = Doubt(code="gpu-shared", message="others", next="wait", facts={"processes": "1, 2, 3"})


def test_limits_percentages_and_doubts_are_as_recorded() -> None:
    gpu = {"device": "gpu:0", "threads": None}
    cached = Doubt(code="cache-resident", message="in the cache", next="choose a larger --size")
    rows: dict[str, Measurement] = {
        "copy": COPY,
        "small copy": replace(COPY, shape=(2, 2), bytes_moved=int(1e12)),
        "cached copy of one thread": replace(COPY, threads=1, doubts=(cached,)),
        "product": PRODUCT,
        "tf32 product": replace(PRODUCT, dtype=TF32, flops=int(1e15)),
        "softmax": replace(row("softmax", "B/s", 5e9), time_s=2.0),
        "training": replace(row("train", "image/s", 1e9), flops=int(5e9), time_s=0.5),
        "training of other threads": replace(row("train", "image/s", 1e9), flops=5, threads=9),
        "without operations": row("batch", "image/s", 1e9),
        "without an interval": replace(PRODUCT, ci95_s=None, unavailable={"ci95_s": "3 rounds"}),
        "GPU copy": GPU_COPY,
        "GPU softmax": row("softmax", "B/s", 2.68e12, **gpu),  # type: ignore[arg-type]
        "GPU transfer": row("transfer", "B/s", 5e10, **gpu),  # type: ignore[arg-type]
        "GPU launch": row("launch", "launch/s", 5e5, **gpu),  # type: ignore[arg-type]
        "moved": replace(GPU_COPY, scope=Scope.END_TO_END),
        **{f"GPU {name}": replace(product(name, 4096, 30e12), throughput=Throughput(
            value=30e12, unit="FLOP/s"), ci95_s=(1.0, 2.0), sm_clock_mhz=1500.0)
           for name in ("float64", "float32", "bfloat16", "int8")},
    }  # fmt: skip
    limits = rooflines_of([replace(one, verified=RIGHT, summary=COPY.summary)
                           for one in rows.values()])  # fmt: skip
    computed = replace(LISTED, pci_device_id="ffff10de", compute_capability="8.6",
                       clock_sm_max_mhz=1500.0, board=None)  # fmt: skip
    computed = with_board(computed)
    text = "## the limits of the run\n" + in_lines(limits)
    for board in (LISTED, computed):
        text += "## percentages: of the peak, at the clock, of the copy\n"
        text += "".join(
            f"{name}: {told(with_percentages(one, limits, [board]))}\n"
            for name, one in rows.items()
        )
    text += "## the fastest product whose tensor cores seem unused, in TFLOP/s\n"
    for name in sorted(TENSOR_FORMATS):
        found = [fastest_doubted(name, edge, LISTED) for edge in (64, 512, 1024, 8192)]
        slow = fastest_doubted(name, 8192, LISTED, sm_clock_mhz=990.0)
        among_four = fastest_doubted(name, 8192, LISTED, doubts=(SHARED,))
        text += f"{name}: {found} at half the clock {slow} among four {among_four}"
        text += f" computed {fastest_doubted(name, 8192, computed)}\n"
    text += "## doubts\n"
    for percent in (101.0, 101.1, 250.0):
        for device in ("cpu", "gpu:0"):
            one = reaching(percent, device=device, percent_of_copy=percent)
            text += f"{percent} % on {device}\n" + in_lines(doubts_about_roofline(one, None))
    for error in (2.9e-5, 3.1e-5, 9e-3, 1.1e-2):
        for name in ("tf32", "float32"):
            for shape in ((63, 64, 64), (64, 63, 63)):
                one = product(name, 8192, 300e12, error=error, shape=shape)
                text += f"{name} {shape} off by {error}\n"
                text += in_lines(doubts_about_roofline(one, LISTED))
    text += in_lines(doubts_about_roofline(product("int8", 8200, 1e12), LISTED))
    text += in_lines(doubts_about_roofline(reaching(70.0), UNSURE_GPU))

    assert text == recorded("rooflines", text)


def test_the_limits_of_boards_and_of_every_capability_are_as_recorded() -> None:
    lines = []
    for entry in BOARDS:
        if entry.name not in ("V100 SXM2", "T4", "A10G", "H100 SXM"):
            continue
        board = board_from(entry)
        flops = {key: f"{value / 1e12:.6g}" for key, value in board.flops_per_s.items()}
        memory = f"{(board.bytes_per_s or 0) / 1e9:.6g} GB/s"
        lines.append(f"{board.name}: {flops} {memory} {sorted(board.uncertainty)}")
    for kind in sorted({kind.partition("-")[0] for kind in TABLE["rates"]}):
        gpu = replace(
            GPU, pci_device_id="ffff10de", compute_capability=kind, sm_count=100,
            clock_sm_max_mhz=1000.0, clock_memory_max_mhz=1000.0, memory_bus_bits=256,
        )  # fmt: skip
        computed = with_board(gpu).board
        assert computed is not None
        both = {
            key: f"{low / 1e12:.6g} to {computed.high_flops_per_s[key] / 1e12:.6g}"
            for key, low in computed.flops_per_s.items()
        }
        lines.append(f"any {kind}: {both} {(computed.bytes_per_s or 0) / 1e9:g} GB/s")
    text = "\n".join(lines) + "\n"

    assert text == recorded("boards", text)
