"""`gpucheck place` on a terminal: what each device string means, or which GPUs were chosen."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpucheck.models.placement import Candidate, PlacedDevice, Placement
from gpucheck.models.report import Report
from gpucheck.render.base import View, printable
from gpucheck.render.console.operations import indented, mapping_line, operations

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: How the libraries of `PlacedDevice.names` write themselves, in the order they are shown.
LIBRARIES = {
    "tensorflow": "TensorFlow",
    "pytorch": "PyTorch",
    "theano": "Theano",
    "cupy": "CuPy",
    "jax": "JAX",
    "nvidia-smi": "nvidia-smi",
}


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable; `-v` tells all of every device and operation."""
    from rich.console import Group
    from rich.text import Text

    placement = report.result
    if not isinstance(placement, Placement):
        raise TypeError(type(placement).__name__)
    more = view.verbosity > 0
    parts: list[RenderableType] = []
    if placement.candidates:
        parts.append(_candidates(placement, more=more))
    if more or not placement.candidates:
        for device in placement.devices:
            parts.extend(_device(device, more=more or placement.ran))
    parts.extend(operations(placement, more=more))
    parts.extend(Text(printable(advice), style="yellow") for advice in placement.advice)
    if view.verbosity >= 0:
        parts.extend(_next_steps(placement))
    return Group(*parts)


# ---------------------------------------------------------------------------------- choosing


def _candidates(placement: Placement, *, more: bool) -> RenderableType:
    """Show why each card was or was not eligible, the chosen ones first."""
    from rich.table import Table
    from rich.text import Text

    chosen = {device.uuid for device in placement.devices}
    ranks = {"chosen": 0, "fits": 1, "no": 2}
    styles = {"chosen": "bold green", "fits": "", "no": "dim"}

    def verdict(item: Candidate) -> str:
        return "chosen" if item.uuid in chosen else "fits" if item.eligible else "no"

    table = Table.grid(padding=(0, 1))
    for _ in range(4 if more else 3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for item in sorted(placement.candidates, key=lambda item: ranks[verdict(item)]):
        style = styles[verdict(item)]
        cells = [verdict(item), f"GPU {item.index}", _kind(item)]
        cells += [item.uuid] if more else []
        table.add_row(*(Text(printable(cell), style=style) for cell in (*cells, item.reason)))
    return table


def _kind(item: Candidate) -> str:
    """Return what tells the candidates of one machine apart."""
    return item.uuid if item.uuid.startswith("MIG-") else item.name or ""


# ---------------------------------------------------------------------------------- devices


def _device(device: PlacedDevice, *, more: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    spec = printable(device.spec) or "(any device)"
    card = printable(device.name or f"GPU {device.index}") if device.kind == "GPU" else "the CPU"
    verb = "is replaced by" if device.soft else "is"
    style = "bold yellow" if device.soft else "bold green"
    yield Text(f"{spec} {verb} {card}", style=style, overflow="fold")
    if device.soft or device.kind == "GPU":
        yield indented(Text(printable(device.reason), overflow="fold"))
    if device.uuid is not None:
        bus = "" if device.pci_bus_id is None else f" at {device.pci_bus_id}"
        yield as_it_is(f"  {device.uuid}{bus}")
    if more:
        yield as_it_is(f"  {mapping_line(device)}")
    yield indented(Text(printable(_names(device)), style="dim", overflow="fold"))


def _names(device: PlacedDevice) -> str:
    """Return each library with its name for the device, those that agree together."""
    users: dict[str, list[str]] = {}
    for library, title in LIBRARIES.items():
        if library in device.names:
            users.setdefault(device.names[library], []).append(title)
    return ", ".join(f"{'/'.join(titles)} {name}" for name, titles in users.items())


# ---------------------------------------------------------------------------------- what next


def _next_steps(placement: Placement) -> Iterator[RenderableType]:
    from rich.text import Text

    has_gpus = any(device.kind == "GPU" for device in placement.devices)
    if placement.environment:
        purpose = "these GPUs and no other" if has_gpus else "no GPU"
        yield Text(f"To show a program {purpose}, put before it:", style="dim")
        pairs = (
            f"{name}={shlex.quote(value) if value else ''}"
            for name, value in placement.environment.items()
        )
        yield as_it_is(f"  {' '.join(pairs)}")
    if has_gpus and not any(claim.held for claim in placement.claims):
        hint = "Nothing is held: others may use them too, unless the command follows after --."
        yield Text(hint, style="dim")


def as_it_is(text: str) -> Text:
    """Return a line that is made to be copied: never broken, whatever the width."""
    from rich.text import Text

    return Text(printable(text), no_wrap=True, overflow="ignore")
