"""Claims on the GPUs that a benchmark measures; GPUs claimed by others are measured too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from gpucheck.drivers.readings import NvmlReading
from gpucheck.inventory.visibility import digits_of
from gpucheck.place.claim_model import ProcessState, Target
from gpucheck.place.claim_rules import ids_around
from gpucheck.place.claim_store import ClaimStore
from gpucheck.place.claims import Acquisition, ClaimTerms
from gpucheck.place.picking import NamedTargets, Wish, open_store
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
        store = open_store(Wish(hold=True), environment) if uuids else None
        if store is None:
            return Claims()
        around = ids_around(environment) | _own_ids(store)
        terms = ClaimTerms(command=command, around=around)
        for uuid in uuids:
            target = target_of(uuid, reading)
            if target is not None:
                reason = _claim(target, store, terms, kept)
                others.update({} if reason is None else {uuid: reason})
    except GpucheckError as error:
        return Claims(others=others, notes=(f"the GPUs are not claimed: {error.message}",))
    return Claims(others=others)


def _own_ids(store: ClaimStore) -> frozenset[str]:
    """Return the ids of this process's own claims: `gpucheck.bench` inside `gpucheck.place`."""
    with store.gate() as gate:
        holders = [item.holder for item in gate.held()]
    return frozenset(
        holder.id
        for holder in holders
        if holder.id is not None
        and holder.user_id == os.geteuid()
        and holder.pid == os.getpid()
        and holder.process is ProcessState.RUNNING
    )


def _claim(target: Target, store: ClaimStore, terms: ClaimTerms, kept: ExitStack) -> str | None:
    """Claim one GPU; return the reason if another process holds it, else None."""
    wanted = NamedTargets(targets=(target,))
    try:
        _, held = Acquisition(store, terms, wanted).run()
    except BadAnswerError:
        return wanted.blocked.get(target.uuid, "held by another process")
    kept.callback(held.close)
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
