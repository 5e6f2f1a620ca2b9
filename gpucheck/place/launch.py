"""Start of the command in `place … -- CMD` and `memlimit … -- CMD`, as if gpucheck were not there.

`replace` becomes the command; `supervise` stays as its parent and forwards signals to it.
Both follow coreutils' env: PATH is that of the new environment, no shell is involved, and a
command that cannot be started gives 125, 126 or 127.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from gpucheck.place.launch_descriptors import is_inheritable, only_inheritable, open_descriptors
from gpucheck.place.launch_file import first_that_starts
from gpucheck.place.launch_supervision import Supervision, taking_signals
from gpucheck.place.launch_witness import GroupWitness
from gpucheck.report.errors import CommandNotFoundError, LaunchError

#: Python ignores these at start-up, and an ignored signal stays ignored across exec.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


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


def inherited_descriptors() -> frozenset[int]:
    """Return the descriptors above 2 that an exec would pass on now.

    Before any library opens a file, these are the ones that our caller gave us (a make
    jobserver, a claim of an outer `place`), and they belong to the command too.
    """
    return frozenset(fd for fd in open_descriptors() if fd > 2 and is_inheritable(fd))


def replace(
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
    _check_command(command)
    _flush_streams()
    with only_inheritable(keep_descriptors), _default_dispositions():
        first_that_starts(
            command, environment, lambda path: os.execve(path, list(command), dict(environment))
        )
    raise AssertionError  # pragma: no cover - exec returns only by raising


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    on_tick: Callable[[int], None] | None = None,
    tick_s: float = 1.0,
    keep_descriptors: Iterable[int] = (),
) -> int:
    """Run the command as a child and return its exit code, 128+n if signal n ended it.

    The child stays in our process group, so the terminal's signals reach it directly; only
    signals sent to us alone are forwarded. When job control stops the child, we stop as well.
    `on_tick` is called with the child's process id every `tick_s` seconds; an exception from it
    stops the ticks and is raised once the child has ended. Only the main thread may call this.

    Raises:
        LaunchError: (or a subclass) the command cannot be started.
    """
    _check_command(command)
    _flush_streams()
    with taking_signals() as original_mask, GroupWitness() as witness:
        with only_inheritable(keep_descriptors):
            pid = first_that_starts(
                command,
                environment,
                lambda path: os.posix_spawn(
                    path,
                    list(command),
                    dict(environment),
                    setsigmask=original_mask,
                    setsigdef=_IGNORED_BY_PYTHON,
                ),
            )
        return Supervision(pid, witness, on_tick, tick_s).run()


def _check_command(command: Sequence[str]) -> None:
    if not command:
        raise LaunchError(code="no-command", message="There is no command to run.")
    if not command[0]:
        raise CommandNotFoundError(
            code="command-not-found", message="The command to run is an empty string."
        )


@contextlib.contextmanager
def _default_dispositions() -> Iterator[None]:
    """Restore for the command the signals that Python ignores; undo that if exec fails."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _IGNORED_BY_PYTHON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _flush_streams() -> None:
    """Flush our output, so that it comes before the command's own."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
