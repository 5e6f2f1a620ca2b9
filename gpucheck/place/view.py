"""Terminal views of `gpucheck place`: resolved devices, the choice, operations, and claims."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.place.model import (
    Candidate,
    Claim,
    ClaimList,
    Holder,
    PlacedDevice,
    Placement,
    ProcessState,
    Transfer,
    Value,
    short_name,
)
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, exports, printable

if TYPE_CHECKING:
    from rich.console import OverflowMethod, RenderableType
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


_PROCESS_STATES = {
    ProcessState.ENDED: " (ended, but its children run)",
    ProcessState.ELSEWHERE: " (in another PID namespace)",
}


def build(report: Report, view: View) -> RenderableType:
    """Return a placement, or the list of claims, as one renderable."""
    if isinstance(report.result, ClaimList):
        return _claims(report.result, view)
    if isinstance(report.result, Placement):
        return _placement(report.result, view)
    raise TypeError(type(report.result).__name__)


def _placement(placement: Placement, view: View) -> RenderableType:
    """Show devices, choice and operations; `-v` shows every one of them in full."""
    from rich.console import Group
    from rich.text import Text

    more = view.verbosity > 0
    folded = placement.graph is None and not (more or placement.ran)
    parts: list[RenderableType] = []
    if placement.candidates:
        parts.append(_candidates(placement, more=more))
    if more or not placement.candidates:
        for device in placement.devices:
            parts.extend(_device(device, view.width, more=more or placement.ran))
    if not folded:
        parts.extend(_operations(placement, more=more))
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
        yield _indented(Text(reason, overflow="fold"))
    if device.uuid is not None:
        bus = "" if device.pci_bus_id is None else f" at {device.pci_bus_id}"
        yield _to_copy(f"  {device.uuid}{bus}")
    if more:
        yield _to_copy(f"  {_mapping_line(device)}")
    for line in _filled(_names(device), width - 2):
        yield _indented(Text(line, style="dim", overflow="fold"))


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
        yield _to_copy(f"  {' '.join(pairs)}")
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
    yield _to_copy(f"  {shlex.join(['gpucheck', 'place', *soft, *specs])} --")


def _folded(placement: Placement) -> str:
    """Return a line that says what --run would compute."""
    number = len(placement.ops)
    size = sum(move.bytes for move in placement.transfers)
    copied = f", {size} bytes copied" if size else ""
    return f"--run computes a small graph there ({number} operations{copied}); -v shows it."


def _to_copy(text: str) -> Text:
    """Return a line to be copied: never broken, whatever the width."""
    from rich.text import Text

    return Text(printable(text), no_wrap=True, overflow="ignore")


# ---------------------------------------------------------------------------------- operations


def _operations(placement: Placement, *, more: bool) -> Iterator[RenderableType]:
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


def _indented(text: Text) -> RenderableType:
    """Return a text whose lines all begin two columns to the right."""
    from rich.padding import Padding

    return Padding(text, (0, 0, 0, 2))


def _mapping_line(device: PlacedDevice) -> str:
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
        table.add_row(Text(printable(f"  {short_name(device)}")), Text(printable(", ".join(ops))))
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
        way = f"{short_name(move.from_)} -> {short_name(move.to)}"
        line = f"{move.what}: {way}, {move.bytes} bytes{time}"
        yield _indented(Text(printable(line), overflow="fold"))


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _value(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return f"{value:g}"


# ---------------------------------------------------------------------------------- claims


def _claims(claims: ClaimList, view: View) -> RenderableType:
    """Show a paragraph for each claim, or the sentence that there are none."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        part for claim in claims.claims for part in _claim(claim, more=view.verbosity > 0)
    ]
    if not claims.claims:
        parts.append(Text("No GPU is held."))
    if claims.waiting:
        one = claims.waiting == 1
        number = f"{claims.waiting} {'process waits' if one else 'processes wait'}"
        parts.append(Text(f"{number}{':' if one else ' in this order:'}"))
    for waiter in claims.queue:
        parts.extend(_person(waiter, more=view.verbosity > 0))
    if view.verbosity >= 0:
        where = f"The locks are in {printable(claims.directory)}"
        parts.append(Text(where, style="dim", no_wrap=True, overflow="ignore"))
    return Group(*parts)


def _claim(claim: Claim, *, more: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    part = "" if claim.share == 1 else f", {claim.slot + 1} of {claim.share}"
    title = printable(f"{claim.uuid}{part}")
    yield Text(title, style="bold", no_wrap=True, overflow="ignore")
    yield from _person(claim, more=more)
    if more:
        yield Text(printable(f"  {claim.path}"), style="dim", no_wrap=True, overflow="ignore")


def _person(who: Claim | Holder, *, more: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    remark = _PROCESS_STATES.get(who.process, "") if who.process else ""
    process = f"process {who.pid or '?'}{remark}"
    line = f"{who.user or 'an unknown user'}, {process}, since {who.since or '?'}"
    yield _indented(Text(printable(line), overflow="fold"))
    if who.command:
        overflow: OverflowMethod = "ignore" if more else "ellipsis"
        line = printable(f"  {who.command}")
        yield Text(line, style="dim", no_wrap=True, overflow=overflow)


# ---------------------------------------------------------------------------------- lines


def _uuids(placement: Placement) -> str:
    """Return the GPUs as CUDA_VISIBLE_DEVICES takes them; no chosen GPU gives no text."""
    if not placement.devices:
        return ""
    return placement.environment.get("CUDA_VISIBLE_DEVICES", "") + "\n"


def _indices(placement: Placement) -> str:
    """Return both variables on one line, as `env` takes them: an index needs its order."""
    if not placement.devices:
        return ""
    return " ".join(f"{name}={value}" for name, value in placement.environment.items()) + "\n"


def _exports(placement: Placement) -> str:
    return exports(placement.environment) if placement.devices else ""


#: Format -> the lines of a placement to copy or to evaluate.
LINES = {"uuid": _uuids, "index": _indices, "shell": _exports}
