"""Profiles by name or file: the built-in ones and your own, read from their TOML, and their lint.

The keys of a file are the fields of the profile's records, and every mistake is noted: in a key by
itself when it is read, unknown names and keys that change what a gate means by `lint`.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpucheck.bench.boards import load_boards
from gpucheck.bench.ci.limits import (
    OTHER,
    base_unit,
    default_unit,
    direction_of,
    has_peak,
    known_units,
    version_key,
)
from gpucheck.bench.ci.profile_model import (
    Check,
    InventoryDemands,
    Match,
    Metric,
    Phase,
    Problem,
    Profile,
    ProfileFile,
    RunPlan,
    Stability,
    Statistic,
    Target,
)
from gpucheck.bench.frameworks import FORMS
from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.model import Fact, Scope, shared_fields
from gpucheck.bench.numerics import FORMATS, canonical
from gpucheck.bench.request_model import BenchMode
from gpucheck.drivers.host.toml_file import (
    Bounds,
    Required,
    Source,
    Table,
    nearest,
    parse_toml,
    read_text,
)
from gpucheck.inventory.condition import CLOCK_REASONS
from gpucheck.report.errors import GpucheckError, WrongUseError
from gpucheck.report.text import shown
from gpucheck.version import __version__

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
    files = (sorted(folder.glob("*.toml")) for folder in _FOLDERS)
    return {path.stem: path for path in next(filter(None, files), ())}


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
        message=f"There is no profile called {text[:100]!r}.",
        remedy=(
            nearest(text, known),
            "For a file of your own, give its path.",
        ),
    )


def option_of(profile: Profile) -> str | None:
    """Return the value of `--profile`, a name or a file; None for a run without a profile."""
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
    """Return a profile's name, version and length, and the mistakes in its file.

    Raises:
        WrongUseError: it cannot be read, or is not TOML.
    """
    profile, reading = read_profile(path)
    if problems := lint(profile, reading):
        return _faulty(path, problems)
    seconds = profile.run.processes * (profile.run.seconds + profile.run.corruption_s)
    fields = shared_fields(profile, ProfileFile) | {"path": str(path)}
    return ProfileFile(**fields, seconds=seconds)


def _faulty(path: Path, problems: tuple[Problem, ...]) -> ProfileFile:
    """Return a file with mistakes, of which nothing else is shown."""
    return ProfileFile(path=str(path), name=None, version=None, description=None, problems=problems)


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
    return _faulty(path, (problem,))


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
    origin = whole.table("provenance")  # for people
    for key in origin.written:
        origin.value(key, str)
    profile = Profile(
        **head,
        path=path,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        match=replace(match, pci_device_ids=tuple(map(str.lower, match.pci_device_ids))),
        inventory=_record(whole.table("inventory"), InventoryDemands),
        run=_run(whole.table("run")),
        checks=_checks(whole),
        stability=_record(whole.table("stability"), Stability),
    )
    whole.finish()
    return profile, problems


def _head(table: Table) -> dict[str, Any]:
    """Return the fields of the table [profile], and check its schema."""
    schema = table.value("schema", int, Required("1"), Bounds(1, 10**6))
    if schema is not None and schema > SCHEMA:
        message = f"schema {schema} is newer than this gpucheck reads ({SCHEMA})"
        table.wrong("schema", "newer-schema", message, "use a newer gpucheck")
    fields = table.fields_of(Profile, but=("path", "digest"))
    table.finish()
    return {"name": "", "version": 0, "description": "", **fields}


def _record(table: Table, kind: type[Record]) -> Record:
    """Return the record whose fields are the keys of a table."""
    fields = table.fields_of(kind)
    table.finish()
    return kind(**fields)


def _run(table: Table) -> RunPlan:
    fields = table.fields_of(RunPlan)
    table.finish()
    plain = RunPlan(**fields)
    if "max_processes" in fields:
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
    fields: dict[str, Any] = {
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
    metric, kernel, dtype = fields["metric"], fields["kernel"], canonical(fields["dtype"])
    fields.setdefault("direction", direction_of(metric))
    fields.setdefault("unit", default_unit(metric, kernel, dtype))
    return Check(**{**fields, "dtype": dtype})


def _parameters(table: Table) -> dict[str, Fact]:
    inner = table.table("parameters")
    parameters: dict[str, Fact] = {}
    for key in inner.written:
        value = inner.raw(key)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            message = f"{shown(key)} must be a string or a number"
            inner.wrong(key, "wrong-type", message, "write one")
        else:
            parameters[key] = value
    return parameters


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


# ------------------------------------------------------------------------------ lint

#: Notes a problem of one table: its key, code, message and fix.
_Note = Callable[[str, str, str, str], None]


class Problems:
    """Mistakes of one file, in the order in which they were found."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.noted: list[Problem] = []

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
        self.noted.append(
            Problem(
                line=self.source.line_of(table, key),
                where=f"{table}.{key}".strip("."),
                code=code,
                message=message,
                mend=mend,
            )
        )


