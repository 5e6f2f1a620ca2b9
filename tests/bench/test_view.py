from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.bench.comparison import compare, headline
from gpucheck.bench.doubt_table import read_wordings
from gpucheck.bench.model import (
    BenchResult,
    Conclusion,
    Corruption,
    Doubt,
    Extent,
    GpuTelemetry,
    Measurement,
    Roofline,
    RowClock,
    Scope,
    Telemetry,
    Throughput,
    Verified,
)
from gpucheck.bench.request_model import BenchMode
from gpucheck.bench.rows_view import devices_text, row_name
from gpucheck.bench.scheduler import TOO_SHORT
from gpucheck.bench.session import conclude
from gpucheck.bench.view import shown_codes
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.report.envelope import Answer, Failure, Host
from gpucheck.report.formats.table import render
from gpucheck.report.text import View
from tests.fakes.bench import FLOAT32, PYTORCH, RIGHT, WRONG
from tests.fakes.bench_results import environment
from tests.fakes.framework_rows import made_result, on_cpu, on_gpu
from tests.fakes.reports import wrap
from tests.report.formats.recorded import recorded

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
    budget_s=50.0,
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
        time_s=median_s,
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
    answer = Answer(found, host=Host(name="box", driver_version="580.1"))
    view = View(width=width, unicode=not ascii_only, verbosity=verbosity)
    return render(wrap("bench", answer), view).rstrip("\n")


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
        "box · driver 580.1 · NVIDIA H100 · beside Some CPU, 4 of 8 cores\n"
        "default, 1.0 s\n"
        "\n"
        "MEASURED  gpu:0 reaches 170 times the CPU's speed in softmax float32 if the data\n"
        "stays there, 2.2 times with transfers (in doubt: host-busy). 4 rows, all right\n"
        "against float64, 2 with a doubt.\n"
        "\n"
        "softmax 4096 × 4096, float32, temperature 0.7   % of a copy\n"
        "  cpu blocked, 4 threads     8.71 ms ±0.4% 15.4 GB/s  83% 170x slower\n"
        "  cpu blocked, 1 thread      14.8 ms ±0.4% 9.07 GB/s  91% 300x slower\n"
        "  gpu:0 fused                50.0 µs ±0.4% 2.68 TB/s 102% best\n"
        "  gpu:0 fused with transfers 4.00 ms ±0.4% 33.6 GB/s      80x slower\n"
        "  for this size the GPU is 170 times faster if the data stays there, 2.2 times\n"
        "  faster with transfers\n"
        "\n"
        "In doubt\n"
        "  ! busy machine, so the speeds may be too low (2 of 4 rows, on cpu): run it\n"
        "    when the machine is idle"
    )


@pytest.mark.parametrize("width", [20, 40, 72, 80, 160])
@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_no_line_is_wider_than_the_terminal(width: int, verbosity: int) -> None:
    found = result(replace(CPU, doubts=(BUSY,)), ONE, FUSED, MOVED)

    text = draw(found, width=width, verbosity=verbosity)

    assert max(len(line) for line in text.splitlines()) <= width
    assert "170x slower" in words(text)


def test_ascii_is_ascii() -> None:
    text = draw(result(CPU, ONE, replace(MOVED, verified=WRONG)), ascii_only=True, verbosity=1)

    assert text.isascii()
    assert "WRONG" in text
    assert "+-0.4%" in text


def test_the_best_row_is_named_and_the_others_say_how_far_they_are_from_it() -> None:
    alike = replace(FUSED, variant="alike", throughput=Throughput(value=2.6e12, unit="B/s"))
    text = draw(result(CPU, ONE, FUSED, alike), ascii_only=True)

    results = [line.partition("B/s")[2].strip() for line in text.splitlines() if "+-" in line]
    assert results == ["170x slower", "300x slower", "best", ""]


