"""Records of claims: who made each, written by its owner and not trusted by its readers.

A record decides only which claims are a caller's own; the lock alone decides whether one is held.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucheck.place.claim_model import Holder, ProcessState

LARGEST_RECORD_BYTES = 64 << 10
_LONGEST_COMMAND = 400
#: The state and the start time among the fields after the name in /proc/PID/stat; proc(5).
_STATE, _STARTED = 0, 19


def written(holder: Holder, **more: object) -> bytes:
    """Return a holder as the bytes of a record; the user is the owner of the file.

    A process id alone does not identify a process: ids are used again, and differ between PID
    namespaces.
    """
    command = holder.command
    if command is not None and len(command) > _LONGEST_COMMAND:
        command = command[: _LONGEST_COMMAND - 3] + "..."
    record = {
        "id": holder.id,
        "pid": holder.pid,
        "namespace": _namespace(),
        "started": None if holder.pid is None else _started(holder.pid),
        "command": command,
        "since": holder.since,
    }
    return json.dumps(record | more).encode("ascii")


def parsed(content: bytes) -> dict[str, Any]:
    """Parse a record; anything but a JSON object gives an empty one."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def holder_of(record: Mapping[str, Any], user_id: int) -> Holder:
    """Return the holder that a record of this user names, as far as it is credible."""
    pid = record.get("pid")
    pid = pid if isinstance(pid, int) and 0 < pid < 2**31 else None
    return Holder(
        id=_text(record, "id"),
        pid=pid,
        user=user_name(user_id),
        user_id=user_id,
        command=_text(record, "command"),
        since=_text(record, "since"),
        process=None if pid is None else _state_of(pid, record),
    )


def _text(record: Mapping[str, Any], key: str) -> str | None:
    value = record.get(key)
    return value[:_LONGEST_COMMAND] if isinstance(value, str) else None


def texts(record: Mapping[str, Any], key: str) -> frozenset[str] | None:
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


def belief(record: Mapping[str, Any], user_id: int) -> int:
    """Return how credible a user's record is against another one of the same slot.

    2: its process runs, and is that user's. 1: that is unknown, or the process has another owner by
    now (sudo). 0: it does not run, though its children may still hold the GPU.
    """
    pid = record.get("pid")
    state = _state_of(pid, record) if isinstance(pid, int) and 0 < pid < 2**31 else None
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
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[_STARTED]) if len(fields) > _STARTED and fields[_STATE] != "Z" else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # It is ours, so /proc would have shown it alive.
    return False
