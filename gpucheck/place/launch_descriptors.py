"""File descriptors that a command inherits: its caller's and those meant for it, no others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpucheck.report.errors import LaunchError


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


def is_inheritable(fd: int) -> bool:
    """Return whether an exec would pass on the descriptor; False if it is not open."""
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def open_descriptors() -> set[int]:
    """Return our open descriptors, and the one that read the list, which is closed by then."""
    try:
        return {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    except OSError:
        return set()
