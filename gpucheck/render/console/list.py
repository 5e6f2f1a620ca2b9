"""`gpucheck list` on a terminal: one row per GPU, MIG instances and errors below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.models.device import Gpu, GpuState, Inventory, MigInstance, Topology
from gpucheck.models.report import Report
from gpucheck.render.base import View, printable
from gpucheck.render.columns import ABSENT, COLUMNS
from gpucheck.render.units import binary_bytes, gibibytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

#: Below this many columns a table row no longer holds a GPU: each becomes a short block.
NARROW = 64
#: From these widths on there is room for more columns (and a longer memory bar).
WIDE = 110
WIDEST = 140

BASE = ("index", "cuda_index", "name", "memory")
STATE = ("utilization_gpu_percent", "temperature_c", "power_w")
MORE = ("clock_sm_mhz", "performance_state", "processes")
LAST = ("pcie",)
PLACE = ("numa_node", "pci_bus_id")

#: A GPU's name is cut to make room for its numbers, but not further than this.
SHORTEST_NAME = 8

#: Share of memory in use at which the bar changes colour.
NEARLY_FULL = 0.90
WELL_FILLED = 0.70
#: An idle GPU has a few MiB in use; less than this share is shown as nothing.
SOMETHING = 0.005


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable."""
    from rich.console import Group

    inventory = report.result
    if not isinstance(inventory, Inventory):
        raise TypeError(type(inventory).__name__)
    parts: list[RenderableType] = []
    if view.header and view.verbosity >= 0:
        parts.append(_heading(report, inventory))
    if not inventory.gpus:
        return Group(*parts)
    if inventory.topology is not None:
        parts.extend(_matrix(inventory.topology, inventory.gpus, view))
        return Group(*parts)
    parts.append(_blocks(inventory, view) if _stacked(view) else _table(inventory, view))
    if not _stacked(view):
        parts.extend(_silent(inventory.gpus))
    parts.extend(_hidden(inventory.gpus))
    if view.processes:
        parts.append(_processes(inventory.gpus, view))
    return Group(*parts)


def _stacked(view: View) -> bool:
    return view.columns is None and view.width < NARROW


def _heading(report: Report, inventory: Inventory) -> Text:
    from rich.text import Text

    host = report.host
    count = len(inventory.gpus)
    seen = sum(gpu.visible is True for gpu in inventory.gpus)
    unknown = sum(gpu.visible is None for gpu in inventory.gpus)
    facts = [
        host.name,
        host.driver_version and f"driver {host.driver_version}",
        host.cuda_driver_version and f"CUDA {host.cuda_driver_version}",
        f"{count} GPU" + ("" if count == 1 else "s"),
        f"{seen} visible to CUDA" + (f", {unknown} unknown" if unknown else ""),
    ]
    return Text(" · ".join(printable(fact) for fact in facts if fact), style="bold")


def _columns(view: View) -> tuple[str, ...]:
    if view.columns is not None:
        return view.columns
    if view.width >= WIDEST:
        return BASE + STATE + MORE + LAST + PLACE
    if view.width >= WIDE:
        return BASE + STATE + MORE[:1] + LAST + PLACE[:1]
    return BASE + STATE + LAST


def _table(inventory: Inventory, view: View) -> Table:
    from rich.table import Table

    names = _columns(view)
    rows = list(_rows(inventory, names, view))
    # One space between columns at 80, two where there is room.
    gap = 1 if view.width < WIDE else 2
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim")
    headings = ["Memory" if name == "memory" else COLUMNS[name].heading for name in names]
    widths = [
        max(len(heading), *(cells[position].cell_len for cells, _ in rows))
        for position, heading in enumerate(headings)
    ]
    for name, heading, width in zip(names, headings, widths, strict=True):
        right = name != "memory" and COLUMNS[name].right
        # The name gives way first: half of a number would be another number.
        flexible = name == "name" and view.columns is None
        room = view.width - (sum(widths) - width) - gap * len(widths)
        if flexible and width > room:
            position = names.index(name)
            for cells, _ in rows:
                cells[position] = _without_maker(cells[position])
        table.add_column(
            heading,
            justify="right" if right else "left",
            overflow="ellipsis" if flexible else "fold",
            no_wrap=flexible,
            width=min(width, max(SHORTEST_NAME, room)) if flexible else None,
        )
    for cells, style in rows:
        table.add_row(*cells, style=style)
    return table


