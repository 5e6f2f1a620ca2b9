"""Lock files in a directory that all users share: who holds which GPU, and who waits for one.

A claim is a file whose flock(2) is held on an open descriptor. The command inherits the descriptor,
so the kernel ends the claim with the last process that has it, however that process ends. What a
lock file stands for is in its name; who holds it stands in a record of its own beside it, since a
user may not write to a file of another one (fs.protected_regular).

Every look at the locks and every change happens behind one more lock, the gate: selecting and
claiming are one step. The gate is held for milliseconds and never while a driver is asked.

The directory is sticky and open to all. No file in it is followed through a link, none is opened
with O_CREAT once it exists, and none has a moment in which its mode is not yet the final one: files
are made under another name and linked into place, whatever the umask.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from gpucheck.models.claim import HeldSlot, Holder, Slot, Ticket, parse_slot
from gpucheck.models.errors import InconclusiveError
from gpucheck.probes.claim_files import (
    DIRECTORY_VARIABLE,
    LONGEST_PAUSE_S,
    NAME,
    NEW_FILE,
    OPEN_TO_ALL,
    PARENTS,
    as_json,
    draft_name,
    holder_of,
    is_held,
    is_same_file,
    make,
    open_directory,
    open_or_make,
    plain,
    read_record,
    texts,
    try_lock,
    unlink,
    untrusted,
)

_GATE = "gate.lock"
_TICKET = re.compile(r"ticket-(?P<number>[0-9]{1,18})\.[0-9]{1,20}\.lock")

#: How long the gate may be closed to us before something must be wrong with who holds it.
GATE_DEADLINE_S = 30.0
_TURN_DEADLINE_S = 120.0
_SHORTEST_PAUSE_S = 0.001


class Lock:
    """A lock that we hold; it lasts until the last copy of its descriptor is closed."""

    def __init__(self, descriptor: int, release: Callable[[], None] | None = None) -> None:
        self.descriptor = descriptor
        self._release = release

    def close(self) -> None:
        """Give up our copy of the descriptor."""
        if self.descriptor < 0:
            return
        if self._release is not None:
            self._release()
        os.close(self.descriptor)
        self.descriptor = -1


class Gate(Protocol):
    """The claims, while nobody else can look at or change them."""

    def held(self) -> Sequence[HeldSlot]:
        """Return every slot that somebody holds."""
        ...

    def tickets(self) -> Sequence[Ticket]:
        """Return the live tickets, in the order they were drawn; dead ones of ours are removed."""
        ...

    def take(self, slot: Slot, holder: Holder) -> Lock | None:
        """Take a slot and write down who has it; None if somebody holds it after all."""
        ...

    def enqueue(self, wants: frozenset[str], holder: Holder) -> tuple[Ticket, Lock]:
        """Draw the next ticket; it is dead as soon as its lock is closed."""
        ...

    def path_of(self, slot: Slot) -> str:
        """Return where the slot's lock is, for people."""
        ...


class ClaimStore(Protocol):
    """Where claims are kept."""

    @property
    def directory(self) -> Path:
        """Return the shared directory."""
        ...

    def gate(self) -> AbstractContextManager[Gate]:
        """Close the gate behind us, waiting for who is inside.

        Raises:
            MissingError: the directory cannot be had or cannot be trusted.
            InconclusiveError: somebody does not leave the gate.
        """
        ...

    def turn(self) -> AbstractContextManager[None]:
        """Wait for a turn to ask the driver: hundreds at once would not be answered in time."""
        ...

    def is_live(self, ticket: Ticket) -> bool:
        """Return whether whoever drew this ticket still waits; needs no gate."""
        ...

    def exists(self) -> bool:
        """Return whether anybody has ever claimed anything here."""
        ...


