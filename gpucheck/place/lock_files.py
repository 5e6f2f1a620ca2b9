"""Lock files and records of claims: opened without trust, and created in one step.

A record says who made a claim. Its owner writes it, and its readers do not trust it: it decides
only which claims are a caller's own. The lock alone decides whether a claim is held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shlex
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.drivers.host.process_tree import read_stat
from gpucheck.place.model import Holder, ProcessState
from gpucheck.report.errors import MissingError

#: Names another directory for the lock files; all who share the GPUs must name the same one.
DIRECTORY_VARIABLE = "GPUCHECK_CLAIMS_DIR"

#: /run/lock is where lock files belong and is emptied at boot. /tmp is used where it is
#: not open to all (Red Hat's systems).
PARENTS = (Path("/run/lock"), Path("/tmp"))
NAME = "gpucheck-claims"
OPEN_TO_ALL = stat.S_ISVTX | 0o777

#: The sticky bit of a file tells systemd's cleaning of /tmp to leave it alone, however old it is: a
#: lock file that is removed while it is held could be held twice. A lock alone is respected only
#: by systemd 254 and later.
FILE_MODE = stat.S_ISVTX | 0o644

READ_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LONGEST_PAUSE_S = 0.03
#: A directory that another user has just made may not have its final mode yet.
DIRECTORY_ATTEMPTS = 50

#: The problem if only the owner is wrong.
_OWNER = "it is not root's"

#: What may stand where a lock file should.
_LINK, _IRREGULAR = "it is a link, not a lock file", "it is not a regular file"

#: Prefix of unfinished files.
_DRAFT = ".draft-"
_OLDEST_DRAFT_S = 60.0

LARGEST_RECORD_BYTES = 64 << 10
_LONGEST_COMMAND = 400


def open_directory(path: Path) -> int:
    """Open the shared directory, and create it if there is none.

    Raises:
        MissingError: it cannot be created, or is not a directory that all users may use.
    """
    unfinished = path.name == NAME and path.parent in PARENTS
    problem = ""
    for _ in range(DIRECTORY_ATTEMPTS):
        try:
            path.mkdir(mode=0o700)
            unfinished = True
        except FileExistsError:
            pass
        except OSError as error:
            raise unusable_path(path, f"it cannot be created: {error.strerror}") from None
        if unfinished:
            _open_to_all(path)
        try:
            fd = os.open(path, os.O_RDONLY | _FOLDER)
        except FileNotFoundError:
            continue
        except PermissionError:
            time.sleep(LONGEST_PAUSE_S)  # its creator may be about to open it to all
            continue
        except OSError as error:
            followed = error.errno in (errno.ELOOP, errno.ENOTDIR)
            problem = "it is a link, or not a directory" if followed else str(error.strerror)
            raise unusable_path(path, problem) from None
        problem = _problem_of_directory(fd)
        if not problem:
            return fd
        os.close(fd)
        if problem.startswith(_OWNER):
            break
        time.sleep(LONGEST_PAUSE_S)
    raise unusable_path(path, problem or "you may not open it")


def _open_to_all(path: Path) -> None:
    """Set the mode of a directory that we created, whatever the umask."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_PATH | _FOLDER)
        try:
            status = os.fstat(fd)
            ours = status.st_uid == os.geteuid()
            if ours and not stat.S_IMODE(status.st_mode) & ~0o700:
                Path(f"/proc/self/fd/{fd}").chmod(OPEN_TO_ALL)
        finally:
            os.close(fd)


def _problem_of_directory(fd: int) -> str:
    """Return why the directory cannot be used; empty if it can.

    It must be open to all and sticky: with any other mode some users could not see the claims, or
    anybody could remove them. Its owner can remove them even so, a risk that root does not take.
    """
    status = os.fstat(fd)
    if status.st_mode & OPEN_TO_ALL != OPEN_TO_ALL:
        mode = stat.S_IMODE(status.st_mode)
        return f"its mode is {mode:04o}, but must be 1777 (chmod 1777)"
    if status.st_uid != 0 and _is_root():
        return f"{_OWNER}, and root trusts no other user's"
    if os.access(f"/proc/self/fd/{fd}", os.W_OK | os.X_OK, effective_ids=True):
        return ""
    if not Path("/proc/self/fd").is_dir():
        return "it cannot be checked without /proc"
    read_only = os.fstatvfs(fd).f_flag & os.ST_RDONLY
    return "it is on a read-only file system" if read_only else "you may not write to it"


def _is_root() -> bool:
    """Return whether we are the machine's root, and not that of a user namespace."""
    if os.geteuid() != 0:
        return False
    try:
        inside, outside, count = Path("/proc/self/uid_map").read_text("ascii").split()[:3]
    except (OSError, ValueError):
        return True
    return (int(inside), int(outside)) == (0, 0) and int(count) > 1


