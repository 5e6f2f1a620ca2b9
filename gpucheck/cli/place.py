"""`gpucheck place`: resolve device names or choose GPUs, and run a command on just those."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpucheck.cli.options import with_shared_options
from gpucheck.cli.shared import Shared


@with_shared_options
def command(
    *,
    ctx: typer.Context,
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DEVICE]...", help="/gpu:0, /cpu:0, cuda:1 or 2; several are towers."
        ),
    ] = None,
    soft: Annotated[
        bool, typer.Option("--soft", help="Take another device if this one does not exist.")
    ] = False,
    run: Annotated[
        bool, typer.Option("--run", help="Run the operations where they are placed.")
    ] = False,
    graph: Annotated[
        Path | None,
        typer.Option("--graph", metavar="FILE", help="Place the operations of this TOML file."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", help="Choose N GPUs that fit.")
    ] = None,
    min_free: Annotated[
        str | None,
        typer.Option("--min-free", metavar="SIZE", help="Least free memory: 8GiB or 30%."),
    ] = None,
    max_utilization: Annotated[
        float | None,
        typer.Option("--max-utilization", metavar="PCT", help="Highest load, 0 to 100."),
    ] = None,
    min_compute_capability: Annotated[
        str | None,
        typer.Option("--min-compute-capability", metavar="X.Y", help="Lowest one, such as 8.0."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="REGEX", help="Only names that match this.")
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="GPU,...", help="Leave out: index, UUID or bus id."),
    ] = None,
    prefer: Annotated[
        str,
        typer.Option(
            "--prefer",
            metavar="WHAT",
            help="Best first: free-memory, idle, cool, numa (near our CPUs) or nvlink.",
        ),
    ] = "free-memory",
    share: Annotated[
        int, typer.Option("--share", metavar="N", help="Share each GPU among up to N claims.")
    ] = 1,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until they are free, first come first served.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Wait no longer than this.")
    ] = None,
    claim: Annotated[
        bool | None,
        typer.Option(
            "--claim/--no-claim",
            help="Hold the GPUs while the command runs [default: unless a scheduler gave them].",
        ),
    ] = None,
    claims: Annotated[
        bool, typer.Option("--claims", help="Show who holds which GPU, and nothing else.")
    ] = False,
    shared: Shared,
) -> int:
    """Show which device a program gets; after -- run it there."""
    from gpucheck.cli.place_options import PlaceOptions, explicit_options
    from gpucheck.cli.placing import place

    source = ctx.get_parameter_source("format_")
    options = PlaceOptions(
        specs=tuple(specs or ()),
        soft=soft,
        run=run,
        graph=graph,
        count=count,
        min_free=min_free,
        max_utilization=max_utilization,
        min_compute_capability=min_compute_capability,
        name=name,
        exclude=tuple(exclude or ()),
        prefer=prefer,
        share=share,
        wait=wait,
        timeout_s=timeout,
        claim=claim,
        claims=claims,
        format_given=source is not None and source.name != "DEFAULT",
        explicit=explicit_options(ctx),
    )
    return place(options, shared, ctx.obj)
