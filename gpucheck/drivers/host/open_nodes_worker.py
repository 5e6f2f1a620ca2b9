"""Child process that opens device files and reports the results.

A device cgroup shows only when an open fails although the file's mode allows it.
"""

from __future__ import annotations

import errno
import json
import os
import sys


def attempt(root: str, path: str) -> str | None:
    """Open one node for reading and writing; return the error, None if it opened."""
    try:
        descriptor = os.open(root.rstrip("/") + path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "error")
    os.close(descriptor)
    return None


def main(root: str, *paths: str) -> None:
    """Write one line for each path, then an empty object."""
    for path in paths:
        sys.stdout.write(json.dumps({"path": path, "error": attempt(root, path)}) + "\n")
        sys.stdout.flush()
    sys.stdout.write("{}\n")
