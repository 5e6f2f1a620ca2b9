"""Store of claims: lock files in a directory that all users share, held slots, and the queue.

A claim is a file whose flock(2) is held on an open descriptor. The command inherits the descriptor,
so the kernel ends the claim with the last process that has it, however that process ends. What a
lock file stands for is in its name; its holder is in a separate record, since a user may not write
to another user's file (fs.protected_regular).

The locks are read and changed only under one more lock, the mutex: selecting and claiming are one
step. The mutex is held for milliseconds, and never while a driver is asked.

The directory is sticky and open to all. No link in it is followed, no existing file is opened with
O_CREAT, and no file ever has another mode than its final one: files are made under another name and
linked into place, whatever the umask.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from gpucheck.place.lock_files import (
    DIRECTORY_VARIABLE,
    LONGEST_PAUSE_S,
    NAME,
    OPEN_TO_ALL,
    PARENTS,
    FileRecord,
    clear_drafts,
    create_file,
    credibility,
    holder_of,
    is_held,
    is_same_file,
    open_directory,
    open_or_create,
    read_record,
    record_of,
    release,
    replace_file,
    rewrite_file,
    root_should_make,
    slot_state,
    text_of,
    text_set,
    try_lock,
    unlink,
    unusable_path,
    user_name,
)
from gpucheck.place.model import (
    MOST_SHARES,
    Claim,
    ClaimList,
    Holder,
    UnusableLock,
    who_can_remove,
)
from gpucheck.report.errors import InconclusiveError

_MUTEX = "gate.lock"
_TURN = "turn.lock"
#: A ticket changes its name once its wants are known, which processes that wait for that see.
_TICKET = re.compile(r"ticket-(?P<number>[0-9]{1,20})\.[0-9]{1,20}(?P<new>\.new)?\.lock")
#: Numbers come from a clock that all processes share, so one further ahead than this was never
#: drawn. The clock counts since boot, which rules out tickets of an earlier boot too.
_LONGEST_LEAD_NS = 600 * 10**9

#: How long we wait for the mutex, while nothing in the directory changes, before its holder must be
#: stuck. On a busy machine hundreds that wait for it need longer in all.
MUTEX_DEADLINE_S = 30.0
_SHORTEST_PAUSE_S = 0.001

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
        """Return the target's UUID for CUDA_VISIBLE_DEVICES."""
        return self.instance or self.card

    @property
    def has_usable_name(self) -> bool:
        """Return whether its UUIDs can be part of a file's name."""
        whole = _CARD.fullmatch(self.card) is not None
        return whole and (self.instance is None or _INSTANCE.fullmatch(self.instance) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place that one claim takes, and who holds it.

    A step is a number, and how many may use the GPU at once. A claim inside other claims has one
    for each of them, the outermost first. With a `problem` of its lock file, at `path`, it is
    unknown whether it is held, and the holder is the owner of the file. `claim_id` is the claim's
    own name, which commands started under it find in their environment. `user_id` is the owner of
    the record, which cannot be forged.
    """

    target: Target
    steps: tuple[tuple[int, int], ...]
    path: str = ""
    holder: Holder = field(default_factory=Holder)
    claim_id: str | None = None
    user_id: int | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """Return the stem of its lock file, which holds all that decides about a claim."""
        instance = self.target.instance
        inner = f"+{instance.replace('/', '=')}" if instance else ""
        path = "".join(f".{number}of{share}" for number, share in self.steps)
        return f"{self.target.card}{inner}{path}"

    def as_claim(self, *, waited_s: float | None = None) -> Claim:
        """Return the public record of the claim on this slot."""
        number, share = self.steps[-1]
        return Claim(
            uuid=self.target.uuid,
            gpu_uuid=self.target.card,
            path=self.path,
            slot=number,
            share=share,
            held=True,
            waited_s=waited_s,
            **asdict(self.holder),
        )

    @property
    def obstacle(self) -> str:
        """Return why the lock file makes the GPU unavailable, and what to do about it."""
        who = who_can_remove(self.holder.user)
        return f"its lock file {self.path!r} cannot be used: {self.problem}; {who} can remove it"


def parse_slot(name: str) -> Slot | None:
    """Return the slot that the stem of a lock file names, None for any other text."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    instance = match["instance"]
    target = Target(card=match["card"], instance=instance and instance.replace("=", "/"))
    pairs = (part.split("of") for part in match["steps"].split(".")[1:])
    steps = tuple((int(number), int(share)) for number, share in pairs)
    if any(not number < share <= MOST_SHARES for number, share in steps):
        return None
    return Slot(target=target, steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A live ticket of the queue: `number` counts up, `wants` names the GPUs that fit.

    `wants` is None until the process has surveyed the machine: it may want anything.
    """

    number: int
    name: str
    wants: frozenset[str] | None


def _highest_number() -> int:
    """Return the highest number that a ticket can have now."""
    return time.monotonic_ns() + _LONGEST_LEAD_NS


class Lock:
    """A lock that we hold; it lasts until the last copy of its descriptor is closed."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def close(self) -> None:
        """Give up our copy of the descriptor."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class QueuePosition:
    """A queue position; closing it ends the ticket."""

    def __init__(self, folder: int, descriptor: int, ticket: Ticket, holder: Holder) -> None:
        self._folder = os.dup(folder)
        self._descriptor = descriptor
        self._holder = holder
        self.ticket = ticket

    def set_wants(self, wants: frozenset[str]) -> None:
        """Record what we wait for, now that it is known; call it under the mutex."""
        rewrite_file(self._descriptor, record_of(self._holder, wants=sorted(wants)))
        old = self.ticket.name
        name = old.replace(".new.", ".")
        with contextlib.suppress(OSError):
            os.rename(old, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self.ticket = Ticket(number=self.ticket.number, name=name, wants=wants)

    def close(self) -> None:
        """Leave the queue."""
        if self._descriptor < 0:
            return
        unlink(self._folder, self.ticket.name)
        release(self._descriptor)
        os.close(self._folder)
        self._descriptor = -1


def claims_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory that all users of this machine share, unless the variable names one.

    Raises:
        MissingError: the variable does not have a full path.
    """
    named = environment.get(DIRECTORY_VARIABLE)
    if named:
        if not named.startswith("/"):
            raise unusable_path(Path(named), "it must be a full path, beginning with /")
        return Path(named)
    # The choice must be the same for every user, so the mode decides, not our own access.
    parent = next((path for path in PARENTS if _is_open_to_all(path)), PARENTS[-1])
    return parent / NAME


def _is_open_to_all(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_mode & OPEN_TO_ALL == OPEN_TO_ALL


class ClaimStore:
    """Store of the claims on this machine, in a directory that all users share."""

    def __init__(self, directory: Path, *, mutex_deadline_s: float = MUTEX_DEADLINE_S) -> None:
        self.directory = directory
        self._mutex_deadline_s = mutex_deadline_s

    def exists(self) -> bool:
        """Return whether the path exists, usable or not."""
        try:
            self.directory.lstat()
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def warning(self) -> str | None:
        """Return a warning if the directory is another user's, who can remove held locks."""
        try:
            owner = self.directory.lstat().st_uid
        except OSError:
            return None
        if owner in (0, os.geteuid()):
            return None
        return (
            f"The directory for claims, {str(self.directory)!r}, belongs to {user_name(owner)}, who"
            f" can remove locks that others hold. {root_should_make(self.directory)}"
        )

    @contextlib.contextmanager
    def mutex(self) -> Iterator[LockedStore]:
        """Open the directory, wait for its mutex, and hold it.

        Raises:
            MissingError: the directory cannot be used or trusted.
            InconclusiveError: the holder does not release the mutex.
        """
        folder = open_directory(self.directory)
        try:
            held = open_or_create(folder, _MUTEX, self.directory)
            try:
                self._wait_for(held, folder)
                yield LockedStore(folder, self.directory)
            finally:
                release(held)
        finally:
            os.close(folder)

    def try_turn(self) -> Lock | None:
        """Take the turn of a program that claims in several steps; None while another has it.

        Of two programs that each hold a GPU and wait for one more, neither would ever go on.

        Raises:
            MissingError: the directory cannot be used or trusted.
        """
        folder = open_directory(self.directory)
        try:
            turn = open_or_create(folder, _TURN, self.directory)
        finally:
            os.close(folder)
        if self._try(turn):
            return Lock(turn)
        release(turn)
        return None

    def is_live(self, ticket: Ticket) -> bool:
        """Return whether the ticket still waits for the same; needs no mutex."""
        try:
            folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return is_held(folder, ticket.name)
        finally:
            os.close(folder)

    def _wait_for(self, mutex: int, folder: int) -> None:
        changed_ns, end_s = 0, 0.0
        pause_s = _SHORTEST_PAUSE_S
        while not self._try(mutex):
            if (now_ns := os.fstat(folder).st_mtime_ns) != changed_ns:
                changed_ns, end_s = now_ns, time.monotonic() + self._mutex_deadline_s
            elif time.monotonic() > end_s:
                raise InconclusiveError(
                    code="claims-busy",
                    message=f"Another process has kept the claims in {str(self.directory)!r} locked"
                    f" for {self._mutex_deadline_s:g} s.",
                    remedy=(f"See who has it open: fuser -v {self.directory / _MUTEX}",),
                )
            # Not by the module random: its sequence is the calling program's, and the processes of
            # one job often start it alike.
            time.sleep(pause_s * (0.5 + os.urandom(1)[0] / 256))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _try(self, mutex: int) -> bool:
        try:
            return try_lock(mutex, fcntl.LOCK_EX)
        except OSError as error:  # NFS, for one, does not lock a file opened read-only
            problem = f"its file system cannot lock files ({error.strerror})"
            raise unusable_path(self.directory, problem) from None


class LockedStore:
    """The directory under its mutex."""

    def __init__(self, folder: int, path: Path) -> None:
        self._folder = folder
        self._path = path

    def held(self) -> Sequence[Slot]:
        """Return every slot that is held or unusable; files with other names are ignored."""
        names = sorted(self._names())
        slots = []
        for name in names:
            stem, dot, suffix = name.rpartition(".")
            slot = parse_slot(stem) if (dot, suffix) == (".", "lock") else None
            if slot is None:
                continue
            taken, problem = slot_state(self._folder, name)
            if taken:
                slots.append(self._held_slot(slot, names))
            elif problem:
                owner = Holder(user=self._owner(name))
                path = self.path_of(slot)
                slots.append(replace(slot, path=path, holder=owner, problem=problem))
        return slots

    def _owner(self, name: str) -> str | None:
        try:
            status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return None
        return user_name(status.st_uid)

    def _names(self) -> list[str]:
        with os.scandir(self._folder) as entries:
            return [entry.name for entry in entries]

    def path_of(self, slot: Slot) -> str:
        """Return the path of the slot's lock file, for messages."""
        return str(self._path / f"{slot.name}.lock")

    def tickets(self, *, before: int | None = None) -> Sequence[Ticket]:
        """Return the live tickets below a number, in their order.

        Dead tickets and unfinished files are removed, as far as they are ours.
        """
        names = self._names()
        clear_drafts(self._folder, names)
        live = self._live_tickets(names, before)
        return [
            Ticket(number=number, name=name, wants=text_set(read.record, "wants"))
            for number, name, read in live
        ]

    def queue(self) -> Sequence[Holder]:
        """Return the waiting processes, in the order of the queue."""
        live = self._live_tickets(self._names(), None)
        return [holder_of(read.record, read.user_id) for _, _, read in live]

    def _live_tickets(
        self, names: Sequence[str], before: int | None
    ) -> list[tuple[int, str, FileRecord]]:
        drawn = ((_TICKET.fullmatch(name), name) for name in names)
        numbered = sorted((int(match["number"]), name) for match, name in drawn if match)
        most = _highest_number()
        live = []
        for number, name in numbered:
            if before is not None and number >= before:
                break
            if not is_held(self._folder, name):
                unlink(self._folder, name)
            elif number > most:
                break
            elif (read := read_record(self._folder, name)) is not None and "pid" in read.record:
                # A ticket has its record as soon as its name: without one it is not a ticket.
                live.append((number, name, read))
        return live

    def take(self, slot: Slot, holder: Holder, claim_id: str | None = None) -> Lock | None:
        """Lock a slot, then write its record; None if it is held after all."""
        fd = open_or_create(self._folder, f"{slot.name}.lock", self._path)
        if not try_lock(fd, fcntl.LOCK_EX) or not is_same_file(
            fd, self._folder, f"{slot.name}.lock"
        ):
            release(fd)
            return None
        # Our own record of this slot; those of other users are not ours to write.
        replace_file(
            self._folder, f"{slot.name}.{os.geteuid()}.json", record_of(holder, id=claim_id)
        )
        return Lock(fd)

    def enqueue(self, holder: Holder) -> QueuePosition:
        """Draw the next ticket, locked as soon as it has its name; its wants may come later."""
        drawn = (_TICKET.fullmatch(name) for name in self._names())
        most = _highest_number()
        numbers = [int(match["number"]) for match in drawn if match]
        last = max((number for number in numbers if number < most), default=0)
        # If no ticket is left to count from, the clock that all processes share continues.
        number = max(last + 1, time.monotonic_ns())
        name = f"ticket-{number:018d}.{os.getpid()}.new.lock"
        fd = create_file(self._folder, name, record_of(holder), path=self._path, lock=True)
        if fd is None:  # the mutex is ours, so none of us made it meanwhile
            raise unusable_path(self._path, "another program changes it without its mutex")
        ticket = Ticket(number=number, name=name, wants=None)
        return QueuePosition(self._folder, fd, ticket, holder)

    def _held_slot(self, slot: Slot, names: Sequence[str]) -> Slot:
        """Return a held slot with its last holder: the newest credible one of the users' records.

        The user is the owner of the record, which cannot be forged.
        """
        pattern = re.compile(re.escape(slot.name) + r"\.(?P<user>[0-9]{1,10})\.json")
        records: list[FileRecord] = []
        now_ns = time.time_ns()
        for name in names:
            match = pattern.fullmatch(name)
            read = read_record(self._folder, name) if match else None
            if match is None or read is None or read.user_id != int(match["user"]):
                continue
            records.append(read)
        path = self.path_of(slot)
        if not records:
            return replace(slot, path=path)
        # A record dated in the future ranks last.
        best = max(
            records,
            key=lambda read: (
                read.modified_ns <= now_ns,
                credibility(read.record, read.user_id),
                read.modified_ns,
            ),
        )
        return replace(
            slot,
            path=path,
            holder=holder_of(best.record, best.user_id),
            claim_id=text_of(best.record, "id"),
            user_id=best.user_id,
        )


def list_claims(store: ClaimStore) -> ClaimList:
    """Return the claims that are held, and the queue."""
    directory = str(store.directory)
    if not store.exists():
        return ClaimList(directory=directory)
    with store.mutex() as locked:
        held = locked.held()
        queue = locked.queue()
    return ClaimList(
        directory=directory,
        claims=tuple(item.as_claim() for item in held if not item.problem),
        unusable=tuple(
            UnusableLock(
                uuid=item.target.uuid,
                path=item.path,
                user=item.holder.user,
                problem=item.problem,
            )
            for item in held
            if item.problem
        ),
        waiting=len(queue),
        queue=tuple(queue),
    )
