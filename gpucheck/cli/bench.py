"""`gpucheck bench`: measure the requested devices, compare CPU and GPU, or load them fully."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import typer

from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.request_model import BenchMode, BenchRequest, Fill, SampleDetail
from gpucheck.cli.bench_ci import (
    open_saving,
    run_several,
    run_with_profile,
)
from gpucheck.cli.options import GITHUB, JUNIT, OUTPUT, PROMETHEUS, flag, option, typed_options
from gpucheck.cli.outlets import Outlets, open_outlets
from gpucheck.cli.output import deliver, machine, now, publish, split_words
from gpucheck.cli.shared import Shared
from gpucheck.cli.terminal import is_watched, writes_unicode
from gpucheck.report.errors import WrongUseError

if TYPE_CHECKING:
    from gpucheck.bench.burn import BurnProgress
    from gpucheck.bench.model import BenchResult

_KERNELS = ", ".join(KERNELS)


def command(
    *,
    ctx: typer.Context,
    kernels: list[str] | None = option(
        "[KERNEL...]", f"{_KERNELS} [default: all].", group="What to measure"
    ),
    device: list[str] | None = option(
        "--device, -d LIST", "cpu, gpu, gpu:N or all [default: all]."
    ),
    dtype: list[str] | None = option(
        "--dtype LIST",
        "float64, float32, tf32, float16, bfloat16, float8, int8 [default: by kernel].",
    ),
    size: int | None = option("--size N", "Edge of the square arrays; when training, the batch."),
    framework: list[str] | None = option(
        "--framework NAME[=PYTHON]", "Run pytorch, tensorflow, jax, cupy, numpy too."
    ),
    quick: bool = flag(
        "--quick", "Finish within about 10 s (each process of --save).", group="How long"
    ),
    full: bool = flag("--full", "Take about 5 minutes."),
    budget: float | None = option(
        "--budget SECONDS", "Time for measuring; starting and compiling come on top."
    ),
    profile: str | None = option(
        "--profile NAME|FILE", "Measure and judge by this profile.", group="Judge and compare"
    ),
    save: Path | None = option("--save FILE", "Save the run for --baseline and compare."),
    baseline: Path | None = option("--baseline FILE", "Compare the run with a saved one."),
    require_gpu: bool = flag("--require-gpu", "Exit 4 if no GPU can be measured."),
    fill: Fill = option(
        "--fill",
        "What the arrays hold; zeros draw less power.",
        Fill.NORMAL,
        group="More on what is measured",
    ),
    temperature: float = option("--temperature T", "Softmax temperature.", 0.6),
    towers: int = option("--towers N", "Towers to simulate on one device.", 2),
    data: Path | None = option(
        "--data FILE", "MNIST file (IDX or NPZ) instead of generated images."
    ),
    seed: int = option("--seed N", "Seed of the random data.", 0),
    same_math: bool = flag("--same-math", "Turn off the frameworks' reduced precision (TF32)."),
    processes: int | None = option(
        "--processes N",
        "Repeat in N processes for each device [default: 5 with --save or --baseline].",
        group="More on saved runs",
    ),
    update_baseline: bool = flag("--update-baseline", "Let --save replace an existing file."),
    append: bool = flag("--append", "Let --save add the run to the file as another session."),
    save_failed: bool = flag("--save-failed", "Let --save also keep a run that did not pass."),
    allow_difference: list[str] | None = option(
        "--allow-difference KEY",
        "Compare with the baseline even if this key differs (such as driver).",
    ),
    burn: float | None = option(
        "--burn SECONDS",
        "Load every chosen device for this long, and check its results.",
        group="Full load",
    ),
    burn_limit: float | None = option(
        "--burn-limit CELSIUS",
        "Stop the burn at this temperature [default: the card's own slowdown, else 90].",
    ),
    corruption: float = option(
        "--corruption SECONDS",
        "Repeat one product this long and compare the bits [default: off].",
        0.0,
    ),
    peaks: bool = flag(
        "--peaks",
        "Show what the boards can do at most; measure nothing.",
        group="What boards can do",
    ),
    board: str | None = option(
        "--board NAME", "With --peaks: another board than this machine's, or all."
    ),
    samples: SampleDetail = option(
        "--samples", "Samples or a summary in the JSON document.", SampleDetail.ALL, group=OUTPUT
    ),
    junit: Path | None = JUNIT,
    github: bool | None = GITHUB,
    prometheus: Path | None = PROMETHEUS,
    shared: Shared,
) -> int:
    """Time the CPU against the GPU, and verify both."""
    request = BenchRequest(
        kernels=tuple(kernels or ()),
        devices=split_words(device) or ("all",),
        size=size,
        dtypes=split_words(dtype),
        mode=BenchMode.QUICK if quick else BenchMode.FULL if full else BenchMode.DEFAULT,
        budget_s=budget,
        seed=seed,
        samples=samples,
        temperature=temperature,
        fill=fill,
        towers=towers,
        data_file=None if data is None else str(data),
        frameworks=tuple(framework or ()),
        same_math=same_math,
    )
    gc.enable()
    outlets = open_outlets(junit, github=github, prometheus=prometheus)
    with outlets.guarded("bench"):
        if peaks or board is not None:
            check_peaks_options(ctx, peaks=peaks)
            return _show_peaks(board, request.dtypes, shared)
        _check(shared, quick=quick, full=full, corruption_s=corruption)
        if profile is not None:
            check_profile_options(ctx)
        if burn is not None:
            check_burn_options(ctx)
            return _run_burn(*(request, burn, burn_limit, shared, outlets), require_gpu=require_gpu)
        saving = open_saving(
            save,
            update=update_baseline,
            append=append,
            failed=save_failed,
            baseline=baseline,
            allow_difference=allow_difference,
            processes=processes,
        )
        if profile is not None:
            return run_with_profile(
                *(profile, split_words(device), shared, saving, outlets),
                require_gpu=require_gpu,
                frameworks=request.frameworks,
            )
        if saving.repeats:
            return run_several(
                *(request, shared, saving, outlets),
                corruption_s=corruption,
                require_gpu=require_gpu,
            )
        return _run_here(request, shared, outlets, corruption_s=corruption, require_gpu=require_gpu)


def _check(shared: Shared, *, quick: bool, full: bool, corruption_s: float) -> None:
    """Check for contradicting options, and for a snapshot, which cannot be measured."""
    from gpucheck.bench.session import check_corruption

    check_corruption(corruption_s)
    if quick and full:
        message = "--quick and --full contradict each other: choose one of them."
        raise WrongUseError(code="two-modes", message=message)


def _run_here(
    request: BenchRequest,
    shared: Shared,
    outlets: Outlets,
    *,
    corruption_s: float,
    require_gpu: bool,
) -> int:
    """Measure in this process, and report."""
    from gpucheck.bench.session import conclude, open_session
    from gpucheck.bench.workers import wait_for_start
    from gpucheck.cli.bench_live import live_rows
    from gpucheck.cli.ctrl_c import end_on_second_ctrl_c

    quiet = shared.verbosity < 0
    with machine("bench", shared) as probes:
        with open_session(request, probes, os.environ, require_gpu=require_gpu) as session:

            def end(result: BenchResult) -> None:
                """Report, since the main thread is stuck."""
                answer = conclude(result, session.host)
                publish("bench", shared, answer, now(), also=outlets.write)

            on_gpu = bool(session.gpus.devices or session.gpus.for_frameworks)
            with (
                wait_for_start(os.environ),
                live_rows(shown=not quiet) as (progress, watch),
                end_on_second_ctrl_c(end, on_gpu=on_gpu) as offer,
            ):
                result = session.measure(
                    corruption_s=corruption_s,
                    progress=progress,
                    watch=watch,
                    offer=offer,
                )
        answer = conclude(result, session.host)
        return deliver("bench", shared, answer, probes.time(), also=outlets.write)


#: Options of what is measured: a profile, a burn and --peaks decide that themselves.
_MEASURED = (
    *("kernels", "size", "dtype", "framework", "quick", "full", "budget", "fill", "temperature"),
    *("towers", "data", "seed", "same_math", "processes", "corruption", "burn"),
)
#: Options of the answer that are not for what --peaks shows.
_ANSWERED = ("profile", "save", "baseline", "junit", "prometheus")


def check_profile_options(ctx: typer.Context) -> None:
    """Check that no option conflicts with a profile, which decides what is measured.

    --framework only names the interpreters of the profile's frameworks. A default out of a file is
    for those runs that it fits.

    Raises:
        WrongUseError: an option conflicts.
    """
    named = typed_options(ctx, [name for name in _MEASURED if name != "framework"])
    if named:
        raise WrongUseError(
            code="profile-and-options",
            message=f"The profile decides what is measured: omit {', '.join(named)}.",
            remedy=("Copy the profile and change it: gpucheck profile list shows where it is.",),
        )


def check_burn_options(ctx: typer.Context) -> None:
    """Check the options of a burn; it takes --device, --size, --seed and --fill.

    Raises:
        WrongUseError: an option has no meaning for a burn.
    """
    taken = ("size", "seed", "fill", "burn")
    others = [name for name in _MEASURED if name not in taken]
    named = typed_options(ctx, (*others, "save", "baseline"))
    if named:
        raise WrongUseError(
            code="burn-and-options",
            message=f"A burn repeats one product: omit {', '.join(named)}.",
            remedy=("It takes --device, --size, --seed, --fill and --burn-limit.",),
        )


# ----------------------------------------------------------------------------------- --peaks


def check_peaks_options(ctx: typer.Context, *, peaks: bool) -> None:
    """Check the options of --peaks, which takes --board and --dtype.

    Raises:
        WrongUseError: an option has no meaning for it, or --board stands without --peaks.
    """
    if not peaks:
        message = "--board names a board whose peaks to show: give --peaks with it."
        raise WrongUseError(code="board-without-peaks", message=message)
    others = [name for name in _MEASURED if name != "dtype"]
    named = typed_options(ctx, (*others, *_ANSWERED))
    if named:
        raise WrongUseError(
            code="peaks-and-options",
            message=f"--peaks measures nothing: omit {', '.join(named)}.",
            remedy=("It takes --board and --dtype.",),
        )


def _show_peaks(board: str | None, dtypes: tuple[str, ...], shared: Shared) -> int:
    """Show the peaks of this machine's boards, or of the named one."""
    from gpucheck.bench.peaks import peaks_here, peaks_of_named

    with machine("peaks", shared) as probes:
        if board is None:
            answer = peaks_here(probes, dtypes)
        else:
            answer = peaks_of_named(board, dtypes)._replace(host=probes.host())
    return deliver("peaks", shared, answer, probes.time())


