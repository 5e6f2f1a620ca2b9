"""`gpucheck list`: the GPUs once, or again and again with --watch.

It is imported without the parser where the line has flags only (`options.read_flags`).
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.cli.commands import FOR_PEOPLE
from gpucheck.cli.options import Shared
from gpucheck.cli.output import deliver, machine
from gpucheck.drivers.interface import Probes
from gpucheck.inventory.columns import ALIASES, COLUMNS
from gpucheck.inventory.inventory import (
    judge_list,
    keep,
    keep_user,
    select_gpus,
    sort_gpus,
    take_inventory,
)
from gpucheck.inventory.model import Inventory
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import WrongUseError
from gpucheck.report.options import flag, option, words
from gpucheck.report.text import did_you_mean


def command(
    *,
    gpu: tuple[str, ...] = words(
        "--gpu, -g GPU", "Only this index, UUID or PCI bus id.", group="Which GPUs"
    ),
    visible: bool = flag("--visible", "Leave out GPUs that CUDA does not see."),
    user: str | None = option("--user NAME", "Only GPUs that NAME uses."),
    processes: bool = flag("--processes, -p", "Show who uses the GPUs.", group="What to show"),
    topology: bool = flag("--topology, -t", "Show how the GPUs are connected."),
    select: tuple[str, ...] = words("--select FIELD,...", "Columns of the table or CSV."),
    sort: str | None = option("--sort FIELD", "Order by a field; -FIELD for descending."),
    watch: float | None = option(
        "--watch, -w SECONDS", "Show it again every so many seconds, until q or Ctrl-C."
    ),
    ask_driver: bool = flag("--ask-driver", "Let the CUDA driver say what is visible."),
    shared: Shared,
) -> int:
    """List the GPUs: their numbers, state, users and links."""
    columns = known_fields(select, "--select") or None
    if columns and shared.format == "json":
        message = "--select chooses columns of the table or CSV; the JSON document is always whole."
        raise WrongUseError(code="select-with-json", message=message)
    order = None if sort is None else known_fields((sort.removeprefix("-"),), "--sort")[0]

    document = shared.format in ("json", "jsonl")
    # A page is for people too; beside a document it has what that has.
    page = shared.outlets.html is not None and not document
    shown = shared.format in FOR_PEOPLE or page
    in_full = (shown and not topology) or (processes and document)
    utilization = processes or shared.format == "json"

    def read(probes: Probes) -> Answer:
        """List the GPUs as requested; an answer without GPUs stays as it is."""
        answer = judge_list(
            take_inventory(
                probes,
                ask_driver=ask_driver,
                topology=topology,
                process_utilization=utilization,
            )
        )
        inventory = answer.result
        if not isinstance(inventory, Inventory) or not inventory.gpus:
            return answer
        if in_full:
            from gpucheck.inventory.memory import find_unowned

            inventory = find_unowned(inventory, probes)
        inventory = keep_user(select_gpus(inventory, gpu), user)
        if visible:
            inventory = keep(inventory, lambda item: item.visible is not False)
        if sort is not None and order is not None:
            inventory = sort_gpus(inventory, COLUMNS[order].value, descending=sort.startswith("-"))
        # Health takes half as many questions again; a plain document is for who asks often.
        if in_full:
            from gpucheck.drivers.evidence import HealthReading
            from gpucheck.inventory.condition import read_condition, with_troubles

            # A driver that did not answer is not waited for once more.
            answered = answer.error is None
            inventory = (
                read_condition(inventory, probes)
                if answered
                else with_troubles(inventory, HealthReading())
            )
        return answer._replace(result=inventory)

    show = {"columns": columns, "processes": processes or user is not None}
    if watch is not None:
        from gpucheck.cli.list_watch import watch_gpus

        return watch_gpus(read, shared, every_s=watch, show=show)
    with machine("list", shared) as probes:
        answer = read(probes)
    return deliver("list", shared, answer, probes.time(), **show)


def known_fields(names: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the fields of these names, which may be ordinary ones: "mem", "temp"."""
    unknown = [name for name in names if name not in COLUMNS and name not in ALIASES]
    if unknown:
        suggestion = did_you_mean(unknown[0], [*COLUMNS, *ALIASES])
        message = f"{option} does not know {unknown[0]!r}. {suggestion}".strip()
        fields = f"It takes {', '.join(ALIASES)}, and the fields of a GPU in --json."
        raise WrongUseError(code="unknown-field", message=message, remedy=(fields,))
    return tuple(ALIASES.get(name, name) for name in names)
