"""Lint of a profile: unknown names, and keys that would give a gate another meaning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpucheck.bench.boards import load_table
from gpucheck.bench.ci.limits import (
    OTHER,
    base_unit,
    direction_of,
    has_peak,
    known_units,
    version_key,
)
from gpucheck.bench.ci.profile_model import (
    Check,
    InventoryDemands,
    Metric,
    Phase,
    Problem,
    Profile,
    Stability,
    Statistic,
    Target,
)
from gpucheck.bench.frameworks import FORMS
from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.model import Scope
from gpucheck.bench.numerics import FORMATS
from gpucheck.bench.request_model import BenchMode
from gpucheck.drivers.host.toml_file import Source, nearest
from gpucheck.inventory.condition import CLOCK_REASONS
from gpucheck.version import __version__

#: Notes a problem of one table: its key, code, message and fix.
_Note = Callable[[str, str, str, str], None]


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


def lint(profile: Profile, problems: Problems) -> tuple[Problem, ...]:
    """Return everything that is wrong with a profile, by line; `problems` are of its reading."""
    _lint_version(profile, _note(problems, "profile"))
    if profile.match.target is Target.CPU:
        _lint_cpu_profile(profile, problems)
    _lint_run(profile, _note(problems, "run"))
    _lint_stragglers(profile, problems)
    _lint_throttling(profile, _note(problems, "stability.throttle_s"))
    _lint_checks(profile, problems)
    return tuple(sorted(problems.found, key=lambda one: (one.line or 0, one.where)))


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
            message = f"the driver has no throttle reason {name!a}"
            note(name, "unknown-reason", message, nearest(name, known))


def _lint_checks(profile: Profile, problems: Problems) -> None:
    seen: dict[str, int | None] = {}
    for at, check in enumerate(profile.checks):
        table = f"check[{at}]"
        note = _note(problems, table)
        _lint_expectation(check, note)
        _lint_measured_rows(check, profile, note)
        _lint_figure(check, note)
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


def _lint_figure(check: Check, note: _Note) -> None:
    """Check metric, direction, statistic and phase against each other."""
    if check.metric is Metric.FACT and check.fact is None:
        note("metric", "no-fact", "a fact needs a name", 'name it: fact = "accuracy"')
    if check.metric is not Metric.FACT and check.fact is not None:
        message = f"fact = {check.fact!a} has no effect: the metric is {check.metric}"
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
            message = f"there is no kernel {check.kernel!a}"
            note("kernel", "unknown-kernel", message, nearest(check.kernel, KERNELS))
        return False
    known = kernel.dtypes[BenchMode.FULL]
    unknown = partial(note, "dtype", "unknown-dtype")
    if check.dtype not in FORMATS:
        unknown(f"there is no format {check.dtype!a}", nearest(check.dtype, known))
    elif check.dtype not in known:
        message = f"{check.kernel} is not measured in {check.dtype}"
        unknown(message, f"Choose from: {', '.join(known)}")
    return check.dtype in known


def _lint_framework(check: Check, note: _Note) -> None:
    name, form = check.framework, check.form
    if name is None:
        if form is not None:
            message = f"form = {form!a} has no effect: no framework is named"
            note("form", "contradiction", message, 'write framework = "...", or remove it')
        return
    forms = FORMS.get(name)
    if forms is None:
        message = f"bench cannot run a framework called {name!a}"
        note("framework", "unknown-framework", message, nearest(name, FORMS))
    elif form is not None and form not in forms:
        note("form", "unknown-form", f"{name} has no form {form!a}", nearest(form, forms))


def _lint_unit(check: Check, note: _Note, *, is_written: bool) -> None:
    known = known_units(check.metric, check.kernel, check.dtype)
    if check.value is not None and not (check.unit and is_written):
        mend = f'write unit = "{known[-1]}", or another' if known else 'write unit = "..."'
        note("value", "no-unit", f"{check.value:g} has no unit", mend)
    elif known and check.unit not in known:
        counted = base_unit(check.metric, check.kernel, check.dtype)
        message = (
            f"{check.kernel} is measured in {counted}, and {check.unit!a} is not a unit of that"
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
    known = [board.name for board in load_table().boards]
    for name in shares:
        if name not in (*known, OTHER):
            message = f"there is no known board {name!a}"
            note("percent_of_peak", "unknown-board", message, nearest(name, known))


def _why_no_peak(check: Check) -> str:
    if check.target is Target.CPU:
        return "processors have no published peak"
    if check.metric is not Metric.THROUGHPUT:
        return f"the metric is {check.metric}"
    if check.scope is Scope.END_TO_END:
        return "transfers determine its speed"
    return f"{check.kernel} is not limited by arithmetic or memory"
