"""Start of the command in `place … -- CMD` and `memlimit … -- CMD`, as if gpucheck were not there.

As in coreutils' env, PATH is that of the new environment, no shell is involved, and a command
that cannot be started gives 125, 126 or 127.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from gpucheck.report.errors import CommandNotFoundError, LaunchError, NotExecutableError

#: Python ignores these at start-up, and an ignored signal stays ignored across exec.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

#: Variable that Python sets, and the values that it may set. Source: PEP 538.
_COERCED_VARIABLE = "LC_CTYPE"
_COERCED_VALUES = ("C.UTF-8", "C.utf8", "UTF-8")

_USUAL_REMEDY = "Check that it is a program and that its mode and mount allow execution."
_REMEDIES = {
    errno.ENOEXEC: "Give the script a first line such as #!/bin/sh, or run it with: sh FILE.",
    errno.E2BIG: "Shorten its arguments or environment: together they exceed `getconf ARG_MAX`.",
}


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Split a command line at its first bare `--` into our own part and the command, if any.

    Raises:
        LaunchError: nothing follows the `--`.
    """
    if "--" not in argv:
        return list(argv), None
    at = list(argv).index("--")
    command = list(argv[at + 1 :])
    if not command:
        raise LaunchError(
            code="no-command",
            message="There is no command after `--`.",
            remedy=("Put the command to run after `--`, or remove the `--`.",),
        )
    return list(argv[:at]), command


def exec_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    keep_descriptors: Iterable[int] = (),
) -> NoReturn:
    """Become the command: process id, signals, terminal, streams and exit code are its own.

    Descriptors 0 to 2 and `keep_descriptors` stay open; all others close. Only the main thread
    may call this.

    Raises:
        LaunchError: (or a subclass) the command cannot be started; this process is unchanged.
    """
    path = prepare(command, environment)
    with (
        only_inheritable(keep_descriptors),
        _default_dispositions(),
        explain_failure(command[0], path),
    ):
        os.execve(path, list(command), dict(environment))
    raise AssertionError  # pragma: no cover - exec returns only by raising


# --------------------------------------------------------------- the command's file, and failures


def prepare(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the file of a command that is about to start, with our output flushed before its own.

    Raises:
        LaunchError: (or a subclass) there is no command, or no file of that name.
    """
    if not command:
        raise LaunchError(code="no-command", message="There is no command to run.")
    path = _find_file(command[0], environment)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    return path


def _find_file(name: str, environment: Mapping[str, str]) -> str:
    """Return the file that a name means; one that cannot be executed only if no other is there."""
    import shutil

    if not name:
        raise CommandNotFoundError(
            code="command-not-found", message="The command to run is an empty string."
        )
    if "/" in name:
        return name
    # An empty entry of PATH is the current directory.
    search = os.pathsep.join(entry or "." for entry in os.get_exec_path(dict(environment)))
    path = shutil.which(name, path=search) or shutil.which(name, os.F_OK, search)
    if path is None:
        raise CommandNotFoundError(
            code="command-not-found",
            message=f"The command {name!a} is not found in PATH.",
            remedy=("Check the spelling, or give the command with its path.",),
        )
    return path


@contextlib.contextmanager
def explain_failure(name: str, path: str) -> Iterator[None]:
    """Turn what the system says of a file that it does not start into a LaunchError."""
    try:
        yield
    except OSError as error:
        raise _launch_error(name, path, error) from None
    except ValueError as error:
        raise LaunchError(
            code="bad-command",
            message=f"{name!a} cannot be started: {error}.",
            remedy=("Look for a NUL character, or a '=' in the name of a variable.",),
        ) from error


def _launch_error(name: str, path: str, error: OSError) -> LaunchError:
    reason = os.strerror(error.errno or errno.EIO)
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return LaunchError(
            code="no-process",
            message=f"No process could be started for {name!a}: {reason}.",
            remedy=("Check the limits on processes and memory (`ulimit -a`, the cgroup).",),
        )
    if not isinstance(error, FileNotFoundError):
        return NotExecutableError(
            code="command-not-executable",
            message=f"{path!a} cannot be executed: {reason}.",
            remedy=(_REMEDIES.get(error.errno or 0, _USUAL_REMEDY),),
        )
    if Path(path).exists():
        return CommandNotFoundError(
            code="interpreter-not-found",
            message=f"{path!a} exists, but the interpreter or loader it names does not.",
            remedy=(
                "Check its first line (a Windows line end counts as part of the name), or see with"
                " `file` which loader it asks for.",
            ),
        )
    return CommandNotFoundError(
        code="command-not-found",
        message=f"The command {path!a} does not exist.",
        remedy=("Check the path.",),
    )


# ------------------------------------------------------------------ what the command inherits


def environment_before(
    environment: Mapping[str, str] = os.environ, first: Path = Path("/proc/self/environ")
) -> dict[str, str]:
    """Return our environment as it was before Python coerced the locale.

    In the C locale Python sets LC_CTYPE, for its children too. `first` holds the environment
    that we were started with.
    """
    found = dict(environment)
    if found.get(_COERCED_VARIABLE) not in _COERCED_VALUES:
        return found
    try:
        entries = first.read_bytes().split(b"\0")
    except OSError:
        return found
    prefix = f"{_COERCED_VARIABLE}=".encode()
    before = next((entry for entry in entries if entry.startswith(prefix)), None)
    if before is None:
        del found[_COERCED_VARIABLE]
    else:
        found[_COERCED_VARIABLE] = os.fsdecode(before.removeprefix(prefix))
    return found


@contextlib.contextmanager
def _default_dispositions() -> Iterator[None]:
    """Restore for the command the signals that Python ignores; undo that if exec fails."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in IGNORED_BY_PYTHON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def inherited_descriptors() -> frozenset[int]:
    """Return the descriptors above 2 that an exec would pass on now.

    Before any library opens a file, these are the ones that our caller gave us (a make
    jobserver, a claim of an outer `place`), and they belong to the command too.
    """
    return frozenset(fd for fd in open_descriptors() if fd > 2 and _is_inheritable(fd))


@contextlib.contextmanager
def only_inheritable(keep: Iterable[int]) -> Iterator[None]:
    """Let an exec pass on only 0 to 2 and `keep`; restore every flag afterwards."""
    kept = set(keep)
    before: dict[int, bool] = {}
    try:
        for fd in sorted(open_descriptors() | kept):
            if fd > 2 and (fd in kept) != (inheritable := _is_inheritable(fd)):
                before[fd] = inheritable
                _set_inheritable(fd, fd in kept)
        yield
    finally:
        for fd, inheritable in before.items():
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, inheritable)


def _set_inheritable(fd: int, inheritable: bool) -> None:
    try:
        os.set_inheritable(fd, inheritable)
    except OSError as error:
        raise LaunchError(
            code="descriptor-not-open",
            message=f"Descriptor {fd}, which the command should inherit, is not open.",
        ) from error


def _is_inheritable(fd: int) -> bool:
    """Return whether an exec would pass on the descriptor; False if it is not open."""
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def open_descriptors() -> set[int]:
    """Return our open descriptors, and the one that read the list, which is closed by then."""
    try:
        return {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    except OSError:
        return set()