def root_should_make(path: Path) -> str:
    """Return how root creates the directory at every boot, with systemd's tmpfiles.d(5)."""
    return (
        f"Root can create it at every boot, by a line in /etc/tmpfiles.d: d {path} 1777 root root"
    )


#: Code of the error that the directory of the claims, or a file in it, cannot be used.
UNUSABLE = "claims-directory-unusable"


def unusable_path(path: Path, problem: str) -> MissingError:
    """Return the error for a directory or a file that cannot be used, with its owner."""
    steps = [f"Set {DIRECTORY_VARIABLE} to one directory for all users of the GPUs."]
    whose = ""
    try:
        owner = path.lstat().st_uid
    except (OSError, ValueError):
        pass
    else:
        name = user_name(owner)
        whose = f" It belongs to {name}."
        mine = owner == os.geteuid()
        who = "Look at it" if mine else f"Let {name} or root look at it"
        steps.insert(0, f"{who}: ls -ld {shlex.quote(str(path))}")
        if path.parent in PARENTS:
            steps.insert(1, f"{root_should_make(path)}")
    return MissingError(
        code=UNUSABLE,
        message=f"Claims are not available: {str(path)!r}: {problem}.{whose}",
        remedy=tuple(steps),
    )


def open_or_create(folder: int, name: str, path: Path) -> int:
    """Open a lock file for reading, which is enough for flock; create it if there is none."""
    for _ in range(DIRECTORY_ATTEMPTS):
        try:
            fd = os.open(name, READ_ONLY, dir_fd=folder)
        except FileNotFoundError:
            made = create_file(folder, name, b"", path=path, lock=False)
            if made is not None:
                os.close(made)
            continue
        except OSError as error:
            link = error.errno == errno.ELOOP
            problem = _LINK if link else str(error.strerror)
            raise unusable_path(path / name, problem) from None
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise unusable_path(path / name, _IRREGULAR)
    raise unusable_path(path / name, "it keeps appearing and disappearing")


def create_file(folder: int, name: str, content: bytes, *, path: Path, lock: bool) -> int | None:
    """Create a file with its final mode and content in one step; None if it exists by now.

    Raises:
        MissingError: the file system refuses it.
    """
    draft = _draft_name()
    fd = -1
    try:
        fd = os.open(draft, NEW_FILE, 0o600, dir_fd=folder)
        _fill(fd, content)
        if lock:
            fcntl.flock(fd, fcntl.LOCK_EX)
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except BaseException as error:
        if fd >= 0:
            os.close(fd)
        if isinstance(error, FileExistsError):
            return None
        if isinstance(error, OSError):
            raise unusable_path(path / name, str(error.strerror)) from None
        raise
    finally:
        unlink(folder, draft)
    return fd


def replace_file(folder: int, name: str, content: bytes) -> None:
    """Replace one of our files in one step; if that fails there is none.

    It fails on a full disk, or if another user has made a file of that name. No record is better
    than one that names another process.
    """
    draft = _draft_name()
    try:
        fd = os.open(draft, NEW_FILE, 0o600, dir_fd=folder)
        try:
            _fill(fd, content)
        finally:
            os.close(fd)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        unlink(folder, draft)
        unlink(folder, name)


def rewrite_file(fd: int, content: bytes) -> None:
    """Replace the content of a file that nobody reads now; if that fails it keeps the old one.

    A ticket without a record would not be a ticket.
    """
    before = os.pread(fd, LARGEST_RECORD_BYTES, 0)
    try:
        if os.pwrite(fd, content, 0) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, len(content))
    except OSError:
        with contextlib.suppress(OSError):
            os.pwrite(fd, before, 0)
            os.ftruncate(fd, len(before))


def _fill(fd: int, content: bytes) -> None:
    os.fchmod(fd, FILE_MODE)
    if os.write(fd, content) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _draft_name() -> str:
    """Return a unique name for an unfinished file."""
    # Not by the module random: its sequence is the calling program's.
    return f"{_DRAFT}{os.getpid()}-{os.urandom(8).hex()}"


def clear_drafts(folder: int, names: Iterable[str]) -> None:
    """Remove old unfinished files, as far as they are ours."""
    for name in names:
        if not name.startswith(_DRAFT):
            continue
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if time.time() - status.st_mtime > _OLDEST_DRAFT_S:
                os.unlink(name, dir_fd=folder)


def unlink(folder: int, name: str) -> None:
    """Remove a file if possible."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


# ---------------------------------------------------------------------------------- locks


def try_lock(fd: int, kind: int) -> bool:
    """Try to take a lock of this kind; return whether it is ours now."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(fd: int) -> None:
    """Unlock and close a descriptor.

    Closing alone would leave the lock with a process that another thread forked meanwhile.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def is_held(folder: int, name: str) -> bool:
    """Return whether the file's lock is held; a file that we may not open counts as held."""
    held, problem = slot_state(folder, name)
    return held or problem not in ("", _LINK, _IRREGULAR)


