"""Run of the command in `place … -- CMD` and `memlimit … -- CMD`, as if gpucheck were not there.

As in coreutils' env, PATH is that of the new environment, no shell is involved, and a command
that cannot be started gives 125, 126 or 127. `exec_command` becomes the command; `supervise` runs
it as a child: signals are forwarded, stops and continuations shared.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from gpucheck.drivers.child import is_inheritable, open_descriptors
from gpucheck.drivers.host.process_tree import read_stat
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
    """Return the result of `start` for the first file of the command's name that can be started.

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
                message=f"{name!r} cannot be started: {error}.",
                remedy=("Look for a NUL character, or a '=' in the name of a variable.",),
            ) from error
    if failure is None:
        raise CommandNotFoundError(
            code="command-not-found",
            message=f"The command {name!r} is not found in PATH.",
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
            message=f"No process could be started for {name!r}: {reason}.",
            remedy=(CHECK_LIMITS,),
        )
    if not isinstance(error, FileNotFoundError):
        return NotExecutableError(
            code="command-not-executable",
            message=f"{path!r} cannot be executed: {reason}.",
            remedy=(_REMEDIES.get(error.errno or 0, _USUAL_REMEDY),),
        )
    if _exists(path):
        return CommandNotFoundError(
            code="interpreter-not-found",
            message=f"{path!r} exists, but the interpreter or loader it names does not.",
            remedy=(
                "Check its first line (a Windows line end counts as part of the name), or see with"
                " `file` which loader it asks for.",
            ),
        )
    return CommandNotFoundError(
        code="command-not-found",
        message=f"The command {path!r} does not exist.",
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
    variables = dict(environment)
    if variables.get(_COERCED_VARIABLE) not in _COERCED_VALUES:
        return variables
    try:
        entries = first.read_bytes().split(b"\0")
    except OSError:
        return variables
    prefix = f"{_COERCED_VARIABLE}=".encode()
    before = next((entry for entry in entries if entry.startswith(prefix)), None)
    if before is None:
        del variables[_COERCED_VARIABLE]
    else:
        variables[_COERCED_VARIABLE] = os.fsdecode(before.removeprefix(prefix))
    return variables


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


# ------------------------------------------------------------------------------ supervision

#: Signals that may be sent to us instead of to the command.
FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGTERM, signal.SIGCONT, signal.SIGTSTP, signal.SIGWINCH,
)  # fmt: skip
#: Signals that the terminal sends to a whole group; we take them off the queue, the child reacts.
_JOB_CONTROL = (signal.SIGTTIN, signal.SIGTTOU)
#: Stops that we share with the child, so that the shell that started us sees the job stopped.
#: SIGSTOP is not among them: whoever sent it to the child alone will continue the child alone.
_MIRRORED_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
#: SIGPIPE is blocked so that a probe or a reader that has ended is an error and does not end us.
_BLOCKED = frozenset({*FORWARDED, *_JOB_CONTROL, signal.SIGCHLD, signal.SIGPIPE})
#: How long a signal that reached us may take to reach the rest of our process group.
_GROUP_DELIVERY_S = 0.02


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    on_start: Callable[[int], None] | None = None,
    on_tick: Callable[[int], None] | None = None,
    tick_s: float = 1.0,
    keep_descriptors: Iterable[int] = (),
) -> int:
    """Run the command as a child and return its exit code, 128+n if signal n ended it.

    The child stays in our process group, so the terminal's signals reach it directly; only
    signals sent to us alone are forwarded. When job control stops the child, we stop as well.
    `on_start` is called with the child's process id as soon as there is one; an exception from it
    ends the child and is raised. `on_tick` is called with it every `tick_s` seconds; an exception
    from it stops the ticks and is raised once the child has ended. Only the main thread may call
    this.

    Raises:
        LaunchError: (or a subclass) the command cannot be started.
    """
    with _taking_signals() as original_mask, _GroupSignalProbe() as probe:
        with only_inheritable(keep_descriptors):
            pid = start_first(
                command,
                environment,
                lambda path: os.posix_spawn(
                    path,
                    list(command),
                    dict(environment),
                    setsigmask=original_mask,
                    setsigdef=IGNORED_BY_PYTHON,
                ),
            )
        if on_start is not None:
            try:
                on_start(pid)
            except BaseException:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise
        return _Supervision(pid, probe, on_tick, tick_s).run()


