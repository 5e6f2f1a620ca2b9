"""Common part of the framework checks: from files and smoke tests to one finding each.

A problem with a build never decides whether the GPU is usable: it is a warning, and a failure only
if --framework names this framework.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from gpucheck.data import read_table
from gpucheck.detect.cuda_versions import (
    has_only_ptx,
    holds_code_for,
    newer_driver_for,
    too_new_for,
    too_old_for,
)
from gpucheck.detect.findings import make_finding, make_trouble
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Framework, Layer
from gpucheck.drivers.evidence import BuildReading, BuildsReading, TrialReading
from gpucheck.inventory.condition import Trouble
from gpucheck.report.envelope import CheckStatus, Evidence, Failure
from gpucheck.report.text import count_of

#: The most broken files to name; the others are counted.
MOST_NAMED = 3


class FrameworkCheck:
    """Check of one framework."""

    LAYER = Layer.FRAMEWORK
    REQUIRES: tuple[str, ...] = ()

    def __init__(self, name: str, title: str) -> None:
        self.__doc__ = f"Can {title}, as it is installed, use the GPUs?"
        self.ID = name
        self.title = title
        self.make_finding = partial(make_finding, name, self.LAYER)

    def check(self, machine: Machine) -> Finding:
        """Judge the build by its files, and by its smoke test if there was one."""
        finding = _judge(machine, self)
        builds = machine.builds
        by = named_by(builds)
        looked_at = (
            (Evidence("checked in", ", ".join(filter(None, (builds.python, by)))),)
            if builds.python is not None and machine.build(self.ID) is not None
            else ()
        )
        return finding._replace(
            evidence=tuple(dict.fromkeys((*finding.evidence, *looked_at))),
            remedy=tuple(_in_that_python(builds, step) for step in finding.remedy),
        )

    def install_gpu_build(self, machine: Machine, build: BuildReading | None) -> tuple[str, ...]:
        """Return how to install a build for GPUs, in place of the present one."""
        from gpucheck.detect.wheels import choose_for  # only where something is wrong

        guide = read_table("wheels")["guide"][self.ID]
        choice = choose_for(machine, self.ID, self.title)
        if isinstance(choice, Failure):
            why = choice.message.rstrip(".")
            return (guide["unchosen"].format(why=f"{why[0].lower()}{why[1:]}"),)
        if choice.build is None:
            return choice.remedy
        notes = [left.reason for left in choice.left_out]
        if choice.driver_needed:
            notes.append(f"it needs {choice.driver_needed}")
        note = f" ({'; '.join(notes)})" if notes else ""
        remove = without(guide.get("removes", build.distributions) if build else ())
        return (f"{guide['chosen']}{note}: {remove}{choice.commands['pip']}",)


def named_by(builds: BuildsReading) -> str:
    """Return what selected the Python, empty if unknown."""
    if builds.named_by is None:
        return ""
    return "gpucheck's own" if builds.named_by == "gpucheck" else f"by {builds.named_by}"


def _in_that_python(builds: BuildsReading, step: str) -> str:
    """Return a step with the pip of the checked Python, if the shell's may be another."""
    if builds.python is None or builds.named_by not in ("--python", "gpucheck"):
        return step
    own = f"{shlex.quote(builds.python)} -m pip "
    return re.sub(r"\bpip (?=install|uninstall)", lambda _: own, step)


def _judge(machine: Machine, check: FrameworkCheck) -> Finding:
    """Judge one framework; its smoke test counts for more than its files."""
    name = check.ID
    builds = machine.builds
    if builds.builds is None:
        why = builds.unavailable or "the interpreter gave no answer"
        requested = machine.request.framework == name or machine.request.python is not None
        status = CheckStatus.UNKNOWN if requested else CheckStatus.SKIP
        return check.make_finding(
            status,
            f"not checked: {why}",
            cause="interpreter-silent" if requested else None,
        )
    build = machine.build(name)
    if build is None:
        return _not_installed(machine, check)
    shown = _title(check, build)
    test = machine.smoke_tests.get(name)
    if test is not None and test.computed:
        return check.make_finding(
            CheckStatus.OK,
            f"{shown} sees {count_of(len(test.devices))} and computes on it",
            *_test_evidence(test),
        )
    problems = list(_problems(machine, build, test, check))
    if test is not None:
        return _failed_test(machine, check, shown, test, problems)
    if problems:
        return _unusable(machine, check, shown, problems)
    return _not_tried(machine, check, shown, build)


