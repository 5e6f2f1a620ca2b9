"""`gpucheck memlimit` on a terminal: bytes for each GPU, then what holds each framework to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.models.memory import (
    GpuMemoryLimit,
    Mechanism,
    MemoryLimit,
    Overhead,
    Software,
    Strength,
    Verification,
)
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
    if limit.overhead is not None:
        parts.extend(_budget(gpu, limit.overhead) for gpu in _unlike(limit.gpus))
    if limit.software is not None:
        parts.append(Text(_software(limit.software), overflow="fold"))
    for mechanism in limit.mechanisms:
        parts.extend(_mechanism(mechanism, view))
    parts.extend(_verification(verification, view) for verification in limit.verifications)
    if view.verbosity >= 0:
        parts.append(Text(_caveat(limit.overhead), style="dim"))
    if view.verbosity > 0 and limit.overhead is not None:
        parts.extend(Text(f"  {line}", style="dim") for line in limit.overhead.sources)
    return Group(*parts)


_CAVEAT = (
    "An allocator's limit leaves out the CUDA context and what libraries allocate beside it:"
    " nvidia-smi shows some hundred MiB more."
)
_INCLUDED = "The overhead is an estimate; -v says where it is from. NCCL comes on top of it."


def _caveat(overhead: Overhead | None) -> str:
    return _INCLUDED if overhead is not None and overhead.included else _CAVEAT


def _unlike(gpus: Sequence[GpuMemoryLimit]) -> list[GpuMemoryLimit]:
    """Return one GPU of each size: eight equal cards have one budget."""
    return list({(gpu.memory_total_bytes, gpu.limit_bytes): gpu for gpu in reversed(gpus)}.values())


def _budget(gpu: GpuMemoryLimit, overhead: Overhead) -> Text:
    from rich.text import Text

    if gpu.allocator_limit_bytes is None:
        return Text("Budget: not known without the GPU's total")
    whole = gpu.allocator_limit_bytes + overhead.total_bytes
    verdict = ""
    if gpu.memory_total_bytes is not None and whole > gpu.memory_total_bytes:
        verdict = ", more than there is"
    return Text(
        f"Budget: allocators {_size(gpu.allocator_limit_bytes)}, context about"
        f" {_size(overhead.context_bytes)}, libraries about {_size(overhead.library_bytes)}:"
        f" {_size(whole)} of {_size(gpu.memory_total_bytes)}{verdict}",
        style="yellow" if verdict else "",
    )


def _software(software: Software) -> str:
    where = printable(software.interpreter or "an unknown Python")
    if software.frameworks is None:
        return f"For {where}: {printable(software.reason or 'its frameworks are not known')}"
    found = ", ".join(
        printable(f"{name} {version}".strip()) for name, version in software.frameworks.items()
    )
    return f"For {where}: {found or 'none of the frameworks'}"


def _verification(verification: Verification, view: View) -> Text:
    from rich.text import Text

    name = printable(f"{verification.framework} {verification.version or ''}".strip())
    marks = {
        True: ("✓" if view.unicode else "+", "green", "the cap holds"),
        False: ("✗" if view.unicode else "x", "red", "the cap does not hold"),
        None: ("?", "yellow", "not tried"),
    }
    mark, style, verdict = marks[verification.held]
    facts = [f"{mark} {name}: {verdict}"]
    if verification.allocated_bytes is not None:
        facts.append(f"{verification.allocated_bytes} bytes allocated")
    if verification.refused_bytes is not None:
        error = printable(verification.refused_with or "")
        facts.append(f"{verification.refused_bytes} more refused with {error}")
    if verification.overhead_bytes is not None:
        facts.append(f"{_size(verification.overhead_bytes)} beside the allocator by NVML")
    if verification.mechanism:
        facts.append(f"by {printable(verification.mechanism)}")
    if verification.reason:
        facts.append(printable(verification.reason))
    return Text("; ".join(facts), style=style, overflow="fold")


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
