"""Views of `gpucheck place`: a device and its names, a choice, a graph, and claims."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from gpucheck.drivers.host.processes import program_of
from gpucheck.inventory.memory import capped_sentences
from gpucheck.place.model import (
    IN_USE,
    Candidate,
    Claim,
    ClaimList,
    Holder,
    PlacedDevice,
    Placement,
    ProcessState,
    Transfer,
    Value,
    name_together,
    short_name,
    together,
)
from gpucheck.report.blocks import (
    Block,
    Column,
    Command,
    Gap,
    Line,
    Row,
    Table,
    counted,
    opening,
)
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.text import ABSENT, View, elapsed, exports, format_gib, group_by, ranges

#: Titles of the libraries in `PlacedDevice.names`, in the order they are shown.
LIBRARIES = {
    "tensorflow": "TensorFlow",
    "pytorch": "PyTorch",
    "theano": "Theano",
    "cupy": "CuPy",
    "jax": "JAX",
    "nvidia-smi": "nvidia-smi",
}
INDENT = 2
#: A card's name in a table is cut to fit, but never below this.
SHORTEST_NAME = 12
#: A user of a card, and a program, are cut to fit, but never below this.
SHORTEST_USER = 16

#: Between the names of a card and of its instance.
_INSTANCE = " MIG "
_PROCESS_STATES = {
    ProcessState.ENDED: "it has ended, but its children run",
    ProcessState.ELSEWHERE: "it is in another PID namespace",
}


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the view of a placement, or of the list of claims."""
    result = report.result
    if isinstance(result, ClaimList):
        yield from _claims(result, report.time, view)
        return
    placement = report.result_as(Placement)
    yield from (Line(text, CheckStatus.WARN) for text in capped_sentences(placement.memory_limits))
    if placement.candidates:
        yield from _choice(report, placement, view)
    elif placement.graph is not None or placement.ran:
        yield from _graph(placement, view)
    else:
        yield from _places(placement, view)
        if view.verbosity > 0:
            yield from _operations(placement, view)
            yield from _variables(placement)
        if view.verbosity >= 0 and not any(claim.held for claim in placement.claims):
            yield from _to_hold(placement)


# ---------------------------------------------------------------------------------- choosing


def _choice(report: Report, placement: Placement, view: View) -> Iterator[Block]:
    """Yield which GPUs were chosen and who has the others; an error says by itself why none was."""
    if not placement.devices:
        return
    # The instances of a card are one card.
    names = {i.index: i.name and i.name.partition(_INSTANCE)[0] for i in placement.candidates}
    yield from opening(report, view, counted(names.values()))
    yield Line(chosen_line(placement), style="bold green")
    if view.verbosity >= 0 and not any(claim.held for claim in placement.claims):
        yield from _to_hold(placement)
        yield Gap()
        yield from _candidates(placement, more=view.verbosity > 0)
    if view.verbosity > 0:
        yield Gap()
        yield from _variables(placement)
        yield from (Line(advice) for advice in placement.advice)


def chosen_line(placement: Placement) -> str:
    """Return which GPUs were chosen: "GPU 4: 71.1 GiB free; GPUs 5-6: 79.1 GiB free each"."""
    chosen = [item for item in placement.candidates if is_chosen(item, placement)]
    if not any(item.memory_free_bytes for item in chosen):
        return name_together(chosen)
    alike = group_by(chosen, lambda item: (_free(item), together(item.used_by)))
    return "; ".join(
        f"{name_together(items)}: {free} free{' each' * (len(items) > 1)}"
        + (f", in use by {users}" if users else "")
        for (free, users), items in alike.items()
    )


def is_chosen(item: Candidate, placement: Placement) -> bool:
    """Return whether a card is one of the chosen."""
    return any(device.uuid == item.uuid for device in placement.devices)


