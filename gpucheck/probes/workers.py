"""Worker processes: `gpucheck bench … --json`, side by side or in turn, each giving one document.

A worker that dies, hangs or says something else is a failure in its place; the others go on. When
a round ends, however it ends, none of its processes is left.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpucheck.models import worker
from gpucheck.models.report import Failure
from gpucheck.probes.child import Child, ChildDiedError
from gpucheck.probes.cpu import running_on
from gpucheck.probes.interrupts import HeldBack
from gpucheck.probes.turn import Turn

#: Importing CuPy and opening a GPU that sleeps takes seconds; a driver that hangs takes for ever.
START_S = 120.0
#: One that has answered may take so long to end: longer it takes only where a driver hangs.
_LEAVE_S = 2.0
_LOOK_S = 0.02
#: So many programs on each core make any process late.
_CROWD = 3.0
_STEPS = {worker.LATE: ("run it again when the machine is idle",)}
#: How a process ends that thinks it has done its work.
_ENDED_WELL = ("ended with code 0", "closed its output")
_DEFAULTS_VARIABLE = "GPUCHECK_CONFIG"
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """What one process is to do: its device, its arguments after `gpucheck`, its processors.

    `cpus` None leaves it where we are ourselves.
    """

    device: str
    arguments: tuple[str, ...]
    cpus: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """The document that one process printed, or why there is none."""

    document: Mapping[str, Any] | None = None
    failure: Failure | None = None


class Workers(Protocol):
    """Who measures devices in processes of their own."""

    def round(
        self, orders: Sequence[WorkerOrder], *, in_turn: bool, deadline_s: float
    ) -> Sequence[WorkerAnswer]:
        """Return one answer for each order, all at once or one after the other (`in_turn`).

        `deadline_s` is for the measuring of all of them. Never raises: an interrupt gives the
        answers that are there, and the failure `worker-interrupted` for the others.
        """
        ...


def _say_nothing(text: str) -> None:
    """Take the news where nobody wants it."""


class ProcessWorkers:
    """Workers of this very program. `tell` takes a line about how far the round is."""

    def __init__(
        self,
        *,
        tell: Callable[[str], None] = _say_nothing,
        start_s: float = START_S,
        command: Sequence[str] = (),
    ) -> None:
        self._tell = tell
        self._start_s = start_s
        #: For tests: what runs in the place of this program.
        self._command = tuple(command) or (sys.executable, "-P", "-m", "gpucheck")

    def round(
        self, orders: Sequence[WorkerOrder], *, in_turn: bool, deadline_s: float
    ) -> Sequence[WorkerAnswer]:
        """Start a process for each order, let them measure, and read what they say."""
        running = _Round(orders, in_turn=in_turn, tell=self._tell)
        try:
            running.start(self._command)
            running.hold_back(self._start_s)
            running.gather(deadline_s)
        except KeyboardInterrupt:
            running.interrupt()
        finally:
            running.close()
        return running.answers()


class _Round:
    """The processes of one round."""

    def __init__(
        self, orders: Sequence[WorkerOrder], *, in_turn: bool, tell: Callable[[str], None]
    ) -> None:
        self._orders = orders
        self._turn = Turn(in_turn=in_turn)
        self._tell = tell
        self._children: dict[int, Child] = {}
        self._leaving: list[Child] = []
        self._answers: dict[int, WorkerAnswer] = {}

    def start(self, command: Sequence[str]) -> None:
        """Start them all; between the start and the note of it no signal can come."""
        environment = {**worker_environment(os.environ), **self._turn.variables}
        with HeldBack():
            for place, order in enumerate(self._orders):
                with running_on(order.cpus):
                    try:
                        self._children[place] = Child(
                            command[-1],
                            *order.arguments,
                            environment=environment,
                            interpreter=tuple(command[:-1]),
                        )
                    except ChildDiedError as error:
                        self._fail(place, worker.DIED, error.how)

    def hold_back(self, start_s: float) -> None:
        """Wait until every process is ready or has ended, then let them measure."""
        end = time.monotonic() + start_s
        while self._children and time.monotonic() < end:
            ready = self._turn.ready()
            if ready >= len(self._children):
                break
            self._tell(f"{ready} of {len(self._orders)} processes are ready")
            self._read(_LOOK_S)
        self._turn.begin()

    def gather(self, deadline_s: float) -> None:
        """Read until all have answered or the deadline is over."""
        end = time.monotonic() + deadline_s
        while self._children and (left_s := end - time.monotonic()) > 0:
            names = ", ".join(self._orders[place].device for place in self._children)
            self._tell(f"measuring {names}")
            self._read(min(left_s, 0.5))
        how, code = f"gave no answer within {deadline_s:g} s", worker.SILENT
        crowd = crowd_on_the_host(len(self._children))
        if self._children and crowd is not None:
            code, how = worker.LATE, f"{how}, while {crowd}"
        for place in list(self._children):
            self._fail(place, code, how)

    def interrupt(self) -> None:
        """Note that those who have not answered will not be asked any more."""
        for place in range(len(self._orders)):
            if place not in self._answers:
                self._fail(place, worker.INTERRUPTED, "was interrupted")

    def close(self) -> None:
        """End what still runs."""
        with HeldBack():
            for child in self._children.values():
                child.abandon()
            for child in self._leaving:
                child.finish(_LEAVE_S)
            self._children.clear()
            self._turn.close()

    def answers(self) -> Sequence[WorkerAnswer]:
        """Return the answers in the orders' order."""
        return [self._answers[place] for place in range(len(self._orders))]

    def _read(self, wait_s: float) -> None:
        """Read what the processes say, for at most so long if they say nothing."""
        places = {child.fileno(): place for place, child in self._children.items()}
        poll = select.poll()
        for descriptor in places:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(wait_s * 1000):
            self._read_one(places[descriptor])

    def _read_one(self, place: int) -> None:
        child = self._children[place]
        try:
            document = child.next_document(0.0)
        except ChildDiedError as error:
            if error.how in _ENDED_WELL:
                self._fail(place, worker.NO_DOCUMENT, "ended without a document")
            else:
                self._fail(place, worker.DIED, error.how)
            return
        if document is not None:
            self._answers[place] = WorkerAnswer(document=document)
            # It has said all; meanwhile it gives its GPU back, and with it the claim on it.
            self._leaving.append(self._children.pop(place))

    def _fail(self, place: int, code: str, how: str) -> None:
        message = f"the process that measured {self._orders[place].device} {how}"
        steps = _STEPS.get(code, ())
        self._answers[place] = WorkerAnswer(
            failure=Failure(code=code, message=message, remedy=steps)
        )
        self._end(place)

    def _end(self, place: int) -> None:
        child = self._children.pop(place, None)
        if child is not None:
            child.abandon()


def crowd_on_the_host(own: int) -> str | None:
    """Say how many programs share the processor, None where there is no crowd.

    The load counts who runs, waits to run or sleeps in the kernel, over the last minute; `own` are
    our processes, which may hang there.
    """
    try:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    except OSError:
        return None
    if load < _CROWD * cores + own:
        return None
    return f"{load:.0f} programs shared {cores} {'core' if cores == 1 else 'cores'}"


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with this package on the path, and without a file of defaults.

    A worker ignores the directory it is started in (-P), where any file could have the name of one
    of our libraries. It is told every option: defaults that say --profile or --save are not its.
    """
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    absolute = [entry for entry in given if entry.startswith("/")]
    path = dict.fromkeys([str(_PACKAGE.parent), *absolute])
    kept = {name: value for name, value in environment.items() if name != _DEFAULTS_VARIABLE}
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}