def _without_maker(name: Text) -> Text:
    maker = "NVIDIA "
    return name[len(maker) :] if name.plain.startswith(maker) else name


def _rows(
    inventory: Inventory, names: Sequence[str], view: View
) -> Iterator[tuple[list[Text], str]]:
    for gpu in inventory.gpus:
        yield [_cell(name, gpu, view) for name in names], _style(gpu)
        if gpu.state is GpuState.OK and view.columns is None:
            for instance in gpu.mig.instances:
                yield [_mig_cell(name, instance, view) for name in names], ""


def _style(gpu: Gpu) -> str:
    if gpu.state is not GpuState.OK:
        return "red"
    return "dim" if gpu.visible is False else ""


def _cell(name: str, gpu: Gpu, view: View) -> Text:
    from rich.text import Text

    if name == "memory":
        return _memory(gpu, view)
    if name == "name" and view.columns is None and gpu.state is not GpuState.OK:
        return Text(f"{gpu.state.value.upper()} {printable(gpu.name or '')}".rstrip())
    return Text(printable(COLUMNS[name].show(gpu)))


def _silent(gpus: Sequence[Gpu]) -> Iterator[Text]:
    from rich.text import Text

    for gpu in gpus:
        if gpu.state is not GpuState.OK:
            yield Text(f"GPU {gpu.index}: ", style="red").append_text(_error(gpu))


def _error(gpu: Gpu) -> Text:
    from rich.text import Text

    return Text(printable(gpu.error or "it cannot be read"))


def _bar_width(view: View) -> int:
    if view.width >= WIDEST:
        return 20
    return 12 if view.width >= WIDE else 8


def _memory(gpu: Gpu | MigInstance, view: View) -> Text:
    from rich.text import Text

    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if total is None:
        return Text(ABSENT)
    if used is None:
        return Text(f"{'':{_bar_width(view)}} {'?':>5}/{gibibytes(total)} GiB")
    share = used / total if total else 0.0
    bar = _bar(share, _bar_width(view), view)
    return Text.assemble(bar, f" {gibibytes(used):>5}/{gibibytes(total)} GiB")


def _bar(share: float, width: int, view: View) -> Text:
    from rich.text import Text

    full, empty = ("█", "░") if view.unicode else ("#", "-")
    filled = min(width, max(0, round(share * width)))
    if share >= SOMETHING and filled == 0:
        filled = 1  # something is in use: an empty bar would deny it
    color = "red" if share >= NEARLY_FULL else "yellow" if share >= WELL_FILLED else "green"
    return Text.assemble((full * filled, color), (empty * (width - filled), "dim"))


def _mig_cell(name: str, instance: MigInstance, view: View) -> Text:
    from rich.text import Text

    if name == "name":
        label = (instance.name or instance.uuid or "?").rpartition("MIG ")[2]
        return Text(f"└ MIG {printable(label)}", style="dim")
    if name == "memory":
        return _memory(instance, view)
    if name == "cuda_index":
        return Text(ABSENT if instance.cuda_index is None else str(instance.cuda_index))
    return Text("")


def _blocks(inventory: Inventory, view: View) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[Text] = []
    for gpu in inventory.gpus:
        lines.append(Text(_title(gpu), style=f"bold {_style(gpu)}".strip(), overflow="fold"))
        if gpu.state is not GpuState.OK:
            lines.append(Text("  ").append_text(_error(gpu)))
            continue
        lines.append(Text("  ").append_text(_memory(gpu, view)))
        facts = (COLUMNS[name].show(gpu) for name in (*STATE, "pcie"))
        lines.append(Text("  " + " · ".join(fact for fact in facts if fact != ABSENT)))
        for instance in gpu.mig.instances:
            lines.append(Text("  ").append_text(_mig_cell("name", instance, view)))
            lines.append(Text("    ").append_text(_memory(instance, view)))
    return Group(*lines)


def _title(gpu: Gpu) -> str:
    cuda = ABSENT if gpu.cuda_index is None else str(gpu.cuda_index)
    state = "" if gpu.state is GpuState.OK else f"{gpu.state.value.upper()} "
    return f"GPU {gpu.index} (CUDA {cuda}) {state}{printable(gpu.name or '')}".rstrip()