def _title(check: FrameworkCheck, build: BuildReading) -> str:
    """Return its name and version, and those of a package that decides its GPU support."""
    target = next((name for name in build.distributions if name.startswith("numba-cuda ")), None)
    beside = f" with {target}" if target else ""
    return f"{check.title} {build.version or '?'}{beside}"


def _not_tried(machine: Machine, check: FrameworkCheck, shown: str, build: BuildReading) -> Finding:
    """Return what the files show; whether it works stays open."""
    untried = check.ID in machine.tried
    why = "not tried: the driver does not answer" if untried else "--deep tries it"
    if build.gpu_build is None:
        summary = f"whether {shown} is a GPU build is unknown ({why})"
        return check.make_finding(
            CheckStatus.UNKNOWN,
            summary,
            *_files(build),
            cause="build-not-known",
        )
    cuda = f" for CUDA {build.cuda_build}" if build.cuda_build else ""
    if build.unchecked is not None:
        summary = f"{shown} is a GPU build{cuda}; its libraries were not checked"
        evidence = (Evidence("libraries", build.unchecked), *_files(build))
        return check.make_finding(
            CheckStatus.UNKNOWN,
            f"{summary} ({why})",
            *evidence,
            cause="build-not-known",
        )
    remarks = "".join(f"; {remark}" for remark in build.remarks)
    return check.make_finding(
        CheckStatus.UNKNOWN if untried else CheckStatus.OK,
        f"{shown} is a GPU build{cuda}{_compiled_later(machine, build)}{remarks} ({why})",
        *_files(build),
        cause="not-tried" if untried else None,
    )


def _compiled_later(machine: Machine, build: BuildReading) -> str:
    """Note the GPUs for which the driver compiles every kernel at its first use."""
    capabilities = {gpu.compute_capability for gpu in machine.nvml.gpus if gpu.compute_capability}
    late = sorted(each for each in capabilities if has_only_ptx(build.architectures, each))
    if not late:
        return ""
    return (
        f", without native code for compute capability {late[0]}: its kernels are compiled at their"
        " first use, which can take half an hour"
    )


def _not_installed(machine: Machine, check: FrameworkCheck) -> Finding:
    where = machine.builds.python or "this Python"
    by = named_by(machine.builds)
    if machine.request.framework != check.ID:
        return check.make_finding(CheckStatus.SKIP, f"{check.title} is not installed")
    return check.make_finding(
        CheckStatus.FAIL,
        f"{check.title} is not installed in {where}{f' ({by})' if by else ''}",
        Evidence(where, "no such package"),
        remedy=(
            "Select the Python that has it: --python PATH",
            *check.install_gpu_build(machine, None),
        ),
        cause="not-installed",
    )


def _files(build: BuildReading) -> tuple[Evidence, ...]:
    if not build.distributions:
        return ()
    return (Evidence("installed", ", ".join(build.distributions)),)


def _test_evidence(test: TrialReading) -> tuple[Evidence, ...]:
    found = []
    if test.devices:
        found.append(Evidence("devices that it lists", ", ".join(test.devices)))
    if test.import_s is not None:
        found.append(Evidence("import", f"{test.import_s:.1f} s"))
    return tuple(found)