def claims_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory that every user of this machine comes to, unless told otherwise."""
    named = environment.get(DIRECTORY_VARIABLE)
    if named:
        return Path(named)
    # What decides must look the same to every user, so it is the mode and not our own access.
    parent = next((path for path in PARENTS if _is_open_to_all(path)), PARENTS[-1])
    return parent / NAME


def _is_open_to_all(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_mode & OPEN_TO_ALL == OPEN_TO_ALL


class LockDirectory:
    """The claims of this machine."""

    def __init__(self, directory: Path, *, gate_deadline_s: float = GATE_DEADLINE_S) -> None:
        self._path = directory
        self._gate_deadline_s = gate_deadline_s

    @property
    def directory(self) -> Path:
        """Return the shared directory."""
        return self._path

    def exists(self) -> bool:
        """Return whether there is a directory at all."""
        return self._path.is_dir()

    @contextlib.contextmanager
    def gate(self) -> Iterator[LockedDirectory]:
        """Open the directory, wait for its gate, and hold it."""
        folder = open_directory(self._path)
        try:
            held = open_or_make(folder, _GATE, self._path)
            try:
                self._wait_for(held)
                yield LockedDirectory(folder, self._path)
            finally:
                os.close(held)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold one of as many locks as there are CPUs; after a while go ahead without one."""
        folder = open_directory(self._path)
        turns = []
        try:
            places = range(os.cpu_count() or 1)
            turns = [open_or_make(folder, f"turn-{place}.lock", self._path) for place in places]
            end_s = time.monotonic() + _TURN_DEADLINE_S
            while not any(try_lock(turn, fcntl.LOCK_EX) for turn in turns):
                if time.monotonic() > end_s:
                    break
                time.sleep(LONGEST_PAUSE_S * (0.5 + random.random()))
            yield
        finally:
            for turn in (*turns, folder):
                os.close(turn)

    def is_live(self, ticket: Ticket) -> bool:
        """Look at one ticket's lock."""
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
        while not try_lock(gate, fcntl.LOCK_EX):
            if time.monotonic() > end_s:
                raise InconclusiveError(
                    code="claims-busy",
                    message=f"Somebody has kept the claims in {str(self._path)!r} to themselves "
                    f"for {self._gate_deadline_s:g} s.",
                    remedy=(f"See who has it open: fuser -v {self._path / _GATE}",),
                )
            time.sleep(pause_s * (0.5 + random.random()))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class LockedDirectory:
    """The directory behind its gate."""

    def __init__(self, folder: int, path: Path) -> None:
        self._folder = folder
        self._path = path

    def held(self) -> Sequence[HeldSlot]:
        """Try every slot's lock; files of other names are none of ours."""
        names = sorted(self._names())
        found = []
        for name in names:
            stem, dot, suffix = name.rpartition(".")
            slot = parse_slot(stem) if (dot, suffix) == (".", "lock") else None
            if slot is not None and is_held(self._folder, name):
                holder = self._holder(slot, names)
                found.append(HeldSlot(slot=slot, path=self.path_of(slot), holder=holder))
        return found

    def _names(self) -> list[str]:
        with os.scandir(self._folder) as entries:
            return [entry.name for entry in entries]

    def path_of(self, slot: Slot) -> str:
        """Return the lock file's path."""
        return str(self._path / f"{slot.name}.lock")

    def tickets(self) -> Sequence[Ticket]:
        """Read the live tickets and clear the dead ones away, as far as they are ours."""
        found = []
        for name in self._names():
            match = _TICKET.fullmatch(name)
            if match is None:
                continue
            if is_held(self._folder, name):
                record, _ = read_record(self._folder, name)
                found.append(
                    Ticket(number=int(match["number"]), name=name, wants=texts(record, "wants"))
                )
            else:
                unlink(self._folder, name)
        return sorted(found, key=lambda ticket: (ticket.number, ticket.name))

    def take(self, slot: Slot, holder: Holder) -> Lock | None:
        """Lock the slot's file, then write the record."""
        fd = open_or_make(self._folder, f"{slot.name}.lock", self._path)
        if not try_lock(fd, fcntl.LOCK_EX) or not is_same_file(fd, self._folder, slot):
            os.close(fd)
            return None
        self._write_record(slot, holder)
        return Lock(fd)

    def enqueue(self, wants: frozenset[str], holder: Holder) -> tuple[Ticket, Lock]:
        """Make a ticket that is locked from the moment it has its name."""
        drawn = (_TICKET.fullmatch(name) for name in self._names())
        last = max((int(found["number"]) for found in drawn if found), default=0)
        # A clock that all processes share goes on where no ticket is left to count from.
        number = max(last + 1, time.monotonic_ns())
        name = f"ticket-{number:018d}.{os.getpid()}.lock"
        text = as_json({"wants": sorted(wants), **plain(holder)})
        fd = make(self._folder, name, text, lock=True)
        if fd is None:  # pragma: no cover - the gate is ours, so nobody made it meanwhile
            raise untrusted(self._path, "somebody changes it without asking at its gate")
        folder = os.dup(self._folder)

        def leave() -> None:
            unlink(folder, name)
            os.close(folder)

        return Ticket(number=number, name=name, wants=wants), Lock(fd, leave)

    def _write_record(self, slot: Slot, holder: Holder) -> None:
        """Replace our own record of this slot in one step; those of others are not ours."""
        draft = draft_name()
        fd = os.open(draft, NEW_FILE, 0o600, dir_fd=self._folder)
        try:
            os.fchmod(fd, 0o644)
            os.write(fd, as_json(plain(holder)))
        finally:
            os.close(fd)
        os.rename(
            draft,
            f"{slot.name}.{os.geteuid()}.json",
            src_dir_fd=self._folder,
            dst_dir_fd=self._folder,
        )

    def _holder(self, slot: Slot, names: Sequence[str]) -> Holder:
        """Return who took the slot last: the newest of the users' records.

        The user is the owner of the record, which nobody can feign.
        """
        pattern = re.compile(re.escape(slot.name) + r"\.(?P<user>[0-9]{1,10})\.json")
        newest: tuple[int, dict[str, Any], int] | None = None
        for name in names:
            match = pattern.fullmatch(name)
            if match is None:
                continue
            record, status = read_record(self._folder, name)
            if status is None or status.st_uid != int(match["user"]):
                continue
            if newest is None or status.st_mtime_ns >= newest[0]:
                newest = (status.st_mtime_ns, record, status.st_uid)
        if newest is None:
            return Holder()
        return holder_of(newest[1], newest[2])
