"""Terminal view of `gpucheck memlimit`: bytes for each GPU, then what limits each framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.inventory.columns import ABSENT
from gpucheck.memlimit.held_view import show_holders, software_name
from gpucheck.memlimit.limited_run import outcome_lines
from gpucheck.memlimit.mechanisms_view import show_mechanisms
from gpucheck.memlimit.model import GpuMemoryLimit, LimitedRun, MemoryLimit, Overhead, Software
from gpucheck.memlimit.proofs_view import show_proofs
from gpucheck.place.numbers import ranges
from gpucheck.place.operations_view import indented
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable
from gpucheck.report.unit_text import binary_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: On terminals narrower than this, each GPU is a short block instead of a table row.
NARROW = 64
_UNKNOWN = (
    "A GPU's total memory is unknown: an amount in bytes, such as 8GiB, limits more frameworks."
)


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable."""
    from rich.console import Group
    from rich.text import Text

    limit = report.result
    if not isinstance(limit, MemoryLimit):
        raise TypeError(type(limit).__name__)
    parts: list[RenderableType] = [Text(_heading(limit), style="bold", overflow="fold")]
    alike = [[gpu] for gpu in limit.gpus] if view.verbosity > 0 else group_alike(limit.gpus)
    parts.append(_blocks(alike) if view.width < NARROW else _table(alike))
    if limit.run is not None:
        parts.extend(_outcome(limit.run))
    parts.extend(_everything(limit, view) if view.verbosity > 0 else _glance(limit, view))
    return Group(*parts)


def _outcome(run: LimitedRun) -> Iterator[RenderableType]:
    from rich.text import Text

    first, *others = outcome_lines(run)
    yield Text(printable(first), style="bold", overflow="fold")
    yield from (indented(Text(printable(line), overflow="fold")) for line in others)


def _glance(limit: MemoryLimit, view: View) -> Iterator[RenderableType]:
    """Yield what the limit means, and what to type next unless a command has been run."""
    from rich.text import Text

    if limit.verifications:
        yield from show_proofs(limit, view)
        return
    hints = view.verbosity >= 0 and limit.run is None
    if hints and any(gpu.limit_bytes is None for gpu in limit.gpus):
        yield Text(_UNKNOWN, style="yellow", overflow="fold")
    elif limit.overhead is not None and hints:
        yield Text(_beside(limit.gpus, limit.overhead), overflow="fold")
    yield from show_holders(limit, view, hints=hints)


def _everything(limit: MemoryLimit, view: View) -> Iterator[RenderableType]:
    from rich.text import Text

    if limit.overhead is not None:
        yield from _budgets(limit.gpus, limit.overhead)
    if limit.software is not None:
        yield Text(_software(limit.software), overflow="fold")
    if limit.verifications:
        yield from show_proofs(limit, view)
    yield from show_mechanisms(limit, view)
    if limit.overhead is not None:
        yield Text("\nThe overhead is an estimate:", style="dim")
        yield from (Text(f"  {line}", style="dim") for line in limit.overhead.sources)


def _heading(limit: MemoryLimit) -> str:
    return f"{printable(limit.request.text)} of each visible GPU"


def _software(software: Software) -> str:
    where = printable(software_name(software))
    if software.frameworks is None:
        return f"For {where}: {printable(software.reason or 'its frameworks are unknown')}"
    found = ", ".join(
        printable(f"{name} {version}".strip()) for name, version in software.frameworks.items()
    )
    return f"For {where}: {found or 'none of the frameworks (--python names another Python)'}"


# ---------------------------------------------------------------------------------- the GPUs


def group_alike(gpus: Sequence[GpuMemoryLimit]) -> list[list[GpuMemoryLimit]]:
    """Put GPUs of one name, size and limit together, in the order of the first of each."""
    groups: dict[object, list[GpuMemoryLimit]] = {}
    for gpu in gpus:
        key = (gpu.name or gpu.uuid, gpu.memory_total_bytes, gpu.limit_bytes, gpu.mig_instance)
        groups.setdefault(key, []).append(gpu)
    return list(groups.values())


