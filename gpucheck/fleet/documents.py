"""Reader of many documents: files, folders, standard input; JSON, lines of JSON, either gzipped.

A document at a time is in memory. Whatever is damaged becomes a problem of its place, with the host
that its text still names; only a path that the user named and that is not there ends the reading.
"""

from __future__ import annotations

import contextlib
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
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import printable

STDIN = "-"
#: What a document's file is called in a folder.
SUFFIXES = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
_GZIP = b"\x1f\x8b"
_BUFFER_BYTES = 1 << 18
#: Where the host stands in a document that cannot be parsed: near its beginning.
_HOST = re.compile(rb'"host":\s*(?:\{\s*"name":\s*)?"([^"\\\x00-\x1f]{1,253})"')
_SEARCHED_BYTES = 4096


class Place(NamedTuple):
    """File and line of a document; no line where the file is one document."""

    file: str
    line: int | None = None


class Found(NamedTuple):
    """One document, or why there is none; `host` is what a damaged one still says."""

    place: Place
    document: dict[str, Any] | None
    problem: str | None = None
    host: str | None = None


def read_documents(names: Sequence[str]) -> Iterator[Found]:
    """Yield every document below these paths.

    Raises:
        WrongUseError: a path that was named cannot be read.
    """
    for name in names:
        if name == STDIN:
            yield from _read(os.dup(0), "standard input")
        elif Path(name).is_dir():
            for path in _files_in(name):
                try:
                    yield from _read(open_file(path), path)
                except OSError as error:
                    yield Found(Place(path), None, _why(error))
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


def _files_in(folder: str) -> Iterator[str]:
    """Yield the documents of a folder and the folders in it, by name, without following links.

    Raises:
        WrongUseError: the folder that was named cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise WrongUseError(
            code="documents-unreadable", message=f"{folder!r} cannot be read: {_why(error)}."
        ) from None
    for entry in found:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files_in(entry.path)
        elif entry.name.endswith(SUFFIXES):
            yield entry.path


def _read(descriptor: int, name: str) -> Iterator[Found]:
    """Yield the documents of one file; what breaks off in the middle is a problem of its line."""
    line, number = 0, 0
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(io.BufferedReader(io.FileIO(descriptor), _BUFFER_BYTES))
        try:
            if file.peek(2).startswith(_GZIP):
                import gzip

                file = stack.enter_context(gzip.GzipFile(fileobj=file))
                file = stack.enter_context(io.BufferedReader(file, _BUFFER_BYTES))
            for number, found in _pieces(file, name):
                line = number
                yield found
        except (OSError, EOFError, zlib.error) as error:
            yield Found(Place(name, line + 1), None, _why(error))
    if line == 0:
        yield Found(Place(name), None, "it is empty")


def _pieces(file: Any, name: str) -> Iterator[tuple[int, Found]]:
    """Yield each document with the number of its last line.

    A line is a document, but for one that is spread over lines: it begins with a line that is only
    a brace, and ends with such a line.
    """
    number = 0
    while text := _line(file):
        number += 1
        first = number
        if text.strip() == b"{":
            text, number = _block(file, text, number)
        if not text.strip():
            continue
        place = Place(name, first)
        yield number, _parsed(text, place)


def _line(file: Any) -> bytes:
    """Return the next line with its end; of one that is too long, more than is allowed."""
    text: bytes = file.readline(MOST_JSON_BYTES + 1)
    if len(text) > MOST_JSON_BYTES and not text.endswith(b"\n"):
        while (more := file.readline(_BUFFER_BYTES)) and not more.endswith(b"\n"):
            pass
    return text


def _block(file: Any, text: bytes, number: int) -> tuple[bytes, int]:
    """Return a document that is spread over lines, and the number of its last line.

    Of one that is too long, a little more than is allowed.
    """
    parts, size = [text], len(text)
    while more := _line(file):
        number += 1
        if size <= MOST_JSON_BYTES:
            parts.append(more)
            size += len(more)
        if more.rstrip() == b"}":
            break
    return b"".join(parts), number


def _parsed(text: bytes, place: Place) -> Found:
    if len(text) > MOST_JSON_BYTES:
        limit = MOST_JSON_BYTES >> 20
        return Found(place, None, f"it is larger than {limit} MiB", _host_in(text))
    try:
        document = _parser()(text)
    except RecursionError:
        return Found(place, None, "it is nested too deeply", _host_in(text))
    except ValueError as error:
        problem = error.msg if isinstance(error, json.JSONDecodeError) else "it is not UTF-8"
        return Found(place, None, f"it is no JSON: {problem}", _host_in(text))
    if not isinstance(document, dict):
        return Found(place, None, "it is no document of gpucheck")
    return Found(place, document)


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


def _host_in(text: bytes) -> str | None:
    """Return the host that a damaged document names near its beginning."""
    found = _HOST.search(text[:_SEARCHED_BYTES])
    return found and found[1].decode("utf-8", "replace")


def _why(error: Exception) -> str:
    if isinstance(error, EOFError | zlib.error):
        return "its gzip data are damaged or cut short"
    return printable((isinstance(error, OSError) and error.strerror) or str(error))