def test_rows_whose_intervals_meet_are_not_ranked() -> None:
    """Seen on a busy machine: best and 7.7x slower between rows of more than 99 percent each."""
    wide = replace(FUSED, repeat95_s=(0.00003, 0.01))
    rows = [replace(CPU, percent_of_copy=83.0), wide, replace(ONE, variant="alone", threads=2)]
    text = draw(result(*rows), ascii_only=True)

    results = [line.partition("B/s")[2].strip() for line in text.splitlines() if "+-" in line]
    assert results == ["83% best", "", "1.7x slower"], "more than 99 percent is no rank"
    near = replace(FUSED, repeat95_s=(0.00004, 0.00006), percent_of_copy=99.0)
    met = replace(FUSED, variant="met", throughput=Throughput(value=2.3e12, unit="B/s"))
    both = draw(result(near, replace(met, time_s=0.000058, repeat95_s=(0.000057, 0.000059)), CPU))
    results = [line.partition("B/s")[2].strip() for line in both.splitlines() if "±" in line]
    assert results == ["99%", "", "170x slower"]


def test_without_a_row_with_an_interval_nothing_is_known_well_enough() -> None:
    unknown = [replace(one, repeat95_s=None, percent_of_copy=247.0) for one in (CPU, FUSED)]
    text = words(draw(result(*unknown)))

    assert "MEASURED 2 rows, all right against float64, no row is known well enough." in text
    assert "247" not in text
    assert "times" not in text


def test_a_single_row_is_not_called_the_best() -> None:
    assert "best" not in draw(result(CPU))


@pytest.mark.parametrize("width", [40, 50])
def test_on_a_narrow_terminal_a_row_takes_two_lines(width: int) -> None:
    lines = draw(result(CPU, FUSED), width=width).splitlines()

    name = lines.index("gpu:0 fused")
    assert lines[name + 1] == "  50.0 µs · ±0.4% · 2.68 TB/s · best"


def test_a_row_without_figures_says_why() -> None:
    broken = Failure(code="gpu-lost", message="the GPU stopped answering")
    empty = replace(FUSED, time_s=None, throughput=None, ci95_s=None, samples_s=(), error=broken)

    lines = draw(result(CPU, empty)).splitlines()

    assert lines[lines.index("  gpu:0 fused") + 1] == "    the GPU stopped answering"


def test_an_interrupted_run_shows_the_measured_rows_alone() -> None:
    empty = replace(FUSED, time_s=None, throughput=None, samples_s=(), interrupted=True)

    text = draw(replace(result(CPU, empty), interrupted=True))

    assert "8.71 ms" in text
    assert "gpu:0" not in text
    assert "nterrupted" not in text, "the envelope's error says it"


def test_a_row_that_ended_early_keeps_its_figures_and_says_so() -> None:
    lost = replace(FUSED, error=Failure(code="gpu-lost", message="the GPU stopped answering"))

    text = draw(result(CPU, lost, replace(ONE, interrupted=True)))

    assert "50.0 µs" in text
    assert "the GPU stopped answering" in text
    assert "14.8 ms" in text


def test_a_row_without_an_interval_has_an_empty_cell_and_one_line_says_why() -> None:
    unknown = replace(CPU, repeat95_s=None)

    text = draw(result(unknown, ONE, replace(FUSED, repeat95_s=None)))

    assert "±?" not in text
    assert "! no interval (±) for 2 of 3 rows: fewer than three rounds;" in text


def test_a_row_without_an_interval_has_no_rank_and_sets_none() -> None:
    unknown = replace(FUSED, ci95_s=None, repeat95_s=None, percent_of_copy=None)

    text = draw(result(CPU, ONE, unknown), width=100)

    line = next(line for line in text.splitlines() if "fused" in line)
    assert line.rstrip().endswith("2.68 TB/s")
    # The fastest row that is known is the best one, however fast the other seems to be.
    best = next(line for line in text.splitlines() if "best" in line)
    assert best.strip().startswith("cpu blocked")


