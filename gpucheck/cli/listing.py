"""Execution of `gpucheck list`, once its options are parsed."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpucheck.cli.output import deliver, machine
from gpucheck.cli.shared import Shared, split_words
from gpucheck.drivers.interface import Probes
from gpucheck.inventory.columns import COLUMNS
from gpucheck.inventory.inventory import (
    ListRequest,
    judge_list,
    keep,
    of_user,
    select_gpus,
    sort_gpus,
    take_inventory,
)
from gpucheck.inventory.model import Inventory
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import WrongUseError


class ListOptions(NamedTuple):
    """The options of `gpucheck list`, with their defaults."""

    visible: bool = False
    processes: bool = False
    topology: bool = False
    gpu: tuple[str, ...] = ()
    user: str | None = None
    select: tuple[str, ...] = ()
    sort: str | None = None
    ask_driver: bool = False
    watch: float | None = None


def list_gpus(options: ListOptions, shared: Shared) -> int:
    """Show the list and return the exit code.

    Raises:
        WrongUseError: an unknown field, GPU or format, or options that exclude each other.
    """
    columns = _known(split_words(options.select), "--select") or None
    if columns and shared.format == "json":
        message = "--select chooses columns of the table or CSV; the JSON document is always whole."
        raise WrongUseError(code="select-with-json", message=message)
    order = None
    if options.sort is not None:
        (order,) = _known((options.sort.removeprefix("-"),), "--sort")
    request = ListRequest(
        ask_driver=options.ask_driver,
        topology=options.topology,
        process_utilization=options.processes or shared.format == "json",
    )

    def read(probes: Probes) -> Answer:
        return _choose(judge_list(take_inventory(request, probes)), options, order)

    show: dict[str, Any] = {
        "columns": columns,
        "processes": options.processes or options.user is not None,
    }
    if options.watch is not None:
        from gpucheck.cli.watch import watch

        return watch("list", shared, read, every_s=options.watch, **show)
    with machine("list", shared) as probes:
        answer = read(probes)
    return deliver("list", shared, answer, probes.time(), **show)


def _choose(answer: Answer, options: ListOptions, order: str | None) -> Answer:
    """Filter and order the GPUs as requested; an answer without GPUs stays as it is."""
    inventory = answer.result
    if not isinstance(inventory, Inventory) or not inventory.gpus:
        return answer
    inventory = of_user(select_gpus(inventory, split_words(options.gpu)), options.user)
    if options.visible:
        inventory = keep(inventory, lambda item: item.visible is not False)
    if order is not None and options.sort is not None:
        value = COLUMNS[order].value
        inventory = sort_gpus(inventory, value, descending=options.sort.startswith("-"))
    return answer._replace(result=inventory)


def _known(names: tuple[str, ...], option: str) -> tuple[str, ...]:
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        message = f"{option} does not know {unknown[0]!r}; the fields are {', '.join(COLUMNS)}."
        raise WrongUseError(code="unknown-field", message=message)
    return names
