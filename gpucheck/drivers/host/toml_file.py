"""TOML files written by people: size limits, and errors with file and line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.drivers.host.files import MOST_TOML_BYTES, read_file
from gpucheck.report.errors import WrongUseError

#: `a.b.c` names tables in tables; the parser takes time and memory by the square of their number.
MOST_NAME_PARTS = 50

_NAME = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_HEADER = re.compile(
    rf"\s*(?P<open>\[\[?)\s*(?P<name>{_NAME}(?:\s*\.\s*{_NAME})*)\s*\]\]?\s*(?:#.*)?"
)
_KEY = re.compile(rf"\s*(?P<name>{_NAME})\s*[.=]")
_PART = re.compile(_NAME)
#: Strings and comments, to the end of the line where a string does not end in it.
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*+\"?|'[^']*+'?|#.*")
_LONG_NAME = re.compile(
    r"(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"
    rf"{{{MOST_NAME_PARTS}}}"
)
_TOML_LINE = re.compile(r"\(at line (?P<line>[0-9]+), column (?P<column>[0-9]+)\)")


class Source(NamedTuple):
    """Path of a file, its name in errors, and the line of each table and key."""

    path: str
    lines: Mapping[tuple[str, str], int]
    noun: str

    def error(self, table: str = "", key: str = "", *, problem: str) -> WrongUseError:
        """Return an error at the line of a key, or of its table where the key is not written."""
        what = f"{table}: " if table else ""
        message = f"{self.where(table, key)}: {shown(what)}{problem}."
        return WrongUseError(code=f"bad-{self.noun}", message=message)

    def where(self, table: str = "", key: str = "") -> str:
        """Return `FILE:LINE`, or the file alone where nothing of this is written."""
        line = self.line_of(table, key)
        return self.path if line is None else f"{self.path}:{line}"

    def line_of(self, table: str, key: str = "") -> int | None:
        """Return where a key begins, else its table, else the key whose value the table is."""
        if not table:
            table, key = key, ""
        places = ((table, key), (table, ""), (f"{table}[0]", ""))
        found = next((self.lines[place] for place in places if place in self.lines), None)
        if found is None and "." in table:
            outer, _, inner = table.rpartition(".")
            return self.line_of(outer, inner)
        return found


def read_text(path: Path, noun: str) -> str:
    """Return a file's text; `noun` names the kind of file in errors.

    Raises:
        WrongUseError: with the file and the problem.
    """
    name = shown(str(path))
    try:
        content = read_file(path, MOST_TOML_BYTES)
    except FileNotFoundError:
        raise _unreadable(name, noun, "there is no such file") from None
    except OSError as error:
        raise _unreadable(name, noun, str(error.strerror)) from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"{name}:{content[: error.start].count(10) + 1}"
        raise _unreadable(place, noun, "it is not UTF-8") from None


def _unreadable(path: str, noun: str, problem: str) -> WrongUseError:
    message = f"The {noun} {path} cannot be read: {problem}."
    return WrongUseError(code=f"{noun}-unreadable", message=message)


def parse_toml(text: str, path: str, noun: str) -> dict[str, Any]:
    """Return a file's tables.

    Raises:
        WrongUseError: it is not TOML; with the line.
    """
    if long := _LONG_NAME.search(text):
        line = text.count("\n", 0, long.start()) + 1
        problem = f"a name has more than {MOST_NAME_PARTS} parts"
        raise WrongUseError(code=f"bad-{noun}", message=f"{path}:{line}: {problem}.")
    try:
        return tomllib.loads(text)
    except RecursionError:
        problem, where = "its lists are too deep", path
    except ValueError as error:
        located = _TOML_LINE.search(str(error))
        where = f"{path}:{located['line']}" if located else path
        problem = shown(_TOML_LINE.sub("", str(error)).strip())
    raise WrongUseError(code=f"bad-{noun}", message=f"{where}: {problem}.")


def find_lines(text: str) -> dict[tuple[str, str], int]:
    """Return the line of each (table, key); of a table itself under the empty key.

    `[a.b]` is the table `a.b`; the tables of a list `[[a]]` are `a[0]`, `a[1]` and so on. The
    parser of the standard library keeps no lines. This reads only line beginnings outside of lists
    and of strings over several lines.
    """
    found: dict[tuple[str, str], int] = {}
    counts: dict[str, int] = {}
    table, depth, quotes = "", 0, ""
    for number, line in enumerate(text.split("\n"), start=1):
        if quotes:
            quotes = "" if line.count(quotes) % 2 else quotes
            continue
        if depth == 0:
            if header := _HEADER.fullmatch(line.rstrip("\r")):
                table = _table_named(header["name"], counts, new=header["open"] == "[[")
                found.setdefault((table, ""), number)
                continue
            if key := _KEY.match(line):
                name = key["name"].strip("\"'")
                found.setdefault((table, name) if table else (name, ""), number)
        quotes = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
        bare = _QUOTED.sub("", line)
        depth = max(0, depth + bare.count("[") - bare.count("]"))
    return found


def _table_named(written: str, counts: dict[str, int], *, new: bool) -> str:
    """Return a header's table with the numbers of the lists it is in; `new` begins the next one."""
    parts = [part.strip("\"'") for part in _PART.findall(written)]
    if new:
        name = ".".join(parts)
        counts[name] = counts.get(name, -1) + 1
    path = ""
    for depth, part in enumerate(parts, start=1):
        whole = ".".join(parts[:depth])
        number = f"[{counts[whole]}]" if whole in counts else ""
        path = f"{path}.{part}{number}" if path else f"{part}{number}"
    return path


def shown(text: str) -> str:
    """Return outside text with control characters visible, cut to one line."""
    return ascii(text if len(text) <= 200 else f"{text[:197]}...")[1:-1]
