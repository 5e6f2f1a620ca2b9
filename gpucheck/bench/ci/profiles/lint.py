"""Lint of a profile: demands that cannot fail, or cannot be met."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gpucheck import __version__
from gpucheck.bench.ci.gate_model import Severity
from gpucheck.bench.ci.gates.decision import FEWEST_PROCESSES
from gpucheck.bench.ci.profile_model import (
    InventoryDemands,
    Match,
    Problem,
    Profile,
    Stability,
    Target,
)
from gpucheck.bench.ci.profiles.file import Reading, parse_profile, read_profile
from gpucheck.bench.ci.profiles.limits import fits_name, matching_boards
from gpucheck.bench.ci.profiles.lint_checks import lint_checks
from gpucheck.bench.ci.profiles.table import Problems, nearest
from gpucheck.bench.model import Fill
from gpucheck.bench.peaks import Entry, load_table
from gpucheck.bench.telemetry import REASONS

#: A demand below this share of what the board has cannot fail.
LEAST_SHARE = 0.3
#: What a card calls its memory is rounded, in units of a thousand or of 1024.
_MEMORY_SLACK = 1.08
_WIDTHS = (1, 2, 4, 8, 16)


class Findings(NamedTuple):
    """Profile, None if it cannot be used, and everything that is wrong with it, by line."""

    profile: Profile | None
    problems: tuple[Problem, ...]


def lint(path: Path) -> Findings:
    """Read a profile and check all of it.

    Raises:
        WrongUseError: the file cannot be read, or is not TOML.
    """
    return _lint(read_profile(path))


def lint_text(text: str, path: str) -> Findings:
    """Check a profile's text; `path` stands in the messages.

    Raises:
        WrongUseError: it is not TOML.
    """
    return _lint(parse_profile(text, path))


def _lint(reading: Reading) -> Findings:
    problems, profile = reading.problems, reading.profile
    _head(profile, problems)
    _match(profile.match, problems)
    _inventory(profile, problems)
    _run(profile, problems)
    _stability(profile, problems)
    lint_checks(profile, problems)
    found = sorted(problems.found, key=lambda one: (one.line or 0, one.where))
    bad = any(one.severity is Severity.ERROR for one in found)
    return Findings(profile=None if bad else profile, problems=tuple(found))


def _head(profile: Profile, problems: Problems) -> None:
    demands = (
        bool(profile.checks)
        or profile.inventory != InventoryDemands()
        or profile.stability != Stability()
    )
    if not demands:
        problems.add(
            "no-demand",
            "it demands nothing, so it could never fail",
            "add a [[check]], or demands in [inventory] or [stability]",
            table="profile",
        )
    needed = profile.requires_gpucheck
    if needed and version_key(needed) > version_key(__version__):
        problems.add(
            "newer-gpucheck",
            f"it needs gpucheck {needed}; this is {__version__}",
            "use a newer gpucheck",
            table="profile",
            key="requires_gpucheck",
        )


def version_key(text: str) -> tuple[int, ...]:
    """Return a version's numbers for comparing; what is not a number counts as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in text.split("."))


# ---------------------------------------------------------------------------------- machines


def _match(match: Match, problems: Problems) -> None:
    known = {one for entry in load_table().boards for one in entry.pci_device_ids}
    if match.target is Target.CPU:
        for key in ("pci_device_ids", "names", "count", "mig", "min_driver"):
            if getattr(match, key) not in (None, ()):
                problems.add(
                    "gpu-key-for-cpu",
                    f"{key} is about GPUs, but this profile is for the processor",
                    f'remove {key}, or write device = "gpu"',
                    table="match",
                    key=key,
                )
        return
    for one in match.pci_device_ids:
        if one not in known and len(one) == 4:
            problems.add(
                "unknown-board",
                f"no known board has the PCI device id {one}",
                "check it with gpucheck list --json, or keep it: shares of a peak will not apply",
                table="match",
                key="pci_device_ids",
                severity=Severity.WARN,
            )
    _names(match, known, problems)


def _names(match: Match, known: set[str], problems: Problems) -> None:
    """Note names and ids that can never hold for one board together."""
    if not match.names:
        return
    boards = load_table().boards
    named = [entry for entry in boards if any(fits_name(one, match.names) for one in entry.names)]
    ids = set(match.pci_device_ids)
    if ids and ids <= known and not matching_boards(match):
        owners = ", ".join(entry.name for entry in boards if ids & set(entry.pci_device_ids))
        problems.add(
            "matches-nothing",
            f"no board can match: the ids belong to {owners}, which the names do not match",
            f'write names as NVML reports them, such as "{_first_name(ids)}"',
            table="match",
            key="names",
        )
    elif not ids and not named:
        every = [name for entry in boards for name in entry.names]
        problems.add(
            "unknown-board",
            "the names match no known board",
            f"{nearest(match.names[0].strip('*'), every)[:200]}",
            table="match",
            key="names",
            severity=Severity.WARN,
        )


def _first_name(ids: set[str]) -> str:
    boards = load_table().boards
    return next(entry.names[0] for entry in boards if ids & set(entry.pci_device_ids))


