"""Claims on GPUs: what can be claimed, who holds it, and who waits for it (contract: claims/1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

#: More claimants than this on one card is a mistake.
MOST_SHARES = 256
#: No more of a command is repeated in a sentence.
_MOST_SHOWN = 60

_NAME = re.compile(
    r"(?P<card>[A-Za-z0-9-]{1,80})(?:\+(?P<instance>[A-Za-z0-9=-]{1,120}))?"
    r"(?P<steps>(?:\.[0-9]{1,3}of[0-9]{1,3}){1,8})"
)
_CARD = re.compile(r"[A-Za-z0-9-]{1,80}")
_INSTANCE = re.compile(r"[A-Za-z0-9/-]{1,120}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A whole GPU, or one of its MIG instances, as something that can be claimed."""

    card: str
    instance: str | None = None

    @property
    def uuid(self) -> str:
        """Return what CUDA_VISIBLE_DEVICES calls it."""
        return self.instance or self.card

    @property
    def has_usable_name(self) -> bool:
        """Return whether its UUIDs can be part of a file's name."""
        whole = _CARD.fullmatch(self.card) is not None
        return whole and (self.instance is None or _INSTANCE.fullmatch(self.instance) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One of the places on a card: number `slot` of the `share` that may be on it at once."""

    slot: int
    share: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place that one claim takes.

    A claim made inside another one has more than one step: the places of those around it first.
    """

    target: Target
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """Return the stem of its lock file; all that decides about a claim is in the name."""
        instance = self.target.instance
        inner = f"+{instance.replace('/', '=')}" if instance else ""
        path = "".join(f".{step.slot}of{step.share}" for step in self.steps)
        return f"{self.target.card}{inner}{path}"


def parse_slot(name: str) -> Slot | None:
    """Return the slot that the stem of a lock file names, None for any other text."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    instance = found["instance"]
    target = Target(card=found["card"], instance=instance and instance.replace("=", "/"))
    pairs = (part.split("of") for part in found["steps"].split(".")[1:])
    steps = tuple(Step(slot=int(slot), share=int(share)) for slot, share in pairs)
    if any(not step.slot < step.share <= MOST_SHARES for step in steps):
        return None
    return Slot(target=target, steps=steps)


class ProcessState(StrEnum):
    """What became of the process that made a claim.

    `ended`: what it has started holds the claim on. `elsewhere`: its number belongs to another PID
    namespace, as inside a container.
    """

    RUNNING = "running"
    ENDED = "ended"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who made a claim or waits for one; everything is null where the record cannot be read.

    `id` is the claim's own name, which commands started under it find in their environment.
    `user_id` is the owner of the record, which nobody can feign.
    """

    id: str | None = None
    pid: int | None = None
    user: str | None = None
    user_id: int | None = None
    command: str | None = None
    since: str | None = None
    process: ProcessState | None = None

    @property
    def described(self) -> str:
        """Return user, process and the beginning of the command in one phrase."""
        who = self.user or "somebody"
        if self.pid is None:
            return who
        remark = {
            ProcessState.ENDED: ", which has ended, but not what it started",
            ProcessState.ELSEWHERE: " of another PID namespace",
        }
        process = f"pid {self.pid}{remark.get(self.process, '') if self.process else ''}"
        if not self.command:
            return f"{who} ({process})"
        long = len(self.command) > _MOST_SHOWN
        command = f"{self.command[: _MOST_SHOWN - 3]}..." if long else self.command
        return f"{who} ({process}: {command})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlot:
    """A slot that cannot be had: the kernel says that its lock is held, or there is a `problem`.

    With a problem nobody can tell whether it is held, and the holder is who owns the lock file.
    """

    slot: Slot
    path: str
    holder: Holder
    problem: str = ""

    @property
    def obstacle(self) -> str:
        """Return what is in the way of whoever wants the card, and what to do about the file."""
        who = self.holder.user or "an unknown user"
        return (
            f"its lock file {self.path!r} cannot be used: {self.problem}; it belongs to {who}, who"
            " or root can remove it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A live place in the queue: `number` counts up, `wants` are the names of what may be given.

    None wants whatever there is: whoever drew the ticket has not looked at the machine yet.
    """

    number: int
    name: str
    wants: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim as the documents show it; `held` is false where it was only looked at."""

    uuid: str
    path: str
    slot: int
    held: bool
    waited_s: float | None = None
    pid: int | None = None
    process: ProcessState | None = None
    user: str | None = None
    command: str | None = None
    since: str | None = None
    share: int = 1
    gpu_uuid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """Somebody who waits for a GPU."""

    pid: int | None = None
    process: ProcessState | None = None
    user: str | None = None
    command: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusableLock:
    """A lock file of a card that is none, or that we may not open; that card is not given."""

    uuid: str
    path: str
    user: str | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimList:
    """The result of `gpucheck place --claims`: what is held, and who waits, first come first."""

    directory: str
    claims: tuple[Claim, ...] = ()
    waiting: int = 0
    queue: tuple[Waiter, ...] = ()
    unusable: tuple[UnusableLock, ...] = ()
