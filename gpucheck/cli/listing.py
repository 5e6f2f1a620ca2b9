"""Execution of `gpucheck list`: once, or repeated with --watch.

A line of flags only is read here: importing the parser takes longer than everything else that
`gpucheck list` does. Options with a value, abbreviations, --help, mistakes and a configuration file
are for the parser.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpucheck.cli.output import Shared, deliver, machine, split_words, wrap, write_messages
from gpucheck.cli.terminal import closed_pipe, view_for, write_stdout
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.interrupts import REQUESTS
from gpucheck.inventory.columns import ALIASES, COLUMNS
from gpucheck.inventory.inventory import (
    judge_list,
    keep,
    of_user,
    select_gpus,
    sort_gpus,
    take_inventory,
)
from gpucheck.inventory.model import Inventory
from gpucheck.report.envelope import Answer, Report
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.formats import open_format
from gpucheck.report.text import did_you_mean

#: Flag -> what it sets, for the list and for every command. A test compares both with the parser.
LIST_FLAGS: dict[str, dict[str, Any]] = {
    "--visible": {"visible": True},
    "--processes": {"processes": True},
    "-p": {"processes": True},
    "--topology": {"topology": True},
    "-t": {"topology": True},
    "--ask-driver": {"ask_driver": True},
    "--live": {"live": True},
}
SHARED_FLAGS: dict[str, dict[str, Any]] = {
    "--json": {"format": "json"},
    "--strict": {"strict": True},
    "--quiet": {"verbosity": -1},
    "-q": {"verbosity": -1},
}
Write = Callable[[Report, dict[str, Any]], None]
Wait = Callable[[float], bool]

#: More often than this, the readings would be a load themselves.
SHORTEST_S = 0.1
#: Seconds between two pictures of --live.
LIVE_S = 2.0


def parse_flags(words: Sequence[str]) -> tuple[Shared, dict[str, Any]] | None:
    """Return the options of a `list` with flags only, or None if the parser must read them."""
    if "GPUCHECK_CONFIG" in os.environ:
        return None
    shared, options = Shared(), dict[str, Any]()
    for word in words[1:]:
        if word in LIST_FLAGS:
            options |= LIST_FLAGS[word]
        elif word in SHARED_FLAGS:
            shared = shared._replace(**SHARED_FLAGS[word])
        else:
            return None
    return shared, options


def list_gpus(
    shared: Shared,
    *,
    visible: bool = False,
    processes: bool = False,
    topology: bool = False,
    gpu: Sequence[str] | None = None,
    user: str | None = None,
    select: Sequence[str] | None = None,
    sort: str | None = None,
    ask_driver: bool = False,
    watch: float | None = None,
    live: bool = False,
    also: Callable[[Report], None] | None = None,
) -> int:
    """Show the list and return the exit code; `also` receives each report once it is shown.

    Raises:
        WrongUseError: an unknown field, GPU or format, or options that exclude each other.
    """
    columns = known_fields(split_words(select), "--select") or None
    if columns and shared.format == "json":
        message = "--select chooses columns of the table or CSV; the JSON document is always whole."
        raise WrongUseError(code="select-with-json", message=message)
    order = None if sort is None else known_fields((sort.removeprefix("-"),), "--sort")[0]

    def read(probes: Probes) -> Answer:
        """List the GPUs as requested; an answer without GPUs stays as it is."""
        answer = judge_list(
            take_inventory(
                probes,
                ask_driver=ask_driver,
                topology=topology,
                process_utilization=processes or shared.format == "json",
            )
        )
        inventory = answer.result
        if not isinstance(inventory, Inventory) or not inventory.gpus:
            return answer
        document = shared.format in ("json", "jsonl")
        # A page is for people too; beside a document it has what that has.
        shown = shared.format in ("table", "html", "markdown") or (shared.html and not document)
        in_full = (bool(shown) and not topology) or (processes and document)
        if in_full:
            from gpucheck.inventory.unowned import find_unowned

            inventory = find_unowned(inventory, probes)
        inventory = of_user(select_gpus(inventory, split_words(gpu)), user)
        if visible:
            inventory = keep(inventory, lambda item: item.visible is not False)
        if sort is not None and order is not None:
            inventory = sort_gpus(inventory, COLUMNS[order].value, descending=sort.startswith("-"))
        # Health takes half as many questions again; a plain document is for who asks often.
        if in_full:
            from gpucheck.drivers.evidence import HealthReading
            from gpucheck.inventory.condition import read_condition, with_troubles

            # A driver that did not answer is not waited for once more.
            answered = answer.error is None
            inventory = (
                read_condition(inventory, probes)
                if answered
                else with_troubles(inventory, HealthReading())
            )
        return answer._replace(result=inventory)

    show: dict[str, Any] = {"columns": columns, "processes": processes or user is not None}
    watch = LIVE_S if live and watch is None else watch
    if watch is not None:
        return _watch(read, shared, every_s=watch, show=show, also=also)
    with machine("list", shared) as probes:
        answer = read(probes)
    return deliver("list", shared, answer, probes.time(), also=also, **show)


def known_fields(names: tuple[str, ...], option: str) -> tuple[str, ...]:
    """Return the fields of these names, which may be ordinary ones: "mem", "temp"."""
    unknown = [name for name in names if name not in COLUMNS and name not in ALIASES]
    if unknown:
        suggestion = did_you_mean(unknown[0], [*COLUMNS, *ALIASES])
        message = f"{option} does not know {unknown[0]!r}. {suggestion}".strip()
        fields = f"The fields are {', '.join(COLUMNS)}; in short {', '.join(ALIASES)}."
        raise WrongUseError(code="unknown-field", message=message, remedy=(fields,))
    return tuple(ALIASES.get(name, name) for name in names)


# --------------------------------------------------------------------------------- --watch


def _watch(
    read: Callable[[Probes], Answer],
    shared: Shared,
    *,
    every_s: float,
    show: dict[str, Any],
    also: Callable[[Report], None] | None,
) -> int:
    """Show the list every `every_s` seconds; q and Ctrl-C are its normal ends, with code 0.

    The connection to the driver stays open. Without a driver or a GPU it ends with 4, as without
    --watch; if the driver never listed a GPU the end has code 3.

    Raises:
        WrongUseError: the interval is too short, or a file is named.
    """
    if not SHORTEST_S <= every_s < float("inf"):
        message = f"--watch takes seconds from {SHORTEST_S:g}, not {every_s:g}."
        raise WrongUseError(code="bad-interval", message=message)
    if shared.format == "prometheus":
        message = "--watch writes metrics to a file, again and again: give --prometheus FILE."
        raise WrongUseError(code="watch-with-prometheus", message=message)
    if any((shared.output, shared.html, shared.recording)):
        others = "--output, --html or --from"
        message = f"--watch shows this machine live: it cannot be combined with {others}."
        raise WrongUseError(code="watch-with-file", message=message)
    gc.enable()
    code = ExitCode.OK
    ended = ExitCode.INCONCLUSIVE
    try:
        with machine("list", shared) as probes, _screen(shared) as (write, wait):
            first = True
            while True:
                answer = read(probes)
                REQUESTS.raise_lost()
                report = wrap("list", answer, time=probes.time(), strict=shared.strict)
                write(report, {**show, "header": first or shared.format != "csv"})
                if also is not None:
                    also(report)
                code, first = report.exit_code, False
                if isinstance(answer.result, Inventory) and answer.result.gpus:
                    ended = ExitCode.OK
                if report.exit_code is ExitCode.MISSING:
                    break  # without a driver or a GPU there is nothing to watch
                if wait(every_s):
                    break
        if not _redraws(shared):
            return int(code)
        from gpucheck.inventory.view import IN_ROWS

        # The screen is cleared, and the messages with it.
        write_messages(report, quiet=shared.verbosity < 0, without=IN_ROWS)
        return int(code if code is ExitCode.MISSING else ended)
    except KeyboardInterrupt:
        REQUESTS.settle()
        return int(ended)
    except BrokenPipeError:
        closed_pipe()
        return int(code)


def _redraws(shared: Shared) -> bool:
    return shared.format == "table" and sys.stdout.isatty()


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextmanager
def _screen(shared: Shared) -> Iterator[tuple[Write, Wait]]:
    """Yield what writes a report, and what waits and returns whether a key ends it all.

    A table on a terminal is redrawn in place; elsewhere one report is written after another.
    """
    if not _redraws(shared):

        def append(report: Report, changes: dict[str, Any]) -> None:
            write_stdout(
                open_format(shared.format)(report, view_for(shared, **changes, indented=False))
            )
            if shared.format != "json":
                write_messages(report, quiet=shared.verbosity < 0)

        yield append, _sleep
        return
    from gpucheck.cli.live_screen import live_screen, pauses
    from gpucheck.inventory.view import IN_ROWS

    with pauses() as wait, live_screen(shared, without=IN_ROWS) as redraw:
        yield redraw, wait