def test_notes_and_the_missing_gpu_are_shown() -> None:
    reason = "libcuda.so.1 could not be loaded: libcuda.so.1: cannot open"
    found = replace(
        result(CPU),
        notes=("matmul: measured at 1024",),
        environment=replace(ENVIRONMENT, gpu_unavailable=reason),
    )

    text = draw(found)

    assert text.endswith("note: matmul: measured at 1024")
    said = "No GPU was measured: libcuda.so.1 could not be loaded (why: gpucheck detect)."
    assert text.splitlines()[2] == said


def test_a_gpu_that_could_be_measured_is_said_first_with_the_command() -> None:
    found = replace(
        result(CPU),
        environment=replace(
            ENVIRONMENT,
            gpu_unavailable="CuPy is not installed",
            gpus_not_measured=("NVIDIA X1", "NVIDIA X1"),
            gpu_remedy=("Install it: pip install 'gpucheck-cli[cuda12]'",),
        ),
    )

    lines = draw(found, width=120).splitlines()

    assert "2 × NVIDIA X1: not measured" in lines[0]
    assert lines[2:5] == [
        "! 2 × NVIDIA X1 not measured: CuPy is not installed.",
        "    → Install it:",
        "      pip install 'gpucheck-cli[cuda12]'",
    ]


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


def test_only_a_wrong_or_unchecked_result_is_remarked_on() -> None:
    assert "not checked" in draw(result(replace(CPU, verified=None)))
    assert "WRONG" in draw(result(replace(CPU, verified=WRONG)))
    assert "MEASURED  1 row, right against float64." in draw(result(CPU))
    assert "right against" not in draw(result(CPU, replace(ONE, verified=WRONG)))
    at_once = replace(ONE, verified=WRONG, time_s=None, throughput=None)
    assert "right against" not in draw(result(CPU, at_once))


def test_the_details_name_the_error_and_its_bound() -> None:
    checked = Verified(error=4.66e-7, bound=1e-5, ok=True, reference="float64")

    found = replace(CPU, verified=checked, loops=3, round_medians_s=(0.00871,) * 2)

    text = words(draw(result(found), width=160, verbosity=1))

    assert "10 samples in 2 rounds, 3 operations each" in text
    assert "error 4.7e-07 of at most 1.0e-05" in text


@pytest.mark.parametrize(
    ("found", "sizes", "name"),
    [
        (MOVED, False, "gpu:0 fused with transfers"),
        (ONE, False, "cpu blocked, 1 thread"),
        (replace(ONE, kernel="batch", shape=(16,)), True, "cpu batch 16 images"),
        (replace(ONE, kernel="batch", shape=(1,)), True, "cpu batch 1 image"),
        (
            replace(FUSED, kernel="towers", shape=(256,), parameters={"towers": 2}),
            False,
            "gpu:0 2 towers of 256 images",
        ),
        (
            replace(
                FUSED,
                kernel="towers",
                shape=(256,),
                parameters={"towers": 2},
                facts={"simulated": "no"},
            ),
            False,
            "2 GPUs 2 towers of 256 images",
        ),
        (
            replace(FUSED, kernel="transfer", variant="to-gpu-pinned", shape=(4096, 4096)),
            True,
            "gpu:0 to GPU, pinned, 64 MiB",
        ),
        (replace(FUSED, kernel="p2p", variant="from-gpu:1"), False, "from gpu:1 to gpu:0"),
        (replace(FUSED, kernel="transfer", variant="fit"), False, "gpu:0 fit"),
        (replace(FUSED, shape=(64, 32)), True, "gpu:0 fused, 64 × 32"),
        (
            replace(ONE, variant="softmax-1-thread", framework=PYTORCH),
            False,
            "cpu PyTorch eager, 1 thread",
        ),
        (
            replace(ONE, kernel="batch", variant="batch", framework=PYTORCH, shape=(64,)),
            True,
            "cpu PyTorch eager, batch 64 images",
        ),
        (
            replace(MOVED, framework=replace(PYTORCH, form="compile")),
            False,
            "gpu:0 PyTorch compile fused with transfers",
        ),
    ],
)
def test_a_row_is_named_with_its_unit(found: Measurement, sizes: bool, name: str) -> None:
    assert row_name(found, sizes=sizes) == name


