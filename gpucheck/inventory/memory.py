"""Memory of a GPU: what no listed process owns, and what our cgroup may use of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.model import Gpu, GpuHolder, GpuState, Inventory, MemoryCap
from gpucheck.report.text import binary_bytes, count_of, group_by, name_gpus

if TYPE_CHECKING:
    from gpucheck.drivers.evidence import HolderReading, HoldersReading
    from gpucheck.drivers.interface import Probes

#: Less is nothing to report: contexts, and what programs share.
LEAST_BYTES = 256 << 20
LEAST_SHARE = 0.02


def find_unowned(inventory: Inventory, probes: Probes) -> Inventory:
    """Return the list with the memory that nobody owns, and who holds the card where it is much.

    /proc is searched only if some card has more than a little of it.
    """
    measured = [_measured(gpu) for gpu in inventory.gpus]
    if not any(is_much(gpu) for gpu in measured):
        return inventory._replace(gpus=tuple(measured))
    reading = probes.device_holders()
    gpus = (_with_holders(gpu, reading) if is_much(gpu) else gpu for gpu in measured)
    return inventory._replace(gpus=tuple(gpus))


def is_much(gpu: Gpu) -> bool:
    """Return whether so much memory has no owner that somebody will miss it."""
    unowned = gpu.memory_unaccounted_bytes or 0
    return unowned > max(LEAST_BYTES, LEAST_SHARE * (gpu.memory_total_bytes or 0))


def _measured(gpu: Gpu) -> Gpu:
    """Return the card with the memory that is used but no process's, or why it is not known."""
    name = "memory_unaccounted_bytes"
    reason = _unknown(gpu)
    if reason is not None:
        return gpu._replace(unavailable={**gpu.unavailable, name: reason})
    owned = sum(process.memory_used_bytes or 0 for process in gpu.processes)
    return gpu._replace(memory_unaccounted_bytes=max(0, (gpu.memory_used_bytes or 0) - owned))


def _unknown(gpu: Gpu) -> str | None:
    """Return why the memory without an owner cannot be told, None if it can."""
    total, used, free = gpu.memory_total_bytes, gpu.memory_used_bytes, gpu.memory_free_bytes
    if gpu.state is not GpuState.OK or total is None or used is None or free is None:
        return gpu.unavailable.get("memory_used_bytes") or gpu.error or "the memory is not known"
    if gpu.memory_source != "driver":
        return "the GPU shares the CPU's memory"
    if gpu.mig.enabled:
        return "the GPU is split by MIG"
    if used + free >= total:
        return "the driver does not tell its own reserve apart"
    if "processes" in gpu.unavailable:
        return gpu.unavailable["processes"]
    if any(process.memory_used_bytes is None for process in gpu.processes):
        return "the memory of a process is not known"
    return None


def _with_holders(gpu: Gpu, reading: HoldersReading) -> Gpu:
    """Return the card with the processes that hold it open without being listed."""
    minor = reading.minors.get(gpu.pci_bus_id or "")
    gap = reading.unavailable
    if gap is None and minor is None:
        gap = "the number of its device file is not known"
    if gap is not None:
        return gpu._replace(unavailable={**gpu.unavailable, "holders": gap})
    listed = {process.pid for process in gpu.processes}
    # Ids of another namespace may be those of a holder: then only what is plainly left over counts.
    foreign = any(process.namespace != "own" for process in gpu.processes)
    holders = tuple(
        _holder(holder)
        for holder in reading.holders
        if minor in holder.minors
        and holder.pid not in listed
        and not (foreign and holder.state == "running")
    )
    if reading.hidden:
        gap = f"the open files of {count_of(reading.hidden, 'process')} may not be read (root may)"
    elif not reading.complete:
        gap = "there are too many processes to look at all of them"
    unavailable = gpu.unavailable if gap is None else {**gpu.unavailable, "holders": gap}
    return gpu._replace(holders=holders, unavailable=unavailable)


def _holder(reading: HolderReading) -> GpuHolder:
    pid = reading.pid
    ending = {
        # A stopped process acts on a signal only when it goes on.
        "stopped": f"kill {pid} && kill -CONT {pid}",
        "zombie": f"kill -KILL {pid}",
        "orphaned": f"kill {pid}",
    }.get(reading.state)
    if ending is not None and not reading.mine:
        ending = ending.replace("kill", "sudo kill")
    return GpuHolder(
        pid=pid,
        state=reading.state,
        name=reading.name,
        user=reading.user,
        command=reading.command,
        end_command=ending,
    )


# --------------------------------------------------------------------------------- a cgroup's limit


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
        caps, lambda cap: (cap.memory_limit_bytes, cap.memory_total_bytes, cap.memory_limit_source)
    )
    for (limit, total, source), group in alike.items():
        which = name_gpus(cap.index for cap in group)
        whole = "" if total is None else f" of {binary_bytes(total)}"
        size = binary_bytes(limit)
        yield (
            f"{which}: {size}{whole} is your cgroup's limit, not the card's ({source});"
            f" out of memory at {size} is expected."
        )
