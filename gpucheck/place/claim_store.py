"""Lock files for claims, in a directory that all users share: held slots, and the queue.

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
import random
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from gpucheck.place.claim_files import (
    DIRECTORY_VARIABLE,
    LONGEST_PAUSE_S,
    NAME,
    OPEN_TO_ALL,
    PARENTS,
    FileRecord,
    clear_drafts,
    is_held,
    is_same_file,
    let_go,
    make,
    open_directory,
    open_or_make,
    read_record,
    replace,
    rewrite,
    root_should_make,
    slot_state,
    try_lock,
    unlink,
    untrusted,
)
from gpucheck.place.claim_model import HeldSlot, Holder, Slot, Ticket, parse_slot
from gpucheck.place.claim_records import belief, holder_of, texts, user_name, written
from gpucheck.report.errors import InconclusiveError

_GATE = "gate.lock"
#: A ticket changes its name once its wants are known, which processes that wait for that see.
_TICKET = re.compile(r"ticket-(?P<number>[0-9]{1,20})\.[0-9]{1,20}(?P<new>\.new)?\.lock")
#: Numbers come from a clock that all processes share, so one further ahead than this was never
#: drawn. The clock counts since boot, which rules out tickets of an earlier boot too.
_LONGEST_LEAD_NS = 600 * 10**9

#: How long we wait for the mutex before its holder must be stuck.
GATE_DEADLINE_S = 30.0
_SHORTEST_PAUSE_S = 0.001


def _highest_number() -> int:
    """Return the highest number that a ticket can have now."""
    return time.monotonic_ns() + _LONGEST_LEAD_NS


def _trust(read: FileRecord, now_ns: int) -> tuple[bool, int, int]:
    """Return the sort key of a slot's records: one dated in the future ranks last."""
    return (read.modified_ns <= now_ns, belief(read.record, read.user_id), read.modified_ns)


class Lock:
    """A lock that we hold; it lasts until the last copy of its descriptor is closed."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def close(self) -> None:
        """Give up our copy of the descriptor."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Place:
    """A queue position; closing it ends the ticket."""

    def __init__(self, folder: int, descriptor: int, ticket: Ticket, holder: Holder) -> None:
        self._folder = os.dup(folder)
        self._descriptor = descriptor
        self._holder = holder
        self.ticket = ticket

    def settle(self, wants: frozenset[str]) -> None:
        """Record what we wait for, now that it is known; call it under the mutex."""
        rewrite(self._descriptor, written(self._holder, wants=sorted(wants)))
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
        let_go(self._descriptor)
        os.close(self._folder)
        self._descriptor = -1


class Gate(Protocol):
    """The claims under the mutex, while no other process reads or changes them."""

    def held(self) -> Sequence[HeldSlot]:
        """Return every slot that is held or unusable."""
        ...

    def tickets(self, *, before: int | None = None) -> Sequence[Ticket]:
        """Return the live tickets below a number, in their order, and remove our dead ones.

        Unfinished files of killed processes are removed too.
        """
        ...

    def queue(self) -> Sequence[Holder]:
        """Return the waiting processes, in the order of the queue."""
        ...

    def take(self, slot: Slot, holder: Holder) -> Lock | None:
        """Lock a slot and record its holder; None if it is held after all."""
        ...

    def enqueue(self, holder: Holder) -> Place:
        """Draw the next ticket; its wants may be recorded later."""
        ...

    def path_of(self, slot: Slot) -> str:
        """Return the path of the slot's lock file, for messages."""
        ...


class ClaimStore(Protocol):
    """Store of claims."""

    @property
    def directory(self) -> Path:
        """Return the shared directory."""
        ...

    def gate(self) -> AbstractContextManager[Gate]:
        """Take the mutex, waiting for its holder.

        Raises:
            MissingError: the directory cannot be used or trusted.
            InconclusiveError: the holder does not release the mutex.
        """
        ...

    def is_live(self, ticket: Ticket) -> bool:
        """Return whether the ticket still waits for the same; needs no mutex."""
        ...

    def exists(self) -> bool:
        """Return whether the store was ever used."""
        ...

    def warning(self) -> str | None:
        """Return a warning if another user has power over the claims."""
        ...