def lint(profile: Profile, problems: Problems) -> tuple[Problem, ...]:
    """Return everything that is wrong with a profile, by line; `problems` are of its reading."""
    _lint_version(profile, _note(problems, "profile"))
    if profile.match.target is Target.CPU:
        _lint_cpu_profile(profile, problems)
    _lint_run(profile, _note(problems, "run"))
    _lint_stragglers(profile, problems)
    _lint_throttling(profile, _note(problems, "stability.throttle_s"))
    _lint_checks(profile, problems)
    return tuple(sorted(problems.noted, key=lambda item: (item.line or 0, item.where)))


def _note(problems: Problems, table: str) -> _Note:
    def note(key: str, code: str, message: str, mend: str) -> None:
        problems.add(code, message, mend, table=table, key=key)

    return note


def _lint_version(profile: Profile, note: _Note) -> None:
    needed = profile.requires_gpucheck
    if needed and version_key(needed) > version_key(__version__):
        message = f"it needs gpucheck {needed}; this is {__version__}"
        note("requires_gpucheck", "newer-gpucheck", message, "use a newer gpucheck")


def _lint_cpu_profile(profile: Profile, problems: Problems) -> None:
    """Check that a profile for the processor demands nothing of GPUs: no gate would judge it."""
    code = "gpu-key-for-cpu"
    note = _note(problems, "match")
    for key in ("pci_device_ids", "names", "count", "mig", "min_driver"):
        if getattr(profile.match, key) not in (None, ()):
            message = f"{key} is about GPUs, but this profile is for the processor"
            note(key, code, message, f'remove {key}, or write device = "gpu"')
    if profile.inventory != InventoryDemands():
        message = "[inventory] is about GPUs, but this profile is for the processor"
        mend = 'remove it, or write device = "gpu" in [match]'
        problems.add(code, message, mend, table="inventory")
    # Only the demand on NaN in results applies to a processor too.
    if profile.stability != Stability(not_finite=profile.stability.not_finite):
        message = "[stability] needs GPU sensors, but this profile is for the processor"
        problems.add(code, message, "remove everything but not_finite", table="stability")


def _lint_run(profile: Profile, note: _Note) -> None:
    run = profile.run
    if run.max_processes < run.processes:
        message = f"max_processes = {run.max_processes} is less than processes = {run.processes}"
        note("max_processes", "contradiction", message, "write a larger number, or remove it")
    if profile.stability.corruption is not None and not run.corruption_s:
        message = "[stability] corruption is demanded, but [run] gives it no time"
        note("corruption_seconds", "never-measured", message, "write corruption_seconds = 5")


def _lint_stragglers(profile: Profile, problems: Problems) -> None:
    key = "healthy_spread_percent"
    is_written = ("stability", key) in problems.source.lines
    if is_written and profile.stability.straggler_percent is None:
        message = f"{key} has no effect: straggler_percent is not demanded"
        mend = "write straggler_percent = 5, or remove it"
        problems.add("contradiction", message, mend, table="stability", key=key)


def _lint_throttling(profile: Profile, note: _Note) -> None:
    known = [name for name in CLOCK_REASONS.values() if name != "idle"]
    for name in profile.stability.throttle_s:
        if name not in known:
            message = f"the driver has no throttle reason {name!r}"
            note(name, "unknown-reason", message, nearest(name, known))


def _lint_checks(profile: Profile, problems: Problems) -> None:
    seen: dict[str, int | None] = {}
    for at, check in enumerate(profile.checks):
        table = f"check[{at}]"
        note = _note(problems, table)
        _lint_expectation(check, note)
        _lint_measured_rows(check, profile, note)
        _lint_value(check, note)
        if _lint_kernel(check, note):
            _lint_framework(check, note)
            _lint_unit(check, note, is_written=(table, "unit") in problems.source.lines)
            _lint_share(check, note)
        if check.id and check.id in seen:
            message = f"the id {check.id} is already used in line {seen[check.id]}"
            note("id", "twice", message, "give each check its own id")
        seen.setdefault(check.id, check.line)


def _lint_expectation(check: Check, note: _Note) -> None:
    ways = {
        "value": check.value is not None,
        "percent_of_peak": check.percent_of_peak is not None or bool(check.percent_by_board),
        "baseline": check.baseline,
    }
    named = [name for name, is_given in ways.items() if is_given]
    if not named:
        mend = "write one of value, percent_of_peak, baseline = true"
        note("id", "no-expectation", "the check expects nothing", mend)
    if len(named) > 1:
        message = f"{' and '.join(named)} are {len(named)} expectations; a check has one"
        note(named[-1], "two-expectations", message, "keep one of them")


