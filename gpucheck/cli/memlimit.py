"""`gpucheck memlimit`: one amount turned into bytes per GPU and into each framework's setting."""

from __future__ import annotations

import dataclasses
import os
from typing import Annotated

import typer

from gpucheck.cli.options import with_shared_options
from gpucheck.cli.output import (
    Context,
    deliver,
    find_only,
    refuse_recording,
    save,
    write_stderr,
)
from gpucheck.cli.shared import Shared
from gpucheck.core.inventory import ListRequest, take_inventory
from gpucheck.core.memlimit import plan_limit
from gpucheck.models.device import Inventory
from gpucheck.models.memory import LimitedRun, MemoryLimit
from gpucheck.models.report import Answer
from gpucheck.models.units import parse_amount
from gpucheck.probes.interface import Probes
from gpucheck.render.base import printable


@with_shared_options
def command(
    *,
    ctx: typer.Context,
    amount: Annotated[
        str, typer.Argument(metavar="AMOUNT", help="30%, 0.3 (the same), 8GiB, 8GB or 512M.")
    ],
    shared: Shared,
) -> int:
    """Turn an amount into a GPU memory limit; after -- run under it."""
    context: Context = ctx.obj
    wanted = parse_amount(amount)

    def find(probes: Probes) -> Answer:
        answer = take_inventory(ListRequest(), probes)
        if answer.error is not None or not isinstance(answer.result, Inventory):
            return answer._replace(result=None)
        inherited = os.environ if shared.recording is None else probes.environment()
        plan = plan_limit(wanted, answer.result.gpus, environment=inherited)
        return answer._replace(result=plan)

    if context.child is None:
        return deliver("memlimit", shared, find)
    refuse_recording(shared)
    answer = find_only("memlimit", shared, find)
    if not isinstance(answer.result, MemoryLimit):
        raise AssertionError  # pragma: no cover - find_only raises where there is no result
    return _run(context, answer, answer.result, shared)


def _run(context: Context, answer: Answer, plan: MemoryLimit, shared: Shared) -> int:
    from gpucheck.core.launch import supervise

    for mechanism in plan.mechanisms:
        if mechanism.applies and mechanism.setting:
            write_stderr(printable(f"gpucheck: {mechanism.framework}: {mechanism.setting}"))
    environment = {**os.environ, **plan.environment}
    code = supervise(context.child or (), environment, keep_descriptors=context.keep)
    # Nobody watched the memory: what was really used stays unknown, and the document says so.
    run = LimitedRun(exit_code=code, peak_bytes=None, exceeded=None, action=None)
    if shared.output is not None:
        save("memlimit", shared, answer._replace(result=dataclasses.replace(plan, run=run)))
    return code