def test_with_v_each_doubt_is_shown_in_full_for_its_rows() -> None:
    found = result(replace(CPU, doubts=(BUSY,)), replace(ONE, doubts=(BUSY,)), FUSED)

    text = words(draw(found, verbosity=1))

    rows = "softmax float32 blocked, 4 threads on cpu; softmax float32 blocked, 1 thread on cpu"
    assert f"! other programs took 30 % ({rows}): run it again" in text


def test_a_sweep_stands_under_one_heading_by_its_sizes() -> None:
    rows = [
        replace(CPU, kernel="batch", shape=(size,), parameters={}, time_s=size / 1e6)
        for size in (1, 64, 4096)
    ]

    lines = draw(result(*rows), verbosity=-1).splitlines()

    assert lines[2] == "batch float32"
    assert [line[: len("  cpu batch 4096 images")] for line in lines[3:6]] == [
        "  cpu batch 1 image    ",
        "  cpu batch 64 images  ",
        "  cpu batch 4096 images",
    ]


def test_a_row_of_a_sweep_names_its_framework_once() -> None:
    row = replace(CPU, kernel="batch", variant="batch", shape=(64,), parameters={})
    assert row.throughput is not None
    faster = replace(row.throughput, value=2 * row.throughput.value)

    lines = words(draw(result(row, replace(row, framework=PYTORCH, throughput=faster))))

    assert " cpu PyTorch eager, batch 64 images " in lines
    assert "best" in lines.partition(" cpu PyTorch eager, batch 64 images ")[2]


def test_rows_of_one_format_stand_in_one_table_whoever_made_them() -> None:
    tf32 = replace(FLOAT32, math_mode="tf32")
    rows = [
        replace(CPU, kernel="matmul", parameters={}, device="gpu:0", framework=made, dtype=dtype)
        for made, dtype in (
            (replace(PYTORCH, name="jax", form="jax.jit"), tf32),
            (PYTORCH, FLOAT32),
            (PYTORCH, tf32),
        )
    ]

    lines = draw(result(*rows)).splitlines()

    headings = [line for line in lines if line.startswith("matmul")]
    assert [line.split(",")[-1].split()[0] for line in headings] == ["tf32", "float32"]


def test_conclusions_stand_below_their_kernel() -> None:
    said = Conclusion(kernel="softmax", device="cpu", code="knee", sentence="it bends at 7")
    rows = (CPU, replace(FUSED, kernel="copy"))

    lines = draw(replace(result(*rows), conclusions=(said,))).splitlines()

    assert lines.index("  it bends at 7") < next(
        number for number, line in enumerate(lines) if line.startswith("copy")
    )


def test_each_format_has_its_own_heading_and_its_own_comparison() -> None:
    half = replace(FLOAT32, input="bfloat16", math_mode="bf16")
    found = result(CPU, FUSED, replace(FUSED, dtype=half, time_s=0.000025))

    text = words(draw(found))

    assert "softmax 4096 × 4096, float32" in text
    assert "softmax 4096 × 4096, bfloat16" in text
    assert "the GPU is 170 times faster if the data stays there" in text
    assert "the GPU in bfloat16 is 350 times faster than the CPU in float32" in text
    assert "the CPU computes in fp32" not in text
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
        facts={"launched_as": "graph", "accuracy": 0.9184, "memory_bytes": 13_251_940},
    )

    text = words(draw(result(row), width=160, verbosity=1))

    for said in (
        "81.2 % of the peak, 3.30 TB/s (H100 SXM, datasheet)",
        "90.4 % at the measured clock",
        "97.0 % of the best copy of this run, 2.77 TB/s",
        "SM clock 1755 MHz",
        "0.0123 J for one operation",
        "launched_as graph",
        "accuracy 0.9184",
        "memory 12.6 MiB",
    ):
        assert said in text

    text = words(draw(result(replace(row, limits={})), width=160, verbosity=1))
    assert "81.2 % of the peak" in text
    assert "TB/s (" not in text


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

    text = words(draw(found, width=160, verbosity=1))

    assert (
        "sensors of GPU-1: SM clock 1200 to 1980 MHz, up to 699 of 700 W, up to 66 °C, "
        "PCIe gen5 x16, clock limited by power-cap"
    ) in text
    assert "limits measured on cpu, 4 threads: copy 29.0 GB/s, float32 product 400 GFLOP/s" in text
    assert "parallel efficiency 93%" in text