def _lint_measured_rows(check: Check, profile: Profile, note: _Note) -> None:
    """Check that the rows which a check is about are measured: it would take others for them."""
    if check.target is not profile.match.target:
        message = f"it is about the {check.target}, but [match] is for the {profile.match.target}"
        mend = f'write device = "{profile.match.target}", or change it in [match]'
        note("device", "other-device", message, mend)
    if check.together and not profile.run.together:
        message = "GPUs are not measured together in this profile"
        mend = "write together = true in [run], or remove it here"
        note("together", "never-measured", message, mend)
    if not check.together and not profile.run.alone:
        message = "GPUs are not measured alone in this profile"
        mend = "write together = true, or alone = true in [run]"
        note("together", "never-measured", message, mend)


def _lint_value(check: Check, note: _Note) -> None:
    """Check metric, direction, statistic and phase against each other."""
    if check.metric is Metric.FACT and check.fact is None:
        note("metric", "no-fact", "a fact needs a name", 'name it: fact = "accuracy"')
    if check.metric is not Metric.FACT and check.fact is not None:
        message = f"fact = {check.fact!r} has no effect: the metric is {check.metric}"
        note("fact", "contradiction", message, 'write metric = "fact", or remove it')
    if check.metric is not Metric.FACT and check.direction is not direction_of(check.metric):
        message = f"for {check.metric}, {direction_of(check.metric)} is better"
        note("direction", "contradiction", message, "remove it")
    plain = check.statistic is Statistic.MEDIAN and check.phase is Phase.WHOLE
    if check.baseline and not (plain and check.metric is not Metric.FACT):
        message = "a baseline holds only the medians of whole runs"
        key = "phase" if check.phase is not Phase.WHOLE else "statistic"
        note(key, "not-in-baseline", message, 'write statistic = "median" and phase = "whole"')


def _lint_kernel(check: Check, note: _Note) -> bool:
    """Check that the kernel is measured in this format; return whether it is."""
    kernel = KERNELS.get(check.kernel)
    if kernel is None:
        if check.kernel:
            message = f"there is no kernel {check.kernel!r}"
            note("kernel", "unknown-kernel", message, nearest(check.kernel, KERNELS))
        return False
    known = kernel.dtypes[BenchMode.FULL]
    unknown = partial(note, "dtype", "unknown-dtype")
    if check.dtype not in FORMATS:
        unknown(f"there is no format {check.dtype!r}", nearest(check.dtype, known))
    elif check.dtype not in known:
        message = f"{check.kernel} is not measured in {check.dtype}"
        unknown(message, f"Choose from: {', '.join(known)}")
    return check.dtype in known


def _lint_framework(check: Check, note: _Note) -> None:
    name, form = check.framework, check.form
    if name is None:
        if form is not None:
            message = f"form = {form!r} has no effect: no framework is named"
            note("form", "contradiction", message, 'write framework = "...", or remove it')
        return
    forms = FORMS.get(name)
    if forms is None:
        message = f"bench cannot run a framework called {name!r}"
        note("framework", "unknown-framework", message, nearest(name, FORMS))
    elif form is not None and form not in forms:
        note("form", "unknown-form", f"{name} has no form {form!r}", nearest(form, forms))


def _lint_unit(check: Check, note: _Note, *, is_written: bool) -> None:
    known = known_units(check.metric, check.kernel, check.dtype)
    if check.value is not None and not (check.unit and is_written):
        mend = f'write unit = "{known[-1]}", or another' if known else 'write unit = "..."'
        note("value", "no-unit", f"{check.value:g} has no unit", mend)
    elif known and check.unit not in known:
        counted = base_unit(check.metric, check.kernel, check.dtype)
        message = (
            f"{check.kernel} is measured in {counted}, and {check.unit!r} is not a unit of that"
        )
        note("unit", "wrong-unit", message, nearest(check.unit, known))


def _lint_share(check: Check, note: _Note) -> None:
    """Check that there is a peak to take a share of, and that the boards of a table exist."""
    shares = check.percent_by_board
    if check.percent_of_peak is None and not shares:
        return
    if check.target is Target.CPU or not has_peak(check):
        message = f"there is no peak to take a share of: {_why_no_peak(check)}"
        note("percent_of_peak", "no-peak", message, "write a value, or baseline = true")
        return
    known = [board.name for board in load_boards()]
    for name in shares:
        if name not in (*known, OTHER):
            message = f"there is no known board {name!r}"
            note("percent_of_peak", "unknown-board", message, nearest(name, known))


def _why_no_peak(check: Check) -> str:
    if check.target is Target.CPU:
        return "processors have no published peak"
    if check.metric is not Metric.THROUGHPUT:
        return f"the metric is {check.metric}"
    if check.scope is Scope.END_TO_END:
        return "transfers determine its speed"
    return f"{check.kernel} is not limited by arithmetic or memory"
