"""Filters and order of a GPU list, as the user asked for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gpucheck.inventory.model import Gpu, Inventory, Topology
from gpucheck.report.errors import BadAnswerError, WrongUseError

_BUS_ID = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.ASCII | re.I)


def select_gpus(inventory: Inventory, wanted: Sequence[str]) -> Inventory:
    """Keep the GPUs named by NVML index, UUID (or the beginning of one) or PCI bus id.

    Raises:
        WrongUseError: a name has none of these forms.
        BadAnswerError: no GPU has that name.
    """
    if not wanted or not inventory.gpus:
        return inventory
    kept = {gpu.index for name in wanted for gpu in _named(name, inventory.gpus)}
    return keep(inventory, lambda gpu: gpu.index in kept)


def _named(name: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    folded = name.casefold()
    if name.isascii() and name.isdigit():
        # As text: a number may have more digits than int() takes.
        found = [gpu for gpu in gpus if str(gpu.index) == (name.lstrip("0") or "0")]
    elif folded.startswith(("gpu-", "mig-")):
        found = [gpu for gpu in gpus if any(u.casefold().startswith(folded) for u in _uuids(gpu))]
    elif _BUS_ID.fullmatch(name):
        domain, _, short = name.lower().rpartition(":")[0].rpartition(":")
        full = f"{int(domain or '0', 16):04x}:{short}:{name.lower().rpartition(':')[2]}"
        found = [gpu for gpu in gpus if gpu.pci_bus_id == full]
    else:
        message = f"{name!r} names no GPU: give its index, its UUID or its PCI bus id."
        raise WrongUseError(code="bad-gpu-name", message=message)
    if not found:
        indices = ", ".join(str(gpu.index) for gpu in gpus)
        message = f"There is no GPU {name!r} here; the indices are {indices}."
        raise BadAnswerError(code="no-such-gpu", message=message)
    return found


def _uuids(gpu: Gpu) -> list[str]:
    return [uuid for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig.instances)) if uuid]


def of_user(inventory: Inventory, user: str | None) -> Inventory:
    """Keep the GPUs on which this user runs something, with only that user's processes."""
    if user is None:
        return inventory
    gpus = (
        gpu._replace(processes=tuple(p for p in gpu.processes if p.user == user))
        for gpu in inventory.gpus
    )
    return keep(inventory._replace(gpus=tuple(gpus)), lambda gpu: bool(gpu.processes))


def keep(inventory: Inventory, wanted: Callable[[Gpu], bool]) -> Inventory:
    """Keep the GPUs for which `wanted` holds, and the links among them."""
    gpus = tuple(gpu for gpu in inventory.gpus if wanted(gpu))
    indices = {gpu.index for gpu in gpus}
    topology = inventory.topology
    if topology is not None:
        links = tuple(x for x in topology.links if x.from_ in indices and x.to in indices)
        topology = Topology(links=links)
    return inventory._replace(gpus=gpus, topology=topology)


def sort_gpus(
    inventory: Inventory,
    value: Callable[[Gpu], str | int | float | bool | None],
    *,
    descending: bool,
) -> Inventory:
    """Order the GPUs by a value; ties keep their order, and GPUs without the value come last."""
    present = [gpu for gpu in inventory.gpus if value(gpu) is not None]
    absent = [gpu for gpu in inventory.gpus if value(gpu) is None]
    ordered = sorted(present, key=value, reverse=descending)  # type: ignore[arg-type]
    return inventory._replace(gpus=(*ordered, *absent))
