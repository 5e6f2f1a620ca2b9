"""Rules for sharing GPUs by claims, and the schedulers whose allocations need none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucheck.place.claim_model import HeldSlot, Slot, Step, Target

#: The ids of the claims that enclose a command, for a gpucheck that it calls.
IDS_VARIABLE = "GPUCHECK_CLAIM_IDS"

#: The variables of a scheduler's allocation, in which the GPUs are already assigned.
SCHEDULERS = {
    "SLURM_JOB_ID": "Slurm",
    "PBS_JOBID": "PBS",
    "LSB_JOBID": "LSF",
    "FLUX_JOB_ID": "Flux",
    "OAR_JOB_ID": "OAR",
    "COBALT_JOBID": "Cobalt",
    "_CONDOR_SLOT": "HTCondor",
}


def scheduler_of(environment: Mapping[str, str]) -> str | None:
    """Return the scheduler whose allocation this process is in."""
    return next((name for key, name in SCHEDULERS.items() if environment.get(key)), None)


def ids_around(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the ids of the claims that enclose this process."""
    return frozenset(filter(None, environment.get(IDS_VARIABLE, "").split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Vacancy on a target: the slot to take, or why there is none."""

    slot: Slot | None = None
    reason: str = ""


def room_on(
    target: Target, held: Sequence[HeldSlot], *, share: int, around: frozenset[str]
) -> Room:
    """Return the vacancy on a target for a claim that accepts `share` claims on it.

    The smallest share among all of them is the limit. A whole GPU excludes its MIG instances, and
    the other way round. The claims in `around` are our own if we own their records: the ids alone
    prove nothing, since everybody can read them.
    """
    if not target.has_usable_name:
        return Room(reason="its UUID cannot be read, so it cannot be claimed")
    on_card = [item for item in held if item.slot.target.card == target.card]
    strange = next((item for item in on_card if item.problem), None)
    if strange is not None:
        return Room(reason=strange.obstacle)
    ours = _steps_around(target, on_card, around)
    if not ours:
        for item in on_card:
            other = item.slot.target
            if other != target and None in (other.instance, target.instance):
                what = "one of its MIG instances" if target.instance is None else "the whole GPU"
                return Room(reason=f"{what} is held by {item.holder.described}")
    taken = {
        item.slot.steps[len(ours)]: item
        for item in on_card
        if item.slot.target == target
        and len(item.slot.steps) > len(ours)
        and item.slot.steps[: len(ours)] == ours
    }
    limit = min([share, *(step.share for step in taken)])
    if len(taken) >= limit:
        return Room(reason=_held_by(taken))
    used = {step.slot for step in taken}
    number = next(number for number in range(share) if number not in used)
    return Room(slot=Slot(target=target, steps=(*ours, Step(slot=number, share=share))))


def _steps_around(
    target: Target, on_card: Sequence[HeldSlot], around: frozenset[str]
) -> tuple[Step, ...]:
    """Return the steps of the innermost claim on the target that encloses us."""
    ours = [
        item.slot.steps
        for item in on_card
        if item.slot.target == target
        and item.holder.id is not None
        and item.holder.id in around
        and item.holder.user_id == os.geteuid()
    ]
    return max(ours, key=len, default=())


def _held_by(taken: Mapping[Step, HeldSlot]) -> str:
    people = sorted({item.holder.described for item in taken.values()})
    return f"held by {', '.join(people)}"
