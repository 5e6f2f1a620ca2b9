"""Repeated report for --watch, in place until Ctrl-C, on one open connection to the driver."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpucheck.cli import output
from gpucheck.cli.shared import Shared
from gpucheck.cli.streams import closed_pipe, view_for, write_stdout
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.interrupts import REQUESTS
from gpucheck.report.envelope import Answer, Report
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.formats import open_format

#: More often than this, the readings would be a load themselves.
SHORTEST_S = 0.1


def watch(
    command: str,
    shared: Shared,
    read: Callable[[Probes], Answer],
    *,
    every_s: float,
    **view_changes: Any,
) -> int:
    """Show the report every `every_s` seconds; Ctrl-C is the normal end and gives code 0.

    Without a driver or a GPU it ends with 4, as without --watch.

    Raises:
        WrongUseError: the interval is too short, or a file is named.
    """
    if not SHORTEST_S <= every_s < float("inf"):
        message = f"--watch takes seconds from {SHORTEST_S:g}, not {every_s:g}."
        raise WrongUseError(code="bad-interval", message=message)
    if shared.output is not None or shared.recording is not None:
        message = "--watch shows this machine live: it cannot be combined with --output or --from."
        raise WrongUseError(code="watch-with-file", message=message)
    gc.enable()
    code = ExitCode.OK
    try:
        with output.machine(command, shared) as probes, _screen(shared) as show:
            first = True
            while True:
                answer = read(probes)
                REQUESTS.raise_lost()
                report = output.wrap(command, answer, time=probes.time(), strict=shared.strict)
                show(report, {**view_changes, "header": first or shared.format != "csv"})
                code, first = report.exit_code, False
                if report.exit_code is ExitCode.MISSING:
                    break  # without a driver or a GPU there is nothing to watch
                time.sleep(every_s)
        if _redraws(shared):  # the screen is cleared, and the messages with it
            output.comment(report, quiet=shared.verbosity < 0)
        return int(code)
    except KeyboardInterrupt:
        REQUESTS.settle()
        return int(ExitCode.OK)
    except BrokenPipeError:
        closed_pipe()
        return int(code)


def _redraws(shared: Shared) -> bool:
    return shared.format == "table" and sys.stdout.isatty()


@contextmanager
def _screen(shared: Shared) -> Iterator[Callable[[Report, dict[str, Any]], None]]:
    """Redraw a table in place on a terminal; elsewhere write one report after another."""
    if not _redraws(shared):
        yield lambda report, changes: _append(report, shared, changes)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    live_screen = Live(
        console=Console(highlight=False),
        auto_refresh=False,
        screen=True,
        # Nothing else writes meanwhile, and the stand-ins do not know the terminal's encoding.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with live_screen as live:

        def redraw(report: Report, changes: dict[str, Any]) -> None:
            view = view_for(shared, **changes)
            text = open_format("table")(report, view)
            said = report.error.message + "\n" if report.error else ""
            notes = "".join(f"{notice.message}\n" for notice in report.warnings)
            body = f"{report.time}\n{text}{said}{notes}"
            live.update(Text.from_ansi(body, no_wrap=True, overflow="crop"), refresh=True)

        yield redraw


def _append(report: Report, shared: Shared, changes: dict[str, Any]) -> None:
    write_stdout(open_format(shared.format)(report, view_for(shared, **changes)))
    if shared.format != "json":
        output.comment(report, quiet=shared.verbosity < 0)
