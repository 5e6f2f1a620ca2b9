"""TOML files written by people: size limits, strict keys and types, and errors with file and line.

Nothing in a file is executed. Keys, types and bounds are those of the records that are read, which
`Table` follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_type_hints

from gpucheck.drivers.host.files import MOST_TOML_BYTES, read_file
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import did_you_mean, shown

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


class Bounds(NamedTuple):
    """Smallest and largest number that the file may hold for a field."""

    low: float
    high: float


class Form(NamedTuple):
    """Form of a field's text in the file; the rest describes a mistake, as in `Table.wrong`."""

    pattern: str
    code: str
    noun: str
    mend: str


class Required(NamedTuple):
    """Mark of a field that the file must have, with an example."""

    example: str


#: Where a field has no bounds of its own: every other place takes numbers of this size.
_ANY_NUMBER = Bounds(-(2.0**63), 2.0**63)


class Source(NamedTuple):
    """Path of a file, its name in errors, and the line of each table and key."""

    path: str
    lines: Mapping[tuple[str, str], int]
    noun: str

    def error(
        self, table: str = "", key: str = "", *, problem: str, remedy: tuple[str, ...] = ()
    ) -> WrongUseError:
        """Return an error at the line of a key, or of its table where the key is not written."""
        place = f"{table}: " if table else ""
        message = f"{self.where(table, key)}: {shown(place)}{problem}."
        return WrongUseError(code=f"bad-{self.noun}", message=message, remedy=remedy)

    def where(self, table: str = "", key: str = "") -> str:
        """Return `FILE:LINE`, or the file alone where nothing of this is written."""
        line = self.line_of(table, key)
        return self.path if line is None else f"{self.path}:{line}"

    def line_of(self, table: str, key: str = "") -> int | None:
        """Return where a key begins, else its table, else the key whose value the table is."""
        if not table:
            table, key = key, ""
        places = ((table, key), (table, ""), (f"{table}[0]", ""))
        line = next((self.lines[place] for place in places if place in self.lines), None)
        if line is None and "." in table:
            outer, _, inner = table.rpartition(".")
            return self.line_of(outer, inner)
        return line


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


def read_toml(path: Path, noun: str) -> Table:
    """Return a file's keys and tables, of which the first mistake is an error.

    Raises:
        WrongUseError: it cannot be read, or is not TOML.
    """
    return Table(*parse_toml(read_text(path, noun), shown(str(path)), noun))


