"""`gpucheck list`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from gpucheck.cli.listing import list_gpus
from gpucheck.cli.options import with_shared_options
from gpucheck.cli.outlets import Prometheus, open_outlets
from gpucheck.cli.output import Shared


@with_shared_options
def command(
    *,
    visible: Annotated[
        bool, typer.Option("--visible", help="Leave out GPUs that CUDA does not see.")
    ] = False,
    processes: Annotated[
        bool, typer.Option("--processes", "-p", help="Show who uses the GPUs.")
    ] = False,
    topology: Annotated[
        bool, typer.Option("--topology", "-t", help="Show how the GPUs are connected.")
    ] = False,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", "-g", metavar="GPU", help="Only this index, UUID or PCI bus id."),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="Only GPUs that NAME uses.")
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="FIELD,...", help="Columns of the table or CSV."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="FIELD", help="Order by a field; -FIELD for descending."),
    ] = None,
    ask_driver: Annotated[
        bool, typer.Option("--ask-driver", help="Let the CUDA driver say what is visible.")
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch", "-w", metavar="[SECONDS]", help="Repeat until q or Ctrl-C [every 2 s]."
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Short for --watch 2.")] = False,
    prometheus: Prometheus = None,
    shared: Shared,
) -> int:
    """List the GPUs: their numbers, state, users and links."""
    outlets = open_outlets(prometheus=prometheus, github=False)
    with outlets.guarded("list"):
        return list_gpus(
            shared,
            visible=visible,
            processes=processes,
            topology=topology,
            gpu=gpu,
            user=user,
            select=select,
            sort=sort,
            ask_driver=ask_driver,
            watch=watch,
            live=live,
            also=None if prometheus is None else outlets.write,
        )
