"""Do the checks pass that packages bring for `rapids doctor`?"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gpucheck.detect.findings import make_finding
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.drivers.evidence import PackageCheckReading, PackageCheckResult
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

ID = "rapids-doctor"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

_finding = partial(make_finding, ID, LAYER)

#: Our own check there runs the checks here.
OURS = "gpucheck."
ABOUT = About(
    looks_at=(
        "the entry points of the group rapids_doctor_check in the checked Python, by their files",
        "with --deep: what each of these checks raises or warns of, in a child process",
    ),
    why="cuDF, cuML and others know best what they need: their own checks tell what a look at files"
    " cannot. They are code of others, so only --deep runs them.",
    rules=(
        "warn: a check raised an error, or warned of something",
        "unknown: a check did not end, or ended its process",
    ),
    sources=("rapids-cli's documentation, Plugin Development",),
    causes=("package-check-failed", "package-check-warned", "check-without-result"),
)


def check(machine: Machine) -> Finding:
    """Name the checks, and with --deep run them."""
    builds = machine.builds
    if builds.builds is None or builds.package_checks is None:
        why = builds.unavailable or "they were not looked for"
        return _finding(CheckStatus.SKIP, f"not checked: {why}")
    others = [each for each in builds.package_checks if not each.value.startswith(OURS)]
    if not others:
        return _finding(CheckStatus.SKIP, "no package brings checks of its own")
    named = tuple(Evidence(f"{each.package}: {each.name}", each.value) for each in others)
    if not machine.request.deep or machine.is_hung:
        why = "the driver does not answer" if machine.is_hung else "--deep runs them"
        summary = f"not run: {count_of(len(others), 'check')} of {_packages(others)} ({why})"
        return _finding(CheckStatus.SKIP, summary, *named)
    results = {result.value: result for result in machine.run_package_checks(others)}
    return _judge(others, results)


def _judge(checks: list[PackageCheckReading], results: dict[str, PackageCheckResult]) -> Finding:
    answered = [(each, results[each.value]) for each in checks]
    evidence = tuple(
        Evidence(f"{each.package}: {each.name}", text)
        for each, result in answered
        for text in _texts(result) or ("ok",)
    )
    failed = [(each, result.error) for each, result in answered if result.error]
    warned = [(each, result.warnings[0]) for each, result in answered if result.warnings]
    without = [(each, result.failure.message) for each, result in answered if result.failure]
    for found, status, cause in (
        (failed, CheckStatus.WARN, "package-check-failed"),
        (warned, CheckStatus.WARN, "package-check-warned"),
        (without, CheckStatus.UNKNOWN, "check-without-result"),
    ):
        if found:
            each, text = found[0]
            more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
            summary = f"{each.package}'s check {each.name}: {text.removesuffix('.')}{more}"
            remedy = ("See all of them: rapids doctor --verbose",)
            return _finding(status, summary, *evidence, remedy=remedy, cause=cause)
    passed = f"{count_of(len(checks), 'check')} of {_packages(checks)} passed"
    return _finding(CheckStatus.OK, passed, *evidence)


def _texts(result: PackageCheckResult) -> tuple[str, ...]:
    failure = (result.failure.message,) if result.failure else ()
    return (*([result.error] if result.error else ()), *result.warnings, *failure)


def _packages(checks: Iterable[PackageCheckReading]) -> str:
    return ", ".join(dict.fromkeys(each.package for each in checks))
