"""Lookup of a command's file, as execvp does it, and the reasons why it cannot be started."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpucheck.report.errors import CommandNotFoundError, LaunchError, NotExecutableError

_USUAL_REMEDY = "Check that it is a program and that its mode and mount allow execution."
_REMEDIES = {
    errno.ENOEXEC: "Give the script a first line such as #!/bin/sh, or run it with: sh FILE.",
    errno.E2BIG: "Shorten its arguments or environment: together they exceed `getconf ARG_MAX`.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """Reason why one candidate could not be started."""

    path: str
    error: OSError


def first_that_starts(
    command: Sequence[str], environment: Mapping[str, str], start: Callable[[str], int]
) -> int:
    """Return what `start` returns for the first file of that name that can be started.

    As in execvp, a file that exists but cannot be executed is skipped, and remembered as the
    reason if no later one can be started.
    """
    failure: _Failure | None = None
    for path in _candidates(command[0], environment):
        try:
            return start(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if "/" in command[0]:
                failure = _Failure(path=path, error=error)
        except OSError as error:
            # A directory of PATH that we may not search does not count as a find.
            if "/" in command[0] or _exists(path):
                failure = failure or _Failure(path=path, error=error)
        except ValueError as error:
            raise LaunchError(
                code="bad-command",
                message=f"{command[0]!a} cannot be started: {error}.",
                remedy=("Look for a NUL character, or a '=' in the name of a variable.",),
            ) from error
    raise _launch_error(command[0], failure)


def _candidates(name: str, environment: Mapping[str, str]) -> list[str]:
    if "/" in name:
        return [name]
    # An empty entry of PATH is the current directory.
    return [f"{directory or '.'}/{name}" for directory in os.get_exec_path(dict(environment))]


def _exists(path: str) -> bool:
    try:
        Path(path).stat()
    except OSError:
        return False
    return True


def _launch_error(name: str, failure: _Failure | None) -> LaunchError:
    if failure is None:
        return CommandNotFoundError(
            code="command-not-found",
            message=f"The command {name!a} is not found in PATH.",
            remedy=("Check the spelling, or give the command with its path.",),
        )
    reason = os.strerror(failure.error.errno or errno.EIO)
    if failure.error.errno in (errno.EAGAIN, errno.ENOMEM):
        return LaunchError(
            code="no-process",
            message=f"No process could be started for {name!a}: {reason}.",
            remedy=("Check the limits on processes and memory (`ulimit -a`, the cgroup).",),
        )
    if not isinstance(failure.error, FileNotFoundError):
        return NotExecutableError(
            code="command-not-executable",
            message=f"{failure.path!a} cannot be executed: {reason}.",
            remedy=(_REMEDIES.get(failure.error.errno or 0, _USUAL_REMEDY),),
        )
    if _exists(failure.path):
        return CommandNotFoundError(
            code="interpreter-not-found",
            message=f"{failure.path!a} exists, but the interpreter or loader it names does not.",
            remedy=(
                "Check its first line (a Windows line end counts as part of the name), or see with"
                " `file` which loader it asks for.",
            ),
        )
    return CommandNotFoundError(
        code="command-not-found",
        message=f"The command {failure.path!a} does not exist.",
        remedy=("Check the path.",),
    )
