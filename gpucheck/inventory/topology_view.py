"""Topology matrix of the GPUs, as nvidia-smi topo -m prints it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.inventory.columns import COLUMNS
from gpucheck.inventory.model import Gpu, Topology
from gpucheck.report.grid import Heading, Row, grid
from gpucheck.report.text import View, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

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


def build(topology: Topology, gpus: Sequence[Gpu], view: View) -> Iterator[RenderableType]:
    """Return the matrix in as many blocks of columns as the width needs, and its legend."""
    from rich.text import Text

    kinds: Kinds = {}
    for link in topology.links:
        kind = printable(link.kind or UNKNOWN)
        kinds[link.from_, link.to] = kinds[link.to, link.from_] = kind
    whole = _block(kinds, gpus, gpus, view, places=True)
    yield from [whole] if whole is not None else _parts(kinds, gpus, view)
    gaps = [link.unavailable for link in topology.links if link.kind is None and link.unavailable]
    for reason in dict.fromkeys(gaps):
        yield Text(f"{UNKNOWN}: {printable(reason)}", style="dim")
    legend = ", ".join(f"{kind} {word}" for kind, word in WORDS.items())
    yield Text(f"{legend}. Nearest first.", style="dim")


def _parts(kinds: Kinds, gpus: Sequence[Gpu], view: View) -> Iterator[RenderableType]:
    """Return blocks of as many columns as fit, and one block with the location of the GPUs."""
    from rich.text import Text

    room = max(1, view.width // COLUMN - 1)
    for start in range(0, len(gpus), room):
        block = _block(kinds, gpus, gpus[start : start + room], view)
        if block is not None:
            yield block
    places = _block(kinds, gpus, (), view, places=True)
    if places is not None:
        yield places
        return
    for gpu in gpus:
        where = f"GPU{gpu.index}: NUMA {_show('numa_node', gpu)}, CPUs {_show('cpu_affinity', gpu)}"
        yield Text(where, overflow="fold")


def _block(
    kinds: Kinds, rows: Sequence[Gpu], across: Sequence[Gpu], view: View, *, places: bool = False
) -> Table | None:
    from rich.text import Text

    headings = [Heading(""), *(Heading(f"GPU{gpu.index}") for gpu in across)]
    if places:
        headings += [Heading("NUMA", right=True), Heading("CPUs")]
    found = []
    for gpu in rows:
        cells = [f"GPU{gpu.index}", *(_kind(kinds, gpu, other) for other in across)]
        if places:
            cells += [_show("numa_node", gpu), _show("cpu_affinity", gpu)]
        found.append(Row([Text(cell) for cell in cells]))
    return grid(headings, found, width=view.width)


def _kind(kinds: Kinds, gpu: Gpu, other: Gpu) -> str:
    return "X" if other is gpu else kinds.get((gpu.index, other.index), UNKNOWN)


def _show(name: str, gpu: Gpu) -> str:
    return printable(COLUMNS[name].show(gpu))