def _hidden(gpus: Sequence[Gpu]) -> Iterator[Text]:
    """Say once for each reason which GPUs it hides."""
    from rich.text import Text

    reasons: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu.visible is False and gpu.hidden_reason:
            reasons.setdefault(gpu.hidden_reason, []).append(str(gpu.index))
    for reason, indices in reasons.items():
        which = f"GPU {indices[0]}" if len(indices) == 1 else f"GPUs {', '.join(indices)}"
        verb = "is" if len(indices) == 1 else "are"
        yield Text(f"{which} {verb} hidden from CUDA: {printable(reason)}", style="dim")


def _processes(gpus: Sequence[Gpu], view: View) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("GPU", "PID"):
        table.add_column(heading, justify="right")
    table.add_column("Type")
    table.add_column("User", overflow="ellipsis", no_wrap=True, max_width=16)
    table.add_column("Memory", justify="right")
    shows_load = any(p.utilization_sm_percent is not None for gpu in gpus for p in gpu.processes)
    if shows_load:
        table.add_column("SM", justify="right")
    table.add_column("Command", overflow="ellipsis", no_wrap=view.width >= NARROW)
    rows = 0
    for gpu in gpus:
        for process in gpu.processes:
            rows += 1
            load = process.utilization_sm_percent
            command = process.command or process.name or _nobody(process.namespace)
            used = process.memory_used_bytes
            cells = [
                str(gpu.index),
                str(process.pid),
                process.type,
                printable(process.user or ABSENT),
                ABSENT if used is None else binary_bytes(used, digits=0),
                *([ABSENT if load is None else f"{load}%"] if shows_load else []),
                printable(command),
            ]
            table.add_row(*(Text(cell) for cell in cells))
    notes = [*_unlisted(gpus), *_foreign(gpus)]
    if not rows:
        return Group(Text(""), *(notes or [Text("No process uses these GPUs.")]))
    return Group(Text(""), table, *notes)


def _unlisted(gpus: Sequence[Gpu]) -> Iterator[Text]:
    """Say where the processes could not be listed: an empty list would read as idle."""
    from rich.text import Text

    reasons: dict[str, list[str]] = {}
    for gpu in gpus:
        if "processes" in gpu.unavailable:
            reasons.setdefault(gpu.unavailable["processes"], []).append(str(gpu.index))
    for reason, indices in reasons.items():
        which = f"GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)}"
        yield Text(f"The processes of {which} are not known: {printable(reason)}", style="dim")


def _nobody(namespace: str) -> str:
    if namespace == "own":
        return "(not in /proc)"
    return "(in another PID namespace)" if namespace == "other" else "(not known)"


def _foreign(gpus: Sequence[Gpu]) -> Iterator[Text]:
    from rich.text import Text

    if any(process.namespace == "other" for gpu in gpus for process in gpu.processes):
        yield Text(
            "Some PIDs are of another PID namespace (the host's, seen from a container):"
            " who they are can only be seen there.",
            style="dim",
        )


def _matrix(topology: Topology, gpus: Sequence[Gpu], view: View) -> Iterator[RenderableType]:
    """Return nvidia-smi's matrix, in as many blocks of columns as the width needs."""
    from rich.text import Text

    kinds = {}
    for link in topology.links:
        kinds[link.from_, link.to] = kinds[link.to, link.from_] = link.kind or "?"
    room = max(1, (view.width - 30) // 6)
    for start in range(0, len(gpus), room):
        yield _matrix_block(kinds, gpus, gpus[start : start + room], last=start + room >= len(gpus))
    words = {
        "NV#": "NVLinks",
        "PIX": "one PCIe switch",
        "PXB": "several PCIe switches",
        "PHB": "one host bridge",
        "NODE": "one NUMA node",
        "SYS": "across NUMA nodes",
    }
    legend = ", ".join(f"{kind} {word}" for kind, word in words.items())
    yield Text(f"{legend}. Nearest first.", style="dim")


def _matrix_block(
    kinds: dict[tuple[int, int], str], rows: Sequence[Gpu], across: Sequence[Gpu], *, last: bool
) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("")
    for gpu in across:
        table.add_column(f"GPU{gpu.index}")
    if last:
        table.add_column("NUMA", justify="right")
        table.add_column("CPUs", overflow="fold")
    for gpu in rows:
        cells = [
            "X" if other is gpu else kinds.get((gpu.index, other.index), "?") for other in across
        ]
        place = [_show("numa_node", gpu), _show("cpu_affinity", gpu)] if last else []
        table.add_row(f"GPU{gpu.index}", *cells, *place)
    return table


def _show(name: str, gpu: Gpu) -> str:
    return printable(COLUMNS[name].show(gpu))
