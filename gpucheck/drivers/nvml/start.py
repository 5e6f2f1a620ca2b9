"""Early start of the NVML child, so that it works while we are still importing."""

from __future__ import annotations

import os
import sys

from gpucheck.drivers.child import Child, ChildDiedError

WORKER = "gpucheck.drivers.nvml.worker"

_started: list[Child] = []


def binding_directory() -> str:
    """Return the directory on the module path that holds pynvml, or "" if there is none."""
    for directory in sys.path:
        # Empty and relative entries mean the current directory, which is not searched.
        for form in ("pynvml.py", "pynvml"):
            if directory.startswith("/") and os.path.exists(os.path.join(directory, form)):  # noqa: PTH110, PTH118
                return directory
    return ""


def start() -> Child:
    """Start an NVML child.

    Raises:
        ChildDiedError: it could not be started.
    """
    return Child(WORKER, binding_directory())


def start_early() -> None:
    """Start a child for the first request; a failure is reported when the child is needed."""
    try:
        _started.append(start())
    except ChildDiedError:
        return


def take() -> Child:
    """Return the child that was started early, or a new one."""
    return _started.pop() if _started else start()


def discard() -> None:
    """End a child that was started early but never used."""
    while _started:
        _started.pop().close()
