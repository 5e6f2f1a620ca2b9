"""Table of the processes on the GPUs: the lower half of `gpucheck list --processes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.inventory.columns import ABSENT
from gpucheck.inventory.model import Gpu, GpuProcess
from gpucheck.report.grid import Heading, Row, grid, said_once
from gpucheck.report.text import View, printable
from gpucheck.report.unit_text import binary_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: A command is cut to fit the rest, but never below this.
SHORTEST_COMMAND = 16
LONGEST_USER = 16
#: In a narrow terminal a command is shown on so many lines at most.
COMMAND_LINES = 3


def build(gpus: Sequence[Gpu], view: View) -> list[RenderableType]:
    """Return a table of the processes, or a short block for each where that is too wide."""
    from rich.text import Text

    found = [(gpu, process) for gpu in gpus for process in gpu.processes]
    notes = [*_unlisted(gpus), *_foreign(found)]
    if not found:
        return [Text(""), *(notes or [Text("No process uses these GPUs.")])]
    table = _table(found, view)
    body: list[RenderableType] = list(_blocks(found, view)) if table is None else [table]
    return [Text(""), *body, *notes]


def _table(found: Sequence[tuple[Gpu, GpuProcess]], view: View) -> RenderableType | None:
    from rich.text import Text

    headings = [
        Heading("GPU", right=True),
        Heading("PID", right=True),
        Heading("Type"),
        Heading("User"),
        Heading("Memory", right=True),
        Heading("Command", least=SHORTEST_COMMAND),
    ]
    rows = [[*_facts(gpu, process), _command(process)] for gpu, process in found]
    if any(process.utilization_sm_percent is not None for _, process in found):
        headings.insert(-1, Heading("SM", right=True))
        for row, (_, process) in zip(rows, found, strict=True):
            row.insert(-1, _load(process))
    cells = [Row([Text(cell) for cell in row]) for row in rows]
    return grid(headings, cells, width=view.width)


def _facts(gpu: Gpu, process: GpuProcess) -> tuple[str, ...]:
    """Return the cells on location, type, owner and usage."""
    used = process.memory_used_bytes
    user = printable(process.user or ABSENT)
    return (
        _place(gpu, process),
        str(process.pid),
        printable(process.type),
        user if len(user) <= LONGEST_USER else f"{user[: LONGEST_USER - 1]}…",
        ABSENT if used is None else binary_bytes(used, digits=0),
    )


def _place(gpu: Gpu, process: GpuProcess) -> str:
    """Return the GPU's index, with the MIG instance's as NVIDIA writes it: "0:1"."""
    for position, instance in enumerate(gpu.mig.instances):
        if instance.uuid is not None and instance.uuid == process.mig_uuid:
            return f"{gpu.index}:{position}"
    return str(gpu.index)


def _load(process: GpuProcess) -> str:
    load = process.utilization_sm_percent
    return ABSENT if load is None else f"{load}%"


def _command(process: GpuProcess) -> str:
    return printable(process.command or process.name or _nobody(process.namespace))


def _nobody(namespace: str) -> str:
    if namespace == "own":
        return "(not in /proc)"
    return "(in another PID namespace)" if namespace == "other" else "(not known)"


def _blocks(found: Sequence[tuple[Gpu, GpuProcess]], view: View) -> Iterator[Text]:
    from rich.text import Text

    for gpu, process in found:
        place, pid, *facts = _facts(gpu, process)
        known = [f"GPU {place}", f"PID {pid}", *(fact for fact in facts if fact != ABSENT)]
        if process.utilization_sm_percent is not None:
            known.append(f"SM {_load(process)}")
        yield Text(" · ".join(known), overflow="fold")
        command = Text(f"  {_command(process)}", overflow="fold")
        command.truncate(COMMAND_LINES * view.width, overflow="ellipsis")
        yield command


def _unlisted(gpus: Sequence[Gpu]) -> Iterator[Text]:
    """Return a note where processes could not be listed: an empty list would look idle."""
    from rich.text import Text

    gaps = [
        (gpu.unavailable["processes"], gpu.index) for gpu in gpus if "processes" in gpu.unavailable
    ]
    for reason, which in said_once(gaps):
        yield Text(f"The processes of {which} are not all known: {printable(reason)}", style="dim")


def _foreign(found: Sequence[tuple[Gpu, GpuProcess]]) -> Iterator[Text]:
    from rich.text import Text

    if any(process.namespace == "other" for _, process in found):
        yield Text(
            "Some PIDs belong to another PID namespace (the host's, seen from a container):"
            " only there can you see what they are.",
            style="dim",
        )
