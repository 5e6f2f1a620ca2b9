"""Whose GPUs they are: the rules of sharing, and when nothing is claimed at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucheck.models.claim import HeldSlot, Slot, Step, Target

#: The ids of the claims around a command, for a gpucheck that it calls itself.
IDS_VARIABLE = "GPUCHECK_CLAIM_IDS"

#: Inside an allocation of these the scheduler has given the cards away already.
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
    """Return the ids of the claims that the command around us was started under."""
    return frozenset(filter(None, environment.get(IDS_VARIABLE, "").split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Whether a target has room for one more: the slot to take, or why there is none."""

    slot: Slot | None = None
    reason: str = ""


def room_on(
    target: Target, held: Sequence[HeldSlot], *, share: int, around: frozenset[str]
) -> Room:
    """Say whether somebody who lets `share` claims be on the card may join those who hold it.

    Everybody's wish counts: no more come than the smallest share among them. A card excludes its
    MIG instances and the other way round. The claims in `around` are our own, as far as we are
    their owner: everybody can read the ids.
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
                what = "its MIG instance" if target.instance is None else "the whole card"
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
    """Return the innermost place on the target that a claim around us holds."""
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
