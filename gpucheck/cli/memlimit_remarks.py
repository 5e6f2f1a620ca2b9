"""Messages of `gpucheck memlimit` on stderr: before a command, after it, and with exports."""

from __future__ import annotations

import os

from gpucheck.cli.streams import write_stderr
from gpucheck.memlimit.model import LimitedRun, MemoryLimit
from gpucheck.report.envelope import Answer
from gpucheck.report.text import printable


def warn(text: str) -> None:
    """Write a warning."""
    write_stderr(printable(f"gpucheck: warning: {text}"))


def say_what_variables_miss(answer: Answer) -> None:
    """Name the frameworks that the exported variables alone do not limit."""
    from gpucheck.memlimit.holders import HOOK, holders

    if not isinstance(answer.result, MemoryLimit):
        return
    missed = [each.framework for each in holders(answer.result) if each.by == HOOK]
    if missed:
        _remark(f"no variable limits {', '.join(missed)}: use -- COMMAND, or see --code")


def say_before(plan: MemoryLimit, *, details: bool) -> None:
    """Report the limit and its mechanisms in one line; with -v every variable too."""
    from gpucheck.memlimit.holders import HOOK, holders, together
    from gpucheck.memlimit.hooking import outer_limit
    from gpucheck.report.unit_text import binary_bytes

    sizes = {gpu.limit_bytes for gpu in plan.gpus if gpu.limit_bytes is not None}
    what = " or ".join(binary_bytes(size) for size in sorted(sizes)) or plan.request.text
    where = "1 GPU" if len(plan.gpus) == 1 else f"each of {len(plan.gpus)} GPUs"
    found = holders(plan)
    # It is unknown which Python a script starts, and with which options.
    unknown = plan.software is None or plan.software.interpreter is None
    reach = " in every Python that reads PYTHONPATH" if unknown else ""
    held = "; ".join(
        f"{names} by {by}{reach if by.endswith(HOOK) else ''}" for names, by in together(found)
    )
    held = held or "nothing limits it"
    _remark(f"{what} on {where}: {held}")
    outer = outer_limit(plan, os.environ)
    if outer is not None:
        _remark(f"an outer memlimit stays in force: {binary_bytes(outer)}")
    for each in found:
        if each.is_warning:
            fact = " is not limited" if each.by is None else ""
            warn(f"{each.framework}{fact}: {each.remark}")
    if details:
        for name, value in plan.environment.items():
            _remark(f"{name}={value}")


def _remark(text: str) -> None:
    write_stderr(printable(f"gpucheck: {text}"))


def say_after(run: LimitedRun) -> None:
    """Report the peak on each GPU, or why it is unknown."""
    from gpucheck.memlimit.limited_run import peak_lines

    for line in peak_lines(run):
        _remark(line)
