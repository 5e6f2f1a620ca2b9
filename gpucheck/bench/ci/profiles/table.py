"""Table of a profile, read key by key; each mistake becomes a problem with its line."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from gpucheck.bench.ci.gate_model import Severity
from gpucheck.bench.ci.profile_model import Problem
from gpucheck.drivers.host.toml_file import Source, shown

Choice = TypeVar("Choice", bound=StrEnum)


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
    """Return "did you mean …?" for a word that is close to a known one, else all known ones."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"choose from: {', '.join(names)}"


class Table:
    """Keys of one table; `finish` refuses those that were not read."""

    def __init__(self, values: Mapping[str, Any], name: str, problems: Problems) -> None:
        self._values = values
        self._asked: dict[str, None] = {}
        self.name = name
        self.problems = problems

    def has(self, key: str) -> bool:
        """Return whether a key is written."""
        return key in self._values

    def wrong(self, key: str, code: str, message: str, mend: str) -> None:
        """Note a problem at a key of this table."""
        self.problems.add(code, message, mend, table=self.name, key=key)

    def raw(self, key: str) -> Any:
        """Return a key's value as it is, None where it is not written."""
        self._asked[key] = None
        return self._values.get(key)

    def required(self, key: str, example: str) -> None:
        """Note that a key is missing, if it is."""
        if key not in self._values:
            self.wrong(key, "missing-key", f"{key} is missing", f"write {key} = {example}")

    def text(self, key: str, default: str = "") -> str:
        """Return a string."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str) or not value.strip():
            self.wrong(key, "wrong-type", f"{key} must be a string", f'write {key} = "..."')
            return default
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self.raw(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.wrong(
                key, "wrong-type", f"{key} must be a list of strings", f'write {key} = ["..."]'
            )
            return ()
        return tuple(value)

    def flag(self, key: str) -> bool | None:
        """Return true, false, or None where it is not written."""
        value = self.raw(key)
        if value is None or isinstance(value, bool):
            return value
        self.wrong(key, "wrong-type", f"{key} must be true or false", f"write {key} = true")
        return None

    def number(self, key: str, low: float, high: float) -> float | None:
        """Return a number from `low` to `high`."""
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(key, "wrong-type", f"{key} must be a number", f"write {key} = {low:g}")
            return None
        return self._within(key, value, low, high)

    def whole(self, key: str, low: int, high: int) -> int | None:
        """Return a whole number from `low` to `high`."""
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(key, "wrong-type", f"{key} must be a whole number", f"write {key} = {low}")
            return None
        found = self._within(key, value, low, high)
        return None if found is None else value

    def _within(self, key: str, value: float, low: float, high: float) -> float | None:
        if math.isfinite(value) and low <= value <= high:
            return float(value)
        self.wrong(
            key,
            "out-of-range",
            f"{key} = {value:g} is not between {low:g} and {high:g}",
            f"write a number between {low:g} and {high:g}",
        )
        return None

    def choice(self, key: str, kind: type[Choice], default: Choice) -> Choice:
        """Return one of an enum's words."""
        value = self.raw(key)
        if value is None:
            return default
        try:
            return kind(value)
        except ValueError:
            message = f"{shown(str(value))!r} is not a choice for {key}"
            self.wrong(key, "unknown-choice", message, nearest(str(value), kind))
            return default

    def numbers(self, key: str, low: float, high: float) -> dict[str, float]:
        """Return a table of numbers by name."""
        inner = self.table(key)
        found = {name: inner.number(name, low, high) for name in inner.written}
        return {name: value for name, value in found.items() if value is not None}

    def table(self, key: str) -> Table:
        """Return a table inside this one, empty where it is not written."""
        value = self.raw(key)
        name = f"{self.name}.{key}" if self.name else key
        if value is None:
            return Table({}, name, self.problems)
        if not isinstance(value, dict):
            self.wrong(key, "wrong-type", f"{key} must be a table", f"write [{name}]")
            return Table({}, name, self.problems)
        # An inline table has no lines of its own: its problems stand at its key.
        return Table(value, name, self.problems)

    def tables(self, key: str) -> list[Table]:
        """Return a list of tables."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.wrong(key, "wrong-type", f"{key} must be a list of tables", f"write [[{key}]]")
            return []
        return [Table(item, f"{key}[{at}]", self.problems) for at, item in enumerate(value)]

    @property
    def written(self) -> tuple[str, ...]:
        """Return the keys that are written."""
        return tuple(self._values)

    def finish(self) -> None:
        """Note every key that was not read."""
        for key in self._values:
            if key not in self._asked:
                what = "table" if isinstance(self._values[key], dict | list) else "key"
                self.wrong(
                    key,
                    f"unknown-{what}",
                    f"there is no {what} {shown(key)!r} here",
                    nearest(key, sorted(self._asked)),
                )
