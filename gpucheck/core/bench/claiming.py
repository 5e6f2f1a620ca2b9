"""Holds the GPUs that are measured; one that somebody else holds is measured all the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from gpucheck.core.claim_rules import ids_around
from gpucheck.core.claims import Acquisition, ClaimTerms
from gpucheck.core.picking import NamedTargets, Wish, open_store
from gpucheck.core.visibility import digits_of
from gpucheck.models.claim import ProcessState, Target
from gpucheck.models.errors import BadAnswerError, GpucheckError
from gpucheck.models.snapshot import NvmlReading
from gpucheck.probes.claims import ClaimStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Who holds what we wanted to, by the UUID of the GPU, and what a person should know of it."""

    others: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@contextmanager
def hold_gpus(
    uuids: Sequence[str], reading: NvmlReading, environment: Mapping[str, str], command: str
) -> Iterator[Claims]:
    """Hold these GPUs as far as nobody else does, for as long as the block lasts.

    Inside a scheduler's allocation nothing is claimed, as by `place`. Where claims cannot be made
    at all that is a note, for the measuring does not depend on it.
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
    """Return the ids of this process' own claims: `gpucheck.bench` inside of `gpucheck.place`."""
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
    """Hold one GPU; return why not, if somebody else does."""
    wanted = NamedTargets(targets=(target,))
    try:
        _, held = Acquisition(store, terms, wanted).run()
    except BadAnswerError:
        return wanted.blocked.get(target.uuid, "held by somebody")
    kept.callback(held.close)
    return None


def target_of(uuid: str, reading: NvmlReading) -> Target | None:
    """Return what is to be claimed of a device that CUDA calls so: a card, or a MIG instance.

    CUDA gives both 128 bits without a kind, so the digits are compared. None if NVML knows neither.
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
