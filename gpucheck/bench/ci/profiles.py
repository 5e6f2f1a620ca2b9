"""Profiles by name or file: the built-in ones and your own, read from their TOML.

The keys of a file are the fields of the profile's records, and every mistake is noted.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gpucheck.bench.ci.limits import default_unit, direction_of
from gpucheck.bench.ci.profile_lint import Problems, lint
from gpucheck.bench.ci.profile_model import (
    Check,
    InventoryDemands,
    Match,
    Metric,
    Problem,
    Profile,
    ProfileFile,
    RunPlan,
    Stability,
    Target,
)
from gpucheck.bench.model import Fact
from gpucheck.bench.numerics import canonical
from gpucheck.drivers.host.toml_file import (
    Bounds,
    Required,
    Table,
    nearest,
    parse_toml,
    read_text,
)
from gpucheck.report.errors import GpucheckError, WrongUseError
from gpucheck.report.text import shown

#: The format of the file; one that is newer is refused.
SCHEMA = 1
MOST_CHECKS = 500
#: The error code of a file that is not TOML.
NOT_TOML = "bad-profile"
_PACKAGE = Path(__file__).resolve().parents[2]
#: An installation has the examples in the package, a checkout next to it.
_FOLDERS = (_PACKAGE / "configs" / "bench", _PACKAGE.parent / "configs" / "bench")
Record = TypeVar("Record")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def shipped() -> dict[str, Path]:
    """Return the built-in profiles by name."""
    found = (sorted(folder.glob("*.toml")) for folder in _FOLDERS)
    return {path.stem: path for path in next(filter(None, found), ())}


def find_profile(text: str) -> Path:
    """Return the file of a name or a path; a path has a slash or ends in .toml.

    Raises:
        WrongUseError: there is no such profile.
    """
    if "/" in text or text.endswith(".toml"):
        return Path(text)
    known = shipped()
    if text in known:
        return known[text]
    raise WrongUseError(
        code="no-such-profile",
        message=f"There is no profile called {text[:100]!a}.",
        remedy=(
            nearest(text, known),
            "For a file of your own, give its path.",
        ),
    )


def option_of(profile: Profile) -> str | None:
    """Return what `--profile` calls it, a name or a file; None for a run without a profile."""
    if not profile.path:
        return None
    return profile.name if shipped().get(profile.name) == Path(profile.path) else profile.path


def load_profile(text: str) -> Profile:
    """Return a usable profile, by name or path.

    Raises:
        WrongUseError: there is none, or it has mistakes: the first of them, with file and line.
    """
    path = find_profile(text)
    profile, reading = read_profile(path)
    problems = lint(profile, reading)
    if problems:
        first, *more = problems
        others = [f"see {len(more)} more with: gpucheck profile lint {str(path)!r}"] * bool(more)
        where = str(path) if first.line is None else f"{path}:{first.line}"
        raise WrongUseError(
            code="bad-profile",
            message=f"{where}: {first.where}: {first.message}.",
            remedy=(first.mend, *others),
        )
    return profile


def describe(path: Path) -> ProfileFile:
    """Return what a file is and what is wrong with it.

    Raises:
        WrongUseError: it cannot be read, or is not TOML.
    """
    profile, reading = read_profile(path)
    problems = lint(profile, reading)
    found = None if problems else profile
    return ProfileFile(
        path=str(path),
        name=found.name if found else None,
        version=found.version if found else None,
        description=found.description if found else None,
        seconds=found.run.processes * (found.run.seconds + found.run.corruption_s)
        if found
        else None,
        problems=problems,
    )


def unreadable(path: Path, error: GpucheckError) -> ProfileFile:
    """Return an unreadable file, as one mistake at the line that the error names."""
    place, _, text = error.message.partition(": ")
    line = place.removeprefix(f"{path}:")
    known = line != place and line.isdecimal()
    problem = Problem(
        line=int(line) if known else None,
        where="",
        code=error.code,
        message=(text if known else error.message).rstrip("."),
        mend="write it as TOML" if error.code == NOT_TOML else "name a file that can be read",
    )
    return ProfileFile(
        path=str(path), name=None, version=None, description=None, problems=(problem,)
    )


# ------------------------------------------------------------------------------ the file's keys


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
    # The share of the peak is one number, or a table with one for each board.
    is_by_board = isinstance(table.raw("percent_of_peak"), dict)
    other_shares = "percent_of_peak" if is_by_board else "percent_by_board"
    found: dict[str, Any] = {
        "id": "",
        "kernel": "",
        "dtype": "float32",
        "target": Target.GPU,
        "metric": Metric.THROUGHPUT,
        "tolerance_percent": 0.0,
        **table.fields_of(Check, but=("date", "line", other_shares)),
        "parameters": _parameters(table),
        "date": _date(table),
        "line": table.source.line_of(table.name, "id"),
    }
    table.finish()
    metric, kernel, dtype = found["metric"], found["kernel"], canonical(found["dtype"])
    found.setdefault("direction", direction_of(metric))
    found.setdefault("unit", default_unit(metric, kernel, dtype))
    return Check(**{**found, "dtype": dtype})


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
