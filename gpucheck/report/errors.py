"""Errors that a user can see: exit code, stable code, message, and remedy."""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from gpucheck.report.host import Host


class ExitCode(IntEnum):
    """Exit codes of the program; the README lists their meanings, which never change."""

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
    """Error with a sentence for people, a code for programs, and the steps that fix it.

    `message` is one sentence without a trailing newline; `remedy` lists steps in the order to
    try; `code` is kebab-case and never changes meaning. `host` is the machine that was
    read, if known, and `document` the one that was asked for, where a command has several.
    `details` are what `-v` says in addition.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.BUG
    host: Host | None = None
    document: str | None = None
    details: tuple[str, ...] = ()

    def __init__(self, *, code: str, message: str, remedy: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy it whole: a pool of processes passes on what its workers raise."""
        # Exception's own way calls the class with the message alone, which this one refuses.
        build = partial(type(self), code=self.code, message=self.message, remedy=self.remedy)
        return build, (), vars(self)


class BadAnswerError(GpucheckError):
    """A bad answer: nothing fits, or a limit did not hold."""

    exit_code = ExitCode.BAD


class WrongUseError(GpucheckError):
    """A command line, device string, amount or file that cannot be used."""

    exit_code = ExitCode.WRONG_USE


class InconclusiveError(GpucheckError):
    """The evidence does not decide the question."""

    exit_code = ExitCode.INCONCLUSIVE


class MissingError(GpucheckError):
    """Something required is missing on this machine: a GPU, a driver, CuPy, an extra."""

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


#: What to do about a system that refuses memory, threads or processes.
CHECK_LIMITS = "Check the limits on processes and memory (`ulimit -a`, the cgroup)."
#: Python's words where pthread_create fails, and the loader's where a library finds no room.
_NO_THREAD = "can't start new thread"
_NO_MEMORY = ("failed to map segment", "cannot allocate memory")


def system_refusal(error: BaseException) -> InconclusiveError | None:
    """Return the error of a system that refuses memory or threads; None for any other."""
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        return _refused("a thread")
    if isinstance(error, MemoryError) or (
        isinstance(error, (ImportError, OSError))
        and any(words in str(error).lower() for words in _NO_MEMORY)
    ):
        return refused_memory()
    return None


def refused_memory() -> InconclusiveError:
    """Return the error of a system that refuses memory."""
    return _refused("memory")


def _refused(resource: str) -> InconclusiveError:
    return InconclusiveError(
        code="system-limit",
        message=f"The system refuses {resource} that gpucheck needs.",
        remedy=(CHECK_LIMITS,),
    )


#: A week: longer than any burn-in, and the longest that Linux and Python's timers all take.
LONGEST_S = 604_800


def check_seconds(
    name: str,
    seconds: float,
    *,
    least: float | None = None,
    code: str = "usage",
    remedy: tuple[str, ...] = (),
) -> None:
    """Refuse seconds that are not above 0 (or from `least`), or over a week.

    Raises:
        WrongUseError: says which seconds it takes.
    """
    enough = seconds > 0 if least is None else seconds >= least
    if not (enough and seconds <= LONGEST_S):
        start = "above 0" if least is None else f"from {least:g}"
        message = f"{name} takes seconds {start} to {LONGEST_S} (a week), not {seconds:.15g}."
        raise WrongUseError(code=code, message=message, remedy=remedy)


def check_argument(name: str, value: object, wants: str, *kinds: type) -> None:
    """Refuse a value that has none of these types; a bool is no number.

    Raises:
        WrongUseError: says which types it takes.
    """
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise WrongUseError(code="usage", message=f"{name} takes {wants}, not {shown}.")
