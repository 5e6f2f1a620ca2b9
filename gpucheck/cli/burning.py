"""`gpucheck bench --burn`: all chosen devices under full load, watched live on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.output import deliver
from gpucheck.cli.shared import Shared
from gpucheck.models.errors import InconclusiveError, WrongUseError
from gpucheck.models.report import Answer

if TYPE_CHECKING:
    from gpucheck.cli.reporting import Outlets
    from gpucheck.models.bench import BenchRequest
    from gpucheck.models.burn import BurnMoment
    from gpucheck.probes.interface import Probes

BurnSeconds = Annotated[
    float | None,
    typer.Option(
        "--burn", metavar="SECONDS", help="Load every chosen device this long, and check it."
    ),
]
BurnLimit = Annotated[
    float | None,
    typer.Option(
        "--burn-limit",
        metavar="CELSIUS",
        help="Stop a burn at this temperature [default: the card's own slowdown, else 90].",
    ),
]


def run_burn_command(
    request: BenchRequest,
    shared: Shared,
    outlets: Outlets,
    *,
    seconds: float,
    limit_c: float | None,
) -> int:
    """Burn, and report.

    Raises:
        WrongUseError: the time or the temperature makes no sense.
    """
    if not 0 < seconds < float("inf"):
        message = f"--burn takes seconds above 0, not {seconds:g}."
        raise WrongUseError(code="bad-burn", message=message)
    if limit_c is not None and not 30 <= limit_c <= 120:
        message = f"--burn-limit takes degrees Celsius from 30 to 120, not {limit_c:g}."
        raise WrongUseError(code="bad-burn-limit", message=message)

    def find(probes: Probes) -> Answer:
        return _burn(request, probes, seconds=seconds, limit_c=limit_c, quiet=shared.verbosity < 0)

    formats = ("table", "json", "junit", "github")
    return deliver("burn", shared, find, formats=formats, also=outlets.write)


def _burn(
    request: BenchRequest, probes: Probes, *, seconds: float, limit_c: float | None, quiet: bool
) -> Answer:
    from gpucheck.core.bench.burn import BurnPlan, run_burn
    from gpucheck.core.bench.burn_gates import conclude_burn
    from gpucheck.core.bench.claiming import hold_gpus
    from gpucheck.core.bench.processes.repeated import chosen_stations
    from gpucheck.core.inventory import ListRequest, take_inventory
    from gpucheck.core.picking import own_command
    from gpucheck.models.device import Inventory
    from gpucheck.models.snapshot import NvmlReading
    from gpucheck.probes.burners import ProcessBurners
    from gpucheck.probes.clock import MonotonicClock
    from gpucheck.probes.interface import NvmlQuestion
    from gpucheck.probes.telemetry import NoTelemeter, NvmlTelemeter
    from gpucheck.probes.workers import stopping_raises

    on_gpus = set(request.devices) != {"cpu"}
    answer = take_inventory(ListRequest(ask_driver=on_gpus), probes)
    found = answer.result
    gpus = found.gpus if isinstance(found, Inventory) and on_gpus else ()
    stations = chosen_stations(request.devices, gpus)
    plan = BurnPlan(stations=stations, request=request, seconds=seconds, limit_c=limit_c)
    uuids = [station.gpu_uuid for station in stations if station.gpu_uuid]
    telemeter = NvmlTelemeter() if uuids else NoTelemeter("no GPU is under load")
    reading = probes.nvml(NvmlQuestion()) if uuids else NvmlReading()
    claims = hold_gpus(uuids, reading, os.environ, own_command(sys.orig_argv))
    with claims as claimed, stopping_raises(), _live_view(shown=not quiet) as tell:
        for uuid, reason in claimed.others.items():
            raise _claimed(uuid, reason)
        result = run_burn(plan, ProcessBurners(), telemeter, MonotonicClock(), tell)
    return conclude_burn(result, answer.host)


def _claimed(uuid: str, reason: str) -> InconclusiveError:
    """Return why a GPU is not burned: a full load would ruin the work of whoever holds it."""
    return InconclusiveError(
        code="gpu-claimed",
        message=f"{uuid} is {reason}.",
        remedy=("Burn the others: --device gpu:N", "See who: gpucheck place --claims"),
    )


def _say_nothing(moment: BurnMoment) -> None:
    """Take the moment where nobody is watching."""


@contextmanager
def _live_view(*, shown: bool) -> Iterator[Callable[[BurnMoment], None]]:
    """Show a table that is redrawn while the block runs; nothing if stderr is no terminal."""
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        yield _say_nothing
        return
    from rich.console import Console
    from rich.live import Live

    from gpucheck.render.console.burn import live_table

    console = Console(stderr=True, highlight=False, markup=False)
    unicode = (console.encoding or "").lower().replace("-", "") == "utf8"
    if os.environ.get("NO_COLOR"):
        console.no_color = True
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda moment: live.update(live_table(moment, unicode=unicode), refresh=True)
