"""Terminal view of the proofs: a block for each framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpucheck.memlimit.model import MemoryLimit, Verification
from gpucheck.place.numbers import ranges
from gpucheck.report.text import View, printable
from gpucheck.report.unit_text import binary_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType


def show_proofs(limit: MemoryLimit, view: View) -> Iterator[RenderableType]:
    """Yield the outcomes; GPUs with the same outcome share a block."""
    from rich.text import Text

    groups: dict[Verification, list[Verification]] = {}
    for each in limit.verifications:
        alike = replace(
            each,
            uuid=None,
            cuda_index=None,
            nvml_bytes=None,
            nvml_most_bytes=None,
            overhead_bytes=None,
            peak_bytes=None,
        )
        groups.setdefault(alike, []).append(each)
    for group in groups.values():
        style, lines = _lines(group, len(limit.gpus), view)
        yield Text(lines[0], style=style, overflow="fold")
        yield from (Text(f"    {line}", overflow="fold") for line in lines[1:])


def _lines(group: Sequence[Verification], gpus: int, view: View) -> tuple[str, list[str]]:
    first = group[0]
    marks = {
        True: ("✓" if view.unicode else "+", "green", "the cap holds"),
        False: ("✗" if view.unicode else "x", "red", "the cap does not hold"),
        None: ("?", "yellow", "not proven"),
    }
    mark, style, verdict = marks[first.held]
    name = printable(f"{first.framework} {first.version or ''}".strip())
    numbers = [each.cuda_index for each in group if each.cuda_index is not None]
    where = f" on GPU {ranges(numbers)}" if numbers and gpus > 1 else ""
    lines = [f"{mark} {name}: {verdict}{where}"]
    if first.mechanism:
        lines.append(f"by {printable(first.mechanism)}")
    if first.reason:
        lines.append(printable(first.reason))
    if first.limit_bytes is not None and first.allocated_bytes is not None:
        lines.append(f"{first.allocated_bytes} of {first.limit_bytes} bytes allocated")
    if first.refused_bytes is not None:
        error = printable(first.refused_with or "an error")
        lines.append(f"{first.refused_bytes} bytes more refused with {error}{_where(first)}")
    extra = [each.overhead_bytes for each in group if each.overhead_bytes is not None]
    if extra:
        lines.append(f"{binary_bytes(max(extra))} outside the allocator, by NVML")
    elif first.held and all(each.nvml_bytes is None for each in group):
        lines.append(
            "NVML does not report what the process took: only the allocator's own count is known"
        )
    return style, lines


def _where(proof: Verification) -> str:
    """Return how far from the limit the refusal was."""
    deviation, step = proof.deviation_bytes, proof.refused_bytes
    if deviation is None or step is None:
        return ""
    if -step < deviation <= 0:
        return f": at the limit, to within {binary_bytes(step)}"
    side = "above" if deviation > 0 else "below"
    return f": {binary_bytes(abs(deviation))} {side} the limit, to within {binary_bytes(step)}"