def _beside(gpus: Sequence[GpuMemoryLimit], overhead: Overhead) -> str:
    """Return what nvidia-smi will show beyond what the allocators may take."""
    size = _size(overhead.total_bytes)
    if overhead.included:
        return f"About {size} of that is reserved for the CUDA context and libraries."
    advice = "; --include-overhead includes it"
    if any(gpu.limit_bytes is not None and gpu.limit_bytes <= overhead.total_bytes for gpu in gpus):
        advice = ", more than the limit itself"
    return f"nvidia-smi shows about {size} more for the CUDA context and libraries{advice}."


def _budgets(gpus: Sequence[GpuMemoryLimit], overhead: Overhead) -> Iterator[Text]:
    """Yield one budget for each size: eight equal cards share one."""
    groups: dict[object, list[GpuMemoryLimit]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.memory_total_bytes, gpu.limit_bytes), []).append(gpu)
    for group in groups.values():
        yield _budget(group[0], overhead, f" of GPU {_ordinals(group)}" if len(groups) > 1 else "")


def _budget(gpu: GpuMemoryLimit, overhead: Overhead, which: str) -> Text:
    from rich.text import Text

    if gpu.allocator_limit_bytes is None:
        return Text(f"Budget{which}: unknown without the GPU's total")
    whole = gpu.allocator_limit_bytes + overhead.total_bytes
    advice, style = "", ""
    if gpu.memory_total_bytes is not None and whole > gpu.memory_total_bytes:
        advice, style = ", more than the card has", "yellow"
    elif not overhead.included:
        advice = "; --include-overhead keeps that within the limit"
    return Text(
        f"Budget{which}: {_size(gpu.allocator_limit_bytes)} for allocators, about"
        f" {_size(overhead.context_bytes)} for the context and {_size(overhead.library_bytes)}"
        f" for libraries: nvidia-smi shows about {_size(whole)}{advice}.",
        style=style,
    )


def _table(groups: Sequence[Sequence[GpuMemoryLimit]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("CUDA", justify="right")
    table.add_column("Name", overflow="ellipsis", no_wrap=True, min_width=8)
    table.add_column("Total", justify="right", no_wrap=True)
    table.add_column("Limit", justify="right", no_wrap=True)
    table.add_column("Bytes", justify="right", no_wrap=True)
    for group in groups:
        first = group[0]
        cells = (_ordinals(group), _name(group), _size(first.memory_total_bytes), *_limit(first))
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _blocks(groups: Sequence[Sequence[GpuMemoryLimit]]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    return Group(*(Text(line, overflow="fold") for group in groups for line in _lines(group)))


def _lines(group: Sequence[GpuMemoryLimit]) -> Iterator[str]:
    size, exact = _limit(group[0])
    yield f"CUDA {_ordinals(group)} {_name(group)}"
    yield f"  {size} of {_size(group[0].memory_total_bytes)}"
    yield f"  {exact} bytes"


def _ordinals(group: Sequence[GpuMemoryLimit]) -> str:
    return ranges([gpu.cuda_index for gpu in group if gpu.cuda_index is not None]) or ABSENT


def _name(group: Sequence[GpuMemoryLimit]) -> str:
    gpu = group[0]
    name = printable(gpu.name or gpu.uuid or f"GPU {gpu.index}")
    return f"{len(group)} × {name}" if len(group) > 1 else name


def _size(value: int | None) -> str:
    return ABSENT if value is None else binary_bytes(value)


def _limit(gpu: GpuMemoryLimit) -> tuple[str, str]:
    exact = ABSENT if gpu.limit_bytes is None else str(gpu.limit_bytes)
    return _size(gpu.limit_bytes), exact
