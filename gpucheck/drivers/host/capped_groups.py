"""Cgroups that are made for one command each, and the records by which a later call removes them.

Only root can set a limit, so the records are root's: nobody else may read or write their folder. A
record is written before its group is made, and goes after it. What the owner could not remove any
more (SIGKILL) is found by its record, once the owner's process is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.drivers.host.cgroups import MOUNT
from gpucheck.drivers.host.process_tree import read_stat

#: Emptied at every boot, as the groups are.
RECORDS = "run/gpucheck/memlimit"
_NAME = re.compile(r"gpucheck-([0-9]{1,10})-([0-9]{1,19})(\.scope)?")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_RECORD_BYTES = 64 << 10
#: How long the kernel may take to let go of a group whose last process has just ended.
_RELEASE_S = 2.0
_PAUSE_S = 0.01


class UnsafeRecordsError(Exception):
    """The folder of the records cannot be used; the text says why."""


class Record(NamedTuple):
    """A group that a process has made, and the GPUs on which it may have a limit."""

    name: str
    folder: Path
    uuids: tuple[str, ...]


def own_name(pid: int, *, scope: bool) -> str:
    """Return the name of a process's group; its start time tells it from a later process."""
    known = read_stat(Path(f"/proc/{pid}"))
    return f"gpucheck-{pid}-{known.started if known else 0}{'.scope' if scope else ''}"


def owner_lives(name: str) -> bool:
    """Return whether the process that a group's name names still runs."""
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    known = read_stat(Path(f"/proc/{match[1]}"))
    return known is not None and not known.zombie and known.started == int(match[2])


# ---------------------------------------------------------------------------------- the groups


def make(folder: Path) -> None:
    """Make a group.

    Raises:
        OSError: the kernel refuses it.
    """
    folder.mkdir(mode=0o755)


def join(folder: Path, pid: int) -> None:
    """Move a process into a group.

    Raises:
        OSError: the kernel refuses it, or does not list the process there afterwards.
    """
    # The kernel has the file in every group; a folder that stands in for one gets it here.
    fd = os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(fd, f"{pid}\n".encode())
    finally:
        os.close(fd)
    if pid not in members(folder):
        raise OSError(0, "the process is not in the group")


def members(folder: Path) -> list[int]:
    """Return the living processes in a group and the groups below it."""
    pids = []
    for place, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            listed = (Path(place) / "cgroup.procs").read_text("ascii").split()
            pids += [int(word) for word in listed if word.isdecimal() and _lives(int(word))]
    return pids


def _lives(pid: int) -> bool:
    known = read_stat(Path(f"/proc/{pid}"))
    return known is not None and not known.zombie


def remove(folder: Path) -> bool:
    """Remove a group and those below it, if all are empty; return whether it is gone."""
    end = time.monotonic() + _RELEASE_S
    while not members(folder):
        for place, _, _ in os.walk(folder, topdown=False):
            _remove_one(Path(place))
        if not os.path.lexists(folder):
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(_PAUSE_S)
    return False


def _remove_one(folder: Path) -> None:
    """Remove one group; its files go with it, but those of a stand-in go first."""
    with contextlib.suppress(OSError):
        folder.rmdir()
        return
    for name in ("cgroup.procs", "dmem.max"):
        with contextlib.suppress(OSError):
            (folder / name).unlink()  # the kernel never allows that
    with contextlib.suppress(OSError):
        folder.rmdir()


# --------------------------------------------------------------------------------- the records


def write_record(root: Path, record: Record) -> None:
    """Write the record of a group that is about to be made.

    Raises:
        UnsafeRecordsError: the folder is another user's, open to others, or a link.
    """
    content = json.dumps({"folder": str(record.folder), "uuids": record.uuids}).encode("ascii")
    try:
        with _records(root, create=True) as folder:
            fd = os.open(record.name, _NEW_FILE, 0o600, dir_fd=folder)
            try:
                os.write(fd, content)
            finally:
                os.close(fd)
    except OSError as error:
        message = f"/{RECORDS}/{record.name}: {error.strerror}"
        raise UnsafeRecordsError(message) from None


def forget_record(root: Path, name: str) -> None:
    """Remove the record of a group that is gone."""
    with contextlib.suppress(OSError, UnsafeRecordsError), _records(root, create=False) as folder:
        os.unlink(name, dir_fd=folder)


def dead_records(root: Path) -> list[Record]:
    """Return the records whose owner is dead; without a readable folder there are none."""
    records: list[Record] = []
    with contextlib.suppress(OSError, UnsafeRecordsError), _records(root, create=False) as folder:
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - by its descriptor
            if not _NAME.fullmatch(name) or owner_lives(name):
                continue
            known = _read(folder, name, root)
            if known is not None:
                records.append(known)
    return records


def _read(folder: int, name: str, root: Path) -> Record | None:
    """Return a record; None if it is not one of ours, or names anything but its own group."""
    try:
        fd = os.open(name, _OLD_FILE, dir_fd=folder)
    except OSError:
        return None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            return None
        content: Any = json.loads(os.read(fd, _MOST_RECORD_BYTES) or b"{}")
    except (OSError, ValueError, RecursionError):
        content = {}
    finally:
        os.close(fd)
    text = content.get("folder") if isinstance(content, dict) else None
    # A record is cut short if its owner died while writing it.
    place = Path(text) if isinstance(text, str) else root / MOUNT / name
    mount = root / MOUNT
    if place.name != name or ".." in place.parts or not place.is_relative_to(mount):
        return None
    if place.is_symlink():
        return None
    uuids = content.get("uuids") if isinstance(content, dict) else None
    known = [uuid for uuid in uuids if isinstance(uuid, str)] if isinstance(uuids, list) else []
    return Record(name, place, tuple(known))


@contextlib.contextmanager
def _records(root: Path, *, create: bool) -> Iterator[int]:
    """Open the folder of the records, level by level, so that no link leads elsewhere.

    Raises:
        OSError: there is none.
        UnsafeRecordsError: a level is a link, another user's, or others may write to it.
    """
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    levels: Sequence[str] = RECORDS.split("/")
    try:
        for place, level in enumerate(levels):
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(level, 0o755 if place == 0 else 0o700, dir_fd=fd)
            try:
                below = os.open(level, _FOLDER, dir_fd=fd)
            except FileNotFoundError:
                raise
            except OSError as error:
                path = "/".join(levels[: place + 1])
                message = f"/{path} is a link, or not a folder: {error.strerror}"
                raise UnsafeRecordsError(message) from None
            os.close(fd)
            fd = below
            if place > 0:
                _check_private(fd, "/".join(levels[: place + 1]))
        yield fd
    finally:
        os.close(fd)


def _check_private(fd: int, path: str) -> None:
    facts = os.fstat(fd)
    if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o022:
        message = f"/{path} is another user's, or others may write to it"
        raise UnsafeRecordsError(message)
