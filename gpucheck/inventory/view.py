"""Table of `gpucheck list`: one row per GPU, with MIG instances and errors below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpucheck.inventory import processes_view as processes
from gpucheck.inventory import topology_view as topology
from gpucheck.inventory.columns import ABSENT, COLUMNS
from gpucheck.inventory.model import Gpu, GpuState, Inventory, MigInstance
from gpucheck.report.envelope import Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.grid import Heading, Row, excess, grid, said_once
from gpucheck.report.text import View, printable
from gpucheck.report.unit_text import gibibytes

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
        return Group(*parts, *topology.build(inventory.topology, gpus, view))
    table = _table(gpus, view) if view.columns is None else _chosen(gpus, view.columns, view)
    if table is not None:
        parts += [table, *_silent(gpus)]
    else:
        parts += _blocks(gpus, view) if view.columns is None else _lists(gpus, view.columns)
    parts += [*_hidden(gpus), *_shared(gpus)]
    if view.processes:
        parts += processes.build(gpus, view)
    return Group(*parts)


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

    return Text(printable(COLUMNS[name].show(gpu)))


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
        shown = (printable(COLUMNS[name].show(gpu)) for name in (*STATE, "pcie"))
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
            yield line.append(_cell(name, gpu).plain, style="not dim")


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
