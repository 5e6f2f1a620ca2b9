"""Who may have which GPU: the rules of sharing, and the queue in which everybody waits.

Selecting and claiming are one step behind the gate of the claims. Whoever cannot have what they ask
for and wants to wait draws a ticket there. Tickets that want some of the same cards are served
strictly in the order in which they were drawn, also before a caller who would not wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from gpucheck.models.claim import (
    Claim,
    ClaimList,
    HeldSlot,
    Holder,
    Slot,
    Step,
    Target,
    Ticket,
)
from gpucheck.models.errors import BadAnswerError
from gpucheck.probes.claim_files import user_name
from gpucheck.probes.claims import ClaimStore, Gate, Lock

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

#: How often a waiting process looks: at the one before it in the queue, and at the cards.
_LOOK_S = 0.1
#: How often it asks the driver anew while a card is not claimed but does not fit either.
_SURVEY_S = 2.0


def scheduler_of(environment: Mapping[str, str]) -> str | None:
    """Return the scheduler whose allocation this process is in."""
    return next((name for key, name in SCHEDULERS.items() if environment.get(key)), None)


def ids_around(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the ids of the claims that the command around us was started under."""
    return frozenset(filter(None, environment.get(IDS_VARIABLE, "").split(",")))


# ---------------------------------------------------------------------------------- the rules


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
    MIG instances and the other way round. The claims in `around` are our own.
    """
    if not target.has_usable_name:
        return Room(reason="its UUID cannot be read, so it cannot be claimed")
    on_card = [item for item in held if item.slot.target.card == target.card]
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
        if item.slot.target == target and item.holder.id is not None and item.holder.id in around
    ]
    return max(ours, key=len, default=())


def _held_by(taken: Mapping[Step, HeldSlot]) -> str:
    people = sorted({item.holder.described for item in taken.values()})
    return f"held by {', '.join(people)}"


# ---------------------------------------------------------------------------------- acquiring


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Claims that we hold: their locks, and what to show of them."""

    locks: tuple[Lock, ...] = ()
    claims: tuple[Claim, ...] = ()
    environment: Mapping[str, str]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that a command must inherit to hold the claims."""
        return tuple(lock.descriptor for lock in self.locks)

    def close(self) -> None:
        """Give the claims up, unless a process that we started has inherited them."""
        for lock in self.locks:
            lock.close()


class Chooser(Protocol):
    """Decides what to take, from a look at the machine that may be repeated."""

    @property
    def possible(self) -> Sequence[Target]:
        """Return what could ever be given to this caller."""
        ...

    @property
    def count(self) -> int:
        """Return how many are wanted."""
        ...

    def survey(self) -> None:
        """Look at the machine anew."""
        ...

    def choose(self, blocked: Mapping[str, str]) -> Sequence[Target]:
        """Return the best that fits, nothing if too few do; `blocked` has reasons by UUID."""
        ...

    def failure(self) -> BadAnswerError:
        """Return the error for the last choice, which found too little."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How far the queue has come: how many are before us, and for how long we have waited."""

    ahead: int
    waited_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTerms:
    """How to claim.

    `hold` false only looks. `around` are the ids of the claims around this process, and
    `command` is what the record will say.
    """

    share: int = 1
    wait: bool = False
    timeout_s: float | None = None
    hold: bool = True
    command: str = ""
    around: frozenset[str] = frozenset()


class _Attempt:
    """One look behind the gate: what is blocked, what was taken, and who is before us."""

    def __init__(self) -> None:
        self.held: Held | None = None
        self.chosen: Sequence[Target] = ()
        self.ahead: list[Ticket] = []
        self.free = 0