def test_missing_sensors_are_shown_with_the_reason() -> None:
    found = replace(result(CPU), telemetry=Telemetry(unavailable="the driver did not answer"))

    assert "no sensors: the driver did not answer" in draw(found, verbosity=1)


def test_a_launch_shows_its_time_alone() -> None:
    launch = replace(
        FUSED, kernel="launch", shape=(), throughput=Throughput(value=2e5, unit="launch/s")
    )

    assert "launch/s" not in draw(result(launch))


WIDE = Doubt(code="unconverged", message="known to 5 %", next="give it time; run it again")


def doubts_of(found: BenchResult, width: int = 160) -> list[str]:
    lines = draw(found, width=width).splitlines()
    return lines[lines.index("In doubt") + 1 :]


def test_each_cause_of_doubt_is_one_line_however_many_rows_it_touches() -> None:
    precision = [replace(WIDE, code=code) for code in ("other-precision", "reduced-precision")]
    rows = [replace(CPU, doubts=(BUSY, one), kernel="copy") for one in precision]
    rows.append(replace(CPU, doubts=(WIDE,)))

    assert doubts_of(result(*rows)) == [
        "  ! computed in another precision than the others (2 of 3 rows, in copy): use "
        "--same-math, and unset CUPY_TF32 and NVIDIA_TF32_OVERRIDE",
        "  ! busy machine, so the speeds may be too low (2 of 3 rows, in copy): "
        "run it when the machine is idle",
        "  ! not settled (1 of 3 rows, in softmax): give more time "
        "(--budget; seconds in a profile)",
    ]


def test_the_head_says_who_else_used_the_processor_and_a_row_by_cpu_time_is_marked() -> None:
    cpu = {"clock": RowClock.CPU, "median_s": 0.25, "waited_percent": 94.2, "converged": True}
    waited = replace(ONE, **cpu)  # type: ignore[arg-type]
    found = result(CPU, waited)
    busy = replace(found, environment=replace(found.environment, other_load_percent=93.6))

    lines = draw(busy, width=160).splitlines()
    said = "Other programs take 94 % of this processor. The speeds are what it can do, not what "
    (head,) = [line for line in lines if said in line]
    assert head.endswith("they left.")
    assert lines.index(head) < next(at for at, line in enumerate(lines) if "MEASURED" in line)
    assert [" CPU " in line for line in lines if "1 thread" in line] == [True]
    for text in (draw(busy, width=200, verbosity=1), draw(busy, width=120)):
        assert "10 samples, median 250 ms, waited 94 %" in text
    assert "median" not in draw(busy, width=119)
    undisturbed = replace(ONE, cpu_median_s=0.024)
    assert "10 samples, CPU time 24.0 ms" in draw(result(undisturbed), width=120)
    # A row of several threads is slower beside them, and never settled.
    slowed = replace(CPU, doubts=(BUSY,), converged=False)
    mixed = draw(replace(busy, measurements=(slowed, waited)), width=160)
    assert "The speeds by CPU time are what it can do, not what they left." in mixed
    unsettled = draw(replace(busy, measurements=(replace(waited, converged=False),)), width=160)
    assert said in unsettled
    assert "The speeds are what they left." in draw(replace(busy, measurements=(slowed,)))
    # Rows that did not wait need no such word.
    assert "Other programs" not in draw(replace(busy, measurements=(CPU,)))


