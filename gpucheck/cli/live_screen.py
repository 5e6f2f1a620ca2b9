"""Screen of `list --watch`: redrawn in place, ended by q, and its last picture stays."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from gpucheck.cli.output import Shared
from gpucheck.cli.terminal import view_for, write_stdout
from gpucheck.report.blocks import Line
from gpucheck.report.envelope import Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats import open_format

QUIT = frozenset(b"qQ")


@contextmanager
def live_screen(
    shared: Shared, *, without: Collection[str]
) -> Iterator[Callable[[Report, dict[str, Any]], None]]:
    """Yield what shows a report in place of the one before; at the end the last one stays.

    The table shows the warnings with the codes in `without` itself.
    """
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
                sentences += [item.message for item in report.warnings if item.code not in without]
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
def pauses() -> Iterator[Callable[[float], bool]]:
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
            if not _in_foreground(terminal):
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
            if _in_foreground(terminal):
                termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _in_foreground(terminal: int) -> bool:
    """Return whether this process may read and change the terminal; others would be stopped."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # not the terminal that controls us, and so without jobs
        return True


def _sleep(seconds: float) -> bool:
    time.sleep(max(0.0, seconds))
    return False
