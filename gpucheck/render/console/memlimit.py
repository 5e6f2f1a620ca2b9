"""`gpucheck memlimit` on a terminal: bytes for each GPU, then what holds each framework to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.models.memory import GpuMemoryLimit, Mechanism, MemoryLimit, Strength
from gpucheck.models.report import Report
from gpucheck.render.base import View, printable
from gpucheck.render.columns import ABSENT
from gpucheck.render.units import binary_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: Below this many columns a table row no longer holds a GPU: each becomes a short block.
NARROW = 64

STRENGTH_STYLES = {
    Strength.HARD: "green",
    Strength.ALLOCATOR: "green",
    Strength.SOFT: "yellow",
    Strength.NONE: "red",
}


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable."""
    from rich.console import Group
    from rich.text import Text

    limit = report.result
    if not isinstance(limit, MemoryLimit):
        raise TypeError(type(limit).__name__)
    parts: list[RenderableType] = [Text(_heading(limit), style="bold", overflow="fold")]
    parts.append(_blocks(limit.gpus) if view.width < NARROW else _table(limit.gpus))
    for mechanism in limit.mechanisms:
        parts.extend(_mechanism(mechanism, view))
    if view.verbosity >= 0:
        parts.append(Text(_CAVEAT, style="dim"))
    return Group(*parts)


_CAVEAT = (
    "An allocator's limit leaves out the CUDA context and what libraries allocate beside it:"
    " nvidia-smi shows some hundred MiB more."
)


def _heading(limit: MemoryLimit) -> str:
    return f"{printable(limit.request.text)} of each visible GPU"


def _table(gpus: Sequence[GpuMemoryLimit]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("CUDA", justify="right")
    table.add_column("Name", overflow="ellipsis", no_wrap=True, min_width=8)
    table.add_column("Total", justify="right", no_wrap=True)
    table.add_column("Limit", justify="right", no_wrap=True)
    table.add_column("Bytes", justify="right", no_wrap=True)
    for gpu in gpus:
        cells = (_ordinal(gpu), _name(gpu), _size(gpu.memory_total_bytes), *_limit(gpu))
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _blocks(gpus: Sequence[GpuMemoryLimit]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[Text] = []
    for gpu in gpus:
        size, exact = _limit(gpu)
        lines.append(Text(f"CUDA {_ordinal(gpu)} {_name(gpu)}", overflow="fold"))
        lines.append(Text(f"  {size} of {_size(gpu.memory_total_bytes)}", overflow="fold"))
        lines.append(Text(f"  {exact} bytes"))
    return Group(*lines)


def _ordinal(gpu: GpuMemoryLimit) -> str:
    return ABSENT if gpu.cuda_index is None else str(gpu.cuda_index)


def _name(gpu: GpuMemoryLimit) -> str:
    return printable(gpu.name or gpu.uuid or f"GPU {gpu.index}")


def _size(value: int | None) -> str:
    return ABSENT if value is None else binary_bytes(value)


def _limit(gpu: GpuMemoryLimit) -> tuple[str, str]:
    exact = ABSENT if gpu.limit_bytes is None else str(gpu.limit_bytes)
    return _size(gpu.limit_bytes), exact


def _mechanism(mechanism: Mechanism, view: View) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    good, verb = ("green", "applied") if mechanism.applies else ("dim", "not applied")
    mark = ("✓" if view.unicode else "+") if mechanism.applies else "-"
    yield Text.assemble(
        (f"{mark} {printable(mechanism.framework)}: {verb} ", good),
        (f"({mechanism.strength.value})", STRENGTH_STYLES[mechanism.strength]),
        f"; {printable(mechanism.reason)}",
    )
    if mechanism.setting is not None:
        setting = Text(printable(mechanism.setting), style="dim", overflow="fold")
        yield Padding(setting, (0, 0, 0, 4))
