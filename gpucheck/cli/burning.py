"""`gpucheck bench --burn`: the chosen devices under full load, shown live on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.output import deliver, machine
from gpucheck.cli.shared import Shared
from gpucheck.report.text import rate

if TYPE_CHECKING:
    from rich.table import Table

    from gpucheck.bench.burn import BurnProgress
    from gpucheck.bench.model import BenchRequest
    from gpucheck.cli.bench_ci import Outlets

BurnSeconds = Annotated[
    float | None,
    typer.Option(
        "--burn",
        metavar="SECONDS",
        help="Load every chosen device for this long, and check its results.",
    ),
]
BurnLimit = Annotated[
    float | None,
    typer.Option(
        "--burn-limit",
        metavar="CELSIUS",
        help="Stop the burn at this temperature [default: the card's own slowdown, else 90].",
    ),
]


def run_burn_command(
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
    formats = ("table", "json", "junit", "github")
    with (
        machine("burn", shared, formats) as probes,
        _live_view(shown=shared.verbosity >= 0) as report_progress,
    ):
        answer = burn_here(request, probes, burn_pool(), os.environ, report_progress)
    return deliver("burn", shared, answer, probes.time(), also=outlets.write)


@contextmanager
def _live_view(*, shown: bool) -> Iterator[Callable[[BurnProgress], None]]:
    """Show a table that is redrawn while the block runs, if stderr is a terminal."""
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, markup=False)
    unicode = (console.encoding or "").lower().replace("-", "") == "utf8"
    if os.environ.get("NO_COLOR"):
        console.no_color = True
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update(live_table(progress, unicode=unicode), refresh=True)


def live_table(progress: BurnProgress, *, unicode: bool) -> Table:
    """Return the state of every device at this moment."""
    from rich.table import Table

    left_s = max(0.0, progress.asked_s - progress.elapsed_s)
    title = f"burn: {progress.elapsed_s:.0f} s of {progress.asked_s:g} s, {left_s:.0f} s left"
    if progress.opening_s:
        title = (
            f"burn: opening the devices for {progress.opening_s:.0f} s, then {progress.asked_s:g} s"
        )
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="dim",
        title=title,
        title_justify="left",
    )
    for heading in ("DEVICE", "STATE", "SPEED", "PRODUCTS", "WRONG", "TEMP", "POWER", "SM CLOCK"):
        table.add_column(heading, justify="left" if heading in ("DEVICE", "STATE") else "right")
    nothing = "\N{EN DASH}" if unicode else "-"
    for one in progress.devices:
        table.add_row(
            one.device,
            one.state,
            nothing if one.flops_per_s is None else rate(one.flops_per_s, "FLOP/s"),
            str(one.products),
            str(one.mismatches),
            nothing if one.temperature_c is None else f"{one.temperature_c:.0f} C",
            nothing if one.power_w is None else f"{one.power_w:.0f} W",
            nothing if one.clock_sm_mhz is None else f"{one.clock_sm_mhz:.0f} MHz",
            style="bold red" if one.mismatches or one.state == "failed" else "",
        )
    return table
