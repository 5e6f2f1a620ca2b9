from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from gpucheck.bench.comparison import compare, headline
from gpucheck.bench.model import (
    BenchMode,
    BenchResult,
    Conclusion,
    Doubt,
    Extent,
    GpuTelemetry,
    Measurement,
    Roofline,
    Scope,
    Telemetry,
    Throughput,
    Verified,
)
from gpucheck.bench.rows_view import row_name
from gpucheck.bench.view import render_bench
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.report.envelope import Failure
from tests.fakes.bench import FLOAT32, RIGHT, WRONG
from tests.fakes.bench_results import environment

ENVIRONMENT = replace(
    environment(parallel_efficiency=None, peak_memory_bytes=None),
    cpu_model="Some CPU",
    logical_cores=8,
    usable_cores=4,
    cpu_quota_cores=2.0,
    blas_name="openblas",
    blas_version="0.3.31",
    blas_threads=4,
    numpy_version="2.4.6",
    duration_s=1.0,
    data="normal(0,1)",
    mode=BenchMode.DEFAULT,
)
GPU = BenchGpu(
    cuda_index=0,
    uuid=None,
    name="NVIDIA H100",
    compute_capability="9.0",
    sm_count=132,
    l2_bytes=1,
    memory_total_bytes=1,
    memory_free_bytes=1,
    float32_math="fp32",
)
BUSY = Doubt(code="host-busy", message="other programs took 30 %", next="run it again")


def row(device: str, variant: str, median_s: float, threads: int | None = None) -> Measurement:
    return Measurement(
        kernel="softmax",
        variant=variant,
        device=device,
        gpu_uuid=None,
        dtype=FLOAT32,
        shape=(4096, 4096),
        scope=Scope.RESIDENT,
        threads=threads,
        parameters={"temperature": 0.7},
        samples_s=(median_s,) * 10,
        median_s=median_s,
        ci95_s=(median_s * 0.998, median_s * 1.002),
        repeat95_s=(median_s * 0.996, median_s * 1.004),
        converged=True,
        throughput=Throughput(value=134_217_728 / median_s, unit="B/s"),
        verified=RIGHT,
    )


CPU = row("cpu", "blocked", 0.00871, 4)
ONE = row("cpu", "blocked-1-thread", 0.0148, 1)
FUSED = row("gpu:0", "fused", 0.00005)
MOVED = replace(row("gpu:0", "fused", 0.004), scope=Scope.END_TO_END)


def result(*rows: Measurement) -> BenchResult:
    comparisons = compare(rows)
    return BenchResult(
        measurements=rows,
        comparisons=comparisons,
        environment=replace(ENVIRONMENT),
        headline=headline(comparisons),
    )