def _candidates(placement: Placement, *, more: bool) -> Iterator[Block]:
    """Yield a row for each card, the chosen ones first; alike ones share a row."""
    unlike = len({item.name for item in placement.candidates} - {None}) > 1
    groups = group_by(
        sorted(placement.candidates, key=lambda item: _rank(item, placement)),
        lambda item: (
            *(_rank(item, placement), item.name, _free(item), _users(item, placement)),
            more and item.uuid,
        ),
    )
    columns = [Column("GPU"), Column("free", right=True), Column("used by", least=SHORTEST_USER)]
    rows = []
    for items in groups.values():
        first = items[0]
        which = ranges({item.index for item in items if item.index is not None}) or first.uuid
        cells = [which, _free(first), _users(first, placement)]
        if unlike:
            # Equal cards, or equal instances: "2 × MIG 1g.5gb".
            card, instance, profile = (items[0].name or "").partition(_INSTANCE)
            name = f"MIG {profile}" if instance else card
            cells.insert(1, f"{len(items)} × {name}" if instance and len(items) > 1 else name)
        reason = f", {first.reason}" if first.eligible or first.used_by else ""
        below = (Line(f"{first.uuid}{reason}", indent=INDENT, style="dim"),) if more else ()
        style = "bold" if is_chosen(first, placement) else "" if first.eligible else "dim"
        rows.append(Row(cells, style, below))
    if unlike:
        columns.insert(1, Column("name", least=SHORTEST_NAME))
    yield Table(columns, rows)


def _rank(item: Candidate, placement: Placement) -> int:
    return 0 if is_chosen(item, placement) else 1 if item.eligible else 2


def _free(item: Candidate) -> str:
    return ABSENT if item.memory_free_bytes is None else format_gib(item.memory_free_bytes)


def _users(item: Candidate, placement: Placement) -> str:
    """Return who has a card: user and program, or why else it was not taken."""
    users = together(item.used_by)
    if not item.eligible:
        return users if users and item.reason.startswith(IN_USE) else item.reason
    _, _, last_resort = item.reason.partition("; ")
    chosen = "chosen" if is_chosen(item, placement) else ""
    remarks = ", ".join(filter(None, (chosen, last_resort)))
    return f"{users or 'nobody'} ({remarks})" if remarks else users or "nobody"


# ---------------------------------------------------------------------------------- devices


def _places(placement: Placement, view: View) -> Iterator[Block]:
    """Yield each device once: a single one in lines, several in a table."""
    by_string = {(device.spec, device.resolved): device for device in placement.devices}
    devices = list(by_string.values())
    if len(devices) == 1 or view.verbosity > 0:
        for device in devices:
            yield from _device(device, view)
        return
    yield from (_replaced(device) for device in devices if device.soft)
    if devices:
        yield _table(devices)
        yield from _user_lines(devices)


def _device(device: PlacedDevice, view: View) -> Iterator[Block]:
    """Yield which card a string means, and the libraries' names for it."""
    if device.soft:
        yield _replaced(device)
    else:
        which = f", {device.reason}" if device.reason and device.kind == "GPU" else ""
        yield Line(f"{_spec(device)} is {_card(device)}{which}", style="bold green")
    if view.verbosity > 0:
        if device.soft:
            yield Line(device.reason, indent=INDENT)
        if device.uuid is not None:
            bus = "" if device.pci_bus_id is None else f" at {device.pci_bus_id}"
            yield Command(f"{device.uuid}{bus}", INDENT)
        yield Command(_mapping_line(device), INDENT)
    users = group_by(filter(device.names.get, LIBRARIES), lambda library: device.names[library])
    names = (f"{'/'.join(LIBRARIES[x] for x in group)} {name}" for name, group in users.items())
    yield Line(", ".join(names), indent=INDENT)
    yield from _user_lines([device])


def _user_lines(devices: Sequence[PlacedDevice]) -> Iterator[Line]:
    """Yield who computes on the devices already: a named one is given all the same."""
    used = {device.uuid: device for device in devices if device.used_by}
    for device in used.values():
        which = f"{_spec(device)} is" if len(devices) > 1 else "It is"
        yield Line(f"{which} in use: {together(device.used_by)}", CheckStatus.WARN, indent=INDENT)


def _spec(device: PlacedDevice) -> str:
    return device.spec or "(any device)"


def _card(device: PlacedDevice) -> str:
    return (device.name or f"GPU {device.index}") if device.kind == "GPU" else "the CPU"


def _replaced(device: PlacedDevice) -> Line:
    """Return the line that another device takes the place of the one asked for."""
    ordinal = "" if device.cuda_index is None else f" (CUDA device {device.cuda_index})"
    text = f"{_spec(device)} does not exist here: {_card(device)}{ordinal} takes its place"
    return Line(text, CheckStatus.WARN, style="bold yellow")


