"""Claims on GPUs: targets, slots, holders and the queue (contract: claims/1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

#: Most claims that may share one GPU.
MOST_SHARES = 256
#: Most characters of a command that a sentence repeats.
_MOST_SHOWN = 60

_NAME = re.compile(
    r"(?P<card>[A-Za-z0-9-]{1,80})(?:\+(?P<instance>[A-Za-z0-9=-]{1,120}))?"
    r"(?P<steps>(?:\.[0-9]{1,3}of[0-9]{1,3}){1,8})"
)
_CARD = re.compile(r"[A-Za-z0-9-]{1,80}")
_INSTANCE = re.compile(r"[A-Za-z0-9/-]{1,120}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A whole GPU, or one of its MIG instances, that can be claimed."""

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
    """One place on a GPU: number `slot` of the `share` that may use it at once."""

    slot: int
    share: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place that one claim takes.

    A claim inside other claims has one step for each of them, the outermost first.
    """

    target: Target
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """Return the stem of its lock file, which holds all that decides about a claim."""
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
    """State of the process that made a claim.

    `ended`: a process that it started still holds the claim. `elsewhere`: its number belongs to
    another PID namespace, such as a container's.
    """

    RUNNING = "running"
    ENDED = "ended"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Process that made a claim or waits for one; all is null if its record cannot be read.

    `id` is the claim's own name, which commands started under it find in their environment.
    `user_id` is the owner of the record, which cannot be forged.
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
        who = self.user or "an unknown user"
        if self.pid is None:
            return who
        remark = {
            ProcessState.ENDED: ", which has ended, but its children run",
            ProcessState.ELSEWHERE: " in another PID namespace",
        }
        process = f"pid {self.pid}{remark.get(self.process, '') if self.process else ''}"
        if not self.command:
            return f"{who} ({process})"
        long = len(self.command) > _MOST_SHOWN
        command = f"{self.command[: _MOST_SHOWN - 3]}..." if long else self.command
        return f"{who} ({process}: {command})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlot:
    """A slot that is not available: its lock is held, or its lock file has a `problem`.

    With a problem it is unknown whether it is held, and the holder is the owner of the file.
    """

    slot: Slot
    path: str
    holder: Holder
    problem: str = ""

    @property
    def obstacle(self) -> str:
        """Return why the lock file makes the GPU unavailable, and what to do about it."""
        who = self.holder.user or "an unknown user"
        return (
            f"its lock file {self.path!r} cannot be used: {self.problem}; its owner, {who}, or"
            " root can remove it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A live ticket of the queue: `number` counts up, `wants` has the names of what would do.

    `wants` is None until the process has surveyed the machine: it may want anything.
    """

    number: int
    name: str
    wants: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim as the documents show it; `held` is false if it was only looked at."""

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
    """A process that waits for a GPU."""

    pid: int | None = None
    process: ProcessState | None = None
    user: str | None = None
    command: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusableLock:
    """A lock file that is not a regular file or cannot be opened; its GPU is not given."""

    uuid: str
    path: str
    user: str | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimList:
    """Result of `gpucheck place --claims`: the claims that are held, and the queue in order."""

    directory: str
    claims: tuple[Claim, ...] = ()
    waiting: int = 0
    queue: tuple[Waiter, ...] = ()
    unusable: tuple[UnusableLock, ...] = ()