def _inventory(profile: Profile, problems: Problems) -> None:
    demands = profile.inventory
    if profile.match.target is Target.CPU:
        if demands != InventoryDemands():
            problems.add(
                "gpu-key-for-cpu",
                "[inventory] is about GPUs, but this profile is for the processor",
                'remove it, or write device = "gpu" in [match]',
                table="inventory",
            )
        return
    if demands.pcie_width is not None and demands.pcie_width not in _WIDTHS:
        problems.add(
            "bad-width",
            f"a PCIe link cannot have {demands.pcie_width} lanes",
            f"write one of {', '.join(map(str, _WIDTHS))}",
            table="inventory",
            key="pcie_width",
        )
    # Only for particular boards: one of many may have less of everything.
    boards = matching_boards(profile.match)
    if (profile.match.pci_device_ids or profile.match.names) and boards:
        _against_boards(demands, boards, problems)


def _against_boards(
    demands: InventoryDemands, boards: tuple[Entry, ...], problems: Problems
) -> None:
    """Note demands that no matching board meets, or that none can fail."""
    names = ", ".join(entry.name for entry in boards)
    most_gib = max(_memory_gib(entry) for entry in boards) * _MEMORY_SLACK
    least_gib = min(_memory_gib(entry, least=True) for entry in boards)
    bounds = (
        ("memory_total_gib", demands.memory_total_gib, LEAST_SHARE * least_gib, most_gib, "GiB"),
        (
            "power_limit_w",
            demands.power_limit_w,
            LEAST_SHARE * min(entry.power_w for entry in boards),
            1.0 * max(entry.power_w for entry in boards),
            "W",
        ),
    )
    for key, value, low, high, unit in bounds:
        if value is not None and value > high:
            _impossible(key, f"{names} has at most {high:.0f} {unit}", problems)
        elif value is not None and value < low:
            _toothless(key, f"{value:g} {unit} is under 30 % of what {names} has", problems)
    generation = demands.pcie_generation
    best = max(entry.pcie_generation for entry in boards)
    least = min(entry.pcie_generation for entry in boards)
    if generation is not None and generation > best:
        _impossible("pcie_generation", f"{names} has at most PCIe generation {best}", problems)
    elif generation is not None and generation < least:
        _toothless(
            "pcie_generation",
            f"generation {generation} is below the board's: {names} has {least}",
            problems,
        )


def _impossible(key: str, fact: str, problems: Problems) -> None:
    mend = "write no more than that, or remove it"
    problems.add("cannot-be-met", fact, mend, table="inventory", key=key)


def _toothless(key: str, fact: str, problems: Problems) -> None:
    message = f"{fact}: a broken board would pass"
    mend = "write what a good board has"
    problems.add("cannot-fail", message, mend, table="inventory", key=key)


def _memory_gib(entry: Entry, *, least: bool = False) -> float:
    """Return a board's memory by its name's number; some boards come with two sizes."""
    sizes = [float(part) for part in entry.memory_gb.split("/")]
    return min(sizes) if least else max(sizes)


# ---------------------------------------------------------------------------------- the run


def _run(profile: Profile, problems: Problems) -> None:
    run, on_cpu = profile.run, profile.match.target is Target.CPU

    def add(key: str, code: str, message: str, mend: str) -> None:
        problems.add(code, message, mend, table="run", key=key)

    if run.processes < FEWEST_PROCESSES:
        add(
            "processes",
            "too-few-processes",
            f"{run.processes} processes are too few to show the noise between processes",
            f"write at least {FEWEST_PROCESSES}, preferably 5",
        )
    if run.max_processes < run.processes:
        message = f"max_processes = {run.max_processes} is less than processes = {run.processes}"
        add("max_processes", "contradiction", message, "write a larger number, or remove it")
    if run.fill is Fill.ZEROS:
        message = "zeros draw less power than real numbers and run up to 13 % faster"
        add("data", "flattering-data", message, 'write data = "normal"')
    if not run.alone and not run.together:
        message = "alone and together are both false, so nothing would be measured"
        add("alone", "contradiction", message, "set one of them to true")
    if run.together and (on_cpu or profile.match.count == 1):
        message = "together needs several GPUs, but this profile is for one device"
        add("together", "contradiction", message, "remove it")
    if profile.stability.corruption is not None and not run.corruption_s:
        message = "[stability] corruption is demanded, but [run] gives it no time"
        add("corruption_seconds", "never-measured", message, "write corruption_seconds = 5")


def _stability(profile: Profile, problems: Problems) -> None:
    demands = profile.stability
    known = [name for name in REASONS.values() if name != "idle"]
    for name in demands.throttle_s:
        if name not in known:
            problems.add(
                "unknown-reason",
                f"the driver has no throttle reason {name!a}",
                nearest(name, known),
                table="stability.throttle_s",
                key=name,
            )
    if profile.match.target is Target.CPU and demands != Stability():
        # Only the demand on NaN in results applies to a processor too.
        plain = Stability(not_finite=demands.not_finite)
        if demands != plain:
            problems.add(
                "gpu-key-for-cpu",
                "[stability] needs GPU sensors, but this profile is for the processor",
                "remove everything but not_finite",
                table="stability",
            )
    for key in ("spread_percent", "straggler_percent"):
        if getattr(demands, key) is not None and profile.match.count == 1:
            problems.add(
                "cannot-fail",
                f"{key} compares GPUs, but this profile is for one",
                "remove it, or match more GPUs",
                table="stability",
                key=key,
            )
