"""Terminal view of `gpucheck place`: what each device string means, or the chosen GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.place.model import Candidate, PlacedDevice, Placement
from gpucheck.place.operations_view import indented, mapping_line, operations
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: Titles of the libraries in `PlacedDevice.names`, in the order they are shown.
LIBRARIES = {
    "tensorflow": "TensorFlow",
    "pytorch": "PyTorch",
    "theano": "Theano",
    "cupy": "CuPy",
    "jax": "JAX",
    "nvidia-smi": "nvidia-smi",
}


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable; `-v` shows every device and operation in full."""
    from rich.console import Group
    from rich.text import Text

    placement = report.result
    if not isinstance(placement, Placement):
        raise TypeError(type(placement).__name__)
    more = view.verbosity > 0
    folded = placement.graph is None and not (more or placement.ran)
    parts: list[RenderableType] = []
    if placement.candidates:
        parts.append(_candidates(placement, more=more))
    if more or not placement.candidates:
        for device in placement.devices:
            parts.extend(_device(device, view.width, more=more or placement.ran))
    if not folded:
        parts.extend(operations(placement, more=more))
    parts.extend(Text(printable(advice), style="yellow") for advice in placement.advice)
    if view.verbosity >= 0:
        parts.extend(_next_steps(placement))
        if folded and placement.ops:
            parts.append(Text(_folded(placement), style="dim"))
    return Group(*parts)


# ---------------------------------------------------------------------------------- choosing


def _candidates(placement: Placement, *, more: bool) -> RenderableType:
    """Show why each GPU is or is not eligible, the chosen ones first."""
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


def _device(device: PlacedDevice, width: int, *, more: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    spec = printable(device.spec) or "(any device)"
    card = printable(device.name or f"GPU {device.index}") if device.kind == "GPU" else "the CPU"
    verb = "is replaced by" if device.soft else "is"
    style = "bold yellow" if device.soft else "bold green"
    reason = printable(device.reason)
    which = f", {reason}" if reason and device.kind == "GPU" and not device.soft else ""
    yield Text(f"{spec} {verb} {card}{which}", style=style, overflow="fold")
    if device.soft:
        yield indented(Text(reason, overflow="fold"))
    if device.uuid is not None:
        bus = "" if device.pci_bus_id is None else f" at {device.pci_bus_id}"
        yield as_it_is(f"  {device.uuid}{bus}")
    if more:
        yield as_it_is(f"  {mapping_line(device)}")
    for line in _filled(_names(device), width - 2):
        yield indented(Text(line, style="dim", overflow="fold"))


def _names(device: PlacedDevice) -> list[str]:
    """Return each library with its name for the device, those that agree together."""
    users: dict[str, list[str]] = {}
    for library, title in LIBRARIES.items():
        if library in device.names:
            users.setdefault(device.names[library], []).append(title)
    return [printable(f"{'/'.join(titles)} {name}") for name, titles in users.items()]


def _filled(parts: Sequence[str], width: int) -> list[str]:
    """Join parts with commas into lines, and break only between parts."""
    lines: list[str] = []
    for number, part in enumerate(parts):
        text = part if number == len(parts) - 1 else f"{part},"
        if lines and len(lines[-1]) + 1 + len(text) <= width:
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return lines


# ---------------------------------------------------------------------------------- what next


def _next_steps(placement: Placement) -> Iterator[RenderableType]:
    from rich.text import Text

    gpus = {device.uuid or device.index for device in placement.devices if device.kind == "GPU"}
    if placement.environment:
        which = "only this GPU" if len(gpus) == 1 else "only these GPUs"
        what = f"show a program {which}" if gpus else "hide all GPUs from a program"
        yield Text(f"To {what}, put this before it:", style="dim")
        pairs = (
            f"{name}={shlex.quote(value) if value else ''}"
            for name, value in placement.environment.items()
        )
        yield as_it_is(f"  {' '.join(pairs)}")
    if not gpus or any(claim.held for claim in placement.claims):
        return
    if placement.candidates or placement.graph is not None:
        hint = "No GPU is held, so others may use them too. To hold them, add -- COMMAND."
        yield Text(hint, style="dim")
        return
    them = "it" if len(gpus) == 1 else "them"
    hint = f"That holds nothing. To hold {them} until the program ends, put this before it:"
    yield Text(hint, style="dim")
    soft = ["--soft"] if any(device.soft for device in placement.devices) else []
    specs = dict.fromkeys(device.spec for device in placement.devices)
    yield as_it_is(f"  {shlex.join(['gpucheck', 'place', *soft, *specs])} --")


def _folded(placement: Placement) -> str:
    """Return a line that says what --run would compute."""
    number = len(placement.ops)
    size = sum(move.bytes for move in placement.transfers)
    copied = f", {size} bytes copied" if size else ""
    return f"--run computes a small graph there ({number} operations{copied}); -v shows it."


def as_it_is(text: str) -> Text:
    """Return a line to be copied: never broken, whatever the width."""
    from rich.text import Text

    return Text(printable(text), no_wrap=True, overflow="ignore")