# ------------------------------------------------------------------------------------ --burn


def _run_burn(
    product: BenchRequest,
    seconds: float,
    limit_c: float | None,
    shared: Shared,
    outlets: Outlets,
    *,
    require_gpu: bool,
) -> int:
    """Run a burn and report it.

    Raises:
        WrongUseError: the time, the temperature, the size or the seed is invalid.
    """
    from gpucheck.bench.burn import BurnRequest, burn_here, burn_pool, check_burn

    request = BurnRequest(
        product=product, seconds=seconds, limit_c=limit_c, require_gpu=require_gpu
    )
    check_burn(request)
    with (
        machine("burn", shared) as probes,
        _live_view(shown=shared.verbosity >= 0) as report_progress,
    ):
        answer = burn_here(request, probes, burn_pool(), os.environ, report_progress)
    return deliver("burn", shared, answer, probes.time(), also=outlets.write)


@contextmanager
def _live_view(*, shown: bool) -> Iterator[Callable[[BurnProgress], None]]:
    """Show a table that is redrawn while the block runs, if stderr is a terminal."""
    if not (shown and is_watched()):
        yield lambda progress: None
        return
    from rich.console import Console, Group
    from rich.live import Live

    from gpucheck.bench.burn_view import live_blocks
    from gpucheck.report.formats.table import draw
    from gpucheck.report.text import View

    console = Console(stderr=True, highlight=False, markup=False)
    unicode = writes_unicode(console.encoding)
    if os.environ.get("NO_COLOR"):
        console.no_color = True
    latest: list[BurnProgress] = []
    start_s = monotonic()

    def now_drawn() -> Group:
        view = View(width=console.width, unicode=unicode)
        moment = latest[-1] if latest else None
        return Group(*draw(live_blocks(moment, monotonic() - start_s), view))

    # It turns in a thread of its own: opening a device on a busy host takes a minute.
    with Live(
        console=console, get_renderable=now_drawn, refresh_per_second=4, transient=True
    ) as live:
        live.refresh()
        yield lambda progress: latest.__setitem__(slice(None), [progress])
