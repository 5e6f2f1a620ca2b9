"""Terminal and streams: safe writing, what can be shown, messages and progress on stderr."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpucheck.report.envelope import DRIVER_LIBRARY, Failure, Notice, Report
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.text import View, printable, protect_blanks, restore_blanks, step_on_recording

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import Console

    from gpucheck.bench.scheduler import Progress
    from gpucheck.cli.options import Shared

STDOUT = "standard output"
#: The system's words for a disc or a quota that is used up.
_FULL = frozenset({os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT)})
#: Source: GitHub's and Azure's runner, ActionCommand.cs and CommandStringConvertor.cs.
_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#(?:vso)?\[)", re.M)


def unwritable(place: str, problem: str) -> WrongUseError:
    """Return the error for a place that a report cannot be written to."""
    step = "Name a file in a directory that you may write to."
    if problem in _FULL:
        step = "Free space on that file system (see: df -h), or name a file on another."
    elif place == STDOUT:
        step = "Redirect it to a file that you may write to."
    return WrongUseError(
        code="output-not-writable",
        message=f"The report cannot be written to {place}: {problem}.",
        remedy=(step,),
    )


def write_stdout(text: str) -> None:
    """Write the report; characters that the locale lacks are escaped.

    Raises:
        BrokenPipeError: the reader has gone.
        WrongUseError: it is closed, or its device is full.
    """
    stream: TextIO | None = sys.stdout
    if stream is None:
        raise unwritable(STDOUT, "it is closed")
    encoding = stream.encoding or "ascii"
    try:
        text = without_workflow_commands(text)
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up_stdout()
        raise unwritable(STDOUT, error.strerror or str(error)) from None


def write_stderr(line: str) -> None:
    """Write one line to stderr; a closed or full stderr never ends the program."""
    write_workflow_command(without_workflow_commands(line))


def without_workflow_commands(text: str) -> str:
    """Escape commands that a CI runner would obey: it reads both streams, and names are not ours.

    `::` commands begin a line, `##[` ones stand anywhere. The escapes are JSON's own, so a
    document keeps its meaning.
    """
    return _COMMAND.sub(lambda match: f"{match[1] or ''}\\u{ord(match[0].lstrip()[0]):04x}", text)


def write_workflow_command(line: str) -> None:
    """Write a line to stderr as it is."""
    stream: TextIO | None = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        encoding = stream.encoding or "ascii"
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()


def closed_pipe() -> int:
    """End quietly after `| head`: the reader of the pipe has enough."""
    _give_up_stdout()
    return int(ExitCode.OK)


def _give_up_stdout() -> None:
    # Python flushes stdout once more at exit, and needs an open file for it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _columns() -> int:
    if "COLUMNS" not in os.environ and not os.isatty(1):
        return 80  # as shutil has it, which takes long to import

    import shutil

    return shutil.get_terminal_size((80, 24)).columns


def view_for(shared: Shared, **changes: Any) -> View:
    """Return what the report's destination can show."""
    to_file = shared.output is not None
    environment = os.environ
    stream: TextIO | None = sys.stdout
    on_terminal = not to_file and shows_to_person()
    terminal = on_terminal and environment.get("TERM") != "dumb"
    color = terminal or (bool(environment.get("FORCE_COLOR")) and not to_file)
    view = View(
        width=max(20, _columns()),
        color=color and not environment.get("NO_COLOR"),
        unicode=to_file or writes_unicode(None if stream is None else stream.encoding),
        verbosity=shared.verbosity,
        source=shared.recording,
        indented=on_terminal,
    )
    return view._replace(**changes)


def writes_unicode(encoding: str | None) -> bool:
    """Return whether a stream of this encoding can hold every character."""
    return (encoding or "").lower().replace("-", "") == "utf8"


# -------------------------------------------------------------------------------- progress

#: Largest width of the bar, smallest label before the bar shrinks, and width of the time left.
_BAR_WIDTH, _LABEL_WIDTH, _LEFT_WIDTH = 20, 20, 21


