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

if TYPE_CHECKING:
    from gpucheck.bench.burn_model import BurnProgress, BurnRequest
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


def run_burn_command(request: BurnRequest, shared: Shared, outlets: Outlets) -> int:
    """Run a burn and report it.

    Raises:
        WrongUseError: the time, the temperature, the size or the seed is invalid.
    """
    from gpucheck.bench.burn import burn_here, burn_pool, check_burn

    check_burn(request)

    formats = ("table", "json", "junit", "github")
    with (
        machine("burn", shared, formats) as probes,
        _live_view(shown=shared.verbosity >= 0) as report_progress,
    ):
        answer = burn_here(request, probes, burn_pool(), os.environ, report_progress)
    return deliver("burn", shared, answer, probes.time(), also=outlets.write)


def _ignore_progress(progress: BurnProgress) -> None:
    """Ignore the progress."""


@contextmanager
def _live_view(*, shown: bool) -> Iterator[Callable[[BurnProgress], None]]:
    """Show a table that is redrawn while the block runs, if stderr is a terminal."""
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        yield _ignore_progress
        return
    from rich.console import Console
    from rich.live import Live

    from gpucheck.bench.burn_view import live_table

    console = Console(stderr=True, highlight=False, markup=False)
    unicode = (console.encoding or "").lower().replace("-", "") == "utf8"
    if os.environ.get("NO_COLOR"):
        console.no_color = True
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update(live_table(progress, unicode=unicode), refresh=True)
