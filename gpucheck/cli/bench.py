"""`gpucheck bench`: measure the requested devices, compare CPU and GPU, or load them fully."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from gpucheck.bench.request_model import DECIDE, BenchMode, BenchRequest
from gpucheck.cli.bench_ci import Saving, open_saving, run_several, run_with_profile
from gpucheck.cli.options import Shared, refuse_beside
from gpucheck.cli.output import deliver, machine, now, publish
from gpucheck.cli.terminal import is_watched, open_console, writes_unicode
from gpucheck.report.errors import WrongUseError
from gpucheck.report.options import flag, option

if TYPE_CHECKING:
    from gpucheck.bench.burn import BurnProgress
    from gpucheck.bench.model import BenchResult


def command(
    *,
    quick: bool = flag(
        "--quick",
        "Finish within about 10 s (each process of --save).",
        group="How long",
        not_with=DECIDE,
    ),
    full: bool = flag("--full", "Take about 5 minutes.", not_with=DECIDE),
    request: BenchRequest,
    profile: str | None = option(
        "--profile NAME|FILE",
        "Measure and judge by this profile.",
        group="Judge and compare",
        not_with="--peaks",
    ),
    saving: Saving,
    require_gpu: bool = flag(
        "--require-gpu", "Exit 4 if no GPU can be measured.", group="Judge and compare"
    ),
    burn: float | None = option(
        "--burn SECONDS",
        "Load every chosen device for this long, and check its results.",
        group="Full load",
        not_with="--profile --peaks",
    ),
    burn_limit: float | None = option(
        "--burn-limit CELSIUS",
        "Stop the burn at this temperature [default: the card's own slowdown, else 90].",
    ),
    corruption_s: float = option(
        "--corruption SECONDS",
        "Repeat one product this long and compare the bits [default: off].",
        0.0,
        not_with=DECIDE,
    ),
    peaks: bool = flag(
        "--peaks",
        "Show what the boards can do at most; measure nothing.",
        group="What boards can do",
    ),
    board: str | None = option(
        "--board NAME", "With --peaks: another board than this machine's, or all."
    ),
    shared: Shared,
) -> int:
    """Time the CPU against the GPU, and verify both."""
    gc.enable()
    if quick or full:
        request = replace(request, mode=BenchMode.QUICK if quick else BenchMode.FULL)
    if peaks or board is not None:
        _check_peaks(shared, peaks=peaks)
        return _show_peaks(board, request.dtypes, shared)
    from gpucheck.bench.session import check_corruption

    check_corruption(corruption_s)
    if quick and full:
        message = "--quick and --full contradict each other: choose one of them."
        raise WrongUseError(code="two-modes", message=message)
    if profile is not None:
        refuse_beside(
            "--profile",
            shared,
            code="profile-and-options",
            fact="The profile decides what is measured",
            remedy=("Copy the profile and change it: gpucheck profile list shows where it is.",),
        )
    if burn is not None:
        _check_burn(shared)
        return _run_burn(request, burn, burn_limit, shared, require_gpu=require_gpu)
    if "burn_limit" in shared.typed:
        message = "--burn-limit stops a burn, and nothing else is watched: give --burn with it."
        raise WrongUseError(code="bad-burn-limit", message=message)
    saving = open_saving(saving)
    if profile is not None:
        return run_with_profile(profile, request, shared, saving, require_gpu=require_gpu)
    run = run_several if saving.repeats else _run_here
    return run(request, shared, saving, corruption_s=corruption_s, require_gpu=require_gpu)


def _run_here(
    request: BenchRequest,
    shared: Shared,
    _saving: Saving,
    *,
    corruption_s: float,
    require_gpu: bool,
) -> int:
    """Measure in this process, and report."""
    from gpucheck.bench.session import conclude, measure, open_session
    from gpucheck.bench.workers import wait_for_start
    from gpucheck.cli.bench_live import live_rows
    from gpucheck.cli.ctrl_c import end_on_second_ctrl_c

    quiet = shared.verbosity < 0
    with machine("bench", shared) as probes:
        with open_session(request, probes, os.environ, require_gpu=require_gpu) as bench:

            def end(result: BenchResult) -> None:
                """Report, since the main thread is stuck."""
                answer = conclude(result, bench.run_environment.host)
                publish("bench", shared, answer, now())

            on_gpu = bool(bench.gpus.devices or bench.gpus.for_frameworks)
            with (
                wait_for_start(os.environ),
                live_rows(shown=not quiet) as (progress, watch),
                end_on_second_ctrl_c(end, on_gpu=on_gpu) as offer,
            ):
                result = measure(
                    bench,
                    corruption_s=corruption_s,
                    progress=progress,
                    watch=watch,
                    offer=offer,
                )
        answer = conclude(result, bench.run_environment.host)
        return deliver("bench", shared, answer, probes.time())


def _check_burn(shared: Shared) -> None:
    refuse_beside(
        "--burn",
        shared,
        code="burn-and-options",
        fact="A burn repeats one product",
        remedy=("It takes --device, --size, --seed, --fill and --burn-limit.",),
    )


# ----------------------------------------------------------------------------------- --peaks


def _check_peaks(shared: Shared, *, peaks: bool) -> None:
    if not peaks:
        message = "--board names a board whose peaks to show: give --peaks with it."
        raise WrongUseError(code="board-without-peaks", message=message)
    refuse_beside(
        "--peaks",
        shared,
        code="peaks-and-options",
        fact="--peaks measures nothing",
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
    return deliver("burn", shared, answer, probes.time())


@contextmanager
def _live_view(*, shown: bool) -> Iterator[Callable[[BurnProgress], None]]:
    """Show a table that is redrawn while the block runs, if stderr is a terminal."""
    if not (shown and is_watched()):
        yield lambda progress: None
        return
    from rich.console import Group
    from rich.live import Live

    from gpucheck.bench.burn_view import live_blocks
    from gpucheck.report.formats.table import draw
    from gpucheck.report.text import View

    console = open_console()
    unicode = writes_unicode(console.encoding)
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
