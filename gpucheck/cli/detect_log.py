"""`gpucheck detect --log`: the first cause in a log, whether it is still there, and what to do."""

from __future__ import annotations

from collections.abc import Callable

from gpucheck.cli.output import Shared, deliver, machine
from gpucheck.cli.terminal import status_line
from gpucheck.detect.log import Scan, check_log, scan
from gpucheck.detect.machine import ignore_progress
from gpucheck.drivers.host.files import STDIN, open_log
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import printable


def explain_log(shared: Shared, name: str) -> int:
    """Answer about one log.

    Raises:
        WrongUseError: it cannot be read, or is no text.
    """
    quiet = shared.verbosity < 0
    with machine("log", shared) as probes, status_line(shown=not quiet) as tell:
        answer = check_log(name, read_log(name, tell), probes, tell)
    return deliver("log", shared, answer, probes.time())


def read_log(
    name: str, tell: Callable[[str], None] = ignore_progress, *, skip_bytes: int = 0
) -> Scan:
    """Return what the rules find in a log after its first bytes.

    Raises:
        WrongUseError: it cannot be read, or is no text.
    """
    try:
        with open_log(name) as file:
            return scan(file, tell, skip_bytes=skip_bytes)
    except (OSError, EOFError) as error:
        shown = "on standard input" if name == STDIN else printable(name) or "''"
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise WrongUseError(
            code="log-unreadable", message=f"The log {shown} cannot be read: {reason}."
        ) from None
