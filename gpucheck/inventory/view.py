"""View of `gpucheck list`: a row for each GPU, or their topology; and the processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpucheck.inventory.columns import ABSENT, COLUMNS, CSV_COLUMNS
from gpucheck.inventory.model import Gpu, GpuProcess, GpuState, Inventory, MigInstance, Topology
from gpucheck.report.envelope import Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.grid import Heading, Row, excess, grid, said_once
from gpucheck.report.text import View, binary_bytes, gibibytes, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


class Layout(NamedTuple):
    """Columns for a terminal of at least `width` columns; the GPU's name takes the rest."""

    width: int
    columns: tuple[str, ...]
    bar: int
    gap: int = 2


BASE = ("index", "cuda_index", "name", "memory")
STATE = ("utilization_gpu_percent", "temperature_c", "power_w")
MORE = ("clock_sm_mhz", "performance_state", "processes", "pcie", "numa_node", "pci_bus_id")

#: By width alone, so that the columns of --watch stay where they are. Below the last, and where a
#: value is too wide for its row, each GPU becomes a short block.
LAYOUTS = (
    Layout(160, BASE + STATE + MORE, bar=20),
    Layout(140, BASE + STATE + MORE, bar=12),
    Layout(110, (*BASE, *STATE, "clock_sm_mhz", "pcie", "numa_node"), bar=12),
    Layout(80, (*BASE, *STATE, "pcie"), bar=8, gap=1),
    Layout(64, BASE + STATE, bar=0, gap=1),
)
BLOCK_BAR = 8

#: A GPU's name is cut to fit its numbers, but never below this.
SHORTEST_NAME = 8
MAKER = "NVIDIA "

#: Share of memory in use at which the bar changes colour.
NEARLY_FULL = 0.90
WELL_FILLED = 0.70
#: An idle GPU has a few MiB in use; less than this share is shown as nothing.
SOMETHING = 0.005

#: A command is cut to fit the rest, but never below this.
SHORTEST_COMMAND = 16
LONGEST_USER = 16
#: In a narrow terminal a command is shown on so many lines at most.
COMMAND_LINES = 3

UNKNOWN = "?"
#: The width of a column of the matrix with its gap: "GPU63 ".
COLUMN = 6
WORDS = {
    "NV#": "NVLinks",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "one host bridge",
    "NODE": "one NUMA node",
    "SYS": "across NUMA nodes",
}

Kinds = dict[tuple[int, int], str]


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable."""
    from rich.console import Group

    inventory = report.result
    if not isinstance(inventory, Inventory):
        raise TypeError(type(inventory).__name__)
    parts: list[RenderableType] = []
    if view.header and view.verbosity >= 0:
        parts.append(_heading(report, inventory))
    gpus = inventory.gpus
    if not gpus:
        return Group(*parts)
    if inventory.topology is not None:
        return Group(*parts, *_topology(inventory.topology, gpus, view))
    table = _table(gpus, view) if view.columns is None else _chosen(gpus, view.columns, view)
    if table is not None:
        parts += [table, *_silent(gpus)]
    else:
        parts += _blocks(gpus, view) if view.columns is None else _lists(gpus, view.columns)
    parts += [*_hidden(gpus), *_shared(gpus)]
    if view.processes:
        parts += _processes(gpus, view)
    return Group(*parts)


def rows(
    report: Report, view: View
) -> tuple[Sequence[str], list[list[str | int | float | bool | None]]]:
    """Return the heading and the rows of CSV: the document's field names and plain values."""
    names = view.columns or CSV_COLUMNS
    gpus = report.result.gpus if isinstance(report.result, Inventory) else ()
    return names, [[COLUMNS[name].value(gpu) for name in names] for gpu in gpus]


def _heading(report: Report, inventory: Inventory) -> Text:
    from rich.text import Text

    host = report.host
    facts = [
        host.name,
        host.driver_version and f"driver {host.driver_version}",
        host.cuda_driver_version and f"CUDA {host.cuda_driver_version}",
        *_counts(report, inventory.gpus),
    ]
    return Text(" · ".join(printable(fact) for fact in facts if fact), style="bold")