def test_a_run_without_a_doubt_reads_no_table() -> None:
    read_wordings.cache_clear()

    draw(result(CPU, FUSED))
    assert read_wordings.cache_info().currsize == 0
    draw(result(replace(CPU, doubts=(BUSY,))))
    assert read_wordings.cache_info().currsize == 1


def test_of_many_doubts_three_are_shown_the_gravest_first() -> None:
    codes = ("power-capped", "zeros", "host-busy", "unconverged", "new-errors")
    doubts = tuple(replace(BUSY, code=code) for code in codes)
    found = result(replace(CPU, doubts=doubts))

    shown = doubts_of(found)

    assert [line.split(" (")[0] for line in shown] == [
        "  ! the GPU counted new errors",
        "  ! busy machine, so the speeds may be too low",
        "  ! not settled",
        "  2 more: add -v",
    ]
    assert draw(found, verbosity=1).count("other programs took 30 %") == 1


def test_a_doubt_of_one_device_names_it() -> None:
    shared = replace(BUSY, code="gpu-shared")
    gpus = [replace(FUSED, device=f"gpu:{number}", doubts=(shared,)) for number in (0, 1, 2, 5)]

    assert "(4 of 5 rows)" in doubts_of(result(CPU, *gpus))[0]
    assert "(1 of 2 rows, on gpu:0)" in doubts_of(result(CPU, gpus[0]))[0]


def test_rows_that_the_time_did_not_reach_are_one_line() -> None:
    late = Failure(
        code="no-time", message="left out", remedy=("Give more time: --budget 25.", "Or smaller.")
    )
    empty = [
        replace(row, time_s=None, samples_s=(), error=late)
        for row in (ONE, FUSED, *(replace(FUSED, variant=f"v{number}") for number in range(4)))
    ]
    notes = (f"1 s {TOO_SHORT}; left out: a, b; --budget 25 would be enough",)

    text = words(draw(replace(result(CPU, *empty), notes=notes)))

    assert "! no time was left for 6 rows: softmax float32 blocked, 1 thread on cpu, " in text
    assert text.endswith("v0 on gpu:0 and 3 more; give --budget 25 (seconds in a profile)")
    assert "left out" not in text


def eight_gpus() -> list[Measurement]:
    return [
        replace(
            FUSED,
            device=f"gpu:{number}",
            throughput=Throughput(value=1e12 * (1 - (number == 3) / 50), unit="B/s"),
        )
        for number in range(8)
    ]


def test_eight_gpus_are_one_row_with_the_slowest_named() -> None:
    found = result(CPU, *eight_gpus())
    text = draw(found)

    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  8 GPUs fused"))
    assert lines[at + 1] == "    980 GB/s to 1.00 TB/s, slowest gpu:3 -2.0 %"
    assert "gpu:0-7: for this size the GPU is 170 times faster" in text
    assert sum("µs" in line for line in draw(found, verbosity=1).splitlines()) >= 8


def test_of_many_gpus_one_that_failed_or_is_wrong_stays_alone() -> None:
    rows = eight_gpus()
    rows[3] = replace(rows[3], verified=WRONG)
    rows[4] = replace(rows[4], error=Failure(code="gpu-lost", message="it fell off the bus"))

    text = draw(result(CPU, *rows))

    assert "  gpu:0-2,5-7 fused" in text
    assert "  gpu:3 fused" in text
    assert "  gpu:4 fused" in text
    assert "it fell off the bus" in text


