"""Worker processes: `gpucheck bench ... --json`, in parallel or one by one, one document each.

A worker that dies, hangs or prints anything else counts as a failure; the others go on. However a
round ends, none of its processes is left.
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

from gpucheck.bench import worker
from gpucheck.bench.turn import Turn
from gpucheck.drivers.child import Child, ChildDiedError
from gpucheck.drivers.host.cpu import running_on
from gpucheck.drivers.interrupts import HeldBack
from gpucheck.report.envelope import Failure

#: Importing CuPy and opening a sleeping GPU takes seconds; a hanging driver never ends.
START_S = 120.0
#: Time to exit after the answer; only a hanging driver takes longer.
_LEAVE_S = 2.0
_LOOK_S = 0.02
#: Programs on each core that make any process late.
_CROWD = 3.0
_STEPS = {worker.LATE: ("run it again when the machine is idle",)}
#: Endings of a process that regards its work as done.
_ENDED_WELL = ("ended with code 0", "closed its output")
_DEFAULTS_VARIABLE = "GPUCHECK_CONFIG"
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """Order for one process: its device, its arguments after `gpucheck`, and its CPUs.

    `cpus` None leaves it on the CPUs of its parent.
    """

    device: str
    arguments: tuple[str, ...]
    cpus: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """Document that one process printed, or why there is none."""

    document: Mapping[str, Any] | None = None
    failure: Failure | None = None


class Workers(Protocol):
    """Processes that measure devices."""

    def round(
        self, orders: Sequence[WorkerOrder], *, in_turn: bool, deadline_s: float
    ) -> Sequence[WorkerAnswer]:
        """Return one answer for each order, in parallel or one by one (`in_turn`).

        `deadline_s` covers all measurements. Never raises: an interrupt gives the answers so far,
        and the failure `worker-interrupted` for the others.
        """
        ...


def _say_nothing(text: str) -> None:
    """Ignore the progress."""


class ProcessWorkers:
    """Workers that run this program. `tell` takes a line on the progress of the round."""

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
        """Start a process for each order, let them measure, and read their answers."""
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
        """Start them all; signals are held back until each start is recorded."""
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
        """Mark all that have not answered as interrupted."""
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
        """Read the processes' output, waiting at most `wait_s`."""
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
            # It has answered, and now releases its GPU, and with it the claim.
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
    """Return how many programs share the CPU, or None if it is not overloaded.

    The load average counts processes that run, wait to run or sleep in the kernel, over the last
    minute; `own` are our processes, which may hang there.
    """
    try:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    except OSError:
        return None
    if load < _CROWD * cores + own:
        return None
    return f"{load:.0f} programs shared {cores} {'core' if cores == 1 else 'cores'}"


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with this package on the path, and without a defaults file.

    A worker ignores its working directory (-P), where any file could have the name of a library. It
    gets every option explicitly: defaults with --profile or --save must not apply to it.
    """
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    absolute = [entry for entry in given if entry.startswith("/")]
    path = dict.fromkeys([str(_PACKAGE.parent), *absolute])
    kept = {name: value for name, value in environment.items() if name != _DEFAULTS_VARIABLE}
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}
