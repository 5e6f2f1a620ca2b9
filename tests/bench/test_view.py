from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.formats.table import render
from gpucheck.report.host import Host
from gpucheck.report.text import View
from tests.fakes.bench import FLOAT32, PYTORCH, RIGHT, WRONG
from tests.fakes.bench_results import environment
from tests.fakes.framework_rows import made_result, on_cpu, on_gpu
from tests.fakes.reports import wrap
from tests.report.formats.recorded import in_sections, recorded

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


BROKEN = Failure(code="gpu-lost", message="the GPU stopped answering")
WIDE = Doubt(code="unconverged", message="known to 5 %", next="give it time; run it again")
NO_FIGURES: dict[str, Any] = {"time_s": None, "throughput": None, "ci95_s": None, "samples_s": ()}


def around(found: BenchResult, **changes: Any) -> BenchResult:
    """Return the result of a run in other surroundings."""
    return replace(found, environment=replace(found.environment, **changes))


def rate(row: Measurement, value: float, unit: str = "B/s") -> Measurement:
    return replace(row, throughput=Throughput(value=value, unit=unit))


def whole_report() -> BenchResult:
    rows = (replace(CPU, doubts=(BUSY,)), replace(ONE, doubts=(BUSY,)), FUSED, MOVED)
    shares = zip(rows, (83.4, 91.0, 101.6, None), strict=True)
    compared = result(*rows)
    rows = tuple(replace(row, percent_of_copy=percent) for row, percent in shares)
    return around(replace(compared, measurements=rows), gpus=(GPU,))


def unranked() -> dict[str, BenchResult]:
    wide = replace(FUSED, repeat95_s=(0.00003, 0.01))
    near = replace(FUSED, repeat95_s=(0.00004, 0.00006), percent_of_copy=99.0)
    met = rate(replace(FUSED, variant="met"), 2.3e12)
    met = replace(met, time_s=0.000058, repeat95_s=(0.000057, 0.000059))
    alone = replace(ONE, variant="alone", threads=2)
    unknown = [replace(row, repeat95_s=None, percent_of_copy=247.0) for row in (CPU, FUSED)]
    fast = replace(FUSED, ci95_s=None, repeat95_s=None)
    return {
        "a row as good as the best is neither best nor slower": result(
            CPU, ONE, FUSED, rate(replace(FUSED, variant="alike"), 2.6e12)
        ),
        "a row alone is not called the best": result(CPU),
        "a row known to more than 99 percent has no rank": result(
            replace(CPU, percent_of_copy=83.0), wide, alone
        ),
        "rows whose intervals meet are not ranked": result(near, met, CPU),
        "no row is known well enough": result(*unknown),
        "a row without an interval has no rank and sets none": result(CPU, ONE, fast),
        "two rows without an interval, and why": result(
            replace(CPU, repeat95_s=None), ONE, replace(FUSED, repeat95_s=None)
        ),
    }


def broken_rows() -> dict[str, BenchResult]:
    lost = replace(FUSED, error=BROKEN)
    late = Failure(
        code="no-time", message="left out", remedy=("Give more time: --budget 25.", "Or smaller.")
    )
    many = (ONE, FUSED, *(replace(FUSED, variant=f"v{number}") for number in range(4)))
    unreached = result(CPU, *(replace(row, **NO_FIGURES, error=late) for row in many))
    hint = f"1 s {TOO_SHORT}; left out: a, b; --budget 25 would be enough"
    checks = (Corruption(device="gpu:0", gpu_uuid=None, dtype="float32", mismatches=2, products=9),)
    return {
        "a row without figures says why": result(CPU, replace(FUSED, **NO_FIGURES, error=BROKEN)),
        "a row that ended early keeps its figures": result(
            CPU, lost, replace(ONE, interrupted=True)
        ),
        "rows that the time did not reach are one line": replace(unreached, notes=(hint,)),
        "repeated products that differ": replace(result(FUSED), corruption=checks),
        "notes, and why no GPU was measured": replace(
            around(
                result(CPU),
                gpu_unavailable="libcuda.so.1 could not be loaded: libcuda.so.1: cannot open",
            ),
            notes=("matmul: measured at 1024",),
        ),
        "two GPUs that could be measured, with the command": around(
            result(CPU),
            gpu_unavailable="CuPy is not installed",
            gpus_not_measured=("NVIDIA X1", "NVIDIA X1"),
            gpu_remedy=("Install it: pip install 'gpucheck-cli[cuda12]'",),
        ),
    }


def verdicts() -> dict[str, BenchResult]:
    """Return what the first line says, by the rows."""
    wrong, unchecked = replace(ONE, verified=WRONG), replace(CPU, verified=None)
    at_once = replace(CPU, verified=WRONG, time_s=None, throughput=None)
    doubtful = replace(ONE, doubts=(BUSY,))
    rows: dict[str, tuple[Measurement, ...]] = {
        "a right row": (CPU,),
        "right rows of one device": (FUSED, MOVED),
        "right rows of both": (CPU, FUSED),
        "right rows, one in doubt": (CPU, doubtful),
        "a wrong row": (CPU, wrong),
        "a row that is wrong before it is timed": (at_once,),
        "the same beside a right one": (ONE, replace(at_once, doubts=(BUSY,))),
        "a row that was not checked": (unchecked, ONE),
        "no row at all": (replace(unchecked, time_s=None),),
    }
    return {f"verdict: {name}": result(*found) for name, found in rows.items()}


