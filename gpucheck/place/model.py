"""Documents of `gpucheck place` (place/1) and of its claims (claims/1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpucheck.drivers.host.processes import program_of
from gpucheck.inventory.model import MemoryCap
from gpucheck.report.text import ranges

#: Most GPUs that one request may ask for.
MOST_GPUS = 1024
#: Most claims that may share one GPU.
MOST_SHARES = 256
#: Beginning of the reason against a GPU that processes use.
IN_USE = "in use by "


# ---------------------------------------------------------------------------------- claims


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
    """Process that made a claim or waits for one; all is null if its record cannot be read."""

    pid: int | None = None
    process: ProcessState | None = None
    user: str | None = None
    command: str | None = None
    since: str | None = None

    @property
    def described(self) -> str:
        """Return user and program in one phrase: "alice (train.py)"."""
        who = self.user or "an unknown user"
        if self.pid is None:
            return who
        phrases = {
            ProcessState.ENDED: ", which has ended, but its children run",
            ProcessState.ELSEWHERE: ", in another PID namespace",
        }
        state = phrases.get(self.process, "") if self.process else ""
        return f"{who} ({program_of(self.command) or f'process {self.pid}'}{state})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim as the documents show it; `held` is false if it was only looked at.

    `index` is the number of its GPU, null where the driver does not say it.
    """

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
    index: int | None = None


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
    queue: tuple[Holder, ...] = ()
    unusable: tuple[UnusableLock, ...] = ()


# ---------------------------------------------------------------------------------- placements


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedDevice:
    """The device that a string resolves to.

    `soft` is true if it is not what was asked. `names` maps a library to its name for the device.
    `used_by` is who computes on it already, whether with a claim or without.
    """

    spec: str
    resolved: str
    kind: str
    cuda_index: int | None = None
    index: int | None = None
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    mig_instance: bool = False
    soft: bool = False
    reason: str = ""
    names: dict[str, str] = field(default_factory=dict)
    used_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedOp:
    """One operation of a graph and the device it is placed on, by its full name."""

    name: str
    op: str
    device: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Data that a placement copies between devices; the time is null if nothing ran."""

    from_: str
    to: str
    what: str
    bytes: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A GPU or MIG instance that was considered, and why it was or was not eligible.

    A GPU without a readable UUID is `index N` here. `countable` is false if CUDA may count it
    otherwise than NVML does: a lost GPU, or one that is split by MIG. `used_by` has the other
    programs on it, as `alice: train.py`.
    """

    uuid: str
    eligible: bool
    reason: str
    index: int | None = None
    name: str | None = None
    countable: bool = True
    memory_free_bytes: int | None = None
    used_by: tuple[str, ...] = ()


#: A number, or rows of them: what an operation computed.
Value = float | tuple["Value", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The result of `gpucheck place`.

    `environment` makes a program see only the GPUs of `devices`. `graph` is the file of the
    operations, null for the tutorials' graph. `ran` says whether they were computed. `advice` has
    placements that would copy less, and notes about the value. `memory_limits` are the cards of
    which our cgroup may use only a part.
    """

    devices: tuple[PlacedDevice, ...] = ()
    graph: str | None = None
    ops: tuple[PlacedOp, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    ran: bool = False
    value: Value | None = None
    environment: dict[str, str] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    advice: tuple[str, ...] = ()
    memory_limits: tuple[MemoryCap, ...] = ()


# ---------------------------------------------------------------------------------- in words


def short_name(resolved: str) -> str:
    """Return a resolved device without job, replica and task: `/device:GPU:0`."""
    return f"/{resolved.rpartition('/')[2]}"


def together(names: Sequence[str], *, most: int = 3) -> str:
    """Return the first names, and how many more there are: "a, b, c and 2 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def name_together(candidates: Sequence[Candidate]) -> str:
    """Return the numbers of cards; instances have none, so their UUIDs are added."""
    cards: list[int] = []
    others: list[str] = []
    for item in candidates:
        if item.index is not None and not item.uuid.startswith("MIG-"):
            cards.append(item.index)
        else:
            others.append(item.uuid if item.index is None else f"{item.index} ({item.uuid})")
    names = ([ranges(cards)] if cards else []) + others
    return f"GPU{'s' if len(candidates) > 1 else ''} {', '.join(names)}"


def who_can_remove(user: str | None) -> str:
    """Return who may remove a user's file from the sticky directory of the claims."""
    return "root" if user == "root" else f"its owner, {user or 'an unknown user'}, or root"


def already_waiting(others: int) -> str:
    """Return the reason against a GPU that others queue for."""
    who = "another process is" if others == 1 else f"{others} others are"
    return f"{who} already waiting for it"