def parse_toml(text: str, path: str, noun: str) -> tuple[dict[str, Any], Source]:
    """Return a text's keys and tables, and where each of them stands.

    Raises:
        WrongUseError: it is not TOML; with the line.
    """
    if long := _LONG_NAME.search(text):
        line = text.count("\n", 0, long.start()) + 1
        problem = f"a name has more than {MOST_NAME_PARTS} parts"
        raise WrongUseError(code=f"bad-{noun}", message=f"{path}:{line}: {problem}.")
    import tomllib  # takes longer than most commands

    try:
        text.encode()  # a lone surrogate is no text, though the parser takes it
        return tomllib.loads(text), Source(path, find_lines(text), noun)
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
    lines: dict[tuple[str, str], int] = {}
    counts: dict[str, int] = {}
    table, depth, quotes = "", 0, ""
    for number, line in enumerate(text.split("\n"), start=1):
        if quotes:
            quotes = "" if line.count(quotes) % 2 else quotes
            continue
        if depth == 0:
            if header := _HEADER.fullmatch(line.rstrip("\r")):
                table = _table_named(header["name"], counts, new=header["open"] == "[[")
                lines.setdefault((table, ""), number)
                continue
            if key := _KEY.match(line):
                name = key["name"].strip("\"'")
                lines.setdefault((table, name) if table else (name, ""), number)
        quotes = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
        bare = _QUOTED.sub("", line)
        depth = max(0, depth + bare.count("[") - bare.count("]"))
    return lines


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


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "Did you mean …?" for a word that is close to a known one, else all known ones."""
    names = list(known)
    return did_you_mean(word, names) or f"Choose from: {', '.join(names)}"


@cache
def keys_of(record: type) -> dict[str, tuple[str, Any, tuple[Any, ...]]]:
    """Return the key of each field of a record in the file, with its type and its marks.

    A text among the marks is the key, where that is not the field's name.
    """
    keys = {}
    for name, hint in get_type_hints(record, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        key = next((mark for mark in marks if isinstance(mark, str)), name)
        keys[name] = (key, hint.__origin__ if marks else hint, marks)
    return keys


#: What a value of each type must be, the test for that, and an example.
_TYPES: Mapping[type, tuple[str, Callable[[Any], bool], str]] = {
    str: ("a string", lambda value: isinstance(value, str) and bool(value.strip()), '"..."'),
    tuple: (
        "a list of strings",
        lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
        '["..."]',
    ),
    bool: ("true or false", lambda value: isinstance(value, bool), "true"),
    # True is an int in Python, and no number in TOML.
    int: ("a whole number", lambda value: type(value) is int, "1"),
    float: ("a number", lambda value: type(value) in (int, float), "1"),
}


class Table:
    """Keys of one table; `finish` refuses those that were not read.

    `values` is None for a table that is not written. A mistake is an error, unless `note` takes it.
    """

    def __init__(
        self,
        values: Mapping[str, Any] | None,
        source: Source,
        name: str = "",
        note: Callable[..., None] | None = None,
    ) -> None:
        self._values = values or {}
        self._is_there = values is not None
        self._asked: set[str] = set()
        self._note = note
        self.name = name
        self.source = source

    @property
    def written(self) -> tuple[str, ...]:
        """Return the keys that are written."""
        return tuple(self._values)

    def wrong(self, key: str, code: str, message: str, mend: str) -> None:
        """Refuse a key of this table, or note what is wrong with it and how it is mended."""
        if self._note is None:
            raise self.source.error(self.name, key, problem=message, remedy=(mend,))
        self._note(code, message, mend, table=self.name, key=key)

    def raw(self, key: str) -> Any:
        """Return a key's value as it is, None where it is not written."""
        self._asked.add(key)
        return self._values.get(key)

    def fields_of(self, record: type, but: Collection[str] = ()) -> dict[str, Any]:
        """Return the fields of a record that are written and right.

        Type, key, bounds and form are those of a field's annotation. Fields that are records
        themselves are left out, and those named by `but`.
        """
        fields = {}
        for name, (key, hint, marks) in keys_of(record).items():
            kind = None if name in but else _kind(hint)
            if kind is not None:
                value = self.value(key, kind, *marks)
                if value is not None:
                    fields[name] = value
        return fields

    def value(self, key: str, kind: type, *marks: object) -> Any:
        """Return a key's value of this type, None if it is not written or wrong."""
        value = self.raw(key)
        if value is None:
            for mark in marks:
                if isinstance(mark, Required) and self._is_there:
                    mend = f"write {key} = {mark.example}"
                    self.wrong(key, "missing-key", f"{key} is missing", mend)
            return None
        bounds = next((mark for mark in marks if isinstance(mark, Bounds)), None)
        if kind is dict:
            inner = self.table(key)
            read = {name: inner.value(name, float, bounds) for name in inner.written}
            return {name: number for name, number in read.items() if number is not None}
        if issubclass(kind, StrEnum):
            return self._choice(key, value, kind)
        wanted, is_right, example = _TYPES[kind]
        if not is_right(value):
            example = f"{bounds.low:g}" if bounds is not None else example
            self.wrong(key, "wrong-type", f"{key} must be {wanted}", f"write {key} = {example}")
            return None
        if kind in (int, float) and not self._is_within(key, value, bounds or _ANY_NUMBER):
            return None
        texts = value if isinstance(value, list) else [value]
        for form in (mark for mark in marks if isinstance(mark, Form)):
            for text in texts:
                if not re.fullmatch(form.pattern, text):
                    message = f"{shown(text)!r} is not {form.noun}"
                    self.wrong(key, form.code, message, form.mend)
        given: Any = kind
        return given(value)

    def _is_within(self, key: str, value: float, bounds: Bounds) -> bool:
        if bounds.low <= value <= bounds.high:
            return True
        ends = f"{_short(bounds.low)} and {_short(bounds.high)}"
        message = f"{key} = {_short(value)} is not between {ends}"
        self.wrong(key, "out-of-range", message, f"write a number between {ends}")
        return False

    def _choice(self, key: str, value: Any, kind: type[StrEnum]) -> StrEnum | None:
        try:
            return kind(value)
        except ValueError:
            message = f"{shown(str(value))!r} is not a choice for {key}"
            self.wrong(key, "unknown-choice", message, nearest(str(value), kind))
            return None

    def table(self, key: str) -> Table:
        """Return a table inside this one, empty where it is not written."""
        value = self.raw(key)
        name = f"{self.name}.{key}" if self.name else key
        if value is not None and not isinstance(value, dict):
            self.wrong(key, "wrong-type", f"{key} must be a table", f"write [{name}]")
            value = None
        return Table(value, self.source, name, self._note)

    def tables(self, key: str) -> list[Table]:
        """Return a list of tables."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            message = f"{key} must be a list of tables"
            self.wrong(key, "wrong-type", message, f"write [[{key}]]")
            return []
        return [
            Table(item, self.source, f"{key}[{at}]", self._note) for at, item in enumerate(value)
        ]

    def finish(self) -> None:
        """Refuse every key that was not read."""
        for key, value in self._values.items():
            if key not in self._asked:
                first = value[0] if isinstance(value, list) and value else value
                noun = "table" if isinstance(first, dict) else "key"
                message = f"there is no {noun} {shown(key)!r} here"
                self.wrong(key, f"unknown-{noun}", message, nearest(key, sorted(self._asked)))


def _short(number: float) -> str:
    """Return a number with seven digits; a whole number may be larger than any float."""
    try:
        return f"{number:.7g}"
    except OverflowError:
        return "-inf" if number < 0 else "inf"


def _kind(hint: Any) -> type | None:
    """Return how a simple field is read: as text, texts, number, choice, or numbers by name."""
    if isinstance(hint, UnionType):
        (hint,) = (arm for arm in get_args(hint) if arm is not NoneType)
    if hint == tuple[str, ...]:
        return tuple
    if hint == dict[str, float]:
        return dict
    simple = isinstance(hint, type) and (hint in _TYPES or issubclass(hint, StrEnum))
    return hint if simple else None
