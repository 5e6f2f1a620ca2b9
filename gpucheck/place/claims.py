"""FIFO queue for GPU claims, and their acquisition.

Selecting and claiming are one step under the mutex of the claims. A caller that is ready to wait
draws a ticket there first, before it surveys the machine. Tickets that want some of the same GPUs
are served strictly in the order in which they were drawn, also before callers that do not wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from gpucheck.place.claim_list import as_claim
from gpucheck.place.claim_model import Claim, HeldSlot, Holder, Target, Ticket
from gpucheck.place.claim_records import user_name
from gpucheck.place.claim_rules import IDS_VARIABLE, Room, room_on
from gpucheck.place.claim_store import ClaimStore, Gate, Lock, Place
from gpucheck.report.errors import BadAnswerError, InconclusiveError

#: Interval at which a waiting process checks the ticket ahead of it, and the locks.
_LOOK_S = 0.1
#: Interval at which it asks the driver again while a GPU is unclaimed but does not fit.
_SURVEY_S = 2.0
#: For a driver that does not answer the interval doubles each time, up to this.
_LONGEST_SURVEY_S = 60.0
#: Most waiting processes that may ask the driver at once, so that it answers in time.
_SURVEYS_AT_ONCE = os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Lease: the claims that we hold, their locks, and the variables for a command."""

    locks: tuple[Lock, ...] = ()
    claims: tuple[Claim, ...] = ()
    environment: Mapping[str, str]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that a command must inherit to keep the claims."""
        return tuple(lock.descriptor for lock in self.locks)

    def close(self) -> None:
        """Release the claims, unless a process that we started has inherited them."""
        for lock in self.locks:
            lock.close()


class Chooser(Protocol):
    """Selector: decides what to take, from surveys of the machine that may be repeated."""

    @property
    def possible(self) -> Sequence[Target]:
        """Return every target that this caller could ever get."""
        ...

    @property
    def count(self) -> int:
        """Return how many are wanted."""
        ...

    def survey(self) -> None:
        """Survey the machine again."""
        ...

    def choose(self, blocked: Mapping[str, str], *, behind: int = 0) -> Sequence[Target]:
        """Return the best that fits; nothing if too few do or others are ahead.

        `blocked` maps UUIDs to reasons; `behind` is the number of others that wait for the same.
        """
        ...

    def failure(self) -> BadAnswerError:
        """Return the error for the last choice, which found too few."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Queue position: how many are ahead of us, and how long we have waited.

    `reason` says what is missing, and `details` say it for each GPU.
    """

    ahead: int
    waited_s: float
    reason: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTerms:
    """Options of an acquisition.

    With `hold` false nothing is claimed. `around` are the ids of the claims that enclose this
    process, and `command` goes into the record.
    """

    share: int = 1
    wait: bool = False
    timeout_s: float | None = None
    hold: bool = True
    command: str = ""
    around: frozenset[str] = frozenset()


class _Attempt:
    """One attempt under the mutex: what was chosen and taken, and who is ahead."""

    def __init__(self) -> None:
        self.held: Held | None = None
        self.chosen: Sequence[Target] = ()
        self.ahead: Sequence[Ticket] = ()
        self.free = 0


class Acquisition:
    """One caller's acquisition of claims; without a store nothing is claimed or blocked."""

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
        self._place: Place | None = None
        self._began_s = now_s()
        self._has_waited = False
        self._has_looked = False
        self._silence = ""
        self._ahead, self._reason = 0, ""
        self._details: tuple[str, ...] = ()

    def run(self) -> tuple[Sequence[Target], Held]:
        """Choose targets and claim them, waiting for them if requested.

        Raises:
            BadAnswerError: nothing fits, or not within the timeout.
            MissingError: the directory for the claims cannot be used.
            InconclusiveError: the claims cannot be read.
        """
        try:
            attempt = self._try()
            while attempt.held is None:
                never = len(self._chooser.possible) < self._chooser.count
                if never or not self._terms.wait:
                    raise self._chooser.failure()
                self._wait(attempt)
                attempt = self._try()
            return attempt.chosen, attempt.held
        finally:
            self._leave_queue()

    def _try(self) -> _Attempt:
        """Survey the machine, then choose and claim in one step."""
        store = self._store
        # A caller that only looks makes no directory: without one nothing is held.
        if store is not None and not (self._terms.hold or store.exists()):
            store = None
        if store is not None and self._terms.wait and self._place is None:
            self._join_queue(store)
        self._survey()
        self._has_looked = True
        attempt = _Attempt()
        if store is None:
            attempt.chosen = self._chooser.choose({})
            attempt.held = Held(environment={}) if attempt.chosen else None
            attempt.free = self._chooser.count
            return attempt
        with store.gate() as gate:
            self._choose_and_take(gate, attempt)
            if attempt.held is not None:
                # Under the mutex, so that nobody sees us wait for what we already hold.
                self._leave_queue()
        return attempt

    def _survey(self) -> None:
        """Survey the machine; a caller that waits outlasts a driver that does not answer."""
        pause_s = _SURVEY_S
        while True:
            try:
                self._chooser.survey()
            except InconclusiveError as error:
                if not self._terms.wait:
                    raise
                self._silence = error.message
                self._note(0, error.message)
                self._pause(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_SURVEY_S)
            else:
                self._silence = ""
                return

    def _choose_and_take(self, gate: Gate, attempt: _Attempt) -> None:
        rooms = self._look(gate, attempt)
        blocked = {uuid: room.reason for uuid, room in rooms.items() if room.slot is None}
        lost: dict[str, str] = {}
        while attempt.held is None:
            attempt.chosen = self._chooser.choose(blocked | lost, behind=len(attempt.ahead))
            if not attempt.chosen:
                return
            attempt.held = self._take(gate, attempt.chosen, rooms, lost)

    # ------------------------------------------------------------------------------ the queue

    def _join_queue(self, store: ClaimStore) -> None:
        """Draw a ticket, then wait until few enough others are asking the driver."""
        with store.gate() as gate:
            self._place = gate.enqueue(self._holder())
        number = self._place.ticket.number
        while True:
            with store.gate() as gate:
                tickets = gate.tickets(before=number)
            asking = [ticket for ticket in tickets if ticket.wants is None]
            if len(asking) < _SURVEYS_AT_ONCE:
                return
            self._note(len(tickets), "they ask the driver first")
            self._wait_for(asking[-_SURVEYS_AT_ONCE])

    def _leave_queue(self) -> None:
        if self._place is not None:
            self._place.close()

    def _look(self, gate: Gate, attempt: _Attempt) -> dict[str, Room]:
        held = gate.held()
        share, around = self._terms.share, self._terms.around
        rooms = {
            target.uuid: room_on(target, held, share=share, around=around)
            for target in self._chooser.possible
        }
        wants = self._wants(rooms)
        place = self._place
        if place is not None and place.ticket.wants is None:
            place.settle(wants)
        attempt.ahead = [
            ticket
            for ticket in gate.tickets(before=None if place is None else place.ticket.number)
            # A ticket without wants may want the same, and is ahead of us if we wait too.
            if (place is not None if ticket.wants is None else ticket.wants & wants)
        ]
        attempt.free = sum(room.slot is not None for room in rooms.values())
        return rooms

    def _wants(self, rooms: Mapping[str, Room]) -> frozenset[str]:
        """Return what we queue for: the GPUs, or places inside the claims that enclose us."""
        if self._place is not None and self._place.ticket.wants is not None:
            return self._place.ticket.wants
        inside = "+".join(sorted(self._terms.around))
        return frozenset(f"{uuid}@{inside}" if inside else uuid for uuid in rooms)

    # ------------------------------------------------------------------------------ taking

    def _take(
        self,
        gate: Gate,
        chosen: Sequence[Target],
        rooms: Mapping[str, Room],
        lost: dict[str, str],
    ) -> Held | None:
        """Take all of them or none; what another process has locked is lost for this attempt."""
        if not self._terms.hold:
            return Held(environment={})
        holder = self._holder()
        waited_s = self._waited_s() if self._has_waited else 0.0
        locks: list[Lock] = []
        claims = []
        try:
            for target in chosen:
                slot = rooms[target.uuid].slot
                assert slot is not None, "a blocked target was chosen"
                lock = gate.take(slot, holder)
                if lock is None:
                    lost[target.uuid] = "another process has just taken it"
                    break
                locks.append(lock)
                held = HeldSlot(slot=slot, path=gate.path_of(slot), holder=holder)
                claims.append(as_claim(held, waited_s=waited_s))
        finally:
            if len(claims) < len(chosen):
                for other in locks:
                    other.close()
        if len(claims) < len(chosen):
            return None
        ids = ",".join(sorted({*self._terms.around, str(holder.id)}))
        return Held(locks=tuple(locks), claims=tuple(claims), environment={IDS_VARIABLE: ids})

    def _holder(self) -> Holder:
        number = self._place.ticket.number if self._place is not None else 0
        pid = os.getpid()
        return Holder(
            # The ticket and the time, on a clock that all processes share, give the order.
            id=f"{number}-{time.monotonic_ns()}-{pid}",
            pid=pid,
            user=user_name(os.geteuid()),
            command=self._terms.command,
            since=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    # ------------------------------------------------------------------------------ waiting

    def _wait(self, attempt: _Attempt) -> None:
        """Wait for the tickets ahead of us, then for enough unclaimed GPUs."""
        failure = self._chooser.failure()
        reason, self._details = failure.message, _causes(failure)
        if not attempt.ahead and attempt.free >= self._chooser.count:
            # They are unclaimed: the processes that use them must become less busy.
            self._note(0, reason)
            self._pause(_SURVEY_S)
            return
        while attempt.ahead:
            self._note(len(attempt.ahead), reason)
            self._wait_for(attempt.ahead[-1])
            self._look_again(attempt)
        self._note(0, reason)
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

    def _note(self, ahead: int, reason: str) -> None:
        """Remember what we wait for: each pause reports it."""
        self._ahead, self._reason = ahead, reason

    def _waited_s(self) -> float:
        return self._now_s() - self._began_s

    def _pause(self, seconds: float) -> None:
        self._has_waited = True
        self._on_wait(
            Waiting(
                ahead=self._ahead,
                waited_s=self._waited_s(),
                reason=self._reason,
                details=self._details,
            )
        )
        timeout_s = self._terms.timeout_s
        if timeout_s is not None:
            left_s = timeout_s - self._waited_s()
            if left_s <= 0:
                raise self._too_late()
            seconds = min(seconds, left_s)
        self._sleep(seconds)

    def _too_late(self) -> BadAnswerError:
        message = f"Nothing became free within {self._terms.timeout_s:g} s."
        if self._silence:
            return BadAnswerError(
                code="wait-timeout",
                message=f"{message} {self._silence}",
                remedy=("Run: gpucheck detect",),
            )
        if not self._has_looked:
            return BadAnswerError(
                code="wait-timeout",
                message=f"{message} Others ahead in the queue ask the driver first.",
            )
        last = self._chooser.failure()
        return BadAnswerError(
            code="wait-timeout",
            message=f"{message} {last.message}",
            remedy=(*_causes(last), "Ask for less, or wait longer: --timeout."),
        )


def _causes(failure: BadAnswerError) -> tuple[str, ...]:
    """Return the reasons of a failure: its remedy without the last step."""
    return failure.remedy[:-1]
