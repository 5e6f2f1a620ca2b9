"""Sentences and figures for a cgroup whose GPU memory the driver limits: said before all else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.model import Gpu, MemoryCap
from gpucheck.report.text import binary_bytes, group_by, name_gpus


def free_bytes(gpu: Gpu) -> int | None:
    """Return how much a program started here can still take: of the card, and of our limit."""
    sizes = [gpu.memory_free_bytes]
    if gpu.memory_limit_bytes is not None and gpu.memory_limit_used_bytes is not None:
        sizes.append(max(0, gpu.memory_limit_bytes - gpu.memory_limit_used_bytes))
    return min((size for size in sizes if size is not None), default=None)


def caps_of(gpus: Iterable[Gpu | GpuReading]) -> tuple[MemoryCap, ...]:
    """Return the cards of which our cgroup may use only a part."""
    return tuple(
        MemoryCap(
            index=gpu.index,
            memory_limit_bytes=gpu.memory_limit_bytes,
            memory_total_bytes=gpu.memory_total_bytes,
            memory_limit_source=gpu.memory_limit_source or "",
        )
        for gpu in gpus
        if gpu.memory_limit_bytes is not None
    )


def capped_sentences(caps: Iterable[MemoryCap]) -> Iterator[str]:
    """Yield a sentence for the cards that have the same limit, total and source."""
    alike = group_by(
        caps,
        lambda cap: (cap.memory_limit_bytes, cap.memory_total_bytes, cap.memory_limit_source),
    )
    for (limit, total, source), found in alike.items():
        which = name_gpus(cap.index for cap in found)
        whole = "" if total is None else f" of {binary_bytes(total)}"
        size = binary_bytes(limit)
        yield (
            f"{which}: {size}{whole} is your cgroup's limit, not the card's ({source});"
            f" out of memory at {size} is expected."
        )