class _Supervision:
    """Supervision of one child: signals in, signals out, until the child has ended."""

    def __init__(
        self,
        pid: int,
        probe: _GroupSignalProbe,
        on_tick: Callable[[int], None] | None,
        tick_s: float,
    ) -> None:
        self._pid = pid
        self._probe = probe
        self._on_tick = on_tick
        self._tick_s = tick_s
        self._next_tick = time.monotonic() + tick_s
        self._exit_code: int | None = None
        self._tick_failure: Exception | None = None

    def run(self) -> int:
        """Return the child's exit code once it has ended, or raise what a tick raised."""
        while self._exit_code is None:
            received = self._next_signal()
            self._reap_child()
            if self._exit_code is None:
                if received is not None:
                    self._handle(received)
                self._tick()
        if self._tick_failure is not None:
            raise self._tick_failure
        return self._exit_code

    def _next_signal(self) -> signal.struct_siginfo | None:
        if self._on_tick is None:
            return signal.sigwaitinfo(_BLOCKED)
        return signal.sigtimedwait(_BLOCKED, max(0.0, self._next_tick - time.monotonic()))

    def _tick(self) -> None:
        if self._on_tick is None or time.monotonic() < self._next_tick:
            return
        self._next_tick = time.monotonic() + self._tick_s
        try:
            self._on_tick(self._pid)
        except Exception as failure:  # the child must not be left without a parent that waits
            self._tick_failure, self._on_tick = failure, None

    def _reap_child(self) -> None:
        """Handle every pending change of the child's state."""
        while self._exit_code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._stop_with_child(os.WSTOPSIG(status))
            elif os.WIFSIGNALED(status):
                self._exit_code = 128 + os.WTERMSIG(status)
            else:
                self._exit_code = os.WEXITSTATUS(status)

    def _handle(self, received: signal.struct_siginfo) -> None:
        number = received.si_signo
        if number not in FORWARDED:
            return
        if not self._probe.saw(received):
            if not _is_overtaken(number):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self._pid, number)
            return
        # A second signal that came meanwhile merged with the first one in the probe: signals do
        # not count. Left in the queue it would look as if it had been sent to us alone.
        signal.sigtimedwait({number}, 0)
        self._stop_with_child(number)

    def _stop_with_child(self, number: int) -> None:
        """Stop too if job control has stopped the child, unless it is already running again."""
        if number in _MIRRORED_STOPS and _is_stopped(self._pid):
            _stop_ourselves(signal.Signals(number))


def _is_overtaken(number: int) -> bool:
    """Return whether the queue holds the opposite: a stop and a continuation cancel each other.

    The later one also removes the earlier one from the probe, which then did not see it.
    """
    opposite = {signal.SIGCONT: set(_MIRRORED_STOPS), signal.SIGTSTP: {signal.SIGCONT}}
    return bool(opposite.get(signal.Signals(number), set()) & signal.sigpending())


def _is_stopped(pid: int) -> bool:
    """Return whether the process is stopped right now; reports of it come late."""
    stat = read_stat(Path(f"/proc/{pid}"))
    return stat is not None and stat.state == "T"


@contextlib.contextmanager
def _taking_signals() -> Iterator[set[signal.Signals | int]]:
    """Block our signals so that they can be waited for; yield the previous mask."""
    # If SIGCHLD were ignored (as in some daemons), the kernel would discard the exit code.
    children_before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    original = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield set(original)
    finally:
        # What is still queued, a second Ctrl-C for example, was meant for the command that ended.
        while signal.sigtimedwait(_BLOCKED, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, original)
        signal.signal(signal.SIGCHLD, children_before)


def _stop_ourselves(number: signal.Signals) -> None:
    """Stop ourselves by the signal that stopped the child; return once continued."""
    handler = signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    signal.signal(number, handler)


class _GroupSignalProbe:
    """Process in our group that tells whether a signal was sent to all of the group or to us alone.

    Signal information names the sender, not the target: `kill(-group)`, as a shell's `kill %1`,
    a CI runner or Jupyter's interrupt sends it, looks like `kill(us)`. The probe blocks every
    signal and reports whether it received the same one. It ends with us, however we end. Without
    it, only the kernel's own signals (a terminal's) count as sent to the group.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        #: Descriptors for the questions and the answers, while the answers can be trusted.
        self._line: tuple[int, int] | None = None

    def __enter__(self) -> _GroupSignalProbe:
        """Start the probe, which lives as long as our pipe to it."""
        with contextlib.suppress(OSError):
            questions, ask = os.pipe()
            answer, answers = os.pipe()
            self._line = (ask, answer)
            with warnings.catch_warnings():
                # Python warns of fork with threads running; the probe takes none of their locks.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid = os.fork()
            if self._pid == 0:
                _run_probe(questions, answers)
            os.close(questions)
            os.close(answers)
        return self

    def __exit__(self, *exception: object) -> None:
        """End the probe and wait for it, so that it leaves no zombie."""
        self._hang_up()
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def saw(self, received: signal.struct_siginfo) -> bool:
        """Return whether the signal that we received was sent to our whole process group."""
        # Ask even if the answer is known, so that the probe consumes the signal too.
        answer = self._ask(received.si_signo)
        if answer is None:
            self._hang_up()
        from_terminal = received.si_code > 0
        return from_terminal or bool(answer)

    def _ask(self, number: int) -> bool | None:
        if self._line is None:
            return None
        ask, answer = self._line
        with contextlib.suppress(OSError):
            os.write(ask, bytes([number]))
            # On a busy machine the probe answers late. One that has been stopped never will, and
            # one that has ended is the end of the line.
            while not select.select([answer], [], [], 10 * _GROUP_DELIVERY_S)[0]:
                if self._pid is None or _is_stopped(self._pid):
                    return None
            byte = os.read(answer, 1)
            return byte == b"1" if byte else None
        return None

    def _hang_up(self) -> None:
        """Close the pipes for good: a late answer would be taken for that to a later question."""
        if self._line is not None:
            for fd in self._line:
                os.close(fd)
            self._line = None


def _run_probe(questions: int, answers: int) -> NoReturn:
    """Run the probe: for each signal number read, answer whether that signal arrived here too."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for other in open_descriptors() - {questions, answers}:
            with contextlib.suppress(OSError):
                os.close(other)
        while number := os.read(questions, 1):
            seen = signal.sigtimedwait({number[0]}, _GROUP_DELIVERY_S)
            os.write(answers, b"0" if seen is None else b"1")
    finally:
        os._exit(0)
