"""`gpucheck list --watch`: a screen that is redrawn in place, or one report after another.

The screen is for a terminal; q ends it, and its last picture stays.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any

from gpucheck.cli.options import Shared
from gpucheck.cli.outlets import write_for_ci
from gpucheck.cli.output import machine, wrap
from gpucheck.cli.terminal import (
    closed_pipe,
    shows_to_person,
    view_for,
    write_messages,
    write_stdout,
)
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.interrupts import REQUESTS
from gpucheck.inventory.model import Inventory
from gpucheck.inventory.view import IN_ROWS
from gpucheck.report.blocks import Line
from gpucheck.report.envelope import Answer, Report
from gpucheck.report.errors import ExitCode, WrongUseError, check_seconds
from gpucheck.report.formats import open_format

#: More often than this, the readings would be a load themselves.
SHORTEST_S = 0.1
QUIT = frozenset(b"qQ")
Write = Callable[[Report, dict[str, Any]], None]
Wait = Callable[[float], bool]


def watch_gpus(
    read: Callable[[Probes], Answer], shared: Shared, *, every_s: float, show: dict[str, Any]
) -> int:
    """Show the list every `every_s` seconds; q and Ctrl-C are its normal ends, with code 0.

    The connection to the driver stays open. Without a driver or a GPU it ends with 4, as without
    --watch; if the driver never listed a GPU the end has code 3.

    Raises:
        WrongUseError: the interval is too short or too long, or a file is named.
    """
    check_seconds("--watch", every_s, least=SHORTEST_S, code="bad-interval")
    if shared.format == "prometheus":
        message = "--watch writes metrics to a file, again and again: give --prometheus FILE."
        raise WrongUseError(code="watch-with-prometheus", message=message)
    if any((shared.output, shared.outlets.html, shared.recording)):
        others = "--output, --html or --from"
        message = f"--watch shows this machine live: it cannot be combined with {others}."
        raise WrongUseError(code="watch-with-file", message=message)
    gc.enable()
    redraws = shared.format == "table" and shows_to_person()
    code = ExitCode.OK
    ended = ExitCode.INCONCLUSIVE
    try:
        with (
            machine("list", shared) as probes,
            pauses() if redraws else nullcontext(_sleep) as wait,
            live_screen(shared) if redraws else nullcontext(partial(_append, shared)) as write,
        ):
            first = True
            while True:
                answer = read(probes)
                REQUESTS.raise_lost()
                report = wrap("list", answer, time=probes.time(), strict=shared.strict)
                write(report, {**show, "header": first or shared.format != "csv"})
                if shared.outlets.prometheus is not None:
                    write_for_ci(report, shared.outlets)
                code, first = report.exit_code, False
                if isinstance(answer.result, Inventory) and answer.result.gpus:
                    ended = ExitCode.OK
                if report.exit_code is ExitCode.MISSING:
                    break  # without a driver or a GPU there is nothing to watch
                if wait(every_s):
                    break
        if not redraws:
            return int(code)
        # The screen is cleared, and the messages with it.
        write_messages(report, verbosity=shared.verbosity, without=IN_ROWS)
        return int(code if code is ExitCode.MISSING else ended)
    except KeyboardInterrupt:
        REQUESTS.settle()
        return int(ended)
    except BrokenPipeError:
        closed_pipe()
        return int(code)


def _append(shared: Shared, report: Report, changes: dict[str, Any]) -> None:
    """Write a report after the one before."""
    view = view_for(shared, **changes, indented=False)
    write_stdout(open_format(shared.format)(report, view))
    if shared.format != "json":
        write_messages(report, verbosity=shared.verbosity)


@contextmanager
def live_screen(shared: Shared) -> Iterator[Write]:
    """Yield what shows a report in place of the one before; at the end the last one stays."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from gpucheck.report.formats.table import as_text, draw

    screen = Live(
        console=Console(highlight=False),
        auto_refresh=False,
        screen=True,
        # Nothing else writes meanwhile, and the stand-ins do not know the terminal's encoding.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    key = "q" if _is_terminal() else "Ctrl-C"
    last = ""
    silent: list[str] = []
    try:
        with screen as live:
            # A driver that hangs is waited for before there is a picture, and no key is read then.
            live.update(Text("asking the driver · Ctrl-C ends", "dim"), refresh=True)

            def redraw(report: Report, changes: dict[str, Any]) -> None:
                nonlocal last
                view = view_for(shared, **changes)
                table = open_format("table")(report, view)
                sentences = [] if report.error is None else [report.error.message]
                if report.exit_code is ExitCode.INCONCLUSIVE:
                    silent.append(report.time)
                else:
                    silent.clear()
                if len(silent) > 1:
                    since = f"since {_local_time(silent[0])} ({len(silent)} times)"
                    sentences.append(f"It has been so {since}. What to do: gpucheck detect")
                sentences += [item.message for item in report.warnings if item.code not in IN_ROWS]
                notes = as_text(draw(map(Line, sentences), view), view)
                taken = _local_time(report.time)
                body = Text.from_ansi(f"{table}{notes}")
                picture = Text.assemble((f"{taken} · {key} ends\n", "dim"), body)
                picture.no_wrap, picture.overflow = True, "crop"
                live.update(picture, refresh=True)
                last = f"{taken}\n{table}"

            yield redraw
    finally:
        if last:
            write_stdout(last)


def _local_time(moment: str) -> str:
    """Return a time of a report in the time zone of this machine."""
    return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def pauses() -> Iterator[Wait]:
    """Yield what waits so many seconds, and returns whether q was pressed meanwhile.

    The terminal gives single keys while the block runs, and is as before after any end of it.
    """
    if not _is_terminal():
        yield _sleep
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def wait(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not _is_in_foreground(terminal):
                return _sleep(left)
            # Again: a shell resets the terminal of a job that was stopped.
            tty.setcbreak(terminal, termios.TCSADRAIN)
            if not select.select([terminal], [], [], left)[0]:
                break
            keys = os.read(terminal, 64)
            if not keys:  # it was hung up
                return _sleep(left)
            if QUIT & {*keys}:
                return True
        return False

    try:
        yield wait
    finally:
        with contextlib.suppress(termios.error, OSError):
            if _is_in_foreground(terminal):
                termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _is_in_foreground(terminal: int) -> bool:
    """Return whether this process may read and change the terminal; others would be stopped."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # not the terminal that controls us, and so without jobs
        return True


def _sleep(seconds: float) -> bool:
    time.sleep(max(0.0, seconds))
    return False
