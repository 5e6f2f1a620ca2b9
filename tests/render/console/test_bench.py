from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from gpucheck.core.bench.compare import compare, headline
from gpucheck.models.bench import (
    BenchGpu,
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
from gpucheck.models.report import Failure
from gpucheck.render.console.bench import render_bench
from gpucheck.render.console.bench_rows import row_name
from gpucheck.render.console.figures import duration, rate
from tests.fakes.bench import FLOAT32, RIGHT, WRONG
from tests.fakes.verdicts import environment

ENVIRONMENT = replace(
    environment(),
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
        "  cpu blocked, 4 threads   8.71 ms ±0.4%      15.4 GB/s  83% ✓  █\n"
        "  cpu blocked, 1 thread    14.8 ms ±0.4%      9.07 GB/s  91% ✓  █\n"
        "  gpu:0 fused              50.0 µs ±0.4%      2.68 TB/s 102% ✓  ██████\n"
        "  gpu:0 fused + transfers  4.00 ms ±0.4%      33.6 GB/s      ✓  █\n"
        "    ! host-busy (2)\n"
        "  for this size the GPU is 170 times faster if the data stays there, 2.2 times\n"
        "  faster if it moves every time\n"
        "\n"
        "! host-busy (2 rows, the first): other programs took 30 %\n"
        "  To do: run it again.\n"
        "±: 19 of 20 further runs on this machine should lie within it\n"
        "cpu: Some CPU, 4 of 8 cores, quota 2, openblas 0.3.31, NumPy 2.4.6\n"
        "gpu:0: NVIDIA H100\n"
        "gpu:0 reaches 170 times the CPU's speed in softmax float32 if the data stays\n"
        "there, 2.2 times if it moves every time"
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
    assert "interrupted before its time was over" in text


def test_too_few_samples_for_an_interval_show_no_false_precision() -> None:
    assert "±?" in draw(result(replace(CPU, repeat95_s=None)))


def test_notes_interrupt_and_the_missing_gpu_are_said() -> None:
    found = replace(
        result(CPU),
        notes=("matmul: measured at 1024",),
        interrupted=True,
        environment=replace(ENVIRONMENT, gpu_unavailable="CuPy is not installed"),
    )

    text = draw(found)

    assert "note: matmul: measured at 1024" in text
    assert "interrupted: what was measured stands above" in text
    assert "no GPU figures: CuPy is not installed" in text


def test_quiet_leaves_out_doubts_and_surroundings() -> None:
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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12.345, "12.3 s"),
        (0.99999, "1.00 s"),
        (0.0083, "8.30 ms"),
        (1.5e-6, "1.50 µs"),
        (3e-10, "0.30 ns"),
        (0.0, "0.00 ns"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.067e11, "207 GFLOP/s"), (9.996e11, "1.00 TFLOP/s"), (12.0, "12.0 FLOP/s")],
)
def test_rates(value: float, text: str) -> None:
    assert rate(value, "FLOP/s") == text


def test_with_v_each_doubt_is_told_in_full_for_its_rows() -> None:
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
    assert "350 times faster" in text
    assert "the CPU computes in fp32, the GPU in bf16" in text


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


def test_the_sensors_and_the_measured_limits_are_told() -> None:
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
        "GPU-1: SM clock 1200 to 1980 MHz, up to 699 of 700 W, up to 66 C, PCIe 5 x16, "
        "clock held by power-cap"
    ) in text
    assert "limits measured on cpu, 4 threads: copy 29.0 GB/s, float32 product 400 GFLOP/s" in text
    assert "parallel efficiency 93%" in text


def test_missing_sensors_are_told_with_the_reason() -> None:
    found = replace(result(CPU), telemetry=Telemetry(unavailable="the driver did not answer"))

    assert "no sensors: the driver did not answer" in draw(found)
    assert "no sensors" not in draw(found, verbosity=-1)


def test_a_launch_shows_its_time_alone() -> None:
    launch = replace(
        FUSED, kernel="launch", shape=(), throughput=Throughput(value=2e5, unit="launch/s")
    )

    assert "launch/s" not in draw(result(launch))


def test_a_step_that_many_doubts_call_for_is_said_once() -> None:
    wide = Doubt(code="unconverged", message="known to 5 %", next="give it time; run it again")
    text = words(draw(result(replace(CPU, doubts=(BUSY, wide)), replace(ONE, doubts=(BUSY,)))))

    assert text.count("run it again") == 1
    assert "! host-busy (2 rows, the first): other programs took 30 % ! unconverged (1 row)" in text
    assert "To do: run it again; give it time." in text


def test_the_speed_up_is_the_last_that_is_read() -> None:
    found = replace(result(CPU, FUSED), notes=("a note",), interrupted=True)

    last = draw(found, width=200).splitlines()[-1]

    assert last.startswith("gpu:0 reaches 170 times the CPU's speed in softmax float32")