def draw(
    found: BenchResult, *, width: int = 80, ascii_only: bool = False, verbosity: int = 0
) -> str:
    console = Console(width=width, file=StringIO(), color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(render_bench(found, width=width, ascii_only=ascii_only, verbosity=verbosity))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_whole_report_at_80_columns() -> None:
    found = result(replace(CPU, doubts=(BUSY,)), replace(ONE, doubts=(BUSY,)), FUSED, MOVED)

    found = replace(
        found,
        measurements=tuple(
            replace(row, percent_of_copy=percent)
            for row, percent in zip(found.measurements, (83.4, 91.0, 101.6, None), strict=True)
        ),
    )

    assert draw(replace(found, environment=replace(ENVIRONMENT, gpus=(GPU,)))) == (
        "softmax 4096 × 4096, float32, temperature 0.7 (% of a copy)\n"
        "  cpu blocked, 4 threads   8.71 ms ±0.4%      15.4 GB/s  83% ✓  ▏ 1/170\n"
        "  cpu blocked, 1 thread    14.8 ms ±0.4%      9.07 GB/s  91% ✓  ▏ 1/300\n"
        "  gpu:0 fused              50.0 µs ±0.4%      2.68 TB/s 102% ✓  ████████ best\n"
        "  gpu:0 fused + transfers  4.00 ms ±0.4%      33.6 GB/s      ✓  ▏ 1/80\n"
        "  for this size the GPU is 170 times faster if the data stays there, 2.2 times\n"
        "  faster if it moves every time\n"
        "\n"
        "! host-busy (every row of cpu): other programs took 30 %\n"
        "  to do: run it again\n"
        "±: 19 of 20 further runs should lie within it if the machine stays unchanged\n"
        "cpu: Some CPU, 4 of 8 cores, quota 2, openblas 0.3.31, NumPy 2.4.6\n"
        "gpu:0: NVIDIA H100\n"
        "gpu:0 reaches 170 times the CPU's speed in softmax float32 if the data stays\n"
        "there, 2.2 times if it moves every time (in doubt: host-busy)"
    )


@pytest.mark.parametrize("width", [20, 40, 72, 80, 160])
@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_no_line_is_wider_than_the_terminal(width: int, verbosity: int) -> None:
    found = result(replace(CPU, doubts=(BUSY,)), ONE, FUSED, MOVED)

    text = draw(found, width=width, verbosity=verbosity)

    assert max(len(line) for line in text.splitlines()) <= width
    assert "170 times faster" in words(text)


def test_bars_are_in_proportion_and_grow_with_the_terminal() -> None:
    found = result(row("cpu", "a", 0.01), row("cpu", "b", 0.02))

    for width in (40, 80, 160):
        bars = [line.count("█") for line in draw(found, width=width).splitlines()]
        first, second = [bar for bar in bars if bar]
        assert first == pytest.approx(2 * second, abs=1)
        assert first > width / 5


def test_ascii_is_ascii() -> None:
    text = draw(result(CPU, replace(ONE, verified=WRONG)), ascii_only=True, verbosity=1)

    assert text.isascii()
    assert "WRONG" in text
    assert "#" in text


def test_the_best_row_is_named_and_the_others_say_how_far_they_are_from_it() -> None:
    text = draw(result(CPU, ONE, FUSED), ascii_only=True)

    assert [line.rsplit("#", 1)[1] for line in text.splitlines() if "#" in line] == [
        " 1/170",
        " 1/300",
        " best",
    ]


def test_a_single_row_is_not_called_the_best() -> None:
    assert "best" not in draw(result(CPU))


@pytest.mark.parametrize("width", [40, 60])
def test_on_a_narrow_terminal_a_row_takes_two_lines(width: int) -> None:
    text = draw(result(CPU, FUSED), width=width)

    name = next(line for line in text.splitlines() if "gpu:0 fused" in line)
    assert name.endswith(" best")
    assert text.splitlines()[text.splitlines().index(name) + 1].strip().startswith("50.0 µs")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            Failure(code="gpu-lost", message="the GPU stopped answering"),
            "the GPU stopped answering",
        ),
        (None, "interrupted before it was measured"),
    ],
)
def test_a_row_without_figures_says_why(broken: Failure | None, said: str) -> None:
    empty = replace(
        FUSED,
        median_s=None,
        throughput=None,
        ci95_s=None,
        samples_s=(),
        error=broken,
        interrupted=broken is None,
    )

    text = draw(result(CPU, empty))

    assert f"gpu:0 fused: {said}" in text
    assert "0.00" not in text


def test_a_row_that_ended_early_keeps_its_figures_and_says_so() -> None:
    lost = replace(FUSED, error=Failure(code="gpu-lost", message="the GPU stopped answering"))

    text = draw(result(CPU, lost, replace(ONE, interrupted=True)))

    assert "50.0 µs" in text
    assert "the GPU stopped answering" in text
    assert "14.8 ms" in text


def test_too_few_samples_for_an_interval_show_no_false_precision() -> None:
    assert "±?" in draw(result(replace(CPU, repeat95_s=None)))


def test_a_row_without_an_interval_has_no_bar_no_rank_and_sets_none() -> None:
    unknown = replace(FUSED, ci95_s=None, repeat95_s=None, percent_of_copy=None)

    text = draw(result(CPU, ONE, unknown), width=100)

    line = next(line for line in text.splitlines() if "fused" in line)
    assert line.rstrip().endswith("no interval")
    assert "█" not in line
    # The fastest row that is known is the best one, however fast the other seems to be.
    best = next(line for line in text.splitlines() if "best" in line)
    assert best.strip().startswith("cpu blocked")


def test_notes_interrupt_and_the_missing_gpu_are_shown() -> None:
    found = replace(
        result(CPU),
        notes=("matmul: measured at 1024",),
        interrupted=True,
        environment=replace(ENVIRONMENT, gpu_unavailable="CuPy is not installed"),
    )

    text = draw(found)

    assert "note: matmul: measured at 1024" in text
    assert "interrupted: the results so far are above" in text
    assert "no GPU figures: CuPy is not installed" in text


def test_quiet_leaves_out_doubts_and_the_run_environment() -> None:
    text = draw(result(replace(CPU, doubts=(BUSY,))), verbosity=-1)

    assert "other programs" not in text
    assert "Some CPU" not in text
    assert "8.71 ms" in text


