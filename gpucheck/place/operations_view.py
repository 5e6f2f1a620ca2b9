"""Terminal view of the operations of a placed graph: planned, or run and timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpucheck.place.model import PlacedDevice, Placement, Transfer, Value
from gpucheck.report.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


def operations(placement: Placement, *, more: bool) -> Iterator[RenderableType]:
    """Show the device of each operation, the copies and the value.

    A run is shown as TensorFlow logs it; a plan has a line for each device, unless `more` is set.
    """
    from rich.text import Text

    if not placement.ops:
        return
    yield Text("Operations:" if placement.ran else "Planned, not run (--run does that):")
    if placement.ran or more:
        yield from _log(placement)
    else:
        yield from _by_device(placement)
    yield from _copies(placement.transfers)
    if placement.value is not None:
        yield Text(f"Value: {_value(placement.value)}", style="bold", overflow="fold")


def indented(text: Text) -> RenderableType:
    """Return a text whose lines all begin two columns to the right."""
    from rich.padding import Padding

    return Padding(text, (0, 0, 0, 2))


def mapping_line(device: PlacedDevice) -> str:
    """Return a device as TensorFlow's log maps it to a card."""
    if device.kind != "GPU":
        return device.resolved
    facts = {"device": device.cuda_index, "name": device.name, "pci bus id": device.pci_bus_id}
    known = (f"{label}: {value}" for label, value in facts.items() if value is not None)
    return f"{device.resolved} -> {', '.join(known)}"


def _log(placement: Placement) -> Iterator[RenderableType]:
    """Show a line for each operation in the form of TensorFlow's log."""
    from rich.text import Text

    for op in placement.ops:
        line = printable(f"  {op.name}: ({op.op}): {op.device}")
        yield Text(line, no_wrap=True, overflow="ignore")


def _by_device(placement: Placement) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    names: dict[str, list[str]] = {}
    for op in placement.ops:
        names.setdefault(op.device, []).append(op.name)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for device, ops in names.items():
        table.add_row(Text(printable(f"  {_short(device)}")), Text(printable(", ".join(ops))))
    yield table


def _copies(transfers: tuple[Transfer, ...]) -> Iterator[RenderableType]:
    from rich.text import Text

    if not transfers:
        yield Text("No copies are needed.")
        return
    total = sum(move.bytes for move in transfers)
    yield Text(f"Copies, {total} bytes:")
    for move in transfers:
        time = "" if move.seconds is None else f", {_time(move.seconds)}"
        way = f"{_short(move.from_)} -> {_short(move.to)}"
        line = f"{move.what}: {way}, {move.bytes} bytes{time}"
        yield indented(Text(printable(line), overflow="fold"))


def _short(resolved: str) -> str:
    return f"/{resolved.rpartition('/')[2]}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _value(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return f"{value:g}"
