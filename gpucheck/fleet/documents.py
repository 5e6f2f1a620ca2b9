"""Reader of many documents: files, folders, standard input; JSON, lines of JSON, either gzipped.

A document at a time is in memory. Whatever is damaged becomes a problem of its place, with the host
that its text still names; only a path that the user named and that is not there ends the reading.

Results of `fleet run` are a file with a line per node, appended and synced as it comes, so that
none is lost. An interrupted run leaves whole lines, but perhaps for the last one. What was asked
already is read back from it, so that `--resume` asks only the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.drivers.host.files import MOST_JSON_BYTES, open_file
from gpucheck.fleet.model import NodeAnswer, Outcome
from gpucheck.report.codec import to_plain
from gpucheck.report.errors import WrongUseError
from gpucheck.report.saved import GZIP
from gpucheck.report.text import printable

STDIN = "-"
#: What standard input is called where it is the file of a document.
STANDARD_INPUT = "standard input"
#: What a document's file is called in a folder.
SUFFIXES = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
_BUFFER_BYTES = 1 << 18
#: Where the host stands in a document that cannot be parsed: near its beginning.
_HOST = re.compile(rb'"host":\s*(?:\{\s*"name":\s*)?"([^"\\\x00-\x1f]{1,253})"')
_SEARCHED_BYTES = 4096
#: Where the next document begins behind one that was cut off before the end of its line.
_NEXT = re.compile(rb'(?<!:)(?<!: )(?=\{"schema": ?"gpucheck/)')
#: Whoever writes so much without an end has no other document behind it: a few kilobytes of gzip
#: can become terabytes.
_GIVEN_UP_BYTES = 8 * MOST_JSON_BYTES


class EndlessError(Exception):
    """A document is so long that the rest of its file is not worth reading."""


class Entry(NamedTuple):
    """Document of a file, or why there is none; `host` is what a damaged one still says.

    It has no line where the file is one document.
    """

    file: str
    line: int | None
    document: dict[str, Any] | None
    problem: str | None = None
    host: str | None = None


def read_documents(names: Sequence[str]) -> Iterator[Entry]:
    """Yield every document below these paths.

    Raises:
        WrongUseError: a path that was named cannot be read.
    """
    for name in names:
        if name == STDIN:
            yield from _read(os.dup(0), STANDARD_INPUT)
        elif Path(name).is_dir():
            for path in _files_in(name):
                if isinstance(path, Entry):
                    yield path
                    continue
                try:
                    yield from _read(open_file(path), path)
                except OSError as error:
                    yield Entry(path, None, None, _why(error))
        else:
            try:
                descriptor = open_file(name)
            except OSError as error:
                raise WrongUseError(
                    code="documents-unreadable",
                    message=f"{name!r} cannot be read: {_why(error)}.",
                    remedy=("Name files or folders of documents, or - for standard input.",),
                ) from None
            yield from _read(descriptor, name)


def _files_in(folder: str) -> Iterator[str | Entry]:
    """Yield the documents of a folder and the folders in it, by name, without following links.

    A folder in it that cannot be read is a problem.

    Raises:
        WrongUseError: the folder that was named cannot be read.
    """
    waiting = [folder]
    while waiting:
        name = waiting.pop()
        try:
            with os.scandir(name) as entries:
                shown = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            if name != folder:
                yield Entry(name, None, None, _why(error))
                continue
            raise WrongUseError(
                code="documents-unreadable", message=f"{folder!r} cannot be read: {_why(error)}."
            ) from None
        shown.sort(key=lambda entry: entry.name)
        folders = [entry.path for entry in shown if entry.is_dir(follow_symlinks=False)]
        waiting += reversed(folders)
        inside = frozenset(folders)
        for entry in shown:
            if entry.name.endswith(SUFFIXES) and entry.path not in inside:
                yield entry.path


def _read(descriptor: int, name: str) -> Iterator[Entry]:
    """Yield the documents of one file; what breaks off in the middle is a problem of its line.

    A file's only document has no line.
    """
    first: Entry | None = None
    line = count = 0
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(io.BufferedReader(io.FileIO(descriptor), _BUFFER_BYTES))
        try:
            if file.peek(2).startswith(GZIP):
                import gzip

                file = stack.enter_context(gzip.GzipFile(fileobj=file))
                file = stack.enter_context(io.BufferedReader(file, _BUFFER_BYTES))
            for number, entry in _pieces(file, name):
                line, count = number, count + 1
                if first is not None:
                    yield first
                first = entry if count == 1 else None
                if first is None:
                    yield entry
        except (OSError, EOFError, zlib.error, EndlessError) as error:
            if first is not None:
                yield first
            yield Entry(name, line + 1, None, _why(error))
            return
    if count == 0:
        yield Entry(name, None, None, "it is empty")
    elif first is not None:
        yield first._replace(line=None)


def _pieces(file: Any, name: str) -> Iterator[tuple[int, Entry]]:
    """Yield each document with the number of its last line.

    A line is a document, but for one that is spread over lines: it begins with a line that is only
    a brace, and ends with such a line. Of the lines that begin none only the first is yielded: a
    text that is not JSON at all is one problem, however long it is.
    """
    number, following, strayed = 0, b"", False
    while text := following or _line(file):
        number += 1
        first, following = number, b""
        if text.strip() == b"{":
            text, number, following = _block(file, text, number)
        stray = not text.lstrip().startswith(b"{") and _NEXT.search(text) is None
        if text.strip() and not (stray and strayed):
            strayed |= stray
            for entry in _parsed(text, name, first):
                yield number, entry


def _line(file: Any) -> bytes:
    """Return the next line with its end; of one that is too long, more than is allowed.

    Raises:
        EndlessError: it is so long that nothing good can follow.
    """
    text: bytes = file.readline(MOST_JSON_BYTES + 1)
    if len(text) > MOST_JSON_BYTES and not text.endswith(b"\n"):
        size = len(text)
        while (more := file.readline(_BUFFER_BYTES)) and not more.endswith(b"\n"):
            size += len(more)
            if size > _GIVEN_UP_BYTES:
                raise EndlessError
    return text


def _block(file: Any, text: bytes, number: int) -> tuple[bytes, int, bytes]:
    """Return a document that is spread over lines, the number of its last line, and the next line.

    The next line is empty, unless the document was cut off before it. Of a document that is too
    long, a little more than is allowed.

    Raises:
        EndlessError: it is so long that nothing good can follow.
    """
    parts, size = [text], len(text)
    while more := _line(file):
        if more.startswith(b"{"):
            return b"".join(parts), number, more
        number += 1
        size += len(more)
        if size > _GIVEN_UP_BYTES:
            raise EndlessError
        if size - len(more) <= MOST_JSON_BYTES:
            parts.append(more)
        if more.rstrip() == b"}":
            break
    return b"".join(parts), number, b""


def _parsed(text: bytes, file: str, line: int) -> Iterator[Entry]:
    """Yield the document of a text; where one was cut off, those that follow it in its line."""
    if len(text) > MOST_JSON_BYTES:
        limit = MOST_JSON_BYTES >> 20
        yield Entry(file, line, None, f"it is larger than {limit} MiB", host_in(text))
        return
    try:
        document = _parser()(text)
    except RecursionError:
        yield Entry(file, line, None, "it is nested too deeply", host_in(text))
    except ValueError as error:
        first, *others = _NEXT.split(text)
        if not first:  # the line begins with a document
            first, *others = others or [text]
        yield Entry(file, line, None, f"it is not JSON: {_problem_of_json(error)}", host_in(first))
        for other in others:
            yield from _parsed(other, file, line)
    else:
        if isinstance(document, dict):
            yield Entry(file, line, document)
        else:
            yield Entry(file, line, None, "it is no document of gpucheck")


def _problem_of_json(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    # Python reads no whole number of more digits (sys.set_int_max_str_digits).
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "a number is too long"


@cache
def _parser() -> Callable[[bytes], Any]:
    """Return orjson's parser, or the standard library's, which takes more than twice as long.

    Neither takes NaN or Infinity, which no document of ours has.
    """
    try:
        import orjson
    except ImportError:
        return partial(json.loads, parse_constant=_refuse_constant)
    parser: Callable[[bytes], Any] = orjson.loads
    return parser


def _refuse_constant(name: str) -> None:
    message = f"{name} is no number"
    raise json.JSONDecodeError(message, name, 0)


def host_in(text: bytes) -> str | None:
    """Return the host that a damaged document names near its beginning."""
    match = _HOST.search(text[:_SEARCHED_BYTES])
    return match and match[1].decode("utf-8", "replace")


def _why(error: Exception) -> str:
    if isinstance(error, EndlessError):
        limit = _GIVEN_UP_BYTES >> 20
        return f"its document has no end in {limit} MiB, and the rest of the file was left out"
    if isinstance(error, EOFError | zlib.error):
        return "its gzip data are damaged or cut short"
    return printable((isinstance(error, OSError) and error.strerror) or str(error))


# ------------------------------------------------------------------------- results of a run

#: A node with one of these has answered; the others are asked again.
_SETTLED = frozenset({Outcome.OK, Outcome.UNEXPECTED, Outcome.FAILED, Outcome.INCONCLUSIVE})
_SCHEMA = "gpucheck/fleet-node/1"
#: In which the host of a line stands that was cut off early.
_TAIL_BYTES = 1 << 12


def read_earlier(
    path: Path, take: Callable[[Entry], None] = lambda entry: None
) -> tuple[frozenset[str], str | None]:
    """Return the hosts that have answered, which need not be asked again, and the command.

    `take` is given each entry of the file.

    Raises:
        WrongUseError: the file cannot be read, or has something else in it than results of one
            command.
    """
    last: dict[str, str] = {}
    verbs: set[str] = set()
    foreign = False
    for entry in read_documents([str(path)] if path.stat().st_size else []):
        line = entry.document or {}
        if line.get("schema") == _SCHEMA and isinstance(line.get("host"), str):
            last[line["host"]] = str(line.get("outcome"))
            verbs.add(str(line.get("command")))
        elif entry.host is None:
            # What is left of a line that a kill cut off near its beginning, or no line of ours.
            foreign = True
            if entry.document is None:
                continue
            break
        take(entry)
    else:
        foreign = foreign and not verbs
    if foreign:
        raise WrongUseError(
            code="no-results",
            message=f"{str(path)!r} is no file of results: it holds something else.",
            remedy=("Name a file that --results has written.",),
        )
    if len(verbs) > 1:
        raise WrongUseError(
            code="mixed-results",
            message=f"{str(path)!r} holds answers to several commands: {', '.join(sorted(verbs))}.",
        )
    settled = frozenset(host for host, outcome in last.items() if outcome in _SETTLED)
    return settled, verbs.pop() if verbs else None


class ResultsFile:
    """Open file of results; each line is on the disk before the next one is asked for.

    No second run may have it open: each would ask what the other asks.

    Raises:
        WrongUseError: it exists and `resume` is not set, another run writes to it, or it cannot be
            written.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        flags |= 0 if resume else os.O_CREAT | os.O_EXCL
        try:
            # The answers to `list` hold the command lines of all users of all nodes.
            self._descriptor = os.open(path, flags, 0o600)
        except FileExistsError:
            raise WrongUseError(
                code="results-exist",
                message=f"{str(path)!r} exists.",
                remedy=(
                    "Name another file, or ask only the nodes that are not in it:"
                    f" add --resume {path}",
                ),
            ) from None
        except OSError as error:
            message = f"The results {str(path)!r} cannot be opened: {error.strerror}."
            raise WrongUseError(code="results-not-writable", message=message) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            message = f"Another run writes to {str(path)!r}."
            raise WrongUseError(code="results-in-use", message=message) from None
        except OSError:  # a file system without locks
            pass
        self._ends_well = False

    def append(self, answer: NodeAnswer) -> None:
        """Write one answer.

        Raises:
            WrongUseError: the file system is full, or refuses.
        """
        line = json.dumps(to_plain(answer), separators=(",", ":")).encode() + b"\n"
        try:
            if not self._ends_well:
                self._mend_last_line()
                self._ends_well = True
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as error:
            message = f"The results cannot be written: {error.strerror}."
            raise WrongUseError(code="results-not-writable", message=message) from None

    def _mend_last_line(self) -> None:
        """End a line that was cut off; one that does not even name its host is taken away."""
        size = os.fstat(self._descriptor).st_size
        end = os.pread(self._descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        _, line_end, last = end.rpartition(b"\n")
        if not last:
            return
        if (line_end or size <= _TAIL_BYTES) and host_in(last) is None:
            os.ftruncate(self._descriptor, size - len(last))
        else:
            os.write(self._descriptor, b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