def _counts(report: Report, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    if not gpus and report.error is None:
        return ("no GPU matches",)
    if not gpus:
        undecided = report.exit_code is ExitCode.INCONCLUSIVE
        return ("GPUs not known" if undecided else "no GPU listed",)
    seen = sum(gpu.visible is True for gpu in gpus)
    unknown = sum(gpu.visible is None for gpu in gpus)
    visible = f"{seen} visible to CUDA" + (f", {unknown} not known" if unknown else "")
    if unknown == len(gpus):
        visible = "not known what CUDA sees"
    return (f"{len(gpus)} GPU" + ("" if len(gpus) == 1 else "s"), visible)


# ---------------------------------------------------------------------------------- the table


def _table(gpus: Sequence[Gpu], view: View) -> Table | None:
    """Return a row for each GPU and MIG instance, or None where a row is too narrow for that."""
    layout = next((item for item in LAYOUTS if item.width <= view.width), None)
    if layout is None:
        return None
    headings = [_heading_of(name) for name in layout.columns]
    rows = list(_rows(gpus, layout, view))
    if excess(headings, rows, width=view.width, gap=layout.gap) > 0:
        rows = list(_rows(gpus, layout, view, maker=False))
    return grid(headings, rows, width=view.width, gap=layout.gap)


def _heading_of(name: str) -> Heading:
    if name == "memory":
        return Heading("Memory")
    least = SHORTEST_NAME if name == "name" else None
    return Heading(COLUMNS[name].heading, right=COLUMNS[name].right, least=least)


def _rows(gpus: Sequence[Gpu], layout: Layout, view: View, *, maker: bool = True) -> Iterator[Row]:
    from rich.text import Text

    for gpu in gpus:
        cells = {"name": Text(_name(gpu, maker=maker)), "memory": _memory(gpu, layout.bar, view)}
        yield Row([cells.get(name) or _cell(name, gpu) for name in layout.columns], _style(gpu))
        instances = gpu.mig.instances if gpu.state is GpuState.OK else ()
        for position, instance in enumerate(instances):
            cells = _instance_cells(gpu, position, instance)
            cells["memory"] = _memory(instance, layout.bar, view)
            yield Row([cells.get(name, Text("")) for name in layout.columns])


def _style(gpu: Gpu) -> str:
    if gpu.state is not GpuState.OK:
        return "red"
    return "dim" if gpu.visible is False else ""


def _name(gpu: Gpu, *, maker: bool = True) -> str:
    name = printable(gpu.name or "")
    if not maker:
        name = name.removeprefix(MAKER)
    return name if gpu.state is GpuState.OK else f"{gpu.state.value.upper()} {name}".rstrip()


def _cell(name: str, gpu: Gpu) -> Text:
    from rich.text import Text

    return Text(_shown(name, gpu))


def _shown(name: str, gpu: Gpu) -> str:
    return printable(COLUMNS[name].show(gpu))


def _instance_cells(gpu: Gpu, position: int, instance: MigInstance) -> dict[str, Text]:
    """Return an instance's cells; its index is written as NVIDIA writes it: "0:1"."""
    from rich.text import Text

    return {
        "index": Text(f"{gpu.index}:{position}"),
        "cuda_index": Text(ABSENT if instance.cuda_index is None else str(instance.cuda_index)),
        "name": Text(f"└ MIG {_profile(instance)}", style="dim"),
    }


def _profile(instance: MigInstance) -> str:
    """Return what tells instances apart: "3g.20gb" of "NVIDIA A100 MIG 3g.20gb"."""
    return printable((instance.name or instance.uuid or "?").rpartition("MIG ")[2])


def _memory(device: Gpu | MigInstance, bar: int, view: View) -> Text:
    from rich.text import Text

    used, total = device.memory_used_bytes, device.memory_total_bytes
    if total is None:
        return Text(ABSENT)
    space = " " if bar else ""
    if used is None:
        return Text(f"{'':{bar}}{space}{'?':>5}/{gibibytes(total)} GiB")
    share = used / total if total else 0.0
    return Text.assemble(
        _bar(share, bar, view), f"{space}{gibibytes(used):>5}/{gibibytes(total)} GiB"
    )


def _bar(share: float, width: int, view: View) -> Text:
    from rich.text import Text

    full, empty = ("█", "░") if view.unicode else ("#", "-")
    filled = min(width, max(0, round(share * width)))
    if share >= SOMETHING and filled == 0:
        filled = min(1, width)  # something is in use: an empty bar would deny it
    color = "red" if share >= NEARLY_FULL else "yellow" if share >= WELL_FILLED else "green"
    return Text.assemble((full * filled, color), (empty * (width - filled), "dim"))


# ---------------------------------------------------------------------------------- the rest


def _blocks(gpus: Sequence[Gpu], view: View) -> Iterator[Text]:
    """Return a few short lines for each GPU."""
    from rich.text import Text

    for gpu in gpus:
        yield Text(_title(gpu), style=f"bold {_style(gpu)}".strip(), overflow="fold")
        if gpu.state is not GpuState.OK:
            yield Text(f"  {_error(gpu)}")
            continue
        yield Text("  ").append_text(_memory(gpu, BLOCK_BAR, view))
        shown = (_shown(name, gpu) for name in (*STATE, "pcie"))
        facts = [fact for fact in shown if fact != ABSENT]
        if facts:
            yield Text("  " + " · ".join(facts))
        for position, instance in enumerate(gpu.mig.instances):
            cuda = ABSENT if instance.cuda_index is None else instance.cuda_index
            yield Text(f"  {gpu.index}:{position} (CUDA {cuda}) MIG {_profile(instance)}")
            yield Text("    ").append_text(_memory(instance, BLOCK_BAR, view))


def _title(gpu: Gpu) -> str:
    cuda = ABSENT if gpu.cuda_index is None else str(gpu.cuda_index)
    return f"GPU {gpu.index} (CUDA {cuda}) {_name(gpu)}".rstrip()


def _chosen(gpus: Sequence[Gpu], names: Sequence[str], view: View) -> Table | None:
    """Return the requested columns, uncut, or None if they are too wide together."""
    headings = [Heading(COLUMNS[name].heading, right=COLUMNS[name].right) for name in names]
    rows = [Row([_cell(name, gpu) for name in names], _style(gpu)) for gpu in gpus]
    return grid(headings, rows, width=view.width)


def _lists(gpus: Sequence[Gpu], names: Sequence[str]) -> Iterator[Text]:
    """Return a line for each requested column, GPU by GPU."""
    from rich.text import Text

    for gpu in gpus:
        yield Text(f"GPU {gpu.index}", style=f"bold {_style(gpu)}".strip())
        for name in names:
            line = Text(f"  {COLUMNS[name].heading}: ", style="dim", overflow="fold")
            yield line.append(_shown(name, gpu), style="not dim")


def _silent(gpus: Sequence[Gpu]) -> Iterator[Text]:
    from rich.text import Text

    broken = [(_error(gpu), gpu.index) for gpu in gpus if gpu.state is not GpuState.OK]
    for reason, which in said_once(broken):
        yield Text.assemble((f"{which}: ", "red"), reason)


def _error(gpu: Gpu) -> str:
    return printable(gpu.error or "it cannot be read")


def _hidden(gpus: Sequence[Gpu]) -> Iterator[Text]:
    """Return one line for each reason, with the GPUs that it hides."""
    from rich.text import Text

    hidden = [
        (gpu.hidden_reason, gpu.index) for gpu in gpus if gpu.visible is False and gpu.hidden_reason
    ]
    for reason, which in said_once(hidden):
        verb = "are" if "," in which else "is"
        yield Text(f"{which} {verb} hidden from CUDA: {printable(reason)}", style="dim")


def _shared(gpus: Sequence[Gpu]) -> Iterator[Text]:
    """Return a note on the GPUs that share the CPU's memory."""
    from rich.text import Text

    said = "shares the CPU's memory; the figures are those of the whole system"
    shared = [(said, gpu.index) for gpu in gpus if gpu.memory_source == "system"]
    for reason, which in said_once(shared):
        yield Text(f"{which}: {reason}", style="dim")


# -------------------------------------------------------------------------------- topology


def _topology(topology: Topology, gpus: Sequence[Gpu], view: View) -> Iterator[RenderableType]:
    """Return the matrix in as many blocks of columns as the width needs, and its legend."""
    from rich.text import Text

    kinds: Kinds = {}
    for link in topology.links:
        kind = printable(link.kind or UNKNOWN)
        kinds[link.from_, link.to] = kinds[link.to, link.from_] = kind
    whole = _matrix(kinds, gpus, gpus, view, places=True)
    yield from [whole] if whole is not None else _matrix_parts(kinds, gpus, view)
    gaps = [link.unavailable for link in topology.links if link.kind is None and link.unavailable]
    for reason in dict.fromkeys(gaps):
        yield Text(f"{UNKNOWN}: {printable(reason)}", style="dim")
    legend = ", ".join(f"{kind} {word}" for kind, word in WORDS.items())
    yield Text(f"{legend}. Nearest first.", style="dim")


def _matrix_parts(kinds: Kinds, gpus: Sequence[Gpu], view: View) -> Iterator[RenderableType]:
    """Return blocks of as many columns as fit, and one block with the location of the GPUs."""
    from rich.text import Text

    most = max(1, view.width // COLUMN - 1)
    for start in range(0, len(gpus), most):
        block = _matrix(kinds, gpus, gpus[start : start + most], view)
        if block is not None:
            yield block
    places = _matrix(kinds, gpus, (), view, places=True)
    if places is not None:
        yield places
        return
    for gpu in gpus:
        where = (
            f"GPU{gpu.index}: NUMA {_shown('numa_node', gpu)}, CPUs {_shown('cpu_affinity', gpu)}"
        )
        yield Text(where, overflow="fold")


def _matrix(
    kinds: Kinds, rows: Sequence[Gpu], across: Sequence[Gpu], view: View, *, places: bool = False
) -> Table | None:
    from rich.text import Text

    headings = [Heading(""), *(Heading(f"GPU{gpu.index}") for gpu in across)]
    if places:
        headings += [Heading("NUMA", right=True), Heading("CPUs")]
    found = []
    for gpu in rows:
        cells = [f"GPU{gpu.index}", *(_link_kind(kinds, gpu, other) for other in across)]
        if places:
            cells += [_shown("numa_node", gpu), _shown("cpu_affinity", gpu)]
        found.append(Row([Text(cell) for cell in cells]))
    return grid(headings, found, width=view.width)


def _link_kind(kinds: Kinds, gpu: Gpu, other: Gpu) -> str:
    return "X" if other is gpu else kinds.get((gpu.index, other.index), UNKNOWN)


# ------------------------------------------------------------------------------- processes


def _processes(gpus: Sequence[Gpu], view: View) -> list[RenderableType]:
    """Return a table of the processes, or a short block for each where that is too wide."""
    from rich.text import Text

    found = [(gpu, process) for gpu in gpus for process in gpu.processes]
    notes = [*_unlisted(gpus), *_foreign(found)]
    if not found:
        return [Text(""), *(notes or [Text("No process uses these GPUs.")])]
    table = _process_table(found, view)
    body: list[RenderableType] = list(_process_blocks(found, view)) if table is None else [table]
    return [Text(""), *body, *notes]


def _process_table(found: Sequence[tuple[Gpu, GpuProcess]], view: View) -> RenderableType | None:
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
    return printable(process.command or process.name or _unknown_command(process.namespace))


def _unknown_command(namespace: str) -> str:
    if namespace == "own":
        return "(not in /proc)"
    return "(in another PID namespace)" if namespace == "other" else "(not known)"


def _process_blocks(found: Sequence[tuple[Gpu, GpuProcess]], view: View) -> Iterator[Text]:
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