def _unusable(
    machine: Machine, check: FrameworkCheck, shown: str, problems: list[Trouble]
) -> Finding:
    status = CheckStatus.FAIL if machine.request.framework == check.ID else CheckStatus.WARN
    return check.make_finding(
        status,
        f"{shown} cannot use a GPU: {'; '.join(problem.summary for problem in problems)}",
        *(evidence for problem in problems for evidence in problem.evidence),
        remedy=tuple(dict.fromkeys(step for problem in problems for step in problem.remedy)),
        cause=problems[0].cause,
    )


def _failed_test(
    machine: Machine, check: FrameworkCheck, shown: str, test: TrialReading, problems: list[Trouble]
) -> Finding:
    """Return the finding of a smoke test that failed."""
    if test.failure is not None:
        return check.make_finding(
            CheckStatus.UNKNOWN,
            f"{shown} could not be tried: {test.failure.message}",
            *(evidence for problem in problems for evidence in problem.evidence),
            remedy=tuple(step for problem in problems for step in problem.remedy),
            cause=test.failure.code,
        )
    source, value = f"devices that {check.ID} lists", ", ".join(test.devices) or "none"
    if test.error is not None:
        source, value = f"{check.ID} itself", test.error
    own = Evidence(source, value)
    driver = machine.cuda.failure
    if driver is not None:
        # Some frameworks call a missing driver an insufficient one.
        missing = driver.code == "library-not-found"
        reason = "there is no CUDA driver (libcuda.so.1)" if missing else driver.message
        below = ("Fix the driver first: gpucheck detect",)
        problems = [
            *problems,
            Trouble(
                CheckStatus.WARN, f"CUDA does not start: {reason}", (), below, cause=driver.code
            ),
        ]
    if not problems:
        cause = "fails-on-the-gpu" if test.sees_gpu else "lists-no-gpu"
        summary = "it sees the GPU, but fails on it" if test.sees_gpu else "it lists no GPU"
        steps = (
            f"Read the error of {check.ID}, here and with its own logging turned on.",
            "Check its environment: CUDA_VISIBLE_DEVICES, LD_LIBRARY_PATH.",
        )
        problems = [Trouble(CheckStatus.WARN, summary, (), steps, cause=cause)]
    first, *rest = problems
    return _unusable(
        machine, check, shown, [first._replace(evidence=(*first.evidence, own)), *rest]
    )


# ------------------------------------------------------------------------------ reasons


def _problems(
    machine: Machine, build: BuildReading, test: TrialReading | None, check: FrameworkCheck
) -> Iterator[Trouble]:
    if build.broken:
        named = "; ".join(build.broken[:MOST_NAMED])
        more = len(build.broken) - MOST_NAMED
        summary = f"its installation is broken: {named}" + (f"; and {more} more" * (more > 0))
        yield Trouble(
            CheckStatus.WARN,
            summary,
            _files(build),
            (reinstall(build),),
            cause="installation-broken",
        )
        if build.path is None:
            return
    amd = next((note for note in build.notes if "AMD" in note), None)
    for note in build.notes:
        if note is not amd:
            cause = "twice-installed" if "overwrite" in note else "parts-do-not-fit"
            yield Trouble(
                CheckStatus.WARN,
                note,
                _files(build),
                check.install_gpu_build(machine, build),
                cause=cause,
            )
    if build.gpu_build is False:
        cause = "built-for-cpus" if amd is None else "built-for-amd"
        summary = amd or "it is built for CPUs only"
        yield Trouble(
            CheckStatus.WARN,
            summary,
            _files(build),
            check.install_gpu_build(machine, build),
            cause=cause,
        )
        return
    if build.missing_libraries:
        again = reinstall(build)
        missing = make_trouble(
            check.ID,
            "libraries-missing",
            *(Evidence(name, "not found") for name in build.missing_libraries),
            names=", ".join(build.missing_libraries),
            cuda=build.cuda_build or "12",
            version=f"=={build.version}" if build.version else "",
            again=f"{again[0].lower()}{again[1:]}",
        )
        for folder in build.not_searched:
            summary = f"{missing.summary} (some are in {folder}, which the loader does not search)"
            first = f"Let the loader search it: export LD_LIBRARY_PATH={folder}"
            missing = missing._replace(summary=summary, remedy=(first, *missing.remedy))
        yield missing
    yield from _against_driver(machine, build, check)
    yield from _against_gpus(machine, build, test, check)