def tables() -> dict[str, BenchResult]:
    """Return which rows stand together, below which heading."""
    batch = replace(CPU, kernel="batch", variant="batch", shape=(64,), parameters={})
    framed = rate(replace(batch, framework=PYTORCH), 2 * 134_217_728 / 0.00871)
    tf32 = replace(FLOAT32, math_mode="tf32")
    jax = replace(PYTORCH, name="jax", form="jax.jit")
    product = replace(CPU, kernel="matmul", parameters={}, device="gpu:0")
    made = ((jax, tf32), (PYTORCH, FLOAT32), (PYTORCH, tf32))
    half = replace(FLOAT32, input="bfloat16", math_mode="bf16")
    by_copy = replace(CPU, percent_of_copy=60.0, percent_of_peak=None)
    by_exp = replace(by_copy, variant="blas-1-thread", threads=1, percent_of_peak=80.0)
    bends = Conclusion(kernel="softmax", device="cpu", code="knee", sentence="it bends at 7")
    return {
        "a sweep stands under one heading by its sizes": result(
            *(replace(batch, variant="blocked", shape=(size,), time_s=size / 1e6)
              for size in (1, 64, 4096))
        ),
        "a row of a sweep names its framework once": result(batch, framed),
        "rows of one format stand in one table whoever made them": result(
            *(replace(product, framework=maker, dtype=dtype) for maker, dtype in made)
        ),
        "a conclusion stands below its kernel": replace(
            result(CPU, replace(FUSED, kernel="copy")), conclusions=(bends,)
        ),
        "each format has its own heading and its own comparison": result(
            CPU, FUSED, replace(FUSED, dtype=half, time_s=0.000025)
        ),
        "a launch shows its time alone": result(
            rate(replace(FUSED, kernel="launch", shape=()), 2e5, "launch/s")
        ),
        "a share of exponentials is marked and explained": result(by_copy, by_exp),
        "a share of exponentials alone": result(by_exp),
        "the limits of both sides are distinguished": result(
            replace(CPU, percent_of_peak=99.0), replace(FUSED, percent_of_peak=74.0)
        ),
        "moving pays from some operations on": result(CPU, FUSED, replace(MOVED, time_s=0.0174)),
        "transfers were not measured": result(CPU, FUSED),
    }  # fmt: skip


def many_gpus() -> dict[str, BenchResult]:
    eight = [
        rate(replace(FUSED, device=f"gpu:{number}"), 1e12 * (1 - (number == 3) / 50))
        for number in range(8)
    ]
    marred = list(eight)
    marred[3] = replace(marred[3], verified=WRONG)
    marred[4] = replace(marred[4], error=BROKEN)
    gpus = tuple(replace(GPU, cuda_index=number, uuid=f"GPU-{number}") for number in range(8))
    two_models = (*gpus[:5], *(replace(gpu, name="NVIDIA T4") for gpu in gpus[5:]))
    return {
        "eight GPUs are one row with the slowest named": result(CPU, *eight),
        "one that failed or is wrong stays alone": result(CPU, *marred),
        "only GPUs of one model share a row": around(result(*eight), gpus=two_models),
        "the GPUs of a kind are counted": around(result(CPU), gpus=gpus),
    }


def doubted() -> dict[str, BenchResult]:
    other = [replace(WIDE, code=code) for code in ("other-precision", "reduced-precision")]
    rows = [replace(CPU, doubts=(BUSY, doubt), kernel="copy") for doubt in other]
    codes = ("power-capped", "zeros", "host-busy", "unconverged", "new-errors")
    shared = replace(BUSY, code="gpu-shared")
    gpus = [replace(FUSED, device=f"gpu:{number}", doubts=(shared,)) for number in (0, 1, 2, 5)]
    return {
        "each cause of doubt is one line": result(*rows, replace(CPU, doubts=(WIDE,))),
        "of many doubts three are shown, the gravest first": result(
            replace(CPU, doubts=tuple(replace(BUSY, code=code) for code in codes))
        ),
        "a doubt of all GPUs": result(CPU, *gpus),
        "a doubt of one device names it": result(CPU, gpus[0]),
        "two rows of a busy machine": result(
            replace(CPU, doubts=(BUSY,)), replace(ONE, doubts=(BUSY,)), FUSED
        ),
    }


