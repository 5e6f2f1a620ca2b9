"""Profile file: strict keys, every mistake with its line, and nothing in it is executed.

Keys, types and bounds are those of the profile's records, which one reader follows.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from gpucheck.bench.ci.limits import default_unit, direction_of
from gpucheck.bench.ci.profile_model import (
    Bounds,
    Check,
    Expectation,
    Form,
    InventoryDemands,
    Key,
    Match,
    Metric,
    Problem,
    Profile,
    Required,
    RunPlan,
    Stability,
    Target,
)
from gpucheck.bench.model import Fact, Severity
from gpucheck.bench.numerics import canonical
from gpucheck.drivers.host.toml_file import Source, find_lines, parse_toml, read_text, shown
from gpucheck.report.text import did_you_mean

#: The format of the file; one that is newer is refused.
SCHEMA = 1
MOST_CHECKS = 500
Record = TypeVar("Record")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Problems:
    """Mistakes of one file, in the order in which they were found."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.found: list[Problem] = []

    def add(
        self,
        code: str,
        message: str,
        mend: str,
        *,
        table: str = "",
        key: str = "",
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Note a problem at a key, or at its table where the key is not written."""
        self.found.append(
            Problem(
                line=self.source.line_of(table, key),
                where=f"{table}.{key}".strip("."),
                code=code,
                message=message,
                mend=mend,
                severity=severity,
            )
        )


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "Did you mean …?" for a word that is close to a known one, else all known ones."""
    names = list(known)
    return did_you_mean(word, names) or f"Choose from: {', '.join(names)}"


def read_profile(path: Path) -> tuple[Profile, Problems]:
    """Read a file's tables and keys: the profile as far as it could be read, and its mistakes.

    What the keys mean together is checked by `lint`.

    Raises:
        WrongUseError: the file cannot be read, or is not TOML.
    """
    text = read_text(path, "profile")
    return parse_profile(text, shown(str(path)))


def parse_profile(text: str, path: str) -> tuple[Profile, Problems]:
    """Read a profile's text; `path` stands in the messages.

    Raises:
        WrongUseError: it is not TOML.
    """
    document = parse_toml(text, path, "profile")
    problems = Problems(Source(path=path, lines=find_lines(text), noun="profile"))
    whole = _Table(document, "", problems)
    about = whole.table("profile")
    if "profile" not in whole.written:
        problems.add(
            "missing-table",
            "the table [profile] is missing",
            'start with [profile], schema = 1, name = "...", version = 1',
        )
    head = _head(about)
    match = _record(whole.table("match"), Match)
    origin = whole.table("provenance")
    texts = {key: origin.value(key, str) for key in origin.written}
    found = Profile(
        **head,
        path=path,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        match=replace(match, pci_device_ids=tuple(map(str.lower, match.pci_device_ids))),
        inventory=_record(whole.table("inventory"), InventoryDemands),
        run=_run(whole.table("run")),
        checks=_checks(whole),
        stability=_record(whole.table("stability"), Stability),
        provenance={key: value for key, value in texts.items() if value},
    )
    whole.finish()
    return found, problems


def _head(table: _Table) -> dict[str, Any]:
    """Return the fields of the table [profile], and check its schema."""
    schema = table.value("schema", int, Required("1"), Bounds(1, 10**6))
    if schema is not None and schema > SCHEMA:
        message = f"schema {schema} is newer than this gpucheck reads ({SCHEMA})"
        table.wrong("schema", "newer-schema", message, "use a newer gpucheck")
    found = table.fields_of(Profile, but=("path", "digest"))
    table.finish()
    return {"name": "", "version": 0, "description": "", **found}


@cache
def keys_of(record: type) -> dict[str, tuple[str, Any, tuple[Any, ...]]]:
    """Return the key of each field of a record in the file, with its type and its marks."""
    found = {}
    for name, hint in get_type_hints(record, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        key = next((mark.name for mark in marks if isinstance(mark, Key)), name)
        found[name] = (key, hint.__origin__ if marks else hint, marks)
    return found


def _record(table: _Table, kind: type[Record]) -> Record:
    """Return the record whose fields are the keys of a table."""
    found = table.fields_of(kind)
    table.finish()
    return kind(**found)


def _run(table: _Table) -> RunPlan:
    found = table.fields_of(RunPlan)
    table.finish()
    plain = RunPlan(**found)
    if "max_processes" in found:
        return plain
    return replace(plain, max_processes=max(plain.max_processes, plain.processes))


def _checks(whole: _Table) -> tuple[Check, ...]:
    tables = whole.tables("check")
    if len(tables) > MOST_CHECKS:
        message = f"{len(tables)} checks are too many: the most is {MOST_CHECKS}"
        whole.wrong("check", "too-many-checks", message, "split it into several profiles")
    return tuple(_check(table) for table in tables[:MOST_CHECKS])


def _check(table: _Table) -> Check:
    found: dict[str, Any] = {
        "id": "",
        "kernel": "",
        "dtype": "float32",
        "target": Target.GPU,
        "metric": Metric.THROUGHPUT,
        "tolerance_percent": 0.0,
        **table.fields_of(Check, but=("date", "line")),
        "expectation": _expectation(table),
        "parameters": _parameters(table),
        "date": _date(table),
        "line": table.problems.source.line_of(table.name, "id"),
    }
    table.finish()
    metric, kernel, dtype = found["metric"], found["kernel"], canonical(found["dtype"])
    found.setdefault("direction", direction_of(metric))
    found.setdefault("unit", default_unit(metric, kernel, dtype))
    return Check(**{**found, "dtype": dtype})


def _expectation(table: _Table) -> Expectation:
    """Return what a check expects; `lint` checks that there is exactly one expectation."""
    is_by_board = isinstance(table.raw("percent_of_peak"), dict)
    other = "percent_of_peak" if is_by_board else "percent_by_board"
    return Expectation(**table.fields_of(Expectation, but=(other,)))


def _parameters(table: _Table) -> dict[str, Fact]:
    inner = table.table("parameters")
    found: dict[str, Fact] = {}
    for key in inner.written:
        value = inner.raw(key)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            message = f"{shown(key)} must be a string or a number"
            inner.wrong(key, "wrong-type", message, "write one")
        else:
            found[key] = value
    return found


def _date(table: _Table) -> str | None:
    """Return a date as text; TOML also has dates of its own."""
    value = table.raw("date")
    if value is None:
        return None
    text = value.isoformat() if isinstance(value, datetime.date) else value
    try:
        if not isinstance(text, str) or not _DATE.fullmatch(text):
            raise ValueError
        day = datetime.date.fromisoformat(text)
    except ValueError:
        mend = 'write it as "2026-11-21"'
        table.wrong("date", "bad-date", f"{shown(str(value))!r} is not a date", mend)
        return None
    return day.isoformat()


#: What a value of each type must be, the test for that, and an example.
_TYPES: Mapping[type, tuple[str, Callable[[Any], bool], str]] = {
    str: ("a string", lambda value: isinstance(value, str) and bool(value.strip()), '"..."'),
    tuple: (
        "a list of strings",
        lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
        '["..."]',
    ),
    bool: ("true or false", lambda value: isinstance(value, bool), "true"),
    # True is an int in Python, and no number in TOML.
    int: ("a whole number", lambda value: type(value) is int, "1"),
    float: ("a number", lambda value: type(value) in (int, float), "1"),
}


class _Table:
    """Keys of one table; `finish` refuses those that were not read.

    `values` is None for a table that is not written.
    """

    def __init__(self, values: Mapping[str, Any] | None, name: str, problems: Problems) -> None:
        self._values = values or {}
        self._is_there = values is not None
        self._asked: set[str] = set()
        self.name = name
        self.problems = problems

    @property
    def written(self) -> tuple[str, ...]:
        """Return the keys that are written."""
        return tuple(self._values)

    def wrong(self, key: str, code: str, message: str, mend: str) -> None:
        """Note a problem at a key of this table."""
        self.problems.add(code, message, mend, table=self.name, key=key)

    def raw(self, key: str) -> Any:
        """Return a key's value as it is, None where it is not written."""
        self._asked.add(key)
        return self._values.get(key)

    def fields_of(self, record: type, but: Collection[str] = ()) -> dict[str, Any]:
        """Return the fields of a record that are written and right.

        Type, key, bounds and form are those of a field's annotation. Fields that are records
        themselves are left out, and those named by `but`.
        """
        found = {}
        for name, (key, hint, marks) in keys_of(record).items():
            kind = None if name in but else _kind(hint)
            if kind is not None:
                value = self.value(key, kind, *marks)
                if value is not None:
                    found[name] = value
        return found

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
        if bounds is not None and not self._is_within(key, value, bounds):
            return None
        texts = value if isinstance(value, list) else [value]
        for form in (mark for mark in marks if isinstance(mark, Form)):
            for text in texts:
                if not re.fullmatch(form.pattern, text):
                    message = f"{shown(text)!r} is not {form.noun}"
                    self.wrong(key, form.code, message, form.mend)
        found: Any = kind
        return found(value)

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

    def table(self, key: str) -> _Table:
        """Return a table inside this one, empty where it is not written."""
        value = self.raw(key)
        name = f"{self.name}.{key}" if self.name else key
        if value is not None and not isinstance(value, dict):
            self.wrong(key, "wrong-type", f"{key} must be a table", f"write [{name}]")
            value = None
        return _Table(value, name, self.problems)

    def tables(self, key: str) -> list[_Table]:
        """Return a list of tables."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            message = f"{key} must be a list of tables"
            self.wrong(key, "wrong-type", message, f"write [[{key}]]")
            return []
        return [_Table(item, f"{key}[{at}]", self.problems) for at, item in enumerate(value)]

    def finish(self) -> None:
        """Note every key that was not read."""
        for key, value in self._values.items():
            if key not in self._asked:
                what = "table" if isinstance(value, dict | list) else "key"
                message = f"there is no {what} {shown(key)!r} here"
                self.wrong(key, f"unknown-{what}", message, nearest(key, sorted(self._asked)))


def _short(number: float) -> str:
    """Return a number with seven digits; a whole number may be larger than any float."""
    try:
        return f"{number:.7g}"
    except OverflowError:
        return "-inf" if number < 0 else "inf"


def _kind(hint: Any) -> type | None:
    """Return how a simple field is read: as text, texts, number, choice, or numbers by name."""
    if isinstance(hint, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    if hint == tuple[str, ...]:
        return tuple
    if hint == dict[str, float]:
        return dict
    simple = isinstance(hint, type) and (hint in _TYPES or issubclass(hint, StrEnum))
    return hint if simple else None
