"""Reader for files that a user names: regular, bounded, and never waited for.

A log may have any size: it is read once from the front, plain or gzip, also from a pipe or stdin.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
_OPENED_FOR_US = re.compile(r"/dev/stdin|(?:/dev/fd|/proc/self/fd)/[0-9]+")
#: A snapshot of 64 GPUs is about 200 KB, a report of bench a few megabytes: no JSON of ours is
#: larger. In memory a document can take a hundred times its size in the file.
MOST_JSON_BYTES = 8 * MIB
#: Graphs, profiles and defaults are written by hand.
MOST_TOML_BYTES = 1 * MIB
#: The name of a log that is read from standard input.
STDIN = "-"
_BUFFER_BYTES = 1 << 16
#: A gzip file of a few megabytes can unpack to a thousand times that.
MOST_UNPACKED_BYTES = 1 << 30
#: The byte-order marks of UTF-16, in which PowerShell's `>` writes.
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


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
    content = bytearray()
    with os.fdopen(open_file(path), "rb") as file:
        # A read takes the memory that it may need. None: a kernel's file such as /proc/kmsg that
        # has nothing to read now.
        while len(content) <= most_bytes and (block := file.read(_BUFFER_BYTES)):
            content += block
    if len(content) > most_bytes:
        limit = f"{most_bytes // MIB} MiB" if most_bytes >= MIB else f"{most_bytes} bytes"
        raise OSError(errno.EFBIG, f"it is larger than {limit}")
    return bytes(content)


def _check_regular(facts: os.stat_result) -> None:
    if stat.S_ISDIR(facts.st_mode):
        raise OSError(errno.EISDIR, "it is a directory")
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


class _Unpacked(io.BufferedIOBase):
    """Content of a packed file, which is not read beyond MOST_UNPACKED_BYTES."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self._left_bytes = MOST_UNPACKED_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        return self._counted(self._file.read(size))

    def read1(self, size: int = -1, /) -> bytes:
        return self._counted(self._file.read1(size))

    def _counted(self, block: bytes) -> bytes:
        self._left_bytes -= len(block)
        if self._left_bytes < 0:
            limit = f"{MOST_UNPACKED_BYTES // MIB} MiB"
            raise OSError(errno.EFBIG, f"it unpacks to more than {limit}: pipe a part of it to `-`")
        return block


@contextlib.contextmanager
def open_log(name: str) -> Iterator[io.BufferedIOBase | codecs.StreamRecoder]:
    """Open a log for reading from the front.

    A text has no NUL among its first bytes; a log that a crash cut short may have them later. What
    is in UTF-16 comes as UTF-8.

    Raises:
        OSError: it cannot be opened, or is no text; `strerror` tells why. Reading a damaged gzip
            file, or one that unpacks to very much, raises OSError or EOFError too.
    """
    from gpucheck.report.saved import GZIP  # imported only here: most commands read no log

    descriptor = os.dup(0) if name == STDIN else open_file(name)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(io.BufferedReader(io.FileIO(descriptor), _BUFFER_BYTES))
        begins = file.peek(_BUFFER_BYTES)
        if begins.startswith(GZIP):
            import gzip

            unpacked = stack.enter_context(gzip.GzipFile(fileobj=file))
            if b"\0" in unpacked.peek(_BUFFER_BYTES):
                raise OSError(errno.EINVAL, "what it packs is no text")
            yield _Unpacked(unpacked)
            return
        if begins.startswith(_UTF_16) and _is_utf_16(begins):
            yield codecs.EncodedFile(file, "utf-8", "utf-16", "replace")
            return
        if b"\0" in begins:
            raise OSError(errno.EINVAL, "it is no text")
        yield file


def _is_utf_16(begins: bytes) -> bool:
    """Return whether the first bytes of a file, with its byte-order mark, are text."""
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-16")().decode(begins)
    except UnicodeError:
        return False


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if there is none yet."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
