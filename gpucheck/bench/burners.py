"""Processes of a burn: one for each device, stopped on request and never left behind."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpucheck.bench import worker
from gpucheck.bench.turn import Turn
from gpucheck.bench.workers import worker_environment
from gpucheck.drivers.child import Child, ChildDiedError
from gpucheck.drivers.host.cpu import running_on
from gpucheck.drivers.interrupts import HeldBack
from gpucheck.report.envelope import Failure

#: Module that a burn process runs.
MODULE = "gpucheck.bench.burn_process"


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnOrder:
    """Device to load; `request` is sent to its process as JSON."""

    device: str
    request: Mapping[str, Any] = field(default_factory=dict)
    cpus: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnNews:
    """Message of one device's process, or its failure."""

    device: str
    document: Mapping[str, Any] | None = None
    failure: Failure | None = None


class Burners(Protocol):
    """Processes that load devices. No method raises for a failing device: that is news."""

    def start(self, orders: Sequence[BurnOrder]) -> None:
        """Start a process for each device; each reports `ready` and then waits for `begin`."""
        ...

    def begin(self) -> None:
        """Let all ready processes load their device."""
        ...

    def news(self, wait_s: float) -> Sequence[BurnNews]:
        """Return the messages, after at most `wait_s` seconds."""
        ...

    def drop(self, device: str) -> None:
        """End one device's process and forget it."""
        ...

    def stop(self) -> None:
        """Ask all that are left to stop; each reports `end` as its last message."""
        ...

    def close(self) -> None:
        """End whatever is left."""
        ...


class ProcessBurners:
    """Processes of this program."""

    def __init__(self, *, command: Sequence[str] = ()) -> None:
        #: For tests: the command to run instead of this program.
        self._command = tuple(command) or (sys.executable, "-P", "-m", MODULE)
        self._turn = Turn(in_turn=False)
        self._children: dict[str, Child] = {}
        self._early: list[BurnNews] = []

    def start(self, orders: Sequence[BurnOrder]) -> None:
        """Start them; one that cannot be started is news."""
        environment = {**worker_environment(os.environ), **self._turn.variables}
        with HeldBack():
            for order in orders:
                with running_on(order.cpus):
                    try:
                        child = Child(
                            self._command[-1],
                            environment=environment,
                            interpreter=self._command[:-1],
                        )
                    except ChildDiedError as error:
                        self._early.append(_died(order.device, error))
                        continue
                child.ask({"device": order.device, **order.request})
                self._children[order.device] = child

    def begin(self) -> None:
        """Release the start barrier."""
        self._turn.begin()

    def news(self, wait_s: float) -> Sequence[BurnNews]:
        """Read what is there; wait only if there is nothing."""
        found, self._early = self._early, []
        by_descriptor = {child.fileno(): name for name, child in self._children.items()}
        poll = select.poll()
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(0 if found else wait_s * 1000):
            found.extend(self._read(by_descriptor[descriptor]))
        return found

    def _read(self, device: str) -> list[BurnNews]:
        child, found = self._children[device], []
        try:
            while (document := child.next_document(0.0)) is not None:
                found.append(BurnNews(device=device, document=document))
                if document.get("part") in ("end", "failure"):
                    self.drop(device)
                    break
        except ChildDiedError as error:
            found.append(_died(device, error))
            self.drop(device)
        return found

    def drop(self, device: str) -> None:
        """Kill the process, if it is still there."""
        child = self._children.pop(device, None)
        if child is not None:
            child.abandon()

    def stop(self) -> None:
        """Ask them to stop."""
        for child in self._children.values():
            child.ask({"ask": "stop"})

    def close(self) -> None:
        """Kill what is left, and remove the start barrier."""
        with HeldBack():
            for device in list(self._children):
                self.drop(device)
            self._turn.close()


def _died(device: str, error: ChildDiedError) -> BurnNews:
    message = f"the process that loads {device} {error.how}"
    return BurnNews(device=device, failure=Failure(code=worker.DIED, message=message))
