"""Claims on GPUs: FIFO queue, acquisition, and rules of sharing.

Selecting and claiming are one step under the mutex of the claims. A caller that is ready to wait
draws a ticket there first, before it surveys the machine. Tickets that want some of the same GPUs
are served strictly in the order in which they were drawn, also before callers that do not wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.model import Gpu
from gpucheck.place.claim_store import (
    ClaimStore,
    Lock,
    LockedStore,
    QueuePosition,
    Slot,
    Target,
    Ticket,
    claims_directory,
)
from gpucheck.place.lock_files import user_name
from gpucheck.place.model import Claim, Holder, already_waiting
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import BadAnswerError, InconclusiveError
from gpucheck.report.options import flag, made_of_options, option

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

#: Interval at which a waiting process checks the ticket ahead of it, and the locks.
_LOOK_S = 0.1
#: Interval at which it asks the driver again while a GPU is unclaimed but does not fit.
_SURVEY_S = 2.0
#: For a driver that does not answer the interval doubles each time, up to this.
_LONGEST_SURVEY_S = 60.0
#: Most waiting processes that may ask the driver at once, so that it answers in time.
_SURVEYS_AT_ONCE = os.cpu_count() or 1

_NO_ANSWER = Answer(result=None)


@dataclass(frozen=True, slots=True, kw_only=True)
@made_of_options
class ClaimOptions:
    """Options of a claim.

    `claim` None claims unless a scheduler allocated the GPUs. With `hold` false the claims of
    others count, but none is made. `command` goes into the record.
    """

    wait: bool = flag(
        "--wait",
        "Wait until they are free, first come first served.",
        group="Wait for them and hold them",
    )
    timeout_s: float | None = option("--timeout SECONDS", "Wait no longer than this.")
    claim: bool | None = option(
        "--claim/--no-claim",
        "Hold the GPUs while the command runs [default: unless a scheduler gave them].",
    )
    share: int = option("--share N", "Share each GPU among up to N claims.", 1)
    hold: bool = True
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """GPUs that a caller got, held until the lease is closed or a command has inherited it.

    Without locks nothing is held. `environment` is what a command needs to know its claims, and
    `gpus` are all GPUs of the machine.
    """

    answer: Answer = _NO_ANSWER
    gpus: Sequence[Gpu] = ()
    locks: tuple[Lock, ...] = ()
    claims: tuple[Claim, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that a command must inherit to keep the claims."""
        return tuple(lock.descriptor for lock in self.locks)

    def close(self) -> None:
        """Release the claims, unless a process that we started has inherited them."""
        for lock in self.locks:
            lock.close()


class Selector(Protocol):
    """Selection of what to take, from surveys of the machine that may be repeated."""

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