class Acquisition:
    """One caller's way to its claims; without a store nobody claims and nobody is in the way."""

    def __init__(
        self,
        store: ClaimStore | None,
        terms: ClaimTerms,
        chooser: Chooser,
        *,
        on_wait: Callable[[Waiting], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._terms = terms
        self._chooser = chooser
        self._on_wait = on_wait
        self._sleep = sleep
        self._now_s = now_s
        self._ticket: Ticket | None = None
        self._place: Lock | None = None
        self._began_s = now_s()

    def run(self) -> tuple[Sequence[Target], Held]:
        """Return what was chosen and the claims on it, waiting for them if that was asked.

        Raises:
            BadAnswerError: nothing fits, or not within the timeout.
            MissingError: the directory for the claims cannot be used.
            InconclusiveError: the claims cannot be looked at.
        """
        try:
            attempt = self._try()
            while attempt.held is None:
                if not self._terms.wait:
                    raise self._chooser.failure()
                self._wait(attempt)
                attempt = self._try()
            return attempt.chosen, attempt.held
        finally:
            if self._place is not None:
                self._place.close()

    def _try(self) -> _Attempt:
        """Choose and claim in one step; draw a ticket in the same step if it was in vain."""
        with self._turn():
            self._chooser.survey()
        attempt = _Attempt()
        if self._store is None or not (self._terms.hold or self._store.exists()):
            attempt.chosen = self._chooser.choose({})
            attempt.held = Held(environment={}) if attempt.chosen else None
            attempt.free = self._chooser.count
            return attempt
        with self._store.gate() as gate:
            rooms = self._look(gate, attempt)
            lost: dict[str, str] = {}
            while attempt.held is None:
                blocked = lost | self._blocked(rooms, attempt)
                attempt.chosen = self._chooser.choose(blocked)
                if not attempt.chosen:
                    break
                attempt.held = self._take(gate, attempt.chosen, rooms, lost)
            if attempt.held is None and self._terms.wait and self._ticket is None:
                self._ticket, self._place = gate.enqueue(self._wants(rooms), self._holder())
        return attempt

    def _turn(self) -> AbstractContextManager[None]:
        """Return our turn to ask the driver; only who waits can come in a crowd that minds it."""
        if self._store is None or not self._terms.wait or not self._store.exists():
            return nullcontext()
        return self._store.turn()

    def _look(self, gate: Gate, attempt: _Attempt) -> dict[str, Room]:
        held = gate.held()
        share, around = self._terms.share, self._terms.around
        rooms = {
            target.uuid: room_on(target, held, share=share, around=around)
            for target in self._chooser.possible
        }
        wants = self._wants(rooms)
        mine = self._ticket.number if self._ticket is not None else None
        attempt.ahead = [
            ticket
            for ticket in gate.tickets()
            if (mine is None or ticket.number < mine) and ticket.wants & wants
        ]
        attempt.free = sum(room.slot is not None for room in rooms.values())
        return rooms

    def _wants(self, rooms: Mapping[str, Room]) -> frozenset[str]:
        """Return what we queue for: the cards, or what is inside the claims around us."""
        if self._ticket is not None:
            return self._ticket.wants
        inside = "+".join(sorted(self._terms.around))
        return frozenset(f"{uuid}@{inside}" if inside else uuid for uuid in rooms)

    def _blocked(self, rooms: Mapping[str, Room], attempt: _Attempt) -> dict[str, str]:
        if attempt.ahead:
            many = len(attempt.ahead)
            waiting = "another process waits" if many == 1 else f"{many} other processes wait"
            return dict.fromkeys(rooms, f"{waiting} for it already")
        return {uuid: room.reason for uuid, room in rooms.items() if room.slot is None}

    def _take(
        self,
        gate: Gate,
        chosen: Sequence[Target],
        rooms: Mapping[str, Room],
        lost: dict[str, str],
    ) -> Held | None:
        """Take all of them or none; what somebody else's lock is on is lost for this attempt."""
        if not self._terms.hold:
            return Held(environment={})
        holder = self._holder()
        locks: list[Lock] = []
        claims = []
        for target in chosen:
            slot = rooms[target.uuid].slot
            assert slot is not None, "a blocked target was chosen"
            lock = gate.take(slot, holder)
            if lock is None:
                lost[target.uuid] = "somebody took it at this moment"
                for other in locks:
                    other.close()
                return None
            locks.append(lock)
            claims.append(self._claim(slot, gate.path_of(slot), holder))
        ids = ",".join(sorted({*self._terms.around, str(holder.id)}))
        return Held(locks=tuple(locks), claims=tuple(claims), environment={IDS_VARIABLE: ids})

    def _claim(self, slot: Slot, path: str, holder: Holder) -> Claim:
        held = HeldSlot(slot=slot, path=path, holder=holder)
        return as_claim(held, waited_s=self._waited_s() if self._ticket is not None else 0.0)

    def _holder(self) -> Holder:
        number = self._ticket.number if self._ticket is not None else 0
        pid = os.getpid()
        return Holder(
            # The ticket and the moment, on a clock that all processes share, tell the order.
            id=f"{number}-{time.monotonic_ns()}-{pid}",
            pid=pid,
            user=user_name(os.geteuid()),
            command=self._terms.command,
            since=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    def _waited_s(self) -> float:
        return self._now_s() - self._began_s

    def _wait(self, attempt: _Attempt) -> None:
        """Wait for those before us to go, then for enough cards without a claim."""
        reason = self._chooser.failure().message
        if not attempt.ahead and attempt.free >= self._chooser.count:
            # They are not claimed: what uses them without a claim must become less busy.
            self._tell(attempt, reason)
            self._pause(_SURVEY_S)
            return
        while attempt.ahead:
            self._tell(attempt, reason)
            self._wait_for(attempt.ahead[-1])
            self._look_again(attempt)
        self._tell(attempt, reason)
        while attempt.free < self._chooser.count:
            self._pause(_LOOK_S)
            self._look_again(attempt)

    def _look_again(self, attempt: _Attempt) -> None:
        if self._store is None:
            return
        with self._store.gate() as gate:
            self._look(gate, attempt)

    def _wait_for(self, ticket: Ticket) -> None:
        while self._store is not None and self._store.is_live(ticket):
            self._pause(_LOOK_S)

    def _tell(self, attempt: _Attempt, reason: str) -> None:
        ahead = len(attempt.ahead)
        self._on_wait(Waiting(ahead=ahead, waited_s=self._waited_s(), reason=reason))

    def _pause(self, seconds: float) -> None:
        timeout_s = self._terms.timeout_s
        if timeout_s is not None:
            left_s = timeout_s - self._waited_s()
            if left_s <= 0:
                raise self._too_late()
            seconds = min(seconds, left_s)
        self._sleep(seconds)

    def _too_late(self) -> BadAnswerError:
        last = self._chooser.failure()
        return BadAnswerError(
            code="wait-timeout",
            message=f"Nothing became free within {self._terms.timeout_s:g} s. {last.message}",
            remedy=last.remedy,
        )


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
        user=holder.user,
        command=holder.command,
        since=holder.since,
    )


def list_claims(store: ClaimStore) -> ClaimList:
    """Return who holds what, and how many wait."""
    directory = str(store.directory)
    if not store.exists():
        return ClaimList(directory=directory)
    with store.gate() as gate:
        held = gate.held()
        waiting = len(gate.tickets())
    return ClaimList(
        directory=directory, claims=tuple(as_claim(item) for item in held), waiting=waiting
    )
