"""Profile file: strict keys, every mistake with its line, and nothing in it is executed."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from gpucheck.bench.ci.gate_model import Direction, Severity
from gpucheck.bench.ci.profile_model import (
    Check,
    Expectation,
    InventoryDemands,
    Lacking,
    Match,
    Metric,
    Per,
    Phase,
    Profile,
    RunPlan,
    Stability,
    Statistic,
    Target,
)
from gpucheck.bench.ci.profiles.table import Problems, Table
from gpucheck.bench.ci.profiles.units import default_unit, direction_of
from gpucheck.bench.formats import canonical
from gpucheck.bench.model import BenchMode, Fact, Fill, Scope
from gpucheck.drivers.host.toml_file import Source, find_lines, parse_toml, read_text, shown

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
