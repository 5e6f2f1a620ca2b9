"""Candidates for selection: GPUs and MIG instances, with the readings that selection needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpucheck.inventory.model import Gpu, MigInstance, Visibility
from gpucheck.inventory.visibility import ONE_MIG
from gpucheck.place.claim_model import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A GPU or a MIG instance that can be selected, with the readings that selection needs."""

    target: Target | None
    gpu: Gpu
    name: str | None
    memory_free_bytes: int | None
    memory_total_bytes: int | None
    utilization_percent: int | None
    instance: MigInstance | None = None
    pids: frozenset[int] = frozenset()

    @property
    def uuid(self) -> str:
        """Return its UUID, or its index if the UUID cannot be read."""
        return self.target.uuid if self.target else f"index {self.gpu.index}"


def options_of(gpus: Sequence[Gpu]) -> tuple[Option, ...]:
    """Return each GPU, or its MIG instances in its place."""
    return tuple(option for gpu in gpus for option in options_on(gpu))


def options_on(gpu: Gpu) -> Iterator[Option]:
    """Yield one GPU, or its MIG instances in its place."""
    if gpu.mig.enabled and gpu.mig.instances:
        yield from (_instance_option(gpu, instance) for instance in gpu.mig.instances)
        return
    yield Option(
        target=Target(card=gpu.uuid) if gpu.uuid else None,
        gpu=gpu,
        name=gpu.name,
        memory_free_bytes=gpu.memory_free_bytes,
        memory_total_bytes=gpu.memory_total_bytes,
        utilization_percent=gpu.utilization_gpu_percent,
        pids=frozenset(item.pid for item in gpu.processes if item.type != "graphics"),
    )


def _instance_option(gpu: Gpu, instance: MigInstance) -> Option:
    total, used = instance.memory_total_bytes, instance.memory_used_bytes
    named = gpu.uuid and instance.uuid
    mine = (item for item in gpu.processes if item.mig_uuid == instance.uuid)
    return Option(
        target=Target(card=gpu.uuid or "", instance=instance.uuid) if named else None,
        gpu=gpu,
        name=instance.name or gpu.name,
        memory_free_bytes=None if total is None or used is None else total - used,
        memory_total_bytes=total,
        utilization_percent=None,
        instance=instance,
        pids=frozenset(item.pid for item in mine if item.type != "graphics"),
    )


def allowed_uuids(visibility: Visibility) -> frozenset[str] | None:
    """Return the UUIDs that the inherited CUDA_VISIBLE_DEVICES allows; None means all.

    This includes a second MIG instance that the driver would hide beside the first: alone it can
    be chosen.
    """
    if visibility.cuda_visible_devices is None:
        return None
    named = {
        entry.uuid
        for entry in visibility.entries
        if entry.uuid and (entry.status == "kept" or entry.reason == ONE_MIG)
    }
    return frozenset(named | set(visibility.visible or ()))
