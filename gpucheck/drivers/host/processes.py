"""Identity and memory of the processes on a GPU.

NVML gives process ids of the host's PID namespace. Inside a container such an id may name no
process, or worse, another one: the driver knows nothing of PID namespaces. There an id is trusted
only if that process holds an NVIDIA device open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path, PurePosixPath

from gpucheck.drivers.host.process_tree import read_stat
from gpucheck.drivers.host.sysfs import read_text, read_uptime_s, value_of
from gpucheck.drivers.readings import GpuReading, ProcessIdentity, ProcessReading

#: The inode of the initial PID namespace. Source: PROC_PID_INIT_INO in linux/proc_ns.h.
INITIAL_PID_NAMESPACE = "pid:[4026531836]"

MASK = "***"
_SECRET_NAME = re.compile(
    r"(?:.*[-_])?(?:pass(?:word|wd|phrase|code)?|pwd|pat|token|secret|credentials?|bearer|auth"
    r"|api-?key|key)(?:[-_].*)?",
    re.I | re.S,
)
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")

#: Most characters of a program's name that is shown.
_MOST_SHOWN = 40
_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*|bash|dash|sh|env")

#: From a user id to its name; KeyError if it has none.
Users = Callable[[int], str]


def identify(
    pids: Iterable[int], root: Path, command_lines: Mapping[int, str]
) -> dict[int, ProcessIdentity]:
    """Return each process's name, user and command, null where we may not read them.

    The command lines are those that command_lines.py has read: the rest is never waited for.
    """
    initial = is_in_initial_namespace(root)
    users = _users(root)
    return {pid: _identify(root, pid, initial, users, command_lines.get(pid)) for pid in pids}


def is_in_initial_namespace(root: Path) -> bool | None:
    """Return whether ids here are those of the host; None if that cannot be read."""
    try:
        return str((root / "proc/self/ns/pid").readlink()) == INITIAL_PID_NAMESPACE
    except OSError:
        return None


def _identify(
    root: Path, pid: int, initial: bool | None, users: Users, command_line: str | None
) -> ProcessIdentity:
    directory = root / "proc" / str(pid)
    name = read_text(directory / "comm")
    namespace = _namespace(directory, exists=name is not None, initial=initial)
    if namespace != "own":
        return ProcessIdentity(pid=pid, namespace=namespace)
    return ProcessIdentity(
        pid=pid,
        name=name,
        user=_user(directory, users),
        command=_command(command_line),
        namespace="own",
        age_s=_age_s(directory, root),
    )


def _age_s(directory: Path, root: Path) -> float | None:
    """Return the time since the process started; None if it or the clock cannot be read."""
    stat = read_stat(directory)
    now_s = read_uptime_s(root)
    if stat is None or now_s is None:
        return None
    age_s = round(now_s - stat.started / os.sysconf("SC_CLK_TCK"), 2)
    return age_s if age_s >= 0 else None


def _namespace(directory: Path, *, exists: bool, initial: bool | None) -> str:
    if initial is not False:
        return "own"
    if not exists:
        return "other"
    holds = _holds_nvidia_device(directory / "fd")
    if holds is None:
        return "unknown"
    return "own" if holds else "other"


def _holds_nvidia_device(directory: Path) -> bool | None:
    """Return whether the process has /dev/nvidia* open; None if we may not look."""
    try:
        links = list(directory.iterdir())
    except OSError:
        return None
    return any(_target(link).startswith("/dev/nvidia") for link in links)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _users(root: Path) -> Users:
    """Return the lookup of user names: this system's directory services, or the root's own file."""
    if root == Path("/"):
        import pwd

        return lambda number: pwd.getpwuid(number).pw_name
    rows = (line.split(":") for line in (read_text(root / "etc/passwd") or "").splitlines())
    names = {row[2]: row[0] for row in rows if len(row) > 2}
    return lambda number: names[str(number)]


def _user(directory: Path, users: Users) -> str | None:
    """Return the name of the real user id, or the id if it has no name."""
    numbers = value_of(read_text(directory / "status"), "uid") or ""
    number = next(iter(numbers.split()), "")
    try:
        return users(int(number))
    except (KeyError, ValueError, OverflowError):
        return number or None


def _command(command_line: str | None) -> str | None:
    """Return the command line, quoted for a shell; kernel threads and zombies have none."""
    import shlex

    # Programs that set their own title pad it with zeros.
    words = (command_line or "").strip().rstrip("\0")
    return shlex.join(without_secrets(words.split("\0"))) if words else None


def without_secrets(words: Iterable[str]) -> list[str]:
    """Return the words of a command line, with everything that looks like a secret masked.

    That is the value of an option or variable named like a password, token, key or secret, and a
    URL's password. Any user may read another's command line, but a report must not spread it.
    """
    shown: list[str] = []
    masks_next = False
    for word in words:
        if masks_next and not word.startswith("-"):
            shown.append(MASK)
            masks_next = False
            continue
        name, equals, _ = word.partition("=")
        secret = _SECRET_NAME.fullmatch(name) is not None
        masks_next = secret and not equals and name.startswith("-")
        hidden = f"{name}={MASK}" if secret and equals else word
        shown.append(_URL_PASSWORD.sub(rf"\g<1>{MASK}@", hidden))
    return shown


# ------------------------------------------------------------------------------ memory by process


def memory_by_process(gpus: Iterable[GpuReading]) -> Mapping[str | None, Mapping[int, int | None]]:
    """Return bytes by device (UUID) and process id; None where the driver does not report them."""
    by_uuid: dict[str | None, dict[int, int | None]] = {}
    for gpu in gpus:
        for process in gpu.processes:
            sizes = by_uuid.setdefault(device_of(gpu, process), {})
            reported = [sizes.get(process.pid), process.memory_used_bytes]
            # A process in two of NVML's lists has its total in both.
            sizes[process.pid] = max((size for size in reported if size is not None), default=None)
    return by_uuid


def device_of(gpu: GpuReading, process: ProcessReading) -> str | None:
    """Return the UUID of the GPU, or of the MIG instance that the process uses."""
    return (gpu.instance_of(process) or gpu).uuid


def program_of(command: str | None) -> str:
    """Return a command line's program: "/usr/bin/python3 -u train.py --lr 1" -> "train.py"."""
    import shlex

    try:
        words = shlex.split(command or "")
    except ValueError:
        words = (command or "").split()
    if not words:
        return ""
    name = PurePosixPath(words[0]).name or words[0]
    if _INTERPRETER.fullmatch(name):
        for word, after in pairwise([*words[1:], ""]):
            if word in ("-m", "-c"):
                name = after if word == "-m" and after else name
                break
            if not word.startswith("-") and "=" not in word:
                name = PurePosixPath(word).name or word
                break
    return name if len(name) <= _MOST_SHOWN else f"{name[: _MOST_SHOWN - 3]}..."