def test_only_gpus_of_one_model_share_a_row() -> None:
    rows = [replace(row, device=f"gpu:{at}") for at, row in enumerate(eight_gpus())]
    gpus = tuple(
        replace(GPU, cuda_index=number, name="NVIDIA T4" if number > 4 else GPU.name)
        for number in range(8)
    )
    found = result(*rows)

    text = draw(replace(found, environment=replace(ENVIRONMENT, gpus=gpus)))

    assert "  gpu:0-4 fused" in text
    assert "  gpu:5-7 fused" in text


@pytest.mark.parametrize(
    ("devices", "count", "text"),
    [
        ([f"gpu:{number}" for number in range(8)], 8, "8 GPUs"),
        ([f"gpu:{number}" for number in range(7)], 8, "gpu:0-6"),
        (["cpu", "gpu:0", "gpu:2"], 2, "cpu, gpu:0,2"),
        (["cpu"], 0, "cpu"),
    ],
)
def test_devices_in_few_words(devices: list[str], count: int, text: str) -> None:
    assert devices_text(devices, count) == text


def test_the_gpus_of_a_kind_are_counted() -> None:
    gpus = tuple(replace(GPU, cuda_index=number, uuid=f"GPU-{number}") for number in range(8))
    found = replace(result(CPU), environment=replace(ENVIRONMENT, gpus=gpus))

    assert draw(found, width=160).startswith("box · driver 580.1 · 8 × NVIDIA H100 · beside")


def test_with_v_the_speed_ups_of_a_sweep_name_the_size() -> None:
    sizes = (1, 16, 256)
    rows = [
        replace(row, kernel="batch", parameters={}, shape=(size,), time_s=row_s)
        for size in sizes
        for row, row_s in ((CPU, 1e-5 * size), (FUSED, 1e-5))
    ]

    text = words(draw(result(*rows), verbosity=1))

    assert "size 1: for this size the GPU is as fast as the CPU" in text
    assert "size 256: for this size the GPU is 260 times faster" in text


def test_a_share_of_exponentials_is_marked_and_explained() -> None:
    by_copy = replace(CPU, kernel="softmax", percent_of_copy=60.0, percent_of_peak=None)
    by_exp = replace(by_copy, variant="blas-1-thread", threads=1, percent_of_peak=80.0)

    both, alone = words(draw(result(by_copy, by_exp))), words(draw(result(by_exp)))

    assert "% of a copy, of exp in the cache where it says so" in both
    assert " 60% " in both
    assert " 80% exp" in both
    assert "% of exp in the cache" in alone


def test_the_limits_of_both_sides_are_distinguished() -> None:
    product = replace(CPU, percent_of_peak=99.0)
    on_gpu = replace(FUSED, percent_of_peak=74.0)

    said = "% of the best product (cpu), peak (gpu)"
    assert said in words(draw(result(product, on_gpu)))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((CPU,), "MEASURED 1 row, right against float64. softmax"),
        ((FUSED, MOVED), "MEASURED 2 rows, all right against float64. softmax"),
        (
            (CPU, FUSED),
            "MEASURED gpu:0 reaches 170 times the CPU's speed in softmax float32 if the data stays "
            "there. 2 rows, all right against float64.",
        ),
        ((CPU, replace(ONE, doubts=(BUSY,))), "all right against float64, 1 with a doubt."),
        ((CPU, replace(ONE, verified=WRONG)), "WRONG 2 rows, 1 WRONG."),
        ((replace(CPU, verified=WRONG, time_s=None),), "WRONG 1 row, 1 WRONG."),
        ((ONE, replace(CPU, verified=WRONG, time_s=None, doubts=(BUSY,))), "2 rows, 1 WRONG."),
        ((replace(CPU, verified=None), ONE), "MEASURED 2 rows. softmax"),
        ((replace(CPU, time_s=None, verified=None),), "NOTHING 0 rows."),
    ],
)
def test_the_verdict_says_what_was_measured_and_whether_it_is_right(
    rows: tuple[Measurement, ...], said: str
) -> None:
    assert said in words(draw(result(*rows), width=160))


