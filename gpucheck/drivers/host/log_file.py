"""Log file of any size, read once from the front: plain or gzip, from a path, a pipe or stdin."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path

from gpucheck.drivers.host.files import open_file

STDIN = "-"
_BUFFER_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"


@contextlib.contextmanager
def open_log(name: str) -> Iterator[io.BufferedIOBase]:
    """Open a log for reading from the front.

    A text has no NUL among its first bytes; a log that a crash cut short may have them later.

    Raises:
        OSError: it cannot be opened, or is no text; `strerror` tells why. Reading a damaged gzip
            file raises OSError or EOFError too.
    """
    descriptor = os.dup(0) if name == STDIN else open_file(name)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(io.BufferedReader(io.FileIO(descriptor), _BUFFER_BYTES))
        begins = file.peek(_BUFFER_BYTES)
        if begins.startswith(_GZIP):
            import gzip

            unpacked = stack.enter_context(gzip.GzipFile(fileobj=file))
            if b"\0" in unpacked.peek(_BUFFER_BYTES):
                raise OSError(errno.EINVAL, "what it packs is no text")
            yield unpacked
            return
        if b"\0" in begins:
            raise OSError(errno.EINVAL, "it is no text")
        yield file


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if there is none yet."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
