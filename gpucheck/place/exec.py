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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from gpucheck.drivers.child import is_inheritable, open_descriptors
from gpucheck.report.errors import (
    CHECK_LIMITS,
    CommandNotFoundError,
    LaunchError,
    NotExecutableError,
)

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
    with only_inheritable(keep_descriptors), _default_dispositions():
        start_first(
            command, environment, lambda path: os.execve(path, list(command), dict(environment))
        )
    raise AssertionError  # pragma: no cover - exec returns only by raising


# --------------------------------------------------------------- the command's file, and failures


def start_first(
    command: Sequence[str], environment: Mapping[str, str], start: Callable[[str], int]
) -> int:
    """Return what `start` returns for the first file of the command's name that can be started.

    As in execvp, a file that exists but cannot be executed is skipped, and is the reason if no
    later one can. What we have printed is flushed before, so that it comes first.

    Raises:
        LaunchError: (or a subclass) there is no command, or none of its files can be started.
    """
    if not command:
        raise LaunchError(code="no-command", message="There is no command to run.")
    name = command[0]
    if not name:
        raise CommandNotFoundError(
            code="command-not-found", message="The command to run is an empty string."
        )
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    failure: tuple[str, OSError] | None = None
    for path in _candidates(name, environment):
        try:
            return start(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if "/" in name:
                failure = (path, error)
        except OSError as error:
            # A directory of PATH that we may not search does not mean that the command was found.
            if "/" in name or _exists(path):
                failure = failure or (path, error)
        except ValueError as error:
            raise LaunchError(
                code="bad-command",
                message=f"{name!a} cannot be started: {error}.",
                remedy=("Look for a NUL character, or a '=' in the name of a variable.",),
            ) from error
    if failure is None:
        raise CommandNotFoundError(
            code="command-not-found",
            message=f"The command {name!a} is not found in PATH.",
            remedy=("Check the spelling, or give the command with its path.",),
        )
    raise _launch_error(name, *failure)


def _candidates(name: str, environment: Mapping[str, str]) -> list[str]:
    if "/" in name:
        return [name]
    # An empty entry of PATH is the current directory.
    return [f"{folder or '.'}/{name}" for folder in os.get_exec_path(dict(environment))]


def _exists(path: str) -> bool:
    try:
        Path(path).stat()
    except OSError:
        return False
    return True


def _launch_error(name: str, path: str, error: OSError) -> LaunchError:
    reason = os.strerror(error.errno or errno.EIO)
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return LaunchError(
            code="no-process",
            message=f"No process could be started for {name!a}: {reason}.",
            remedy=(CHECK_LIMITS,),
        )
    if not isinstance(error, FileNotFoundError):
        return NotExecutableError(
            code="command-not-executable",
            message=f"{path!a} cannot be executed: {reason}.",
            remedy=(_REMEDIES.get(error.errno or 0, _USUAL_REMEDY),),
        )
    if _exists(path):
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


@contextlib.contextmanager
def only_inheritable(keep: Iterable[int]) -> Iterator[None]:
    """Let an exec pass on only 0 to 2 and `keep`; restore every flag afterwards."""
    kept = set(keep)
    before: dict[int, bool] = {}
    try:
        for fd in sorted(open_descriptors() | kept):
            if fd > 2 and (fd in kept) != (inheritable := is_inheritable(fd)):
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