def _against_driver(
    machine: Machine, build: BuildReading, check: FrameworkCheck
) -> Iterator[Trouble]:
    driver = machine.nvml.driver_version
    least = newer_driver_for(build.cuda_build, driver, windows=machine.is_wsl)
    if least is not None:
        # Some of the steps that run without the upgrade are the upgrade itself.
        steps = check.install_gpu_build(machine, build)
        yield Trouble(
            CheckStatus.WARN,
            f"its CUDA {build.cuda_build} needs driver {least} or newer, but this is {driver}",
            (Evidence("nvmlSystemGetDriverVersion", driver or "?"),),
            steps if steps[0].startswith("Upgrade") else ("Upgrade the driver.", *steps),
            cause="driver-too-old",
        )


def _against_gpus(
    machine: Machine, build: BuildReading, test: TrialReading | None, check: FrameworkCheck
) -> Iterator[Trouble]:
    """Compare with every kind of GPU of this machine: a build needs code for it."""
    architectures = (test.architectures if test else ()) or build.architectures
    capabilities = sorted({g.compute_capability for g in machine.nvml.gpus if g.compute_capability})
    for capability in capabilities:
        known = holds_code_for(architectures, capability)
        if known is False:
            mismatch = f"this build has code only for {', '.join(architectures)}"
        elif known is None and too_old_for(build.cuda_build, capability):
            mismatch = f"CUDA {build.cuda_build} has no code for GPUs this old"
        elif known is None and too_new_for(build.cuda_build, capability):
            mismatch = f"CUDA {build.cuda_build} is older than this architecture"
        else:
            continue
        yield Trouble(
            CheckStatus.WARN,
            f"the GPU has compute capability {capability}, but {mismatch}",
            (Evidence("nvmlDeviceGetCudaComputeCapability", capability),),
            check.install_gpu_build(machine, build),
            cause="no-code-for-the-gpu",
        )


def reinstall(build: BuildReading) -> str:
    """Return the step that reinstalls exactly these packages."""
    packages = [name.replace(" ", "==") for name in build.distributions] or [build.name]
    local = next((name.partition("+")[2] for name in packages if "+" in name), "")
    guide = read_table("wheels")["guide"][build.name] if local else {}
    index = f" --index-url {guide['index']}{local}" if "index" in guide else ""
    command = f"pip install --force-reinstall --no-deps {' '.join(packages)}{index}"
    return f"Reinstall it: {command}"


def without(packages: Iterable[str]) -> str:
    """Return the command that removes packages before an installation.

    Two packages that own the same files must both go: removing one takes files of the other, which
    pip still believes installed.
    """
    names = " ".join(dict.fromkeys(name.partition(" ")[0] for name in packages))
    return f"pip uninstall -y {names}; " if names else ""


# ------------------------------------------------------------------------------ the document


def describe(machine: Machine, findings: Mapping[str, Finding]) -> tuple[Framework, ...]:
    """Return the frameworks that are installed, as the document lists them."""
    return tuple(
        _document(machine, build, findings[build.name])
        for build in machine.builds.builds or ()
        if build.name in findings
    )


def _document(machine: Machine, build: BuildReading, finding: Finding) -> Framework:
    test = machine.smoke_tests.get(build.name)
    sees: bool | None = None
    if test is not None and test.failure is None:
        sees = bool(test.computed)
    elif build.gpu_build is False:
        sees = False
    well = finding.status is CheckStatus.OK
    return Framework(
        name=build.name,
        version=(test.version if test else None) or build.version,
        cuda_build=(test.cuda_build if test else None) or build.cuda_build,
        sees_gpu=sees,
        reason=None if well else finding.summary,
    )