@dataclass(kw_only=True)
class NamedSelector:
    """Selector that takes all of the named targets, or nothing."""

    possible: Sequence[Target]
    blocked: Mapping[str, str] = field(default_factory=dict)
    behind: int = 0

    @property
    def count(self) -> int:
        """Return how many were named."""
        return len(self.possible)

    def survey(self) -> None:
        """Do nothing: named targets do not depend on the machine's load."""

    def choose(self, blocked: Mapping[str, str], *, behind: int = 0) -> Sequence[Target]:
        """Return all named targets, or nothing if one is blocked or others are ahead."""
        self.blocked, self.behind = blocked, behind
        return () if blocked or behind else self.possible

    def failure(self) -> BadAnswerError:
        """Return the error that says which are blocked, and by whom."""
        reasons = [f"{uuid}: {reason}" for uuid, reason in self.blocked.items()]
        if not reasons:
            reasons = [already_waiting(self.behind)]
        return BadAnswerError(
            code="gpu-claimed",
            message=f"The GPU is not available: {'; '.join(reasons)}.",
            remedy=(
                "Wait for it (--wait), share it (--share N), or run without a claim (--no-claim).",
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Queue position: how many are ahead of us, and how long we have waited.

    `reason` says what is missing, and `details` say it for each GPU.
    """

    ahead: int
    waited_s: float
    reason: str
    details: tuple[str, ...] = ()


OnWait = Callable[[Waiting], None]


class Acquisition:
    """One caller's acquisition of claims; without a store nothing is claimed or blocked.

    `enclosing` are the ids of the claims that this process is inside of.
    """

    def __init__(
        self,
        store: ClaimStore | None,
        options: ClaimOptions,
        selector: Selector,
        *,
        enclosing: frozenset[str] = frozenset(),
        on_wait: OnWait = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._options = options
        self._selector = selector
        self._enclosing = enclosing
        self._on_wait = on_wait
        self._sleep = sleep
        self._now_s = now_s
        self._position: QueuePosition | None = None
        self._began_s = now_s()
        self._has_waited = False
        self._has_surveyed = False
        #: What the last look found: the tickets ahead of us, and how many targets are vacant.
        self._ahead: Sequence[Ticket] = ()
        self._vacant = 0
        #: What each pause reports.
        self._waiting = Waiting(ahead=0, waited_s=0.0, reason="")
        self._driver_error = ""

    def run(self) -> Lease:
        """Choose targets and claim them, waiting for them if requested.

        Raises:
            BadAnswerError: nothing fits, or not within the timeout.
            MissingError: the directory for the claims cannot be used.
            InconclusiveError: the claims cannot be read.
        """
        try:
            while (lease := self._try()) is None:
                never = len(self._selector.possible) < self._selector.count
                if never or not self._options.wait:
                    raise self._selector.failure()
                self._wait()
            return lease
        finally:
            self._leave_queue()

    def _try(self) -> Lease | None:
        """Survey the machine, then choose and claim in one step."""
        store = self._store
        # A caller that only looks makes no directory: without one nothing is held.
        if store is not None and not (self._options.hold or store.exists()):
            store = None
        if store is not None and self._options.wait and self._position is None:
            self._join_queue(store)
        self._survey()
        self._has_surveyed = True
        if store is None:
            self._ahead, self._vacant = (), self._selector.count
            targets = self._selector.choose({})
            return Lease() if targets else None
        with store.mutex() as locked:
            lease = self._choose_and_take(locked)
            if lease is not None:
                # Under the mutex, so that nobody sees us wait for what we already hold.
                self._leave_queue()
        return lease

    def _survey(self) -> None:
        """Survey the machine; a caller that waits outlasts a driver that does not answer."""
        pause_s = _SURVEY_S
        while True:
            try:
                self._selector.survey()
            except InconclusiveError as error:
                if not self._options.wait:
                    raise
                self._driver_error = error.message
                self._note(0, error.message)
                self._pause(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_SURVEY_S)
            else:
                self._driver_error = ""
                return

    def _choose_and_take(self, locked: LockedStore) -> Lease | None:
        vacancies = self._look(locked)
        blocked = {uuid: vacancy for uuid, vacancy in vacancies.items() if isinstance(vacancy, str)}
        lost: dict[str, str] = {}
        while True:
            targets = self._selector.choose(blocked | lost, behind=len(self._ahead))
            if not targets:
                return None
            lease = self._take(locked, targets, vacancies, lost)
            if lease is not None:
                return lease

    # ------------------------------------------------------------------------------ the queue

    def _join_queue(self, store: ClaimStore) -> None:
        """Draw a ticket, then wait until few enough others are asking the driver."""
        with store.mutex() as locked:
            self._position = locked.enqueue(self._holder())
        number = self._position.ticket.number
        while True:
            with store.mutex() as locked:
                tickets = locked.tickets(before=number)
            asking = [ticket for ticket in tickets if ticket.wants is None]
            if len(asking) < _SURVEYS_AT_ONCE:
                return
            self._note(len(tickets), "they ask the driver first")
            self._wait_for(asking[-_SURVEYS_AT_ONCE])

    def _leave_queue(self) -> None:
        if self._position is not None:
            self._position.close()

    def _look(self, locked: LockedStore) -> dict[str, Slot | str]:
        """Return the vacancy on each possible target, and note the tickets ahead of us."""
        held = locked.held()
        vacancies = {
            target.uuid: vacancy_on(
                target, held, share=self._options.share, enclosing=self._enclosing
            )
            for target in self._selector.possible
        }
        wants = self._wants(vacancies)
        position = self._position
        if position is not None and position.ticket.wants is None:
            position.set_wants(wants)
        self._ahead = [
            ticket
            for ticket in locked.tickets(before=position.ticket.number if position else None)
            # A ticket without wants may want the same, and is ahead of us if we wait too.
            if (position is not None if ticket.wants is None else ticket.wants & wants)
        ]
        self._vacant = sum(isinstance(vacancy, Slot) for vacancy in vacancies.values())
        return vacancies

    def _wants(self, vacancies: Mapping[str, Slot | str]) -> frozenset[str]:
        """Return the GPUs that we queue for, or places inside the claims that enclose us."""
        if self._position is not None and self._position.ticket.wants is not None:
            return self._position.ticket.wants
        inside = "+".join(sorted(self._enclosing))
        return frozenset(f"{uuid}@{inside}" if inside else uuid for uuid in vacancies)

    # ------------------------------------------------------------------------------ taking

    def _take(
        self,
        locked: LockedStore,
        targets: Sequence[Target],
        vacancies: Mapping[str, Slot | str],
        lost: dict[str, str],
    ) -> Lease | None:
        """Take all of them or none; what another process has locked is lost for this attempt."""
        if not self._options.hold:
            return Lease()
        holder, claim_id = self._holder(), self._new_id()
        waited_s = self._waited_s() if self._has_waited else 0.0
        locks: list[Lock] = []
        claims = []
        try:
            for target in targets:
                slot = vacancies[target.uuid]
                assert isinstance(slot, Slot), "a blocked target was chosen"
                lock = locked.take(slot, holder, claim_id)
                if lock is None:
                    lost[target.uuid] = "another process has just taken it"
                    return None
                locks.append(lock)
                held = replace(slot, path=locked.path_of(slot), holder=holder)
                claims.append(held.as_claim(waited_s=waited_s))
        finally:
            if len(claims) < len(targets):
                for other in locks:
                    other.close()
        return Lease(
            locks=tuple(locks),
            claims=tuple(claims),
            environment={IDS_VARIABLE: ",".join(sorted({*self._enclosing, claim_id}))},
        )

    def _new_id(self) -> str:
        """Return a name for a claim: ticket and time, on a clock that all processes share."""
        number = self._position.ticket.number if self._position is not None else 0
        return f"{number}-{time.monotonic_ns()}-{os.getpid()}"

    def _holder(self) -> Holder:
        return Holder(
            pid=os.getpid(),
            user=user_name(os.geteuid()),
            command=self._options.command,
            since=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    # ------------------------------------------------------------------------------ waiting

    def _wait(self) -> None:
        """Wait for the tickets ahead of us, then for enough unclaimed GPUs."""
        failure = self._selector.failure()
        reason = failure.message
        self._waiting = replace(self._waiting, details=_reasons(failure))
        if not self._ahead and self._vacant >= self._selector.count:
            # They are unclaimed: the processes that use them must become less busy.
            self._note(0, reason)
            self._pause(_SURVEY_S)
            return
        while self._ahead:
            self._note(len(self._ahead), reason)
            self._wait_for(self._ahead[-1])
            self._look_again()
        self._note(0, reason)
        while self._vacant < self._selector.count:
            self._pause(_LOOK_S)
            self._look_again()

    def _look_again(self) -> None:
        if self._store is not None:
            with self._store.mutex() as locked:
                self._look(locked)

    def _wait_for(self, ticket: Ticket) -> None:
        while self._store is not None and self._store.is_live(ticket):
            self._pause(_LOOK_S)

    def _note(self, ahead: int, reason: str) -> None:
        """Remember what we wait for: each pause reports it."""
        self._waiting = replace(self._waiting, ahead=ahead, reason=reason)

    def _waited_s(self) -> float:
        return self._now_s() - self._began_s

    def _pause(self, seconds: float) -> None:
        self._has_waited = True
        self._on_wait(replace(self._waiting, waited_s=self._waited_s()))
        timeout_s = self._options.timeout_s
        if timeout_s is not None:
            left_s = timeout_s - self._waited_s()
            if left_s <= 0:
                raise self._too_late()
            seconds = min(seconds, left_s)
        self._sleep(seconds)

    def _too_late(self) -> BadAnswerError:
        message = f"Nothing became free within {self._options.timeout_s:g} s."
        if self._driver_error:
            return BadAnswerError(
                code="wait-timeout",
                message=f"{message} {self._driver_error}",
                remedy=("Run: gpucheck detect",),
            )
        if not self._has_surveyed:
            return BadAnswerError(
                code="wait-timeout",
                message=f"{message} Others ahead in the queue ask the driver first.",
            )
        last = self._selector.failure()
        return BadAnswerError(
            code="wait-timeout",
            message=f"{message} {last.message}",
            remedy=(*_reasons(last), "Ask for less, or wait longer: --timeout."),
        )


def _reasons(failure: BadAnswerError) -> tuple[str, ...]:
    """Return the reasons of a failure: its remedy without the last step."""
    return failure.remedy[:-1]


# ---------------------------------------------------------------------------------- rules


def scheduler_of(environment: Mapping[str, str]) -> str | None:
    """Return the scheduler whose allocation this process is in."""
    return next((name for key, name in SCHEDULERS.items() if environment.get(key)), None)


def enclosing_ids(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the ids of the claims that enclose this process."""
    return frozenset(filter(None, environment.get(IDS_VARIABLE, "").split(",")))


def vacancy_on(
    target: Target, held: Sequence[Slot], *, share: int, enclosing: frozenset[str]
) -> Slot | str:
    """Return the slot for a claim that accepts `share` claims on a target, or why there is none.

    The smallest share among all of them is the limit. A whole GPU excludes its MIG instances, and
    the other way round. The claims in `enclosing` are our own if we own their records: the ids
    alone prove nothing, since everybody can read them.
    """
    if not target.has_usable_name:
        return "its UUID cannot be read, so it cannot be claimed"
    on_gpu = [item for item in held if item.target.card == target.card]
    strange = next((item for item in on_gpu if item.problem), None)
    if strange is not None:
        return strange.obstacle
    ours = _enclosing_steps(target, on_gpu, enclosing)
    if not ours:
        for item in on_gpu:
            other = item.target
            if other != target and None in (other.instance, target.instance):
                holding = "one of its MIG instances" if target.instance is None else "the whole GPU"
                return f"{holding} is held by {item.holder.described}"
    taken = {
        item.steps[len(ours)]: item
        for item in on_gpu
        if item.target == target and len(item.steps) > len(ours) and item.steps[: len(ours)] == ours
    }
    limit = min([share, *(most for _, most in taken)])
    if len(taken) >= limit:
        return f"held by {', '.join(sorted({item.holder.described for item in taken.values()}))}"
    used = {number for number, _ in taken}
    number = next(number for number in range(share) if number not in used)
    return Slot(target=target, steps=(*ours, (number, share)))


def _enclosing_steps(
    target: Target, on_gpu: Sequence[Slot], enclosing: frozenset[str]
) -> tuple[tuple[int, int], ...]:
    """Return the steps of the innermost claim on the target that encloses us."""
    ours = [
        item.steps
        for item in on_gpu
        if item.target == target
        and item.claim_id is not None
        and item.claim_id in enclosing
        and item.user_id == os.geteuid()
    ]
    return max(ours, key=len, default=())


# ---------------------------------------------------------------------------------- the store


def open_store(options: ClaimOptions, environment: Mapping[str, str]) -> ClaimStore | None:
    """Return the claim store, or None if claims are switched off."""
    claims = options.claim
    if claims is None:
        claims = scheduler_of(environment) is None
    return open_claims(environment) if claims else None


def open_claims(environment: Mapping[str, str]) -> ClaimStore:
    """Return the store of the claims on this machine's GPUs."""
    return ClaimStore(claims_directory(environment))


def number_claims(claims: Iterable[Claim], gpus: Iterable[Gpu | GpuReading]) -> tuple[Claim, ...]:
    """Return the claims, each with the number of its GPU."""
    numbers = {gpu.uuid: gpu.index for gpu in gpus}
    return tuple(
        replace(claim, index=numbers.get(claim.gpu_uuid or claim.uuid)) for claim in claims
    )


def own_command(words: Sequence[str]) -> str:
    """Return a command line for the record of a claim, without secrets."""
    import shlex

    from gpucheck.drivers.host.processes import without_secrets

    return shlex.join(without_secrets(words))
