"""Child processes that answer in JSON lines, with a deadline, and that may be abandoned.

A call into a broken driver can sleep uninterruptibly in the kernel, where not even SIGKILL ends
it. So nothing here waits for a child without a bound: its pipes are closed and it is abandoned.
Built on posix_spawn, which starts a child before `subprocess` could even be imported.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time

from gpucheck.drivers.interrupts import DeferredStops
from gpucheck.drivers.start_child import OWN_GROUP

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, TypeVar

    from gpucheck.drivers.readings import ProbeFailure

    Reading = TypeVar("Reading")
    #: What the silence of a child means, and what its death does: a code, and a sentence with a
    #: place for the deadline, or for how it ended.
    Words = tuple[tuple[str, str], tuple[str, str]]

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to import
#: Runs every script, and ends with us.
START = _HERE + "/start_child.py"
#: Runs a module of this package, imported from the folder in the first argument and from nowhere
#: else: all that Python imports it keeps compiled.
START_WORKER = (
    "import sys; sys.path.append(sys.argv.pop(1)); from gpucheck.drivers import start_child;"
    " sys.path.pop(); start_child.run_worker()"
)
_FOLDER = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120
_CHUNK_BYTES = 1 << 16
#: No answer is longer: 8 MiB of a node's output, each byte of it escaped, and some room. What never
#: ends its line would take all memory.
MOST_LINE_BYTES = 64 << 20
#: A child that is not stuck in the kernel ends this soon after SIGKILL.
_REAP_S = 0.05
#: The exit status of a child that has closed its output by ending comes this soon after it.
_EXIT_S = 1.0
#: Children that were killed and had not ended by then. The next child's start collects them: a
#: program that runs on would gather dead processes.
_KILLED: set[int] = set()
#: A driver that has missed a deadline gets this share of it from then on: several hangs in one
#: command take little longer than one.
SHARE_AFTER_A_HANG = 0.25


class ChildError(Exception):
    """The child gave no complete answer; `ending` ends a sentence about that."""

    def __init__(self, text: str, ending: str) -> None:
        super().__init__(text)
        self.ending = ending


class ChildSilentError(ChildError):
    """The child did not finish its answer before the deadline (seconds)."""

    def __init__(self, deadline_s: float) -> None:
        super().__init__(f"no answer within {deadline_s:g} s", f"{deadline_s:g} s")


class ChildDiedError(ChildError):
    """The child ended before its answer was complete; `how` names the signal or exit code."""

    def __init__(self, how: str) -> None:
        super().__init__(how, how)
        self.how = how


class Child:
    """A module of this package, whose `main` runs in an isolated interpreter of the same Python.

    The child sees `environment` (default: ours) but no PYTHON* variable, no user site and no
    current directory, and it writes nothing to our terminal. With `interpreter` (a Python and its
    options) a script runs there instead, with that Python's own packages: `program` is its path,
    or after `-m` the name of a module.

    It ends with this process, however that ends, and with the thread that started it, which the
    kernel takes for its parent. So a thread that starts a child must outlive it. With `own_group`
    a script leads a process group, all of which ends then: the compilers that a framework starts.

    Raises:
        ChildDiedError: it could not be started at all.
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        interpreter: tuple[str, ...] = (),
        own_group: bool = False,
    ) -> None:
        self._requests = self._answers = -1
        self._pid: int | None = None
        self._owner = os.getpid()
        #: Another Python may write more than our script does, from its user's site hooks.
        self._foreign = bool(interpreter)
        self._buffer, self._searched = bytearray(), 0
        _collect_killed()
        command = _starter(program, interpreter, str(self._owner))
        command += [*((OWN_GROUP,) if own_group else ()), program, *arguments]
        try:
            with DeferredStops():
                self._start(command, dict(os.environ if environment is None else environment))
        except (OSError, ValueError) as error:
            self._close_pipes()
            how = f"could not be started: {error}"
            raise ChildDiedError(how) from None
        except BaseException:  # a deferred interrupt: nobody will use this child
            self.abandon()
            raise

    def _start(self, command: list[str], environment: dict[str, str]) -> None:
        ends: list[int] = []
        above: list[int] = []
        try:
            request_end, self._requests = os.pipe()
            ends.append(request_end)
            self._answers, answer_end = os.pipe()
            ends.append(answer_end)
            # A limit that was lowered since: the kernel refuses to close what lies above it.
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            passed_on = inherited_descriptors()
            above = [number for number in passed_on if number >= most]
            for number in above:
                os.set_inheritable(number, False)
            self._pid = os.posix_spawn(
                command[0],
                command,
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, request_end, 0),
                    (os.POSIX_SPAWN_DUP2, answer_end, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                    *((os.POSIX_SPAWN_CLOSE, number) for number in passed_on - {*above}),
                ],
                # Python ignores SIGPIPE; a child must not inherit that.
                setsigdef=(signal.SIGPIPE,),
                # Ctrl-C reaches the whole foreground group. We answer it, or a command that we
                # run does, and we end the child.
                setsigmask=(signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP),
            )
        finally:
            for number in above:
                os.set_inheritable(number, True)
            for end in ends:
                os.close(end)

    def __enter__(self) -> Child:
        """Use it for as long as the block lasts."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.abandon()

    def __del__(self) -> None:
        """End a child whose owner was interrupted."""
        if self._owner == os.getpid():  # and not a copy in a fork of this process
            self.abandon()

    @property
    def pid(self) -> int | None:
        """Return the process id, None once the child has been collected."""
        return self._pid

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send one request; if the child has already ended, reading the answer reports it."""
        import json

        try:
            os.write(self._requests, json.dumps(request).encode("ascii") + b"\n")
        except BrokenPipeError:
            return

    def documents(self, deadline_s: float) -> Iterator[dict[str, Any]]:
        """Yield the child's lines as they come.

        Raises:
            ChildSilentError: a line did not come before `deadline_s` seconds from now.
            ChildDiedError: the child ended, or wrote something that is not a JSON object.
        """
        end = time.monotonic() + deadline_s
        while True:
            document = self.next_document(end - time.monotonic())
            if document is None:
                self.abandon()
                raise ChildSilentError(deadline_s)
            yield document

    def next_document(self, wait_s: float) -> dict[str, Any] | None:
        """Return the child's next line, None if it does not come within `wait_s` seconds.

        Raises:
            ChildDiedError: the child ended, or (in our own Python) wrote something that is not a
                JSON object.
        """
        import json

        end = time.monotonic() + wait_s
        while True:
            line = self._whole_line()
            if line is not None:
                try:
                    return _object(json, line)
                except ChildDiedError:
                    if not self._foreign:
                        raise
                if time.monotonic() >= end:  # a program that never stops writing
                    return None
                continue
            chunk = self._read_chunk(end - time.monotonic())
            if chunk is None:
                return None
            if not chunk:
                raise ChildDiedError(self._how_it_ended())
            self._buffer += chunk
            if b"\n" not in chunk:
                if len(self._buffer) > MOST_LINE_BYTES:
                    how = f"gave an answer of more than {MOST_LINE_BYTES >> 20} MiB"
                    raise ChildDiedError(how)
                if time.monotonic() >= end:
                    return None

    def _whole_line(self) -> bytes | None:
        """Take the first line that is complete; None if there is none yet."""
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the child writes something."""
        return self._answers

    def _read_chunk(self, wait_s: float) -> bytes | None:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(max(0.0, wait_s) * 1000):
            return None
        return os.read(self._answers, _CHUNK_BYTES)

    def _how_it_ended(self) -> str:
        status = self._reap(_EXIT_S)
        if status is None:
            return "closed its output"
        code = os.waitstatus_to_exitcode(status)
        return f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"

    def _reap(self, wait_s: float) -> int | None:
        """Collect the exit status if it comes within `wait_s`; None if it does not."""
        end = time.monotonic() + wait_s
        while self._pid is not None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # something else collected it
                self._pid = None
                return None
            if pid:
                self._pid = None
                return status
            if time.monotonic() >= end:
                return None
            time.sleep(0.001)
        return None

    def finish(self, wait_s: float) -> None:
        """Let a child that has finished end by itself; abandon it after `wait_s` seconds."""
        self._close_pipes()
        if self._reap(wait_s) is None:
            self.abandon()

    def abandon(self) -> None:
        """Kill the child without waiting for a death that may never come."""
        self._close_pipes()
        if self._pid is None:
            return
        self._kill(self._pid)
        self._reap(_REAP_S)
        if self._pid is not None:
            _KILLED.add(self._pid)
        self._pid = None

    def _close_pipes(self) -> None:
        for descriptor in (self._requests, self._answers):
            if descriptor >= 0:
                os.close(descriptor)
        self._requests = self._answers = -1

    @staticmethod
    def _kill(pid: int) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            return

    #: A child only reads, so killing one that has answered loses nothing.
    close = abandon


def explain(error: ChildError, words: Words) -> ProbeFailure:
    """Return a child's silence or death as a failure, in the words of the one who asked."""
    from gpucheck.drivers.readings import ProbeFailure

    code, sentence = words[isinstance(error, ChildDiedError)]
    return ProbeFailure(code=code, message=sentence.format(error.ending))