def test_markup_and_control_characters_from_outside_stay_text() -> None:
    evil = replace(ENVIRONMENT, cpu_model="[red]CPU[/red]\x1b[2J")

    text = draw(replace(result(CPU), environment=evil))

    assert "[red]CPU[/red]\\x1b[2J" in text
    assert "\x1b" not in text


def test_an_unverified_row_is_not_marked_right() -> None:
    text = draw(result(replace(CPU, verified=None)), ascii_only=True)

    assert " ok" not in text


def test_the_details_name_the_error_and_its_bound() -> None:
    checked = Verified(error=4.66e-7, bound=1e-5, ok=True, reference="float64")

    found = replace(CPU, verified=checked, loops=3, round_medians_s=(0.00871,) * 2)

    text = words(draw(result(found), width=160, verbosity=1))

    assert "10 samples in 2 rounds, 3 operations each" in text
    assert "error 4.7e-07 of at most 1.0e-05" in text


def test_transfers_and_threads_are_in_the_name() -> None:
    assert row_name(MOVED) == "gpu:0 fused + transfers"
    assert row_name(ONE) == "cpu blocked, 1 thread"


def test_with_v_each_doubt_is_shown_in_full_for_its_rows() -> None:
    found = result(replace(CPU, doubts=(BUSY,)), replace(ONE, doubts=(BUSY,)), FUSED)

    text = words(draw(found, verbosity=1))

    assert "! cpu blocked, 4 threads | cpu blocked, 1 thread: other programs took 30 %" in text


def test_a_sweep_stands_under_one_heading_by_its_sizes() -> None:
    rows = [
        replace(CPU, kernel="batch", shape=(size,), parameters={}, median_s=size / 1e6)
        for size in (1, 64, 4096)
    ]

    text = draw(result(*rows))

    assert text.startswith("batch float32\n")
    assert "  cpu, 1     " in text
    assert "  cpu, 4096  " in text


def test_conclusions_stand_below_their_kernel() -> None:
    said = Conclusion(kernel="softmax", device="cpu", code="knee", sentence="it bends at 7")
    rows = (CPU, replace(FUSED, kernel="copy"))

    lines = draw(replace(result(*rows), conclusions=(said,))).splitlines()

    assert lines.index("  it bends at 7") < next(
        number for number, line in enumerate(lines) if line.startswith("copy")
    )


def test_each_format_has_its_own_heading_and_its_own_speed_up() -> None:
    half = replace(FLOAT32, input="bfloat16", math_mode="bf16")
    found = result(CPU, FUSED, replace(FUSED, dtype=half, median_s=0.000025))

    text = words(draw(found))

    assert "softmax 4096 × 4096, float32" in text
    assert "softmax 4096 × 4096, bfloat16" in text
    assert "170 times faster" in text
    assert "the GPU in bfloat16 is 350 times faster than the CPU in float32" in text
    details = words(draw(found, verbosity=1))
    assert "the CPU computes in fp32, the GPU in bf16" in details
    assert "10 operations on data moved once" not in details


def test_the_limits_the_clock_and_the_energy_are_among_the_details() -> None:
    row = replace(
        FUSED,
        percent_of_peak=81.25,
        percent_of_peak_at_clock=90.4,
        percent_of_copy=97.0,
        limits={"peak": "H100 SXM, datasheet", "copy": "the best copy of this run"},
        sm_clock_mhz=1755.2,
        joules_per_op=0.0123,
        facts={"launched_as": "graph", "accuracy": 0.9184},
    )

    text = words(draw(result(row), width=160, verbosity=1))

    for said in (
        "81.2 % of the peak (H100 SXM, datasheet)",
        "90.4 % at the measured clock",
        "97.0 % of the best copy of this run",
        "SM clock 1755 MHz",
        "0.0123 J for one operation",
        "launched_as graph",
        "accuracy 0.9184",
    ):
        assert said in text


def test_the_sensors_and_the_measured_limits_are_shown() -> None:
    gpu = GpuTelemetry(
        uuid="GPU-1",
        reading_count=3,
        period_s=0.05,
        clock_sm_mhz=Extent(low=1200, median=1700, high=1980),
        power_w=Extent(low=90, median=650, high=699),
        power_limit_w=700,
        temperature_c=Extent(low=40, median=60, high=66),
        pcie_generation=5,
        pcie_width=16,
        reasons={"power-cap": 0.5, "idle": 0.1},
    )
    limit = Roofline(
        device="cpu",
        threads=4,
        copy_bytes_per_s=2.9e10,
        gemm_flops_per_s=4e11,
        gemm_dtype="float32",
    )
    found = replace(
        result(CPU),
        telemetry=Telemetry(gpus=(gpu,)),
        environment=replace(ENVIRONMENT, rooflines=(limit,), parallel_efficiency=0.93),
    )

    text = words(draw(found, width=160))

    assert (
        "sensors of GPU-1: SM clock 1200 to 1980 MHz, up to 699 of 700 W, up to 66 C, PCIe 5 x16, "
        "clock limited by power-cap"
    ) in text
    assert "limits measured on cpu, 4 threads: copy 29.0 GB/s, float32 product 400 GFLOP/s" in text
    assert "parallel efficiency 93%" in text


