"""How a command is run for `place … -- CMD` and `memlimit … -- CMD`: as if we were not there.

`replace` becomes the command; `supervise` stays beside it and passes on what was meant for it.
Both follow coreutils' env: PATH is that of the new environment, no shell is ever involved, and
what cannot be started ends with 125, 126 or 127.
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
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpucheck.models.errors import CommandNotFoundError, LaunchError, NotExecutableError

#: Signals that someone may send to us in the place of the command.
FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGWINCH,
)
#: Signals that the terminal sends to a whole group; taken off the queue and answered by the child.
_JOB_CONTROL = (signal.SIGTTIN, signal.SIGTTOU)
#: Stops that we share with the child, so that the shell that started us sees the job stopped.
#: SIGSTOP is not among them: whoever sent it to the child alone will continue the child alone.
_MIRRORED_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
#: SIGPIPE is taken so that a witness or a reader that has gone is an error and not our end.
_TAKEN = frozenset({*FORWARDED, *_JOB_CONTROL, signal.SIGCHLD, signal.SIGPIPE})

#: Python ignores these at start-up, and an ignored signal stays ignored across exec.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

#: How long a signal that reached us may take to reach the rest of our process group.
_GROUP_DELIVERY_S = 0.02


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Split a command line at its first bare `--` into our own part and the command, if any.

    Raises:
        LaunchError: when nothing follows the `--`.
    """
    if "--" not in argv:
        return list(argv), None
    at = list(argv).index("--")
    command = list(argv[at + 1 :])
    if not command:
        raise LaunchError(
            code="no-command",
            message="There is no command after `--`.",
            remedy=("Write the command to run after `--`, or leave `--` out.",),
        )
    return list(argv[:at]), command


def inherited_descriptors() -> frozenset[int]:
    """Return the descriptors above 2 that an exec would hand on now.

    Called before any library opens a file, these are the ones that our caller gave us (a make
    jobserver, a claim of an outer `place`), and they belong to the command too.
    """
    return frozenset(fd for fd in _open_descriptors() if fd > 2 and _is_inheritable(fd))


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
        LaunchError: (or a subclass) when the command cannot be started; we then go on as before.
    """
    _check_command(command)
    _flush_streams()
    with _only_inheritable(keep_descriptors), _default_dispositions():
        _first_that_starts(
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
    """Run the command beside us and return its exit code, 128+n if signal n ended it.

    The child stays in our process group, so the terminal's signals reach it directly; only
    signals sent to us alone are passed on. When job control stops the child, we stop as well.
    `on_tick` is called with the child's process id every `tick_s` seconds; an exception from it
    ends the ticking and is raised once the child has ended. Only the main thread may call this.

    Raises:
        LaunchError: (or a subclass) when the command cannot be started.
    """
    _check_command(command)
    _flush_streams()
    with _taking_signals() as original_mask, _GroupWitness() as witness:
        with _only_inheritable(keep_descriptors):
            pid = _first_that_starts(
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
        return _Supervision(pid, witness, on_tick, tick_s).run()


class _Supervision:
    """The loop beside one child: signals in, signals out, until the child has ended."""

    def __init__(
        self,
        pid: int,
        witness: _GroupWitness,
        on_tick: Callable[[int], None] | None,
        tick_s: float,
    ) -> None:
        self._pid = pid
        self._witness = witness
        self._on_tick = on_tick
        self._tick_s = tick_s
        self._next_tick = time.monotonic() + tick_s
        self._exit_code: int | None = None
        self._tick_failure: Exception | None = None

    def run(self) -> int:
        """Return the child's exit code, or raise what a tick raised, after the child's end."""
        while self._exit_code is None:
            received = self._next_signal()
            self._look_after_child()
            if self._exit_code is None:
                if received is not None:
                    self._handle(received)
                self._tick()
        if self._tick_failure is not None:
            raise self._tick_failure
        return self._exit_code

    def _next_signal(self) -> signal.struct_siginfo | None:
        if self._on_tick is None:
            return signal.sigwaitinfo(_TAKEN)
        return signal.sigtimedwait(_TAKEN, max(0.0, self._next_tick - time.monotonic()))

    def _tick(self) -> None:
        if self._on_tick is None or time.monotonic() < self._next_tick:
            return
        self._next_tick = time.monotonic() + self._tick_s
        try:
            self._on_tick(self._pid)
        except Exception as failure:  # the child must not be left alone with nobody waiting
            self._tick_failure, self._on_tick = failure, None

    def _look_after_child(self) -> None:
        """Take note of every change of the child's state that is waiting to be reported."""
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
        if not self._witness.saw(received):
            if not _is_overtaken(number):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self._pid, number)
            return
        # A second one that came meanwhile was one with the first for the witness: signals do not
        # count. Left in the queue it would look as if it had been sent to us alone.
        signal.sigtimedwait({number}, 0)
        self._stop_with_child(number)

    def _stop_with_child(self, number: int) -> None:
        """Stop too if job control has stopped the child, unless it is already running again."""
        if number in _MIRRORED_STOPS and _is_stopped(self._pid):
            _stop_ourselves(signal.Signals(number))


def _is_overtaken(number: int) -> bool:
    """Return whether the queue holds the opposite: a stop and a continuation undo each other.

    The later one also takes the earlier one away from the witness, which then did not see it.
    """
    opposite = {signal.SIGCONT: set(_MIRRORED_STOPS), signal.SIGTSTP: {signal.SIGCONT}}
    return bool(opposite.get(signal.Signals(number), set()) & signal.sigpending())


