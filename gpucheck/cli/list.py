"""`gpucheck list`: which GPUs there are, what each layer calls them, and who uses them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpucheck.cli.options import Shared, split_words, with_shared_options
from gpucheck.cli.output import deliver
from gpucheck.cli.watch import watch as watch_list
from gpucheck.core.inventory import ListRequest, take_inventory
from gpucheck.core.selection import keep, of_user, select_gpus, sort_gpus
from gpucheck.models.device import Inventory
from gpucheck.models.errors import WrongUseError
from gpucheck.models.report import Answer
from gpucheck.probes.interface import Probes
from gpucheck.render.columns import COLUMNS

FORMATS = ("table", "json", "csv")


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
        typer.Option("--watch", "-w", metavar="SECONDS", help="Repeat until Ctrl-C."),
    ] = None,
    shared: Shared,
) -> int:
    """List the GPUs: both numbers, state, processes, topology."""
    columns = _known(split_words(select), "--select") or None
    if columns and shared.format == "json":
        message = "--select chooses columns of the table or CSV; the JSON document is always whole."
        raise WrongUseError(code="select-with-json", message=message)
    order = _known((sort.removeprefix("-"),), "--sort")[0] if sort else None
    request = ListRequest(
        ask_driver=ask_driver,
        topology=topology,
        process_utilization=processes or shared.format == "json",
    )
    names = split_words(gpu)

    def find(probes: Probes) -> Answer:
        answer = take_inventory(request, probes)
        inventory = answer.result
        if not isinstance(inventory, Inventory) or not inventory.gpus:
            return answer
        inventory = of_user(select_gpus(inventory, names), user)
        if visible:
            inventory = keep(inventory, lambda item: item.visible is not False)
        if order is not None and sort is not None:
            value = COLUMNS[order].value
            inventory = sort_gpus(inventory, value, descending=sort.startswith("-"))
        return answer._replace(result=inventory)

    show: dict[str, Any] = {
        "formats": FORMATS,
        "columns": columns,
        "processes": processes or user is not None,
    }
    if watch is not None:
        return watch_list("list", shared, find, every_s=watch, **show)
    return deliver("list", shared, find, **show)


def _known(names: tuple[str, ...], option: str) -> tuple[str, ...]:
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        message = f"{option} does not know {unknown[0]!r}; the fields are {', '.join(COLUMNS)}."
        raise WrongUseError(code="unknown-field", message=message)
    return names