def test_missing_sensors_are_shown_with_the_reason() -> None:
    found = replace(result(CPU), telemetry=Telemetry(unavailable="the driver did not answer"))

    assert "no sensors: the driver did not answer" in draw(found)
    assert "no sensors" not in draw(found, verbosity=-1)


def test_a_launch_shows_its_time_alone() -> None:
    launch = replace(
        FUSED, kernel="launch", shape=(), throughput=Throughput(value=2e5, unit="launch/s")
    )

    assert "launch/s" not in draw(result(launch))


def test_a_remedy_of_many_doubts_is_shown_once() -> None:
    wide = Doubt(code="unconverged", message="known to 5 %", next="give it time; run it again")
    text = words(draw(result(replace(CPU, doubts=(BUSY, wide)), replace(ONE, doubts=(BUSY,)))))

    assert text.count("run it again") == 1
    assert (
        "! host-busy (every row): other programs took 30 % to do: run it again "
        "! unconverged (1): 1 of 2 rows did not settle in the time to do: give it time"
    ) in text


CACHED = Doubt(code="cache-resident", message="it may stay in the cache", next="choose a larger")


def unsettled(row: Measurement, width: float) -> Measurement:
    doubt = Doubt(code="unconverged", message=f"known to {width}", next="give it time")
    median_s = row.median_s or 0.0
    span = (median_s * (1 - width), median_s * (1 + width))
    return replace(row, doubts=(doubt,), converged=False, repeat95_s=span)


def test_how_well_medians_are_known_is_one_line_that_names_the_worst() -> None:
    text = words(draw(result(unsettled(CPU, 0.031), unsettled(ONE, 0.274), FUSED)))

    assert (
        "! unconverged (2): 2 of 3 rows did not settle in the time, "
        "softmax cpu blocked, 1 thread the least (±27%)"
    ) in text
    assert text.count("unconverged") == 1


def test_a_row_of_a_sweep_is_named_with_its_size() -> None:
    rows = [
        replace(unsettled(CPU, width), kernel="batch", shape=(size,), parameters={})
        for size, width in ((1, 0.02), (256, 1.5))
    ]

    text = words(draw(result(*rows), ascii_only=True))

    assert "batch cpu, 256 the least (>99%)" in text
    assert "+-2.0%" in text


def test_rows_without_an_interval_are_counted() -> None:
    text = words(draw(result(replace(unsettled(CPU, 0.03), repeat95_s=None), ONE)))

    assert "did not settle in the time; it had too few rounds for an interval (±?)" in text


def test_a_doubt_of_one_group_is_below_it_and_is_explained_at_the_end() -> None:
    cached = replace(CPU, doubts=(CACHED,))
    text = draw(result(cached, ONE, replace(CPU, kernel="copy"), replace(ONE, kernel="copy")))

    assert "    ! cache-resident (1)\n" in text
    said = "! cache-resident (softmax cpu blocked, 4 threads): it may stay in the cache"
    assert said in words(text)


def test_a_doubt_of_a_whole_kernel_names_the_kernel() -> None:
    cached = [replace(row, doubts=(CACHED,)) for row in (CPU, ONE)]
    further = [replace(row, kernel=name) for row in (CPU, ONE) for name in ("copy", "triad")]

    text = draw(result(*cached, *further))

    assert "! cache-resident (all of softmax): it may stay in the cache" in text


def test_a_doubt_of_most_rows_does_not_stand_below_each_group() -> None:
    rows = [replace(CPU, doubts=(CACHED,), kernel=name) for name in ("softmax", "copy", "triad")]

    text = draw(result(*rows, FUSED))

    assert text.count("cache-resident") == 1
    assert "! cache-resident (every row of cpu)" in text


def test_a_doubt_of_one_device_and_of_some_rows_of_others_says_both() -> None:
    busy = [replace(row, doubts=(BUSY,)) for row in (CPU, ONE, MOVED)]

    text = draw(result(*busy, FUSED))

    assert "! host-busy (every row of cpu, and 1 more): other programs took 30 %" in words(text)


