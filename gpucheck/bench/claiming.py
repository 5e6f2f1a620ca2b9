"""Claims on the GPUs that a benchmark measures; GPUs claimed by others are measured too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from gpucheck.drivers.readings import NvmlReading
from gpucheck.inventory.visibility import digits_of
from gpucheck.place.claim_store import ClaimStore, Target
from gpucheck.place.claims import Acquisition, ClaimOptions, enclosing_ids, open_store
from gpucheck.place.lease import NamedSelector
from gpucheck.place.model import ProcessState
from gpucheck.report.errors import BadAnswerError, GpucheckError


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Claims of other processes on the measured GPUs, by UUID, and notes for the report."""

    others: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@contextmanager
def hold_gpus(
    uuids: Sequence[str], reading: NvmlReading, environment: Mapping[str, str], command: str
) -> Iterator[Claims]:
    """Claim the GPUs that no other process holds, for the duration of the block.

    As in `place`, nothing is claimed inside a scheduler's allocation. If claims are impossible, a
    note says so: measuring does not depend on them.
    """
    with ExitStack() as kept:
        yield _take(uuids, reading, environment, command, kept)


def _take(
    uuids: Sequence[str],
    reading: NvmlReading,
    environment: Mapping[str, str],
    command: str,
    kept: ExitStack,
) -> Claims:
    others: dict[str, str] = {}
    try:
        options = ClaimOptions(command=command)
        store = open_store(options, environment) if uuids else None
        if store is None:
            return Claims()
        enclosing = enclosing_ids(environment) | _own_ids(store)
        for uuid in uuids:
            target = target_of(uuid, reading)
            if target is not None:
                reason = _claim(target, store, options, enclosing, kept)
                others.update({} if reason is None else {uuid: reason})
    except GpucheckError as error:
        return Claims(others=others, notes=(f"the GPUs are not claimed: {error.message}",))
    return Claims(others=others)


def _own_ids(store: ClaimStore) -> frozenset[str]:
    """Return the ids of this process's own claims: `gpucheck.bench` inside `gpucheck.place`."""
    with store.mutex() as locked:
        held = locked.held()
    return frozenset(
        item.claim_id
        for item in held
        if item.claim_id is not None
        and item.user_id == os.geteuid()
        and item.holder.pid == os.getpid()
        and item.holder.process is ProcessState.RUNNING
    )


def _claim(
    target: Target,
    store: ClaimStore,
    options: ClaimOptions,
    enclosing: frozenset[str],
    kept: ExitStack,
) -> str | None:
    """Claim one GPU; return the reason if another process holds it, else None."""
    selector = NamedSelector(targets=(target,))
    try:
        lease = Acquisition(store, options, selector, enclosing=enclosing).run()
    except BadAnswerError:
        return selector.blocked.get(target.uuid, "held by another process")
    kept.callback(lease.close)
    return None


def target_of(uuid: str, reading: NvmlReading) -> Target | None:
    """Return the card or MIG instance to claim for a device's CUDA UUID, None if unknown to NVML.

    CUDA gives 128 bits for both kinds without a prefix, so only the digits are compared.
    """
    for gpu in reading.gpus:
        if gpu.uuid is None:
            continue
        if digits_of(gpu.uuid) == digits_of(uuid):
            return Target(card=gpu.uuid)
        for instance in gpu.mig_instances:
            if instance.uuid is not None and digits_of(instance.uuid) == digits_of(uuid):
                return Target(card=gpu.uuid, instance=instance.uuid)
    return None
