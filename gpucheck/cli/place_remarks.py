"""What `gpucheck place` says on stderr: how the waiting goes, which GPUs it took and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpucheck.cli.shared import Shared
from gpucheck.cli.streams import write_stderr
from gpucheck.models.numbers import name_together
from gpucheck.models.placement import Candidate, PlacedDevice, Placement
from gpucheck.models.report import Answer
from gpucheck.render.base import printable

if TYPE_CHECKING:
    from gpucheck.core.claims import Waiting

#: How often a line says that we still wait, where nothing else is to be said.
_REMINDER_S = 60.0


def reporter(shared: Shared) -> Callable[[Waiting], None]:
    """Return what says how the waiting goes: when that changes, and else each minute."""
    last = [""]
    said_s = [0.0]
    details: list[tuple[str, ...]] = [()]

    def report(waiting: Waiting) -> None:
        before = {0: "next in line", 1: "1 is before us"}
        place = before.get(waiting.ahead, f"{waiting.ahead} are before us")
        line = f"{place}: {waiting.reason}"
        is_new = last[0] != line
        if shared.verbosity < 0 or not (is_new or waiting.waited_s - said_s[0] >= _REMINDER_S):
            return
        length = "" if is_new else f" for {waiting.waited_s / 60:.0f} min"
        last[0], said_s[0] = line, waiting.waited_s
        _say(f"waiting{length}, {line}")
        if details[0] != waiting.details:
            details[0] = waiting.details
            for detail in waiting.details:
                write_stderr(printable(f"  {detail}"))

    return report


def say_devices(placement: Placement) -> None:
    """Say what the command gets: by its number there, or by the name that was given."""
    for device in placement.devices:
        _say(_outcome(device))


def _outcome(device: PlacedDevice) -> str:
    if device.kind != "GPU":
        return f"{device.spec} is the CPU"
    what = f"GPU {device.index} ({device.name}, {device.uuid})"
    if device.spec.startswith("--count"):
        return f"the command's GPU {device.resolved.rpartition(':')[2]} is {what}"
    return f"{device.spec} is {what}"


def explain(answer: Answer, shared: Shared) -> None:
    """Say why each card was or was not eligible: alike ones together, each alone with -v."""
    placement = answer.result
    if shared.verbosity < 0 or not isinstance(placement, Placement):
        return
    alone = shared.verbosity > 0
    chosen = {device.uuid for device in placement.devices}
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for item in placement.candidates:
        verdict = "chosen" if item.uuid in chosen else "fits" if item.eligible else "no"
        apart = item.uuid if alone else "" if verdict == "fits" else item.reason
        groups.setdefault((verdict, apart), []).append(item)
    unlike = len({item.name for item in placement.candidates}) > 1
    # Chosen before fits before no: that is also their alphabet.
    for (verdict, _), items in sorted(groups.items(), key=lambda group: group[0][0]):
        if alone:
            _say(f"{_in_full(items[0])}: {verdict}: {items[0].reason}")
        elif verdict == "fits":
            _say(f"{_which(items, named=unlike)}: {'fits' if len(items) == 1 else 'fit'} too")
        else:
            named = unlike or verdict == "chosen"
            _say(f"{_which(items, named=named)}: {verdict}: {items[0].reason}")
    for advice in placement.advice:
        _say(advice)


def _which(items: Sequence[Candidate], *, named: bool) -> str:
    """Name cards together; instances' own names say no more than their UUIDs."""
    names = {item.name for item in items if not item.uuid.startswith("MIG-")} - {None}
    name = f" ({names.pop()})" if named and len(names) == 1 else ""
    return f"{name_together(items)}{name}"


def _in_full(item: Candidate) -> str:
    return " ".join(filter(None, ("GPU", str(item.index), item.name, item.uuid)))


def _say(text: str) -> None:
    write_stderr(printable(f"gpucheck: {text}"))