def claims_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory that all users of this machine share, unless the variable names one.

    Raises:
        MissingError: the variable does not have a full path.
    """
    named = environment.get(DIRECTORY_VARIABLE)
    if named:
        if not named.startswith("/"):
            raise untrusted(Path(named), "it must be a full path, beginning with /")
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


class LockDirectory:
    """Store of the claims on this machine."""

    def __init__(self, directory: Path, *, gate_deadline_s: float = GATE_DEADLINE_S) -> None:
        self._path = directory
        self._gate_deadline_s = gate_deadline_s

    @property
    def directory(self) -> Path:
        """Return the shared directory."""
        return self._path

    def exists(self) -> bool:
        """Return whether the path exists, usable or not."""
        try:
            self._path.lstat()
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def warning(self) -> str | None:
        """Return a warning if the directory is another user's, who can remove held locks."""
        try:
            owner = self._path.lstat().st_uid
        except OSError:
            return None
        if owner in (0, os.geteuid()):
            return None
        return (
            f"The directory for claims, {str(self._path)!r}, belongs to {user_name(owner)}, who"
            f" can remove locks that others hold. {root_should_make(self._path)}"
        )

    @contextlib.contextmanager
    def gate(self) -> Iterator[LockedDirectory]:
        """Open the directory, wait for its mutex, and hold it."""
        folder = open_directory(self._path)
        try:
            held = open_or_make(folder, _GATE, self._path)
            try:
                self._wait_for(held)
                yield LockedDirectory(folder, self._path)
            finally:
                let_go(held)
        finally:
            os.close(folder)

    def is_live(self, ticket: Ticket) -> bool:
        """Check the lock of one ticket."""
        try:
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return is_held(folder, ticket.name)
        finally:
            os.close(folder)

    def _wait_for(self, gate: int) -> None:
        end_s = time.monotonic() + self._gate_deadline_s
        pause_s = _SHORTEST_PAUSE_S
        while not self._try(gate):
            if time.monotonic() > end_s:
                raise InconclusiveError(
                    code="claims-busy",
                    message=f"Another process has kept the claims in {str(self._path)!r} locked "
                    f"for {self._gate_deadline_s:g} s.",
                    remedy=(f"See who has it open: fuser -v {self._path / _GATE}",),
                )
            time.sleep(pause_s * (0.5 + random.random()))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _try(self, gate: int) -> bool:
        try:
            return try_lock(gate, fcntl.LOCK_EX)
        except OSError as error:  # NFS, for one, does not lock a file opened read-only
            problem = f"its file system cannot lock files ({error.strerror})"
            raise untrusted(self._path, problem) from None


class LockedDirectory:
    """The directory under its mutex."""

    def __init__(self, folder: int, path: Path) -> None:
        self._folder = folder
        self._path = path

    def held(self) -> Sequence[HeldSlot]:
        """Try the lock of every slot; files with other names are ignored."""
        names = sorted(self._names())
        found = []
        for name in names:
            stem, dot, suffix = name.rpartition(".")
            slot = parse_slot(stem) if (dot, suffix) == (".", "lock") else None
            if slot is None:
                continue
            taken, problem = slot_state(self._folder, name)
            if taken or problem:
                holder = self._holder(slot, names) if taken else self._owner(name)
                path = self.path_of(slot)
                found.append(HeldSlot(slot=slot, path=path, holder=holder, problem=problem))
        return found

    def _owner(self, name: str) -> Holder:
        try:
            owner = os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_uid
        except OSError:
            return Holder()
        return Holder(user=user_name(owner), user_id=owner)

    def _names(self) -> list[str]:
        with os.scandir(self._folder) as entries:
            return [entry.name for entry in entries]

    def path_of(self, slot: Slot) -> str:
        """Return the lock file's path."""
        return str(self._path / f"{slot.name}.lock")

    def tickets(self, *, before: int | None = None) -> Sequence[Ticket]:
        """Read the live tickets and remove the dead ones, as far as they are ours."""
        names = self._names()
        clear_drafts(self._folder, names)
        live = self._live_tickets(names, before)
        return [
            Ticket(number=number, name=name, wants=texts(read.record, "wants"))
            for number, name, read in live
        ]

    def queue(self) -> Sequence[Holder]:
        """Read the holders of the live tickets."""
        live = self._live_tickets(self._names(), None)
        return [holder_of(read.record, read.user_id) for _, _, read in live]

    def _live_tickets(
        self, names: Sequence[str], before: int | None
    ) -> list[tuple[int, str, FileRecord]]:
        drawn = ((_TICKET.fullmatch(name), name) for name in names)
        numbered = sorted((int(match["number"]), name) for match, name in drawn if match)
        most = _highest_number()
        found = []
        for number, name in numbered:
            if before is not None and number >= before:
                break
            if not is_held(self._folder, name):
                unlink(self._folder, name)
            elif number > most:
                break
            elif (read := read_record(self._folder, name)) is not None and "pid" in read.record:
                # A ticket has its record as soon as its name: without one it is not a ticket.
                found.append((number, name, read))
        return found

    def take(self, slot: Slot, holder: Holder) -> Lock | None:
        """Lock the slot's file, then write the record."""
        fd = open_or_make(self._folder, f"{slot.name}.lock", self._path)
        if not try_lock(fd, fcntl.LOCK_EX) or not is_same_file(fd, self._folder, slot):
            let_go(fd)
            return None
        # Our own record of this slot; those of other users are not ours to write.
        replace(self._folder, f"{slot.name}.{os.geteuid()}.json", written(holder))
        return Lock(fd)

    def enqueue(self, holder: Holder) -> Place:
        """Make a ticket that is locked from the moment it has its name."""
        drawn = (_TICKET.fullmatch(name) for name in self._names())
        most = _highest_number()
        numbers = [int(found["number"]) for found in drawn if found]
        last = max((number for number in numbers if number < most), default=0)
        # If no ticket is left to count from, the clock that all processes share continues.
        number = max(last + 1, time.monotonic_ns())
        name = f"ticket-{number:018d}.{os.getpid()}.new.lock"
        fd = make(self._folder, name, written(holder), path=self._path, lock=True)
        if fd is None:  # pragma: no cover - the mutex is ours, so nobody made it meanwhile
            raise untrusted(self._path, "another program changes it without its mutex")
        ticket = Ticket(number=number, name=name, wants=None)
        return Place(self._folder, fd, ticket, holder)

    def _holder(self, slot: Slot, names: Sequence[str]) -> Holder:
        """Return the last holder of the slot: the newest credible one of the users' records.

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
        if not records:
            return Holder()
        best = max(records, key=lambda read: _trust(read, now_ns))
        return holder_of(best.record, best.user_id)
