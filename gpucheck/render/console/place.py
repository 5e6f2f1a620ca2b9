"""`gpucheck place` on a terminal: what each device string means, under every name it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpucheck.models.placement import PlacedDevice, Placement, Value
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
    parts.extend(_candidates(placement))
    parts.extend(_operations(placement))
    if view.verbosity >= 0:
        parts.extend(_advice(placement))
    return Group(*parts)


def _candidates(placement: Placement) -> Iterator[RenderableType]:
    """Show why each card was or was not eligible."""
    from rich.text import Text

    chosen = {device.uuid for device in placement.devices}
    if placement.candidates:
        yield Text("Candidates:", style="dim")
    for item in placement.candidates:
        verdict = "chosen" if item.uuid in chosen else "fits" if item.eligible else "no"
        style = "green" if item.uuid in chosen else "" if item.eligible else "yellow"
        line = f"  GPU {item.index} {item.uuid} {verdict}: {item.reason}"
        yield Text(printable(line), style=style, overflow="fold")


def _operations(placement: Placement) -> Iterator[RenderableType]:
    """Show the operations in the form of TensorFlow's log, what is copied, and the value."""
    from rich.text import Text

    if placement.ops:
        yield Text("Operations:", style="dim")
    for op in placement.ops:
        yield Text(printable(f"  {op.name}: ({op.op}): {op.device}"), overflow="fold")
    if placement.transfers:
        yield Text("Copies:", style="dim")
    for move in placement.transfers:
        time = "" if move.seconds is None else f", {_time(move.seconds)}"
        way = f"{_short(move.from_)} -> {_short(move.to)}"
        line = f"  {move.what}: {way}, {move.bytes} bytes{time}"
        yield Text(printable(line), overflow="fold")
    for advice in placement.advice:
        yield Text(printable(f"  {advice}"), style="yellow", overflow="fold")
    if placement.value is not None:
        yield Text(f"Value: {_value(placement.value)}", style="bold", overflow="fold")
    elif placement.ops:
        yield Text("Nothing was run: --run does that.", style="dim")


def _short(resolved: str) -> str:
    return f"/{resolved.rpartition('/')[2]}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _value(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return f"{value:g}"


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