def test_words_that_differ_from_row_to_row_are_an_example() -> None:
    other = replace(BUSY, message="other programs took 31 %")
    text = draw(result(replace(CPU, doubts=(BUSY,)), replace(ONE, doubts=(other,))))

    assert "! host-busy (every row): for example, other programs took 30 %" in text


def test_rows_that_the_time_did_not_reach_are_one_line() -> None:
    late = Failure(code="no-time", message="the time was over before it could start")
    empty = [
        replace(row, median_s=None, samples_s=(), error=late)
        for row in (ONE, FUSED, *(replace(FUSED, variant=f"v{number}") for number in range(4)))
    ]

    text = words(draw(result(CPU, *empty)))

    assert "! no time was left for cpu blocked, 1 thread | gpu:0 fused | gpu:0 v0 |" in text
    assert "and 2 more rows" in text


def eight_gpus() -> list[Measurement]:
    return [
        replace(FUSED, device=f"gpu:{number}", median_s=0.00005 * (1 + number / 100))
        for number in range(8)
    ]


def test_of_many_gpus_the_fastest_and_the_slowest_are_shown() -> None:
    found = result(CPU, *eight_gpus())
    text = draw(found)

    rows = [line for line in text.splitlines() if line.startswith("  gpu:") and "µs" in line]
    assert [line[2:7] for line in rows] == ["gpu:0", "gpu:7"]
    assert "fastest and slowest of 8 GPUs; -v shows all" in text
    assert "each of 8 GPUs reaches 160" in words(text)
    assert words(text).count("times faster") == 2
    assert sum("µs" in line for line in draw(found, verbosity=1).splitlines()) >= 8


def test_of_many_gpus_one_that_failed_or_is_wrong_is_shown() -> None:
    rows = eight_gpus()
    rows[3] = replace(rows[3], verified=WRONG)
    rows[4] = replace(rows[4], error=Failure(code="gpu-lost", message="it fell off the bus"))

    text = draw(result(CPU, *rows))

    assert "gpu:3 fused" in text
    assert "it fell off the bus" in text


def test_the_machine_of_many_gpus_takes_few_lines() -> None:
    gpus = tuple(replace(GPU, cuda_index=number, uuid=f"GPU-{number}") for number in range(8))
    sensors = tuple(
        GpuTelemetry(
            uuid=f"GPU-{number}",
            reading_count=1,
            period_s=0.05,
            power_w=Extent(low=90, median=100, high=600 + number),
            power_limit_w=700,
        )
        for number in range(8)
    )
    limits = tuple(
        Roofline(
            device=f"gpu:{number}",
            threads=None,
            copy_bytes_per_s=3e12 + number * 1e10,
            gemm_flops_per_s=5e13,
            gemm_dtype="float32",
        )
        for number in range(8)
    )
    found = replace(
        result(CPU),
        telemetry=Telemetry(gpus=sensors),
        environment=replace(ENVIRONMENT, gpus=gpus, rooflines=limits),
    )

    text = draw(found, width=160)

    assert "gpu:0, gpu:1, gpu:2, gpu:3, gpu:4, gpu:5, gpu:6, gpu:7: NVIDIA H100\n" in text
    assert "sensors of 8 GPUs: up to 607 of 700 W" in text.splitlines()
    assert "limits measured on 8 GPUs: copy 3.00 TB/s to 3.07 TB/s, float32 product 50.0" in text
    assert "sensors of gpu:3: up to 603 of 700 W\n" in draw(found, width=160, verbosity=1)


def test_speed_ups_of_a_sweep_name_the_size_and_show_the_ends() -> None:
    sizes = (1, 16, 256)
    rows = [
        replace(row, kernel="batch", parameters={}, shape=(size,), median_s=row_s)
        for size in sizes
        for row, row_s in ((CPU, 1e-5 * size), (FUSED, 1e-5))
    ]

    text = words(draw(result(*rows)))

    assert "size 1: for this size the GPU is as fast as the CPU" in text
    assert "size 256: for this size the GPU is 260 times faster" in text
    assert "size 16: for this size" not in text


def test_the_percentages_of_both_sides_are_distinguished() -> None:
    product = replace(CPU, percent_of_peak=99.0)
    on_gpu = replace(FUSED, percent_of_peak=74.0)

    assert "(cpu % of the best product, gpu % of peak)" in words(draw(result(product, on_gpu)))


def test_the_speed_up_is_the_last_that_is_read() -> None:
    found = replace(result(CPU, FUSED), notes=("a note",), interrupted=True)

    last = draw(found, width=200).splitlines()[-1]

    assert last.startswith("gpu:0 reaches 170 times the CPU's speed in softmax float32")