def ask_once(
    kind: Callable[..., Reading], start: Callable[[], Child], deadline_s: float, words: Words
) -> Reading:
    """Return a child's one answer as a record of this kind, or one whose `failure` says why not."""
    from gpucheck.report.codec import DecodeError, from_plain

    try:
        with start() as child:
            answer: Reading = from_plain(kind, next(child.documents(deadline_s)))  # type: ignore[arg-type]
            return answer
    except ChildError as error:
        return kind(failure=explain(error, words))
    except DecodeError as error:
        return kind(failure=explain(ChildDiedError(str(error)), words))


def take_failure(documents: list[dict[str, Any]]) -> ProbeFailure | None:
    """Remove the failure, with which an answer may end, from its documents and return it."""
    from gpucheck.drivers.readings import ProbeFailure

    if not documents or documents[-1].get("part") != "failure":
        return None
    failure = documents.pop()
    del failure["part"]
    return ProbeFailure(**failure)


class Session:
    """A child that answers several requests: the first one starts it, a failure ends it.

    `child` is the one that answers; it may have been started before.
    """

    def __init__(
        self, start: Callable[[], Child], words: Words, child: Child | None = None
    ) -> None:
        self._start = start
        self._words = words
        self.child = child

    def ask(
        self, request: Mapping[str, Any], read: Callable[[Child], Iterable[dict[str, Any]]]
    ) -> tuple[list[dict[str, Any]], ProbeFailure | None]:
        """Return the documents of an answer that came in time, and the failure that ended it."""
        documents: list[dict[str, Any]] = []
        try:
            if self.child is None:
                self.child = self._start()
            self.child.ask(request)
            for document in read(self.child):
                documents.append(document)  # noqa: PERF402 - answers before a failure are kept
            failure = take_failure(documents)
        except ChildError as error:
            failure = explain(error, self._words)
        if failure is not None:
            self.close()
        return documents, failure

    def close(self) -> None:
        """End the child."""
        if self.child is not None:
            self.child.close()
            self.child = None