def busy_machine() -> dict[str, BenchResult]:
    """Return rows by CPU time, where other programs take the processor."""
    by_cpu: dict[str, Any] = {"clock": RowClock.CPU, "median_s": 0.25, "waited_percent": 94.2}
    waited = replace(ONE, **by_cpu, converged=True)
    busy = around(result(CPU, waited), other_load_percent=93.6)
    # A row of several threads is slower beside them, and never settled.
    slowed = replace(CPU, doubts=(BUSY,), converged=False)
    unsettled = replace(waited, converged=False)
    return {
        "a row by CPU time is marked": busy,
        "some rows by CPU time": replace(busy, measurements=(slowed, waited)),
        "a row by CPU time that did not settle": replace(busy, measurements=(unsettled,)),
        "no row by CPU time": replace(busy, measurements=(slowed,)),
        "rows that did not wait need no word": replace(busy, measurements=(CPU,)),
        "a row that was not disturbed": result(replace(ONE, cpu_median_s=0.024)),
    }


def details() -> dict[str, BenchResult]:
    checked = Verified(error=4.66e-7, bound=1e-5, ok=True, reference="float64")
    limited = replace(
        FUSED,
        percent_of_peak=81.25,
        percent_of_peak_at_clock=90.4,
        percent_of_copy=97.0,
        limits={"peak": "H100 SXM, datasheet", "copy": "the best copy of this run"},
        sm_clock_mhz=1755.2,
        joules_per_op=0.0123,
        facts={"launched_as": "graph", "accuracy": 0.9184, "memory_bytes": 13_251_940},
    )
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
        device="cpu", threads=4, copy_bytes_per_s=2.9e10, gemm_flops_per_s=4e11,
        gemm_dtype="float32",
    )  # fmt: skip
    sweep = [
        replace(row, kernel="batch", parameters={}, shape=(size,), time_s=row_s)
        for size in (1, 16, 256)
        for row, row_s in ((CPU, 1e-5 * size), (FUSED, 1e-5))
    ]
    return {
        "the error and its bound": result(
            replace(CPU, verified=checked, loops=3, round_medians_s=(0.00871,) * 2)
        ),
        "the limits, the clock and the energy": result(limited),
        "limits of an unknown source": result(replace(limited, limits={})),
        "the sensors and the measured limits": replace(
            around(result(CPU), rooflines=(limit,), parallel_efficiency=0.93),
            telemetry=Telemetry(gpus=(gpu,)),
        ),
        "no sensors": replace(
            result(CPU), telemetry=Telemetry(unavailable="the driver did not answer")
        ),
        "the speed-ups of a sweep by its sizes": result(*sweep),
    }


def wordy(situations: dict[str, BenchResult], *names: str) -> dict[str, str]:
    """Return situations with -v, those of these names or all."""
    return {
        f"{name}, with -v": draw(found, width=160, verbosity=1)
        for name, found in situations.items()
        if not names or name in names
    }


def test_situations_are_as_recorded() -> None:
    groups = (unranked(), broken_rows(), verdicts(), tables(), many_gpus(), doubted())
    shown = {"a whole report": draw(whole_report())}
    for situations in (*groups, busy_machine()):
        shown |= {name: draw(found, width=120) for name, found in situations.items()}
    for situations in (*groups[4:], busy_machine(), details()):
        shown |= wordy(situations)
    shown |= wordy(tables(), "each format has its own heading and its own comparison")
    shown["quiet: no doubts, nothing of the run"] = draw(whole_report(), verbosity=-1)
    shown["below 120 columns no CPU time of a row"] = draw(
        busy_machine()["a row by CPU time is marked"], width=119
    )
    for width in (40, 50):
        shown[f"a row takes two lines at {width}"] = draw(result(CPU, FUSED), width=width)

    text = in_sections(shown)

    assert text == recorded("bench-situations", text)


def test_an_interrupted_run_shows_the_measured_rows_alone() -> None:
    text = draw(an_interrupted_run())

    assert "8.71 ms" in text
    assert "1 thread" not in text
    assert "nterrupted" not in text, "the envelope's error says it"


@pytest.mark.parametrize("width", [20, 40, 72, 80, 160])
@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_no_line_is_wider_than_the_terminal(width: int, verbosity: int) -> None:
    text = draw(whole_report(), width=width, verbosity=verbosity)

    assert max(len(line) for line in text.splitlines()) <= width
    assert "300x slower" in " ".join(text.split())


def test_ascii_is_ascii_and_outside_text_stays_text() -> None:
    rows = (CPU, ONE, replace(MOVED, verified=WRONG))
    evil = around(result(*rows), cpu_model="[red]CPU[/red]\x1b[2J")

    text = draw(evil, ascii_only=True, verbosity=1)

    assert text.isascii()
    assert "WRONG" in text
    assert "+-0.4%" in text
    assert "[red]CPU[/red]\\x1b[2J" in text
    assert "\x1b" not in text


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


def test_a_run_without_a_doubt_reads_no_table() -> None:
    read_wordings.cache_clear()

    draw(result(CPU, FUSED))
    assert read_wordings.cache_info().currsize == 0
    draw(result(replace(CPU, doubts=(BUSY,))))
    assert read_wordings.cache_info().currsize == 1


def test_stderr_does_not_repeat_that_no_row_is_known() -> None:
    unknown = [replace(one, ci95_s=None, repeat95_s=None) for one in (CPU, ONE)]
    answer = conclude(result(*unknown), Host())
    report = wrap("bench", answer)

    assert set(shown_codes(report)) == {notice.code for notice in report.warnings}


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
