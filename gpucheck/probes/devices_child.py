"""Opens device files and says what the system answered: a single file run by path in a child.

A device cgroup shows only in an open that is refused although the file's mode allows it.
Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import sys


def attempt(root: str, path: str) -> str | None:
    """Open one node for reading and writing; return the system's error, None if it opened."""
    try:
        descriptor = os.open(root.rstrip("/") + path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "error")
    os.close(descriptor)
    return None


def main() -> None:
    """Answer one line for each path, then an empty object."""
    root, *paths = sys.argv[1:]
    for path in paths:
        sys.stdout.write(json.dumps({"path": path, "error": attempt(root, path)}) + "\n")
        sys.stdout.flush()
    sys.stdout.write("{}\n")


if __name__ == "__main__":
    main()
