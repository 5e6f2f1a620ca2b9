"""Profile file: its keys are the fields of the profile's records, and every mistake is noted."""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gpucheck.bench.ci.limits import default_unit, direction_of
from gpucheck.bench.ci.profile_model import (
    Check,
    Expectation,
    InventoryDemands,
    Match,
    Metric,
    Problem,
    Profile,
    RunPlan,
    Stability,
    Target,
)
from gpucheck.bench.model import Fact
from gpucheck.bench.numerics import canonical
from gpucheck.drivers.host.toml_file import (
    Bounds,
    Required,
    Source,
    Table,
    parse_toml,
    read_text,
)
from gpucheck.report.text import shown

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
    ) -> None:
        """Note a problem at a key, or at its table where the key is not written."""
        self.found.append(
            Problem(
                line=self.source.line_of(table, key),
                where=f"{table}.{key}".strip("."),
                code=code,
                message=message,
                mend=mend,
            )
        )


def read_profile(path: Path) -> tuple[Profile, Problems]:
    """Read a file's tables and keys: the profile as far as it could be read, and its mistakes.

    What the keys mean together is checked by `lint`.

    Raises:
        WrongUseError: the file cannot be read, or is not TOML.
    """
    return parse_profile(read_text(path, "profile"), shown(str(path)))


def parse_profile(text: str, path: str) -> tuple[Profile, Problems]:
    """Read a profile's text; `path` stands in the messages.

    Raises:
        WrongUseError: it is not TOML.
    """
    document, source = parse_toml(text, path, "profile")
    problems = Problems(source)
    whole = Table(document, source, note=problems.add)
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


def _head(table: Table) -> dict[str, Any]:
    """Return the fields of the table [profile], and check its schema."""
    schema = table.value("schema", int, Required("1"), Bounds(1, 10**6))
    if schema is not None and schema > SCHEMA:
        message = f"schema {schema} is newer than this gpucheck reads ({SCHEMA})"
        table.wrong("schema", "newer-schema", message, "use a newer gpucheck")
    found = table.fields_of(Profile, but=("path", "digest"))
    table.finish()
    return {"name": "", "version": 0, "description": "", **found}


def _record(table: Table, kind: type[Record]) -> Record:
    """Return the record whose fields are the keys of a table."""
    found = table.fields_of(kind)
    table.finish()
    return kind(**found)


def _run(table: Table) -> RunPlan:
    found = table.fields_of(RunPlan)
    table.finish()
    plain = RunPlan(**found)
    if "max_processes" in found:
        return plain
    return replace(plain, max_processes=max(plain.max_processes, plain.processes))


def _checks(whole: Table) -> tuple[Check, ...]:
    tables = whole.tables("check")
    if len(tables) > MOST_CHECKS:
        message = f"{len(tables)} checks are too many: the most is {MOST_CHECKS}"
        whole.wrong("check", "too-many-checks", message, "split it into several profiles")
    return tuple(_check(table) for table in tables[:MOST_CHECKS])


def _check(table: Table) -> Check:
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
        "line": table.source.line_of(table.name, "id"),
    }
    table.finish()
    metric, kernel, dtype = found["metric"], found["kernel"], canonical(found["dtype"])
    found.setdefault("direction", direction_of(metric))
    found.setdefault("unit", default_unit(metric, kernel, dtype))
    return Check(**{**found, "dtype": dtype})


def _expectation(table: Table) -> Expectation:
    """Return what a check expects; `lint` checks that there is exactly one expectation."""
    is_by_board = isinstance(table.raw("percent_of_peak"), dict)
    other = "percent_of_peak" if is_by_board else "percent_by_board"
    return Expectation(**table.fields_of(Expectation, but=(other,)))


def _parameters(table: Table) -> dict[str, Fact]:
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


def _date(table: Table) -> str | None:
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
