"""`gpucheck detect --pid`: which GPU a running program uses, or why it uses none."""

from __future__ import annotations

from gpucheck.cli.output import Shared, deliver, machine
from gpucheck.cli.terminal import status_line
from gpucheck.report.errors import WrongUseError


def explain(shared: Shared, pid: int) -> int:
    """Answer about one process.

    Raises:
        WrongUseError: there is no such process.
    """
    if pid < 1:
        message = f"--pid takes the id of a process, 1 or more, not {pid}."
        raise WrongUseError(code="bad-pid", message=message)
    from gpucheck.detect.process import explain_process

    with machine("process", shared) as probes, status_line(shown=shared.verbosity >= 0):
        answer = explain_process(probes, pid)
    return deliver("process", shared, answer, probes.time())
