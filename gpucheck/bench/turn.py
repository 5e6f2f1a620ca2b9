"""Start barrier for worker processes, in parallel or one by one: a lock on a shared file.

The file has no name, so it disappears with the starter. Workers open it through /proc among the
starter's descriptors, which only its own user can do.

A ready worker marks itself in the file and waits for its lock. The starter releases the lock once
all are ready. Workers that share it then begin together; those that want it exclusively begin one
after the other. The kernel releases a lock when its holder dies, so a dead worker blocks nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping

#: Variable for the worker: `shared:FILE` or `exclusive:FILE`.
VARIABLE = "GPUCHECK_TURN"


class Turn:
    """Starter's side of the barrier: hold the workers, count the ready ones, release them."""

    def __init__(self, *, in_turn: bool) -> None:
        self._kind = "exclusive" if in_turn else "shared"
        self._lock = os.memfd_create("gpucheck-turn")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def variables(self) -> Mapping[str, str]:
        """Return the environment variables for the workers."""
        return {VARIABLE: f"{self._kind}:/proc/{os.getpid()}/fd/{self._lock}"}

    def ready(self) -> int:
        """Return how many workers are ready."""
        return os.fstat(self._lock).st_size

    def begin(self) -> None:
        """Release the workers."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file; it disappears with the last worker."""
        os.close(self._lock)


@contextlib.contextmanager
def wait_for_turn(environment: Mapping[str, str]) -> Iterator[None]:
    """Wait for the start if this process's parent holds it back; otherwise do nothing.

    An exclusive lock lasts as long as the block.
    """
    kind, _, path = environment.get(VARIABLE, "").partition(":")
    if not path:
        yield
        return
    try:
        lock = os.open(path, os.O_RDWR | os.O_APPEND)
    except OSError:  # the starter has gone, and nobody waits for the answer
        yield
        return
    try:
        os.write(lock, b".")
        fcntl.flock(lock, fcntl.LOCK_EX if kind == "exclusive" else fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)
