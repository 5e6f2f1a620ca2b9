"""The files of claims: opened without trusting anybody, made in one step, read with doubt."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucheck.models.claim import Holder, Slot
from gpucheck.models.errors import MissingError

#: Another directory for the lock files; everybody who is to share the GPUs must name the same.
DIRECTORY_VARIABLE = "GPUCHECK_CLAIMS_DIR"

#: /run/lock is where lock files belong and is emptied at boot. Where it is not open to all (Red
#: Hat's systems) /tmp is; systemd's tidying leaves files with a lock on them alone.
PARENTS = (Path("/run/lock"), Path("/tmp"))
NAME = "gpucheck-claims"
OPEN_TO_ALL = stat.S_ISVTX | 0o777

READ_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST_RECORD_BYTES = 64 << 10
_LONGEST_COMMAND = 400
LONGEST_PAUSE_S = 0.03
#: Another user's `mkdir` may not have got its final mode yet.
DIRECTORY_ATTEMPTS = 50


def open_directory(path: Path) -> int:
    """Open the shared directory, and make it where there is none.

    Raises:
        MissingError: it cannot be made, or is not a directory that all may use.
    """
    unfinished = path.name == NAME and path.parent in PARENTS
    for _ in range(DIRECTORY_ATTEMPTS):
        try:
            path.mkdir(mode=0o700)
            unfinished = True
        except FileExistsError:
            pass
        except OSError as error:
            raise untrusted(path, f"it cannot be made: {error.strerror}") from None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except PermissionError:
            time.sleep(LONGEST_PAUSE_S)  # its maker may be about to open it to all
            continue
        except OSError as error:
            followed = error.errno in (errno.ELOOP, errno.ENOTDIR)
            problem = "it is a link or no directory" if followed else str(error.strerror)
            raise untrusted(path, problem) from None
        if _is_ready(fd, unfinished=unfinished):
            return fd
        os.close(fd)
        time.sleep(LONGEST_PAUSE_S)
    raise untrusted(path, "you may not write to it, or it is not sticky (chmod 1777)")


def _is_ready(fd: int, *, unfinished: bool) -> bool:
    """Return whether all may use the directory, or we alone; one that we made gets its mode.

    A directory that somebody chose keeps the mode that they gave it.
    """
    status = os.fstat(fd)
    if unfinished and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700:
        os.fchmod(fd, OPEN_TO_ALL)
        return True
    shared = status.st_mode & 0o022
    if shared and not status.st_mode & stat.S_ISVTX:
        return False  # whoever else may write there could take our files away
    return os.access(f"/proc/self/fd/{fd}", os.W_OK | os.X_OK, effective_ids=True)


def untrusted(path: Path, problem: str) -> MissingError:
    """Return the error for a directory or a file that cannot be used."""
    return MissingError(
        code="claims-directory-unusable",
        message=f"The directory for claims {str(path)!r} cannot be used: {problem}.",
        remedy=(
            f"Name a directory in {DIRECTORY_VARIABLE} that is the same for all users of the GPUs.",
            "Or go without: --no-claim.",
        ),
    )


def open_or_make(folder: int, name: str, path: Path) -> int:
    """Open a lock file for reading, which is enough for flock; make it where there is none."""
    for _ in range(DIRECTORY_ATTEMPTS):
        try:
            fd = os.open(name, READ_ONLY, dir_fd=folder)
        except FileNotFoundError:
            _close(make(folder, name, b"", lock=False))
            continue
        except OSError as error:
            raise untrusted(path / name, str(error.strerror)) from None
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise untrusted(path / name, "it is not a file")
    raise untrusted(path / name, "it comes and goes")


def make(folder: int, name: str, text: bytes, *, lock: bool) -> int | None:
    """Make a file with its final mode and content in one step; None if there is one by now."""
    draft = draft_name()
    fd = os.open(draft, NEW_FILE, 0o600, dir_fd=folder)
    try:
        os.fchmod(fd, 0o644)
        os.write(fd, text)
        if lock:
            fcntl.flock(fd, fcntl.LOCK_EX)
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    finally:
        unlink(folder, draft)
    return fd


def draft_name() -> str:
    """Return a name that nobody else uses, for a file that is not finished."""
    return f".draft-{os.getpid()}-{random.getrandbits(64):016x}"


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


def unlink(folder: int, name: str) -> None:
    """Remove a file, if there is one and it may be removed."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def try_lock(fd: int, kind: int) -> bool:
    """Return whether the lock of this kind was free and is ours now."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(folder: int, name: str) -> bool:
    """Return whether somebody holds the file's lock; one that we may not open counts as held."""
    try:
        fd = os.open(name, READ_ONLY, dir_fd=folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno != errno.ELOOP
    try:
        # Shared, so that two who look at once do not see each other.
        return not try_lock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def is_same_file(fd: int, folder: int, slot: Slot) -> bool:
    """Return whether the name still leads to the file that we locked."""
    try:
        named = os.stat(f"{slot.name}.lock", dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(fd))


# ---------------------------------------------------------------------------------- records


def as_json(record: Mapping[str, object]) -> bytes:
    """Return a record as the bytes of its file."""
    return json.dumps(record).encode("ascii")


def plain(holder: Holder) -> dict[str, object]:
    """Return a holder as its record says it; the user is told by the owner of the file."""
    command = holder.command
    if command is not None and len(command) > _LONGEST_COMMAND:
        command = command[: _LONGEST_COMMAND - 3] + "..."
    return {"id": holder.id, "pid": holder.pid, "command": command, "since": holder.since}


def read_record(folder: int, name: str) -> tuple[dict[str, Any], os.stat_result | None]:
    """Read what somebody wrote; whatever is not a small JSON object in a file is an empty one."""
    try:
        fd = os.open(name, READ_ONLY, dir_fd=folder)
    except OSError:
        return {}, None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return {}, None
        record = json.loads(os.read(fd, _LARGEST_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}, status
    finally:
        os.close(fd)
    return (record if isinstance(record, dict) else {}), status


def holder_of(record: Mapping[str, Any], user_id: int) -> Holder:
    """Return the holder that a record of this user names, as far as it can be believed."""
    pid = record.get("pid")
    return Holder(
        id=_text(record, "id"),
        pid=pid if isinstance(pid, int) and 0 < pid < 2**31 else None,
        user=user_name(user_id),
        command=_text(record, "command"),
        since=_text(record, "since"),
    )


def _text(record: Mapping[str, Any], key: str) -> str | None:
    value = record.get(key)
    return value[:_LONGEST_COMMAND] if isinstance(value, str) else None


def texts(record: Mapping[str, Any], key: str) -> frozenset[str]:
    """Return the texts of a list in a record; anything else is left out."""
    value = record.get(key)
    items = value if isinstance(value, list) else []
    return frozenset(item for item in items if isinstance(item, str))


def user_name(user_id: int) -> str:
    """Return the user's name, or the number where it has none."""
    import pwd

    try:
        return pwd.getpwuid(user_id).pw_name
    except (KeyError, OverflowError):
        return str(user_id)
