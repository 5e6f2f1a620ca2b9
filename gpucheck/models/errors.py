"""Every error that a user can meet: its exit code, its stable code, a sentence, and what to do."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from gpucheck.models.report import Host


class ExitCode(IntEnum):
    """The program's exit codes; their meaning is fixed by the contract and listed in the README."""

    OK = 0
    BAD = 1
    WRONG_USE = 2
    INCONCLUSIVE = 3
    MISSING = 4
    BUG = 70
    LAUNCH_FAILED = 125
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130


class GpucheckError(Exception):
    """A failure with a sentence for a person, a code for a program and the steps that mend it.

    `message` is one sentence without a trailing newline; `remedy` lists steps in the order to
    try; `code` is kebab-case and never changes meaning. `host` is the machine that was looked at,
    where that is known.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.BUG
    host: Host | None = None

    def __init__(self, *, code: str, message: str, remedy: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy


class BadAnswerError(GpucheckError):
    """The question was answered and the answer is bad: nothing fits, a limit did not hold."""

    exit_code = ExitCode.BAD


class WrongUseError(GpucheckError):
    """The command line, a device string, an amount or a file given to us cannot be used."""

    exit_code = ExitCode.WRONG_USE


class InconclusiveError(GpucheckError):
    """It was looked at or measured, but the evidence does not decide it."""

    exit_code = ExitCode.INCONCLUSIVE


class MissingError(GpucheckError):
    """Something that is needed is not on this machine: a GPU, a driver, CuPy, an extra."""

    exit_code = ExitCode.MISSING


class LaunchError(GpucheckError):
    """A command could not be started and nothing of it ran (125, 126 or 127, as in coreutils)."""

    exit_code = ExitCode.LAUNCH_FAILED


class NotExecutableError(LaunchError):
    """The command was found but cannot be executed."""

    exit_code = ExitCode.NOT_EXECUTABLE


class CommandNotFoundError(LaunchError):
    """The command does not exist."""

    exit_code = ExitCode.NOT_FOUND