def slot_state(folder: int, name: str) -> tuple[bool, str]:
    """Return whether the lock of a slot is held, and what is wrong with its file, if anything."""
    try:
        fd = os.open(name, READ_ONLY, dir_fd=folder)
    except FileNotFoundError:
        return False, ""
    except OSError as error:
        link = error.errno == errno.ELOOP
        return False, _LINK if link else str(error.strerror)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False, _IRREGULAR
        # Shared, so that two simultaneous checks do not see each other.
        return not try_lock(fd, fcntl.LOCK_SH), ""
    finally:
        release(fd)


def is_same_file(fd: int, folder: int, name: str) -> bool:
    """Return whether the name still leads to the file that we locked."""
    try:
        named = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(fd))


# ---------------------------------------------------------------------------------- records


class FileRecord(NamedTuple):
    """Content of a record file, empty if it is not a record, and the file's owner."""

    record: dict[str, Any]
    user_id: int
    modified_ns: int


def read_record(folder: int, name: str) -> FileRecord | None:
    """Read a record file; None if there is no readable file."""
    try:
        fd = os.open(name, READ_ONLY, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        record = parse_record(os.read(fd, LARGEST_RECORD_BYTES))
        return FileRecord(record, status.st_uid, status.st_mtime_ns)
    except OSError:
        return None
    finally:
        os.close(fd)


def record_of(holder: Holder, **more: object) -> bytes:
    """Return a holder as the bytes of a record; the user is the owner of the file.

    `more` are other entries: the claim's id, or what a ticket wants. A process id alone does not
    identify a process: ids are used again, and differ between PID namespaces.
    """
    command = holder.command
    if command is not None and len(command) > _LONGEST_COMMAND:
        command = command[: _LONGEST_COMMAND - 3] + "..."
    record = {
        "pid": holder.pid,
        "namespace": _namespace(),
        "started": None if holder.pid is None else _started(holder.pid),
        "command": command,
        "since": holder.since,
    }
    return json.dumps(record | more).encode("ascii")


def parse_record(content: bytes) -> dict[str, Any]:
    """Parse a record; anything but a JSON object gives an empty one."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _pid_of(record: Mapping[str, Any]) -> int | None:
    """Return the process id in a record; None where the kernel has no such one."""
    pid = record.get("pid")
    return pid if isinstance(pid, int) and 0 < pid < 2**31 else None


def holder_of(record: Mapping[str, Any], user_id: int) -> Holder:
    """Return the holder that a record of this user names, as far as it is credible."""
    pid = _pid_of(record)
    return Holder(
        pid=pid,
        process=None if pid is None else _state_of(pid, record),
        user=user_name(user_id),
        command=text_of(record, "command"),
        since=text_of(record, "since"),
    )


def text_of(record: Mapping[str, Any], key: str) -> str | None:
    """Return a text in a record, cut to a sensible length; None if there is none."""
    value = record.get(key)
    return value[:_LONGEST_COMMAND] if isinstance(value, str) else None


def text_set(record: Mapping[str, Any], key: str) -> frozenset[str] | None:
    """Return the texts of a list in a record, or None where there is no list."""
    value = record.get(key)
    if not isinstance(value, list):
        return None
    return frozenset(item for item in value if isinstance(item, str))


def user_name(user_id: int) -> str:
    """Return the user's name, or the number where it has none."""
    import pwd

    try:
        return pwd.getpwuid(user_id).pw_name
    except (KeyError, OverflowError):
        return str(user_id)


# ---------------------------------------------------------------------------------- processes


def credibility(record: Mapping[str, Any], user_id: int) -> int:
    """Return how credible a user's record is against another one of the same slot.

    2: its process runs, and is that user's. 1: that is unknown, or the process has another owner by
    now (sudo). 0: it does not run, though its children may still hold the GPU.
    """
    pid = _pid_of(record)
    state = None if pid is None else _state_of(pid, record)
    if state is None or state is ProcessState.ENDED:
        return 0
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return 1
    return 2 if state is ProcessState.RUNNING and owner == user_id else 1


def _state_of(pid: int, record: Mapping[str, Any]) -> ProcessState | None:
    """Return the state of the process that a record names; None if that is unknown."""
    own, theirs = _namespace(), record.get("namespace")
    if own is None or not isinstance(theirs, int):
        return None
    if own != theirs:
        return ProcessState.ELSEWHERE
    started = _started(pid)
    if started is None:
        # Other users' processes may be hidden in /proc (its mount option hidepid).
        return ProcessState.RUNNING if _exists(pid) else ProcessState.ENDED
    return ProcessState.RUNNING if started == record.get("started") else ProcessState.ENDED


def _namespace() -> int | None:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


def _started(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if it is gone or hidden."""
    stat = read_stat(Path(f"/proc/{pid}"))
    return None if stat is None or stat.zombie else stat.started


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # It is ours, so /proc would have shown it alive.
    return False
