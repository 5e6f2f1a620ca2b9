"""Where things stand in a TOML file, for errors that name the line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gpucheck.models.errors import WrongUseError

_HEADER = re.compile(r"\s*\[\s*(?P<name>[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*\]\s*(?:#.*)?")
_KEY = re.compile(r"\s*(?P<name>[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*[.=]")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'")


class Source(NamedTuple):
    """A file's path, and the line of each table and key."""

    path: str
    lines: Mapping[tuple[str, str], int]

    def error(self, op: str = "", key: str = "", *, problem: str) -> WrongUseError:
        """Return an error at the line of a key, or of its table where the key is not written."""
        line = self.line_of(op, key)
        where = self.path if line is None else f"{self.path}:{line}"
        what = f"{op}: " if op else ""
        return WrongUseError(code="bad-graph", message=f"{where}: {shown(what)}{problem}.")

    def line_of(self, op: str, key: str = "") -> int | None:
        """Return where a key or its table begins."""
        return self.lines.get((op, key)) or self.lines.get((op, ""))


def find_lines(text: str) -> dict[tuple[str, str], int]:
    """Return the line of each (table, key); of a table itself under the empty key.

    The parser of the standard library does not keep them. This reads only what begins a line
    outside of lists and of texts over several lines.
    """
    found: dict[tuple[str, str], int] = {}
    table, depth, quotes = "", 0, ""
    for number, line in enumerate(text.split("\n"), start=1):
        if quotes:
            quotes = "" if line.count(quotes) % 2 else quotes
            continue
        if depth == 0:
            if header := _HEADER.fullmatch(line.rstrip("\r")):
                table = header["name"].strip("\"'")
                found.setdefault((table, ""), number)
                continue
            if key := _KEY.match(line):
                name = key["name"].strip("\"'")
                found.setdefault((table, name) if table else (name, ""), number)
        quotes = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
        bare = _QUOTED.sub("", line).partition("#")[0]
        depth = max(0, depth + bare.count("[") - bare.count("]"))
    return found


def shown(text: str) -> str:
    """Return outside text with control characters made visible, and no more than a line of it."""
    return ascii(text if len(text) <= 200 else f"{text[:197]}...")[1:-1]
