"""Table of a profile, read key by key; each mistake becomes a problem with its line."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gpucheck.bench.ci.gate_model import Direction, Severity
from gpucheck.bench.ci.limits import default_unit, direction_of
from gpucheck.bench.ci.profile_model import (
    Check,
    Expectation,
    InventoryDemands,
    Lacking,
    Match,
    Metric,
    Per,
    Phase,
    Problem,
    Profile,
    RunPlan,
    Stability,
    Statistic,
    Target,
)
from gpucheck.bench.formats import canonical
from gpucheck.bench.model import BenchMode, Fact, Fill, Scope
from gpucheck.drivers.host.toml_file import Source, find_lines, parse_toml, read_text, shown

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


#: The format of the file; one that is newer is refused.
SCHEMA = 1
MOST_CHECKS = 500
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_DEVICE_ID = re.compile(r"[0-9a-f]{4}")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Reading(NamedTuple):
    """Profile as far as it could be read, and what is wrong with it."""

    profile: Profile
    problems: Problems


def read_profile(path: Path) -> Reading:
    """Read a file's tables and keys; what they mean together is checked by `lint`.

    Raises:
        WrongUseError: the file cannot be read, or is not TOML.
    """
    text = read_text(path, "profile")
    return parse_profile(text, shown(str(path)))


def parse_profile(text: str, path: str) -> Reading:
    """Read a profile's text; `path` stands in the messages.

    Raises:
        WrongUseError: it is not TOML.
    """
    document = parse_toml(text, path, "profile")
    problems = Problems(Source(path=path, lines=find_lines(text), noun="profile"))
    whole = Table(document, "", problems)
    about = whole.table("profile")
    if not whole.has("profile"):
        problems.add(
            "missing-table",
            "the table [profile] is missing",
            'start with [profile], schema = 1, name = "...", version = 1',
        )
    _check_head(about)
    found = Profile(
        name=about.text("name"),
        version=about.whole("version", 1, 10**6) or 0,
        description=about.text("description"),
        requires_gpucheck=about.text("requires_gpucheck") or None,
        path=path,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        match=_match(whole.table("match")),
        inventory=_inventory(whole.table("inventory")),
        run=_run(whole.table("run")),
        checks=_checks(whole),
        stability=_stability(whole.table("stability")),
        provenance=_provenance(whole.table("provenance")),
    )
    about.finish()
    whole.finish()
    return Reading(profile=found, problems=problems)


def _check_head(about: Table) -> None:
    """Check the schema, the name and the needed version, before the rest."""
    if not about.written:
        return
    for key, example in (("schema", "1"), ("name", '"my-machines"'), ("version", "1")):
        about.required(key, example)
    schema = about.whole("schema", 1, 10**6)
    if schema is not None and schema > SCHEMA:
        about.wrong(
            "schema",
            "newer-schema",
            f"schema {schema} is newer than this gpucheck reads ({SCHEMA})",
            "use a newer gpucheck",
        )
    if (name := about.text("name")) and not _ID.fullmatch(name):
        about.wrong("name", "bad-name", f"{shown(name)!r} is not a name", "write a-z, 0-9 and -")
    needed = about.text("requires_gpucheck")
    if needed and not _VERSION.fullmatch(needed):
        message = f"{shown(needed)!r} is not a version"
        about.wrong("requires_gpucheck", "bad-version", message, 'write it like "0.1.0"')


def _match(table: Table) -> Match:
    ids = table.texts("pci_device_ids")
    for one in ids:
        if not _DEVICE_ID.fullmatch(one.lower()):
            message = f"{shown(one)!r} is not a PCI device id"
            mend = 'write the four hexadecimal digits of the device, not the vendor: "2330"'
            table.wrong("pci_device_ids", "bad-device-id", message, mend)
    driver = table.text("min_driver")
    if driver and not _VERSION.fullmatch(driver):
        message = f"{shown(driver)!r} is not a driver version"
        table.wrong("min_driver", "bad-version", message, 'write it like "535" or "580.95.05"')
    found = Match(
        target=table.choice("device", Target, Target.GPU),
        pci_device_ids=tuple(one.lower() for one in ids),
        names=table.texts("names"),
        count=table.whole("count", 1, 1024),
        mig=table.flag("mig"),
        min_driver=driver or None,
    )
    table.finish()
    return found


def _inventory(table: Table) -> InventoryDemands:
    found = InventoryDemands(
        memory_total_gib=table.number("memory_total_gib", 0.1, 4096),
        ecc=table.flag("ecc"),
        persistence_mode=table.flag("persistence_mode"),
        pcie_generation=table.whole("pcie_generation", 1, 7),
        pcie_width=table.whole("pcie_width", 1, 32),
        pcie_full=table.flag("pcie_full"),
        nvlink_links=table.whole("nvlink_links", 1, 64),
        power_limit_w=table.number("power_limit_w", 1, 5000),
        identical_gpus=table.flag("identical_gpus"),
    )
    table.finish()
    return found


def _run(table: Table) -> RunPlan:
    plain = RunPlan(seconds=10.0)
    together = table.flag("together")
    alone = table.flag("alone")
    processes = table.whole("processes", 1, 100) or plain.processes
    most = table.whole("max_processes", 1, 100) or max(plain.max_processes, processes)
    found = RunPlan(
        seconds=table.number("seconds", 0.5, 3600) or plain.seconds,
        processes=processes,
        max_processes=most,
        mode=table.choice("mode", BenchMode, plain.mode),
        size=table.whole("size", 1, 1 << 24),
        fill=table.choice("data", Fill, plain.fill),
        seed=table.whole("seed", 0, 2**63) or 0,
        alone=plain.alone if alone is None else alone,
        together=plain.together if together is None else together,
        corruption_s=table.number("corruption_seconds", 0, 3600) or 0.0,
    )
    table.finish()
    return found


def _checks(whole: Table) -> tuple[Check, ...]:
    tables = whole.tables("check")
    if len(tables) > MOST_CHECKS:
        message = f"{len(tables)} checks are too many: the most is {MOST_CHECKS}"
        whole.wrong("check", "too-many-checks", message, "split it into several profiles")
    return tuple(_check(table) for table in tables[:MOST_CHECKS])


def _check(table: Table) -> Check:
    for key, example in (
        ("id", '"matmul-bfloat16"'),
        ("kernel", '"matmul"'),
        ("tolerance_percent", "5"),
    ):
        table.required(key, example)
    name = table.text("id")
    if name and not _ID.fullmatch(name):
        table.wrong("id", "bad-name", f"{shown(name)!r} is not an id", "write a-z, 0-9 and -")
    kernel, dtype = table.text("kernel"), canonical(table.text("dtype", "float32"))
    metric = table.choice("metric", Metric, Metric.THROUGHPUT)
    direction = table.choice("direction", Direction, direction_of(metric))
    unit = table.text("unit")
    found = Check(
        id=name,
        kernel=kernel,
        dtype=dtype,
        target=table.choice("device", Target, Target.GPU),
        metric=metric,
        fact=table.text("fact") or None,
        expectation=_expectation(table),
        tolerance_percent=table.number("tolerance_percent", 0, 100) or 0.0,
        warn_percent=table.number("warn_percent", 0, 100),
        unit=unit or default_unit(metric, kernel, dtype),
        direction=direction,
        variant=table.text("variant") or None,
        scope=table.choice("scope", Scope, Scope.RESIDENT),
        parameters=_parameters(table),
        statistic=table.choice("statistic", Statistic, Statistic.MEDIAN),
        phase=table.choice("phase", Phase, Phase.WHOLE),
        per=table.choice("per", Per, Per.DEVICE),
        together=bool(table.flag("together")),
        on_unsupported=table.choice("on_unsupported", Lacking, Lacking.SKIP),
        on_missing=table.choice("on_missing", Lacking, Lacking.FAIL),
        severity=table.choice("severity", Severity, Severity.ERROR),
        reason=table.text("reason") or None,
        source=table.text("source") or None,
        date=_date(table),
        line=table.problems.source.line_of(table.name, "id"),
    )
    table.finish()
    return found


def _expectation(table: Table) -> Expectation:
    """Return what a check expects; `lint` checks that there is exactly one expectation."""
    percent, by_board = None, {}
    if isinstance(table.raw("percent_of_peak"), dict):
        by_board = table.numbers("percent_of_peak", 0, 1000)
    else:
        percent = table.number("percent_of_peak", 0, 1000)
    return Expectation(
        value=table.number("value", 0, 1e30),
        percent_of_peak=percent,
        percent_by_board=by_board,
        baseline=bool(table.flag("baseline")),
    )


def _parameters(table: Table) -> dict[str, Fact]:
    inner = table.table("parameters")
    found: dict[str, Fact] = {}
    for key in inner.written:
        value = inner.raw(key)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            inner.wrong(
                key, "wrong-type", f"{shown(key)} must be a string or a number", "write one"
            )
        else:
            found[key] = value
    return found


def _date(table: Table) -> str | None:
    """Return a date as text; TOML also has dates of its own."""
    import datetime

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


def _stability(table: Table) -> Stability:
    plain = Stability()
    not_finite = table.whole("not_finite", 0, 10**9)
    found = Stability(
        throttle_s=table.numbers("throttle_s", 0, 1e6),
        max_temperature_c=table.number("max_temperature_c", 20, 120),
        max_clock_drop_percent=table.number("max_clock_drop_percent", 0, 100),
        spread_percent=table.number("spread_percent", 0.1, 100),
        straggler_percent=table.number("straggler_percent", 0.1, 100),
        new_ecc_uncorrected=table.whole("new_ecc_uncorrected", 0, 10**9),
        new_ecc_corrected=table.whole("new_ecc_corrected", 0, 10**9),
        new_remapped_rows=table.whole("new_remapped_rows", 0, 10**9),
        new_pcie_replays=table.whole("new_pcie_replays", 0, 10**9),
        corruption=table.whole("corruption", 0, 0),
        not_finite=plain.not_finite if not_finite is None else not_finite,
    )
    table.finish()
    return found


def _provenance(table: Table) -> dict[str, str]:
    """Return where a recorded profile comes from: strings by name, for people."""
    found = {key: table.text(key) for key in table.written}
    table.finish()
    return {key: value for key, value in found.items() if value}
