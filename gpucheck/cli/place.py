"""`gpucheck place`: which card a device string means here, and a command run on just that card."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from gpucheck.cli.options import with_shared_options
from gpucheck.cli.output import Context, deliver, find_only, refuse_recording, write_stderr
from gpucheck.cli.shared import Shared
from gpucheck.core.inventory import ListRequest, take_inventory
from gpucheck.core.placement import place_devices
from gpucheck.models.device import Inventory
from gpucheck.models.errors import ExitCode
from gpucheck.models.placement import Placement
from gpucheck.models.report import Answer
from gpucheck.probes.interface import Probes
from gpucheck.render.base import printable


@with_shared_options
def command(
    *,
    ctx: typer.Context,
    specs: Annotated[
        list[str],
        typer.Argument(
            metavar="DEVICE...", help="/gpu:0, /cpu:0, cuda:1 or 2; several are towers."
        ),
    ],
    soft: Annotated[
        bool, typer.Option("--soft", help="Take another device if this one does not exist.")
    ] = False,
    shared: Shared,
) -> int:
    """Say which device a program gets; after -- run one on it."""
    context: Context = ctx.obj

    def find(probes: Probes) -> Answer:
        answer = take_inventory(ListRequest(), probes)
        if answer.exit_code is ExitCode.INCONCLUSIVE or not isinstance(answer.result, Inventory):
            return answer._replace(result=None)
        # A machine without GPUs still has its CPU: whether that is enough, the string decides.
        placement = place_devices(specs, answer.result.gpus, soft=soft)
        return answer._replace(result=placement, exit_code=ExitCode.OK, error=None)

    if context.child is None:
        return deliver("place", shared, find)
    refuse_recording(shared)
    placement = find_only("place", shared, find).result
    if isinstance(placement, Placement):
        _run(context, placement)
    raise AssertionError  # pragma: no cover - find_only raises where there is no result


def _run(context: Context, placement: Placement) -> None:
    from gpucheck.core.launch import replace

    for device in placement.devices:
        card = f" ({device.name}, {device.uuid})" if device.uuid else ""
        write_stderr(printable(f"gpucheck: {device.spec} is {device.resolved}{card}"))
    environment = {**os.environ, **placement.environment}
    replace(context.child or (), environment, keep_descriptors=context.keep)
