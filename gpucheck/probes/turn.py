"""A common start for worker processes, and turns: a lock on a file that the starter holds at first.

The file has no name, so that none is left behind, whatever ends the starter: workers open it among
the descriptors of the starter, which /proc shows to its own user.

A worker that is ready notes itself in the file and waits for its lock. The starter lets go once
all are ready: workers that share the lock then begin together, those that want it for themselves
begin one after the other. The kernel drops a lock with the process that holds it, so a worker that
dies keeps nobody waiting.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping

#: What a worker is told: `shared:FILE` or `exclusive:FILE`.
VARIABLE = "GPUCHECK_TURN"


class Turn:
    """The starter's side: hold the workers back, count those that are ready, let them go."""

    def __init__(self, *, in_turn: bool) -> None:
        self._kind = "exclusive" if in_turn else "shared"
        self._lock = os.memfd_create("gpucheck-turn")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def variables(self) -> Mapping[str, str]:
        """Return what the workers must find in their environment."""
        return {VARIABLE: f"{self._kind}:/proc/{os.getpid()}/fd/{self._lock}"}

    def ready(self) -> int:
        """Return how many workers have said that they are ready."""
        return os.fstat(self._lock).st_size

    def begin(self) -> None:
        """Let the workers go."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the file; with the last worker it is gone."""
        os.close(self._lock)


@contextlib.contextmanager
def wait_for_turn(environment: Mapping[str, str]) -> Iterator[None]:
    """Wait for the start, if somebody who started this process holds it back; else do nothing.

    The turn lasts as long as the block.
    """
    kind, _, path = environment.get(VARIABLE, "").partition(":")
    if not path:
        yield
        return
    try:
        lock = os.open(path, os.O_RDWR | os.O_APPEND)
    except OSError:  # whoever held us back has gone: nobody waits for the answer either
        yield
        return
    try:
        os.write(lock, b".")
        fcntl.flock(lock, fcntl.LOCK_EX if kind == "exclusive" else fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)