def _table(devices: Sequence[PlacedDevice]) -> Table:
    """Return a table of devices: each card, and its name in each library."""
    libraries = [name for name in LIBRARIES if any(name in device.names for device in devices)]
    columns = [Column("device"), Column("card", least=SHORTEST_NAME)]
    columns += [Column(LIBRARIES[name]) for name in libraries]
    names = ((device.names.get(name, ABSENT) for name in libraries) for device in devices)
    rows = [Row([_spec(d), _card(d), *own]) for d, own in zip(devices, names, strict=True)]
    return Table(columns, rows, gap=1, names=2)


# ---------------------------------------------------------------------------------- what next


def _to_hold(placement: Placement) -> Iterator[Block]:
    """Yield that nothing is held, and the command line that holds the devices for a command."""
    gpus = {device.uuid or device.index for device in placement.devices if device.kind == "GPU"}
    if not gpus:
        yield Line("To run a command there, with all GPUs hidden from it:")
    elif len(gpus) == 1:
        yield Line("It is not held. To hold it for a command, which sees only this GPU:")
    else:
        yield Line("They are not held. To hold them for a command, which sees only these GPUs:")
    specs = list(dict.fromkeys(device.spec for device in placement.devices))
    if placement.candidates:
        words = shlex.split(specs[0])
    else:
        words = ["--soft"] * any(device.soft for device in placement.devices) + specs
    yield Command(f"{shlex.join(['gpucheck', 'place', *words])} -- CMD")


def _variables(placement: Placement) -> Iterator[Block]:
    """Yield the variables that show a program only these devices."""
    if not placement.environment:
        return
    gpus = {device.uuid or device.index for device in placement.devices if device.kind == "GPU"}
    which = "only this GPU" if len(gpus) == 1 else "only these GPUs"
    effect = f"show a program {which}" if gpus else "hide all GPUs from a program"
    yield Line(f"To {effect} and hold nothing, put this before it:")
    pairs = (
        f"{name}={shlex.quote(value) if value else ''}"
        for name, value in placement.environment.items()
    )
    yield Command(" ".join(pairs))


# ---------------------------------------------------------------------------------- operations


def _graph(placement: Placement, view: View) -> Iterator[Block]:
    """Yield the value of a graph, its devices, where its operations are, and the copies."""
    if placement.value is not None:
        yield Line(f"Value: {_value(placement.value)}", style="bold green")
    yield from _places(placement, view)
    yield Gap()
    yield from _operations(placement, view)
    yield from (Line(advice, style="yellow") for advice in placement.advice)
    if view.verbosity > 0:
        yield from _variables(placement)


def _operations(placement: Placement, view: View) -> Iterator[Block]:
    """Yield the device of each operation, and the copies.

    A run is shown as TensorFlow logs it; a plan has a line for each device, and with `-v` the log.
    """
    if not placement.ops:
        return
    cards = [device for device in placement.devices if device.kind == "GPU"]
    if placement.ran and view.verbosity <= 0 and cards:
        yield Line("Device mapping:")
        # Two names may be one card.
        for line in dict.fromkeys(map(_mapping_line, cards)):
            yield Command(line, INDENT)
    yield Line("Operations:" if placement.ran else "Planned, not run (--run does that):")
    if placement.ran or view.verbosity > 0:
        for op in placement.ops:
            yield Command(f"{op.name}: ({op.op}): {op.device}", INDENT)
    else:
        for resolved, ops in group_by(placement.ops, lambda op: op.device).items():
            names = ", ".join(op.name for op in ops)
            yield Line(names, lead=short_name(resolved), indent=INDENT)
    yield from _copies(placement.transfers)


def _mapping_line(device: PlacedDevice) -> str:
    """Return a device as TensorFlow's log maps it to a card."""
    if device.kind != "GPU":
        return device.resolved
    facts = {"device": device.cuda_index, "name": device.name, "pci bus id": device.pci_bus_id}
    known = (f"{label}: {value}" for label, value in facts.items() if value is not None)
    return f"{device.resolved} -> {', '.join(known)}"