def test_the_verdict_says_if_no_row_is_known_and_stderr_does_not_repeat_it() -> None:
    unknown = [replace(one, ci95_s=None, repeat95_s=None) for one in (CPU, ONE)]
    answer = conclude(result(*unknown), Host())
    report = wrap("bench", answer)

    text = render(report, View(width=160))

    assert "MEASURED 2 rows, all right against float64, no row is known well enough." in words(text)
    assert set(shown_codes(report)) == {notice.code for notice in report.warnings}


def test_repeated_products_that_differ_are_in_the_verdict() -> None:
    check = Corruption(device="gpu:0", gpu_uuid=None, dtype="float32", mismatches=2, products=9)

    text = words(draw(replace(result(FUSED), corruption=(check,)), width=160))

    assert "WRONG 1 row, right against float64, repeated products WRONG on gpu:0." in text
    assert "gpu:0: 9 identical products in float32: 2 numbers CHANGED" in text


@pytest.mark.parametrize(
    ("moved_s", "said"),
    [
        (
            0.0174,
            "170 times faster if the data stays there, 2.0 times slower with transfers; "
            "moving pays from 3 operations on the same data",
        ),
        (None, "170 times faster if the data stays there; transfers were not measured"),
    ],
)
def test_below_its_table_a_kernel_is_compared_with_the_cpu(
    moved_s: float | None, said: str
) -> None:
    moved = () if moved_s is None else (replace(MOVED, time_s=moved_s),)

    assert f"for this size the GPU is {said}" in words(draw(result(CPU, FUSED, *moved)))


def a_node_of_eight() -> BenchResult:
    """Return a product on eight GPUs, of which one is slower."""
    gpus = tuple(replace(GPU, cuda_index=at, uuid=f"GPU-{at}") for at in range(8))
    rows = tuple(
        replace(
            row(f"gpu:{at}", "cublas", 5e-5 if at == 3 else 4e-5),
            kernel="matmul",
            parameters={},
            doubts=(BUSY,) if at < 5 else (),
        )
        for at in range(8)
    )
    return replace(result(*rows), environment=replace(ENVIRONMENT, gpus=gpus))


def a_sweep() -> BenchResult:
    """Return a batch of three sizes on both sides."""
    rows = [
        replace(
            row(side.device, side.variant, row_s, side.threads),
            kernel="batch",
            parameters={},
            shape=(size,),
            throughput=Throughput(value=size / row_s, unit="image/s"),
        )
        for size in (1, 16, 4096)
        for side, row_s in ((CPU, 1e-5 * size), (FUSED, 2e-5))
    ]
    return replace(result(*rows), environment=replace(ENVIRONMENT, gpus=(GPU,)))


def an_interrupted_run() -> BenchResult:
    """Return a run that was stopped with one row of three measured."""
    waiting = replace(
        ONE, time_s=None, samples_s=(), ci95_s=None, repeat95_s=None, throughput=None,
        verified=None, interrupted=True,
    )  # fmt: skip
    return replace(result(CPU, waiting, replace(waiting, variant="naive")), interrupted=True)


def frameworks_beside_ours() -> BenchResult:
    """Return two frameworks beside gpucheck's own rows, on a processor and on a GPU."""
    kernels = ("matmul", "softmax", "copy", "train")
    return made_result(
        *sorted((*on_cpu(), *on_gpu()), key=lambda found: kernels.index(found.kernel))
    )


SCREENS = {
    "eight": a_node_of_eight,
    "sweep": a_sweep,
    "interrupted": an_interrupted_run,
    "frameworks": frameworks_beside_ours,
}


@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize("name", SCREENS)
def test_screens_are_as_recorded(name: str, width: int) -> None:
    text = draw(SCREENS[name](), width=width)

    assert text == recorded(f"bench-{name}-{width}", text)
    assert all(len(line) <= width for line in text.splitlines())