def shows_to_person() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def is_watched() -> bool:
    """Return whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


# ---------------------------------------------------------------------------------- messages


def write_messages(
    report: Report,
    *,
    verbosity: int = 0,
    without: Collection[str] = (),
    source: str | None = None,
) -> None:
    """Write the error and the warnings of a report to stderr, but for those with these codes.

    The driver's library is named with -v, and warnings are left out with -q.
    """
    if verbosity < 1:
        without = {*without, DRIVER_LIBRARY}
    if report.error is not None and report.error.code not in without:
        steps = tuple(step_on_recording(step, source) for step in report.error.remedy)
        write_failure(report.error._replace(remedy=steps))
    if verbosity >= 0:
        write_warnings(notice for notice in report.warnings if notice.code not in without)


def write_message(text: str) -> None:
    """Write one line for the user to stderr."""
    write_stderr(_fitted(printable(f"gpucheck: {text}"), indent=2))


def write_failure(failure: Failure) -> None:
    """Write an error and its remedies."""
    write_message(failure.message)
    for step in failure.remedy:
        write_step(step)


def write_step(step: str) -> None:
    """Write what else there is to say of a message, or to do about it."""
    write_stderr(_fitted_step(f"  {printable(step)}"))


def _fitted(text: str, *, indent: int) -> str:
    """Return a message wrapped at its words if a terminal shows it; logs keep it on one line."""
    if not is_watched():
        return text
    import shutil
    import textwrap  # only for a person

    width = shutil.get_terminal_size((80, 24)).columns
    if len(text) <= width:
        return text
    lines = textwrap.wrap(
        *(protect_blanks(text, width - indent), max(20, width)),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return restore_blanks("\n".join(lines))


def _fitted_step(step: str) -> str:
    """Return a step wrapped as a message is; a command that does not fit is a line of its own."""
    fitted = _fitted(step, indent=4)
    if fitted == step:
        return step
    from gpucheck.report.blocks import command_of

    command = command_of(step)
    if command is None:
        return fitted
    before, _, after = step.partition(command)
    parts = [_fitted(before.rstrip(), indent=4), f"    {command}"]
    if after.strip(" ;"):
        parts.append(_fitted(f"    {after.strip(' ;')}", indent=4))
    return "\n".join(parts)


def write_warnings(notices: Iterable[Notice]) -> None:
    """Write the warnings, a line each."""
    for notice in notices:
        write_message(f"warning: {notice.message}")


# ---------------------------------------------------------------------------------- progress


def open_console() -> Console:
    """Return the console of stderr for what is drawn again while a command runs."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


@contextmanager
def status_line(*, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show a line that changes while the block runs; nothing if stderr is not a terminal."""
    if not (shown and is_watched()):
        yield lambda _: None
        return
    with open_console().status("looking") as status:
        yield lambda text: status.update(text)


def time_left(seconds: float) -> str:
    """Return the time left in words; every row is measured, even after the time is up."""
    if seconds < 0.5:
        return "time is up, finishing"
    if seconds < 100:
        return f"at most {seconds:.0f} s left"
    return f"at most {seconds / 60:.0f} min left"


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Progress]:
    """Show a bar while the block runs, or nothing if stderr is not a terminal."""
    if not (shown and is_watched()):
        yield lambda *_: None
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = open_console()
    # On a narrow terminal the bar shrinks first, then the label: always one line.
    bar_width = min(_BAR_WIDTH, max(1, console.width - _LABEL_WIDTH - _LEFT_WIDTH - 2))
    label_width = max(1, console.width - bar_width - _LEFT_WIDTH - 2)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=bar_width),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("preparing"[:label_width], total=1.0, left="")

        def report(label: str, fraction: float, seconds_left: float) -> None:
            left, shown = time_left(seconds_left), label[:label_width]
            bar.update(task, description=shown, completed=fraction, left=left, refresh=True)

        yield report
