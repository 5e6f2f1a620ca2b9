"""List of the claims and the queue, as the documents show them."""

from __future__ import annotations

from gpucheck.place.claim_model import Claim, ClaimList, HeldSlot, UnusableLock, Waiter
from gpucheck.place.claim_store import ClaimStore


def as_claim(held: HeldSlot, *, waited_s: float | None = None) -> Claim:
    """Return a held slot as the documents show it."""
    slot, holder = held.slot, held.holder
    return Claim(
        uuid=slot.target.uuid,
        gpu_uuid=slot.target.card,
        path=held.path,
        slot=slot.steps[-1].slot,
        share=slot.steps[-1].share,
        held=True,
        waited_s=waited_s,
        pid=holder.pid,
        process=holder.process,
        user=holder.user,
        command=holder.command,
        since=holder.since,
    )


def list_claims(store: ClaimStore) -> ClaimList:
    """Return the claims that are held, and the queue."""
    directory = str(store.directory)
    if not store.exists():
        return ClaimList(directory=directory)
    with store.gate() as gate:
        held = gate.held()
        queue = gate.queue()
    return ClaimList(
        directory=directory,
        claims=tuple(as_claim(item) for item in held if not item.problem),
        unusable=tuple(
            UnusableLock(
                uuid=item.slot.target.uuid,
                path=item.path,
                user=item.holder.user,
                problem=item.problem,
            )
            for item in held
            if item.problem
        ),
        waiting=len(queue),
        queue=tuple(
            Waiter(
                pid=holder.pid,
                process=holder.process,
                user=holder.user,
                command=holder.command,
                since=holder.since,
            )
            for holder in queue
        ),
    )
