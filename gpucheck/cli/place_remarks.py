"""Messages of `gpucheck place` on stderr: the waiting, the GPUs it took and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpucheck.cli.shared import Shared
from gpucheck.cli.streams import write_stderr
from gpucheck.place.model import Candidate, PlacedDevice, Placement
from gpucheck.place.numbers import name_together
from gpucheck.report.envelope import Answer
from gpucheck.report.text import printable

if TYPE_CHECKING:
    from gpucheck.place.claims import Waiting

#: Interval of the line that we still wait, if nothing else has changed.
_REMINDER_S = 60.0


def reporter(shared: Shared) -> Callable[[Waiting], None]:
    """Return a callback that reports the waiting when it changes, or once a minute."""
    last = [""]
    said_s = [0.0]
    details: list[tuple[str, ...]] = [()]

    def report(waiting: Waiting) -> None:
        before = {0: "next in line", 1: "1 is ahead of us"}
        place = before.get(waiting.ahead, f"{waiting.ahead} are ahead of us")
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
    """Report the command's devices, by their number there or by the given name."""
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
    """Report why each GPU is or is not eligible: alike ones together, each alone with -v."""
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
    # Chosen, fits, no: this is also their alphabetical order.
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
    """Name GPUs together; a MIG instance's name adds nothing to its UUID."""
    names = {item.name for item in items if not item.uuid.startswith("MIG-")} - {None}
    name = f" ({names.pop()})" if named and len(names) == 1 else ""
    return f"{name_together(items)}{name}"


def _in_full(item: Candidate) -> str:
    return " ".join(filter(None, ("GPU", str(item.index), item.name, item.uuid)))


def _say(text: str) -> None:
    write_stderr(printable(f"gpucheck: {text}"))