def _copies(transfers: tuple[Transfer, ...]) -> Iterator[Block]:
    if not transfers:
        yield Line("No copies are needed.")
        return
    yield Line(f"Copies, {sum(move.bytes for move in transfers)} bytes:")
    for move in transfers:
        time = "" if move.seconds is None else f", {_time(move.seconds)}"
        way = f"{short_name(move.from_)} -> {short_name(move.to)}"
        yield Line(f"{move.what}: {way}, {move.bytes} bytes{time}", indent=INDENT)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _value(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return f"{value:g}"


# ---------------------------------------------------------------------------------- claims


def _claims(claims: ClaimList, now: str, view: View) -> Iterator[Block]:
    """Yield how many GPUs are held, by whom and for how long, and who waits."""
    held = len({claim.gpu_uuid or claim.uuid for claim in claims.claims})
    holds = "1 GPU is held" if held == 1 else f"{held} GPUs are held" if held else "No GPU is held"
    waits = "1 process waits" if claims.waiting == 1 else f"{claims.waiting} processes wait"
    yield Line(f"{holds}, {waits}." if claims.waiting else f"{holds}.", style="bold")
    more = view.verbosity > 0
    rows = [
        Row(
            [_number(claim), _part(claim), _person(claim), _age(claim, now)],
            below=_below(claim, claim.path, more=more),
        )
        for claim in sorted(claims.claims, key=_number_key)
    ]
    columns = [
        Column("GPU", right=True),
        Column("UUID"),
        Column("held by", least=SHORTEST_USER),
        Column("for", right=True),
    ]
    if rows:
        yield Table(columns, rows)
    if claims.queue:
        yield Line("Waiting, in this order:" if len(claims.queue) > 1 else "Waiting:")
    for number, waiter in enumerate(claims.queue, start=1):
        age = _age(waiter, now)
        yield Line(f"{_person(waiter)}, for {age}", lead=f"{number}.", indent=INDENT)
        yield from _below(waiter, more=more)
    if more:
        yield Command(f"The locks are in {claims.directory}", 0)


def _person(who: Claim | Holder) -> str:
    """Return user and program; without a program the process."""
    program = program_of(who.command) or f"process {who.pid or '?'}"
    return f"{who.user or 'an unknown user'}: {program}"


def _age(who: Claim | Holder, now: str) -> str:
    """Return for how long it holds or waits; "?" if its record has no time that can be."""
    from datetime import datetime

    try:
        seconds = (
            datetime.fromisoformat(now) - datetime.fromisoformat(who.since or "")
        ).total_seconds()
    except (ValueError, TypeError):  # no time, or one without a zone
        return "?"
    return elapsed(seconds) if seconds >= 0 else "?"


def _below(who: Claim | Holder, path: str | None = None, *, more: bool) -> tuple[Line, ...]:
    """Return the special facts about a process, and with `more` its command line and its lock."""
    state = _PROCESS_STATES.get(who.process) if who.process else None
    process = f"process {who.pid or '?'}, since {who.since or '?'}"
    lines = (state, process, who.command, path) if more else (state,)
    return tuple(Line(text, indent=2 * INDENT, style="dim") for text in lines if text)


def _number_key(claim: Claim) -> tuple[bool, int]:
    return claim.index is None, claim.index or 0


def _number(claim: Claim) -> str:
    return ABSENT if claim.index is None else str(claim.index)


def _part(claim: Claim) -> str:
    return claim.uuid if claim.share == 1 else f"{claim.uuid}, {claim.slot + 1} of {claim.share}"


# ---------------------------------------------------------------------------------- lines


def _visible_devices(placement: Placement) -> str:
    """Return the GPUs as CUDA_VISIBLE_DEVICES takes them; no chosen GPU gives no text."""
    if not placement.devices:
        return ""
    return placement.environment.get("CUDA_VISIBLE_DEVICES", "") + "\n"


def _assignments(placement: Placement) -> str:
    """Return both variables on one line, as `env` takes them."""
    if not placement.devices:
        return ""
    return " ".join(f"{name}={value}" for name, value in placement.environment.items()) + "\n"


def _exports(placement: Placement) -> str:
    return exports(placement.environment) if placement.devices else ""


#: Format -> the lines of a placement to copy or to evaluate.
LINES = {
    "uuid": _visible_devices,
    "index": _visible_devices,
    "env": _assignments,
    "shell": _exports,
}
