"""Standard streams: safe writing to stdout and stderr, and what they can show."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.text import View

if TYPE_CHECKING:
    from typing import TextIO

    from gpucheck.cli.shared import Shared

STDOUT = "standard output"
#: Source: GitHub's and Azure's runner, ActionCommand.cs and CommandStringConvertor.cs.
_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#(?:vso)?\[)", re.M)


def unwritable(place: str, problem: str) -> WrongUseError:
    """Return the error for a place that a report cannot be written to."""
    return WrongUseError(
        code="output-not-writable",
        message=f"The report cannot be written to {place}: {problem}.",
        remedy=("Name a file in a directory that you may write to.",),
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
    return _COMMAND.sub(lambda found: f"{found[1] or ''}\\u{ord(found[0].lstrip()[0]):04x}", text)


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


def view_for(shared: Shared, **changes: Any) -> View:
    """Return what the report's destination can show."""
    import shutil

    to_file = shared.output is not None
    environment = os.environ
    stream: TextIO | None = sys.stdout
    on_terminal = not to_file and stream is not None and stream.isatty()
    terminal = on_terminal and environment.get("TERM") != "dumb"
    color = terminal or (bool(environment.get("FORCE_COLOR")) and not to_file)
    view = View(
        width=max(20, shutil.get_terminal_size((80, 24)).columns),
        color=color and not environment.get("NO_COLOR"),
        unicode=to_file or _writes_unicode(stream),
        verbosity=shared.verbosity,
    )
    return view._replace(**changes)


def _writes_unicode(stream: TextIO | None) -> bool:
    encoding = stream.encoding if stream is not None else None
    return (encoding or "").lower().replace("-", "") == "utf8"
