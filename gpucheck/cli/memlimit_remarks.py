"""What `gpucheck memlimit` says on stderr: before a command, after it, and beside its exports."""

from __future__ import annotations

import os

from gpucheck.cli.streams import write_stderr
from gpucheck.models.memory import LimitedRun, MemoryLimit
from gpucheck.models.report import Answer
from gpucheck.render.base import printable


def warn(text: str) -> None:
    """Write a warning."""
    write_stderr(printable(f"gpucheck: warning: {text}"))


def say_what_variables_miss(answer: Answer) -> None:
    """Name those that the exports alone do not hold, for whoever evaluates them."""
    from gpucheck.render.holders import HOOK, holders

    if not isinstance(answer.result, MemoryLimit):
        return
    missed = [each.framework for each in holders(answer.result) if each.by == HOOK]
    if missed:
        _remark(f"no variable holds {', '.join(missed)}: run it with -- COMMAND, or see --code")


def say_before(plan: MemoryLimit, *, details: bool) -> None:
    """Say the limit and by what it is held, in a line; with -v every variable too."""
    from gpucheck.core.memlimit.hooking import outer_limit
    from gpucheck.render.holders import HOOK, holders, together
    from gpucheck.render.units import binary_bytes

    sizes = {gpu.limit_bytes for gpu in plan.gpus if gpu.limit_bytes is not None}
    what = " or ".join(binary_bytes(size) for size in sorted(sizes)) or plan.request.text
    where = "1 GPU" if len(plan.gpus) == 1 else f"each of {len(plan.gpus)} GPUs"
    found = holders(plan)
    # Which Python a script starts, and with which options, is not known before.
    unknown = plan.software is None or plan.software.interpreter is None
    reach = " in every Python that reads PYTHONPATH" if unknown else ""
    held = "; ".join(
        f"{names} by {by}{reach if by.endswith(HOOK) else ''}" for names, by in together(found)
    )
    held = held or "nothing holds it"
    _remark(f"{what} on {where}: {held}")
    outer = outer_limit(plan, os.environ)
    if outer is not None:
        _remark(f"an outer memlimit stays: {binary_bytes(outer)}")
    for each in found:
        if each.is_warning:
            fact = " is not held" if each.by is None else ""
            warn(f"{each.framework}{fact}: {each.remark}")
    if details:
        for name, value in plan.environment.items():
            _remark(f"{name}={value}")


def _remark(text: str) -> None:
    write_stderr(printable(f"gpucheck: {text}"))


def say_after(run: LimitedRun) -> None:
    """Say the peak on each GPU, or why it is not known."""
    from gpucheck.render.limited_run import peak_lines

    for line in peak_lines(run):
        _remark(line)
