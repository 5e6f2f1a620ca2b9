"""Lint of a profile: names, units, and demands that cannot fail or cannot be met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gpucheck import __version__
from gpucheck.bench.boards import TableBoard, load_table
from gpucheck.bench.ci.decision import FEWEST_PROCESSES
from gpucheck.bench.ci.limits import (
    OTHER,
    UNITS,
    base_unit,
    direction_of,
    fits_name,
    has_peak,
    known_boards,
    known_units,
    limit_on,
    matching_boards,
    number,
    scale_of,
    version_key,
)
from gpucheck.bench.ci.profile_file import Problems, parse_profile, read_profile
from gpucheck.bench.ci.profile_model import (
    Aggregate,
    Check,
    InventoryDemands,
    Limit,
    Match,
    Metric,
    Phase,
    Problem,
    Profile,
    Stability,
    Statistic,
    Target,
)
from gpucheck.bench.frameworks import CPU_ONLY, DTYPES, FORMS, GPU_ONLY, dtypes_of
from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.model import Scope, Severity
from gpucheck.bench.numerics import FORMATS
from gpucheck.bench.request_model import BenchMode, Fill
from gpucheck.bench.telemetry import REASONS
from gpucheck.drivers.gpu import Board
from gpucheck.drivers.host.toml_file import nearest

#: A demand below this share of what the board has cannot fail.
LEAST_SHARE = 0.3
#: What a card calls its memory is rounded, in units of a thousand or of 1024.
_MEMORY_SLACK = 1.08
_WIDTHS = (1, 2, 4, 8, 16)
#: Limits outside these percentages of the peak cannot fail, or cannot be reached.
LEAST_PERCENT, MOST_PERCENT = 20.0, 100.0
#: A wider tolerance lets half the speed pass.
MOST_TOLERANCE_PERCENT = 50.0


class Findings(NamedTuple):
    """Profile, None if it cannot be used, and everything that is wrong with it, by line."""

    profile: Profile | None
    problems: tuple[Problem, ...]


def lint(path: Path) -> Findings:
    """Read a profile and check all of it.

    Raises:
        WrongUseError: the file cannot be read, or is not TOML.
    """
    return _lint(*read_profile(path))


def lint_text(text: str, path: str) -> Findings:
    """Check a profile's text; `path` stands in the messages.

    Raises:
        WrongUseError: it is not TOML.
    """
    return _lint(*parse_profile(text, path))


def _lint(profile: Profile, problems: Problems) -> Findings:
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
        owners = [entry for entry in boards if ids & set(entry.pci_device_ids)]
        belongs = ", ".join(entry.name for entry in owners)
        problems.add(
            "matches-nothing",
            f"no board can match: the ids belong to {belongs}, which the names do not match",
            f'write names as NVML reports them, such as "{owners[0].names[0]}"',
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
    demands: InventoryDemands, boards: tuple[TableBoard, ...], problems: Problems
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


def _memory_gib(entry: TableBoard, *, least: bool = False) -> float:
    """Return a board's memory by its name's number; some boards come with two sizes."""
    sizes = [float(part) for part in entry.memory_gb.split("/")]
    return min(sizes) if least else max(sizes)


def _run(profile: Profile, problems: Problems) -> None:
    run, on_cpu = profile.run, profile.match.target is Target.CPU

    def add(key: str, code: str, message: str, mend: str) -> None:
        problems.add(code, message, mend, table="run", key=key)

    if run.processes < FEWEST_PROCESSES:
        add(
            "processes",
            "too-few-processes",
            f"processes = {run.processes} is too few to show the noise between processes",
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
    if run.same_math and not profile.frameworks:
        message = "same_math = true has no effect: no check names a framework"
        add("same_math", "contradiction", message, "remove it")
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


def lint_checks(profile: Profile, problems: Problems) -> None:
    """Note what is wrong with each check."""
    seen: dict[str, int | None] = {}
    for at, check in enumerate(profile.checks):
        _Check(check, profile, f"check[{at}]", problems).lint()
        if check.id and check.id in seen:
            problems.add(
                "twice",
                f"the id {check.id} is already used in line {seen[check.id]}",
                "give each check its own id",
                table=f"check[{at}]",
                key="id",
            )
        seen.setdefault(check.id, check.line)


class _Check:
    """One check on its way."""

    def __init__(self, check: Check, profile: Profile, table: str, problems: Problems) -> None:
        self._check = check
        self._profile = profile
        self._table = table
        self._problems = problems

    def lint(self) -> None:
        """Note everything that is wrong; units and peaks only for a known kernel."""
        self._expectation()
        self._tolerance()
        self._requirements()
        self._figure()
        if self._kernel_and_dtype():
            self._made_by()
            self._unit()
            self._peak()

    def _add(
        self, key: str, code: str, message: str, mend: str, severity: Severity = Severity.ERROR
    ) -> None:
        self._problems.add(code, message, mend, table=self._table, key=key, severity=severity)

    def _expectation(self) -> None:
        check = self._check
        found = check.expectation
        ways = {
            "value": found.value is not None,
            "percent_of_peak": found.percent_of_peak is not None or bool(found.percent_by_board),
            "baseline": found.baseline,
        }
        named = [name for name, is_given in ways.items() if is_given]
        if not named:
            mend = "write one of value, percent_of_peak, baseline = true"
            self._add("id", "no-expectation", "the check expects nothing", mend)
        if len(named) > 1:
            message = f"{' and '.join(named)} are {len(named)} expectations; a check has one"
            self._add(named[-1], "two-expectations", message, "keep one of them")
        if found.value == 0:
            mend = "write what a good device reaches"
            self._add("value", "cannot-fail", "every device reaches 0", mend)
        if named and not found.baseline:
            where = 'write where it comes from: source = "..."'
            if check.source is None:
                self._add("source", "no-source", "the number has no source", where)
            if check.date is None and not self._problems_at("date"):
                mend = 'write the day: date = "2026-11-21"'
                self._add("date", "no-date", "the number has no date", mend)

    def _problems_at(self, key: str) -> bool:
        return any(one.where == f"{self._table}.{key}" for one in self._problems.found)

    def _tolerance(self) -> None:
        tolerance, warn = self._check.tolerance_percent, self._check.warn_percent
        written = self._problems.source.lines.get((self._table, "tolerance_percent"))
        if written is not None and tolerance == 0 and not self._problems_at("tolerance_percent"):
            message = "a tolerance of 0 % fails half of the good devices"
            self._add("tolerance_percent", "no-tolerance", message, "write at least 1, usually 5")
        elif tolerance >= MOST_TOLERANCE_PERCENT:
            message = f"a tolerance of {tolerance:g} % lets half the speed pass"
            self._add(
                "tolerance_percent", "cannot-fail", message, "write a smaller number, usually 5"
            )
        unknown = self._problems_at("tolerance_percent")
        if warn is not None and warn >= tolerance and not unknown:
            message = f"warn_percent = {warn:g} is not below tolerance_percent = {tolerance:g}"
            self._add("warn_percent", "contradiction", message, "write a smaller number")

    def _requirements(self) -> None:
        """Check what a check needs from the machine and the run."""
        check, profile = self._check, self._profile
        if check.target is not profile.match.target:
            message = (
                f"it is about the {check.target}, but [match] is for the {profile.match.target}"
            )
            mend = f'write device = "{profile.match.target}", or change it in [match]'
            self._add("device", "other-device", message, mend)
        if check.together and not profile.run.together:
            message = "GPUs are not measured together in this profile"
            mend = "write together = true in [run], or remove it here"
            self._add("together", "never-measured", message, mend)
        if not check.together and not profile.run.alone:
            message = "GPUs are not measured alone in this profile"
            mend = "write together = true, or alone = true in [run]"
            self._add("together", "never-measured", message, mend)
        if check.per is Aggregate.NODE and check.target is Target.CPU:
            self._add("per", "contradiction", "a node has one processor", "remove it")

    def _figure(self) -> None:
        """Check metric, direction, statistic and phase against each other."""
        check = self._check
        if check.metric is Metric.FACT and check.fact is None:
            mend = 'name it: fact = "accuracy"'
            self._add("metric", "no-fact", "a fact needs a name", mend)
        if check.metric is not Metric.FACT and check.fact is not None:
            message = f"fact = {check.fact!a} has no effect: the metric is {check.metric}"
            self._add("fact", "contradiction", message, 'write metric = "fact", or remove it')
        if check.metric is not Metric.FACT and check.direction is not direction_of(check.metric):
            message = f"for {check.metric}, {direction_of(check.metric)} is better"
            self._add("direction", "contradiction", message, "remove it")
        plain = check.statistic is Statistic.MEDIAN and check.phase is Phase.WHOLE
        if check.expectation.baseline and not (plain and check.metric is not Metric.FACT):
            message = "a baseline holds only the medians of whole runs"
            key = "phase" if check.phase is not Phase.WHOLE else "statistic"
            mend = 'write statistic = "median" and phase = "whole"'
            self._add(key, "not-in-baseline", message, mend)

    def _kernel_and_dtype(self) -> bool:
        """Check that the kernel exists and can be measured like this."""
        check = self._check
        kernel = KERNELS.get(check.kernel)
        if kernel is None:
            if check.kernel:
                message = f"there is no kernel {check.kernel!a}"
                self._add("kernel", "unknown-kernel", message, nearest(check.kernel, KERNELS))
            return False
        known = kernel.dtypes[BenchMode.FULL]
        if check.dtype not in FORMATS:
            message = f"there is no format {check.dtype!a}"
            self._add("dtype", "unknown-dtype", message, nearest(check.dtype, known))
            return False
        if check.dtype not in known:
            message = f"{check.kernel} is not measured in {check.dtype}"
            self._add("dtype", "unknown-dtype", message, f"Choose from: {', '.join(known)}")
            return False
        refusal = kernel.cpu_refusal(check.dtype) if kernel.gpus_needed == 0 else "it needs a GPU"
        if check.target is Target.CPU and refusal is not None:
            message = f"{check.kernel} is not measured on the processor: {refusal}"
            self._add("kernel", "never-measured", message, "choose another kernel or dtype")
            return False
        count = self._profile.match.count
        if count is not None and check.target is Target.GPU and kernel.gpus_needed > count:
            message = f"{check.kernel} needs {kernel.gpus_needed} GPUs, but [match] has {count}"
            self._add("kernel", "never-measured", message, "choose another kernel")
            return False
        return True

    def _made_by(self) -> None:
        """Check that the framework exists, and runs this kernel in this form on this device."""
        check = self._check
        name, form, forms = check.framework, check.form, FORMS.get(check.framework or "")
        if name is None:
            if form is not None:
                message = f"form = {form!a} has no effect: no framework is named"
                self._add("form", "contradiction", message, 'write framework = "...", or remove it')
            return
        if forms is None:
            message = f"bench cannot run a framework called {name!a}"
            self._add("framework", "unknown-framework", message, nearest(name, FORMS))
            return
        kind, only = ("processor", GPU_ONLY) if check.target is Target.CPU else ("GPU", CPU_ONLY)
        if name in only:
            message = f"{name} is not measured on the {kind}"
            self._add("framework", "never-measured", message, "choose another framework or device")
        if check.dtype not in dtypes_of(name, check.kernel):
            message = f"{name} does not run {check.kernel} in {check.dtype}"
            known = ", ".join(DTYPES)
            self._add(
                "kernel", "never-measured", message, f"choose another dtype, or one of {known}"
            )
        if form is not None and form not in forms:
            message = f"{name} has no form {form!a}"
            self._add("form", "unknown-form", message, nearest(form, forms))
        elif form not in (None, forms[0]) and self._profile.run.mode is BenchMode.QUICK:
            message = f"the quick mode measures {forms[0]} alone"
            self._add("form", "never-measured", message, 'write mode = "default" in [run]')

    def _unit(self) -> None:
        check = self._check
        known = known_units(check.metric, check.kernel, check.dtype)
        if check.expectation.value is not None and not check.unit:
            mend = 'write unit = "..."'
            self._add("value", "no-unit", f"{check.expectation.value:g} has no unit", mend)
        if known and check.unit not in known:
            counted = base_unit(check.metric, check.kernel, check.dtype)
            message = (
                f"{check.kernel} is measured in {counted}, and {check.unit!a} is not a unit of that"
            )
            self._add("unit", "wrong-unit", message, nearest(check.unit, known))
        elif check.expectation.value is not None and known:
            written = self._problems.source.lines.get((self._table, "unit"))
            if written is None:
                mend = f'write unit = "{known[-1]}", or another'
                self._add("value", "no-unit", f"{check.expectation.value:g} has no unit", mend)

    def _peak(self) -> None:
        check = self._check
        shares = check.expectation.percent_by_board
        of_peak = check.expectation.percent_of_peak is not None or bool(shares)
        if of_peak and (check.target is Target.CPU or not has_peak(check)):
            reason = _why_no_peak(check)
            message = f"there is no peak to take a share of: {reason}"
            self._add("percent_of_peak", "no-peak", message, "write a value, or baseline = true")
            return
        if check.target is Target.CPU or self._problems_at("unit"):
            return
        self._boards_named(shares)
        self._dtype_there()
        self._limits()

    def _boards_named(self, shares: dict[str, float]) -> None:
        """Check the boards of a table of shares against the table and the match."""
        known = [entry.name for entry in load_table().boards]
        matching = {entry.name for entry in matching_boards(self._profile.match)}
        for name in shares:
            if name == OTHER:
                continue
            if name not in known:
                message = f"there is no known board {name!a}"
                self._add("percent_of_peak", "unknown-board", message, nearest(name, known))
            elif name not in matching:
                message = f"[match] never matches {name}"
                mend = "remove it, or let [match] include it"
                self._add("percent_of_peak", "matches-nothing", message, mend)
        missing = sorted(matching - set(shares)) if shares and OTHER not in shares else []
        if missing and _is_specific(self._profile.match):
            message = f"{', '.join(missing)}: no share is given, so the check is skipped"
            mend = f"add them, or {OTHER} = ..."
            self._add("percent_of_peak", "skipped-board", message, mend, Severity.WARN)

    def _dtype_there(self) -> None:
        """Check that a board which the profile is for has the format at all."""
        check = self._check
        boards = known_boards(self._profile.match)
        counted = base_unit(check.metric, check.kernel, check.dtype)
        if counted != "FLOP/s" or not boards:
            return
        if not any(check.dtype in board.flops_per_s for board in boards):
            names = ", ".join(board.name for board in boards)
            message = f"{names} has no {check.dtype}: the check could never apply"
            self._add("dtype", "matches-nothing", message, "choose another dtype")

    def _limits(self) -> None:
        """Check the limit on every board that the profile is for."""
        check, match = self._check, self._profile.match
        if check.expectation.value is not None and has_peak(check) and not _is_specific(match):
            message = "one value cannot fit every board"
            mend = "name the board in [match] pci_device_ids, or write percent_of_peak"
            self._add("value", "value-for-any-board", message, mend)
            return
        for limit in _limits(check, known_boards(match)):
            percent = limit.percent_of_peak or 0.0
            at = f"{percent:.3g} % of the peak of {limit.board}"
            key = "value" if check.expectation.value is not None else "percent_of_peak"
            if percent < LEAST_PERCENT:
                message = f"the limit of {number(limit.limit or 0)} {limit.unit} is {at}"
                mend = _right_unit(check, limit) or "write what a good board reaches"
                self._add(key, "floor-too-low", f"{message}: a broken board would pass", mend)
                return
            if percent > MOST_PERCENT:
                message = f"the limit of {number(limit.limit or 0)} {limit.unit} is {at}"
                mend = _right_unit(check, limit) or "write what a good board reaches"
                self._add(key, "floor-too-high", f"{message}: no board reaches it", mend)
                return


def _limits(check: Check, boards: Sequence[Board]) -> Iterator[Limit]:
    for board in boards:
        limit = limit_on(check, board)
        if limit is not None and limit.percent_of_peak is not None:
            yield limit


def _is_specific(match: Match) -> bool:
    """Return whether a profile is for boards that it names."""
    return bool(match.pci_device_ids or match.names)


def _why_no_peak(check: Check) -> str:
    if check.target is Target.CPU:
        return "processors have no published peak"
    if check.metric is not Metric.THROUGHPUT:
        return f"the metric is {check.metric}"
    if check.scope is Scope.END_TO_END:
        return "transfers determine its speed"
    return f"{check.kernel} is not limited by arithmetic or memory"


def _right_unit(check: Check, limit: Limit) -> str | None:
    """Return the unit in which the number would make sense, None if there is none."""
    value, peak = check.expectation.value, limit.peak
    if value is None or peak is None:
        return None
    counted = base_unit(check.metric, check.kernel, check.dtype)
    for unit in UNITS.get(counted or "", {}):
        percent = 100 * value * scale_of(unit) / (peak * scale_of(check.unit))
        if unit != check.unit and LEAST_PERCENT <= percent <= MOST_PERCENT:
            return f'Did you mean unit = "{unit}"?'
    return None