def _is_stopped(pid: int) -> bool:
    """Return whether the process is stopped at this moment: reports of it come late."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "T"


class _GroupWitness:
    """A process in our group that can tell whether a signal was sent to all of it or to us alone.

    Signal information names the sender, not the addressee: `kill(-group)`, as a shell's `kill %1`,
    a CI runner or Jupyter's interrupt send it, looks like `kill(us)`. The witness blocks every
    signal and is asked whether it was sent the same one. It ends with us, however we end. Where
    it cannot be had, only the kernel's own signals (a terminal's) count as sent to the group.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        #: The descriptors to ask on and to be answered on, while its answers can be trusted.
        self._line: tuple[int, int] | None = None

    def __enter__(self) -> _GroupWitness:
        """Start the witness, which lives as long as the pipe from us to it."""
        with contextlib.suppress(OSError):
            questions, ask = os.pipe()
            answer, answers = os.pipe()
            self._line = (ask, answer)
            with warnings.catch_warnings():
                # Python warns of fork beside threads; the witness takes no lock that one may hold.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid = os.fork()
            if self._pid == 0:
                _witness(questions, answers)
            os.close(questions)
            os.close(answers)
        return self

    def __exit__(self, *exception: object) -> None:
        """End the witness and wait for it, so that it leaves no trace."""
        self._hang_up()
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def saw(self, received: signal.struct_siginfo) -> bool:
        """Return whether the signal that we received was sent to our whole process group."""
        # It is asked even if the answer is known, so that it forgets the signal as well.
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
            # Much longer than the witness itself waits: without an answer it has been stopped.
            if select.select([answer], [], [], 10 * _GROUP_DELIVERY_S)[0]:
                said = os.read(answer, 1)
                return said == b"1" if said else None
        return None

    def _hang_up(self) -> None:
        """Close the line for good: a late answer would be taken for one to a later question."""
        if self._line is not None:
            for fd in self._line:
                os.close(fd)
            self._line = None


def _witness(questions: int, answers: int) -> NoReturn:
    """Be the witness: answer for each signal number read whether that signal reached us too."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for other in _open_descriptors() - {questions, answers}:
            with contextlib.suppress(OSError):
                os.close(other)
        while number := os.read(questions, 1):
            seen = signal.sigtimedwait({number[0]}, _GROUP_DELIVERY_S)
            os.write(answers, b"0" if seen is None else b"1")
    finally:
        os._exit(0)


@contextlib.contextmanager
def _taking_signals() -> Iterator[set[signal.Signals | int]]:
    """Hold our signals back so that they can be waited for; yield the mask from before."""
    # Were SIGCHLD ignored (some daemons do), the kernel would throw the exit code away.
    children_before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    original = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    try:
        yield set(original)
    finally:
        # What is still queued, a second Ctrl-C for example, was meant for the command that ended.
        while signal.sigtimedwait(_TAKEN, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, original)
        signal.signal(signal.SIGCHLD, children_before)


def _stop_ourselves(number: signal.Signals) -> None:
    """Stop by the signal that stopped the child; return once we are continued."""
    handler = signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    signal.signal(number, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """Why one candidate could not be started."""

    path: str
    error: OSError


def _first_that_starts(
    command: Sequence[str], environment: Mapping[str, str], start: Callable[[str], int]
) -> int:
    """Return what `start` returns for the first file of that name that can be started.

    As in execvp: a file that exists but cannot be executed is passed over, and remembered as
    the reason if no later one can.
    """
    failure: _Failure | None = None
    for path in _candidates(command[0], environment):
        try:
            return start(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if "/" in command[0]:
                failure = _Failure(path=path, error=error)
        except OSError as error:
            # A directory of PATH that we may not search does not make a command found.
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
    # An empty entry of PATH is the current directory, as everywhere.
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
            remedy=("Look at the limits on processes and memory (`ulimit -a`, the cgroup).",),
        )
    if not isinstance(failure.error, FileNotFoundError):
        return NotExecutableError(
            code="command-not-executable",
            message=f"{failure.path!a} cannot be executed: {reason}.",
            remedy=("Check that it is a program and that its mode and mount allow execution.",),
        )
    if _exists(failure.path):
        return CommandNotFoundError(
            code="interpreter-not-found",
            message=f"{failure.path!a} exists, but the interpreter or loader it names does not.",
            remedy=("Look at its first line, or with `file` at the loader it asks for.",),
        )
    return CommandNotFoundError(
        code="command-not-found",
        message=f"The command {failure.path!a} does not exist.",
        remedy=("Check the path.",),
    )


def _check_command(command: Sequence[str]) -> None:
    if not command:
        raise LaunchError(code="no-command", message="There is no command to run.")
    if not command[0]:
        raise CommandNotFoundError(
            code="command-not-found", message="The command to run is an empty string."
        )


@contextlib.contextmanager
def _only_inheritable(keep: Iterable[int]) -> Iterator[None]:
    """Let an exec hand on 0 to 2 and `keep` alone; put every flag back afterwards."""
    kept = set(keep)
    before: dict[int, bool] = {}
    try:
        for fd in sorted(_open_descriptors() | kept):
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
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def _open_descriptors() -> set[int]:
    """Return our open descriptors; the one that reads the list is closed again by then."""
    try:
        return {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    except OSError:
        return set()


@contextlib.contextmanager
def _default_dispositions() -> Iterator[None]:
    """Undo what Python ignores, for the command; ignore it again if there is no exec."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _IGNORED_BY_PYTHON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _flush_streams() -> None:
    """Write out what we have buffered, so that it comes before the command's own output."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
