"""Reader for files that a user names: regular, bounded, and never waited for."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

MIB = 1 << 20
_OPENED_FOR_US = re.compile(r"/dev/stdin|(?:/dev/fd|/proc/self/fd)/[0-9]+")
#: A snapshot of 64 GPUs is about 200 KB, a report of bench a few megabytes: no JSON of ours is
#: larger. In memory a document can take a hundred times its size in the file.
MOST_JSON_BYTES = 8 * MIB
#: Graphs, profiles and defaults are written by hand.
MOST_TOML_BYTES = 1 * MIB


def open_file(path: Path | str) -> int:
    """Return a descriptor for reading a regular file.

    A device or a pipe is not even opened: that can hang, trigger something, or never end. But a
    file that our caller has opened for us (/dev/stdin, `<(...)`) is read as it comes.

    Raises:
        OSError: it cannot be read, or is not a regular file; `strerror` tells which.
    """
    try:
        given = _OPENED_FOR_US.fullmatch(str(path)) is not None
        if not given:
            _check_regular(os.stat(path))  # noqa: PTH116 - a name may come from anywhere
        waits = 0 if given else os.O_NONBLOCK
        descriptor = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC | waits)
    except ValueError as error:  # a NUL character
        raise OSError(errno.EINVAL, f"its name is invalid: {error}") from None
    if not given:  # the name may lead to another file by now
        try:
            _check_regular(os.fstat(descriptor))
        except OSError:
            os.close(descriptor)
            raise
    return descriptor


def read_file(path: Path | str, most_bytes: int) -> bytes:
    """Return the content of a file that `open_file` opens.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger; `strerror` tells which.
    """
    with os.fdopen(open_file(path), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        limit = f"{most_bytes // MIB} MiB" if most_bytes >= MIB else f"{most_bytes} bytes"
        raise OSError(errno.EFBIG, f"it is larger than {limit}")
    return content


def _check_regular(facts: os.stat_result) -> None:
    if stat.S_ISDIR(facts.st_mode):
        raise OSError(errno.EISDIR, "it is a directory")
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
