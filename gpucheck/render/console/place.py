"""`gpucheck place` on a terminal: what each device string means, under every name it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpucheck.models.placement import PlacedDevice, Placement
from gpucheck.models.report import Report
from gpucheck.render.base import View, printable

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
    """Return the whole report as one renderable."""
    from rich.console import Group

    placement = report.result
    if not isinstance(placement, Placement):
        raise TypeError(type(placement).__name__)
    parts: list[RenderableType] = []
    for device in placement.devices:
        parts.append(_title(device))
        parts.append(_facts(device))
    if view.verbosity >= 0:
        parts.extend(_advice(placement))
    return Group(*parts)


def _title(device: PlacedDevice) -> Text:
    from rich.text import Text

    spec = printable(device.spec) or "(empty)"
    verb = "is replaced" if device.soft else "is"
    what = _card(device) if device.kind == "GPU" else "the CPU"
    joint = " by " if device.soft else " "
    style = "bold yellow" if device.soft else "bold green"
    return Text(f"{spec} {verb}{joint}{what}", style=style, overflow="fold")


def _card(device: PlacedDevice) -> str:
    return printable(device.name or f"GPU {device.index}")


def _facts(device: PlacedDevice) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _rows(device):
        table.add_row(Text(f"  {label}"), Text(printable(value), overflow="fold"))
    return table


def _rows(device: PlacedDevice) -> Iterator[tuple[str, str]]:
    yield "why", device.reason
    yield "full", device.resolved
    if device.uuid is not None:
        yield "UUID", device.uuid
    if device.pci_bus_id is not None:
        yield "bus", device.pci_bus_id
    yield "names", _names(device)


def _names(device: PlacedDevice) -> str:
    """Return each name once, with the libraries that use it."""
    users: dict[str, list[str]] = {}
    for library, title in LIBRARIES.items():
        if library in device.names:
            users.setdefault(device.names[library], []).append(title)
    return ", ".join(f"{name} ({', '.join(titles)})" for name, titles in users.items())


def _advice(placement: Placement) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    if placement.environment:
        purpose = "these GPUs and no other" if _gpus(placement) else "no GPU"
        yield Text(f"To show a program {purpose}:", style="dim")
    for name, value in placement.environment.items():
        pair = Text(printable(f"{name}={value}"), overflow="fold")
        yield Padding(pair, (0, 0, 0, 2))
    if _gpus(placement) and not any(claim.held for claim in placement.claims):
        yield Text("Nothing is held: another program may use them too.", style="dim")


def _gpus(placement: Placement) -> bool:
    return any(device.kind == "GPU" for device in placement.devices)