def _collect_killed() -> None:
    for pid in tuple(_KILLED):
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # something else collected it, or we are a fork of its parent
            ended = pid
        if ended:
            _KILLED.discard(pid)


def _starter(program: str, interpreter: tuple[str, ...], owner: str) -> list[str]:
    """Return the words before the program and its arguments."""
    python = interpreter or (sys.executable, "-I", "-S")
    if not interpreter and not program.startswith("/"):
        return [*python, "-c", START_WORKER, _FOLDER, owner]
    if python[-1] == "-m":
        return [*python[:-1], START, owner, "-m"]
    return [*python, START, owner]


def inherited_descriptors() -> frozenset[int]:
    """Return the descriptors above 2 that an exec would pass on now.

    Before any library opens a file, these are the ones that our caller gave us (a make
    jobserver, a claim of an outer `place`). They belong to a command of the user's too, but not to
    a child of ours: a reader of such a pipe must not wait for one that cannot be killed.
    """
    return frozenset(fd for fd in open_descriptors() if fd > 2 and is_inheritable(fd))


def open_descriptors() -> set[int]:
    """Return our open descriptors, and the one that read the list, which is closed by then."""
    try:
        return {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208
    except OSError:
        return set()


def is_inheritable(fd: int) -> bool:
    """Return whether an exec would pass on the descriptor; False if it is not open."""
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals have no name
        return f"signal {number}"


def _object(json: Any, line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        how = "gave an unreadable answer"
        raise ChildDiedError(how)
    return document
