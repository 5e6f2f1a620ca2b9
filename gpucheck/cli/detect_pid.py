"""`gpucheck detect --pid`: which GPU a running program uses, or why it uses none."""

from __future__ import annotations

from gpucheck.cli.output import Shared, deliver, machine
from gpucheck.cli.terminal import status_line
from gpucheck.report.errors import WrongUseError

#: The kernel's ids are C's signed int; real ones end far below (pid_max).
MOST_PID = (1 << 31) - 1


def explain(shared: Shared, pid: int) -> int:
    """Answer about one process.

    Raises:
        WrongUseError: there is no such process.
    """
    from gpucheck.detect.process import explain_process

    with machine("process", shared) as probes, status_line(shown=shared.verbosity >= 0):
        if not 1 <= pid <= MOST_PID:
            message = f"--pid takes the id of a process, from 1 to {MOST_PID}, not {pid}."
            raise WrongUseError(code="bad-pid", message=message)
        answer = explain_process(probes, pid)
    return deliver("process", shared, answer, probes.time())
