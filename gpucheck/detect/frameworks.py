"""Common part of the framework checks: from files and smoke tests to one finding each.

A problem with a build never decides whether the GPU is usable: it is a warning, and a failure only
if --framework names this framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from gpucheck.data import read_table
from gpucheck.detect.cuda_versions import (
    has_only_ptx,
    holds_code_for,
    newer_driver_for,
    parse_version,
    too_new_for,
    too_old_for,
)
from gpucheck.detect.findings import make_finding, make_trouble
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Framework, Layer
from gpucheck.detect.remedies import (
    install_command,
    name_installer,
    pinned,
    reinstall_command,
    remove_command,
)
from gpucheck.drivers.evidence import CRASHED, BuildReading, BuildsReading, TrialReading
from gpucheck.drivers.readings import ProbeFailure
from gpucheck.inventory.condition import Trouble
from gpucheck.report.envelope import CheckStatus, Evidence, Failure
from gpucheck.report.text import count_of, framework_module, framework_title

#: The most broken files to name; the others are counted.
MOST_NAMED = 3
#: Causes that every framework's check has alike, in the table of causes.
CAUSES = "framework"
#: What must be done before anything else helps.
FIX_THE_DRIVER = "Fix the driver first: gpucheck detect"
#: The check that says what to do about a machine without any GPU.
NO_GPU = "See pci-device."
#: What repairs a build, and is in vain where another build takes its place.
REPAIRED = ("installation-broken", "libraries-missing")
#: The package that tutorials still name, and that had a GPU build of its own before 2.12.
ENDED = "tensorflow-gpu"


class FrameworkCheck:
    """Check of one framework."""

    LAYER = Layer.FRAMEWORK
    REQUIRES: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.ID = name
        self.title = framework_title(name)
        self.__doc__ = f"Can {self.title}, as it is installed, use the GPUs?"
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
            remedy=tuple(name_installer(builds, step) for step in finding.remedy),
        )

    def install_gpu_build(
        self, machine: Machine, build: BuildReading | None, lead: str | None = None
    ) -> tuple[str, ...]:
        """Return how to install a build for GPUs, in place of the present one; `lead` says why."""
        from gpucheck.detect.wheels import choose_for, lacks_python  # only where something is wrong

        guide = read_table("wheels")["guide"][self.ID]
        lead = lead or guide["lead"]
        choice = choose_for(machine, self.ID)
        if isinstance(choice, Failure):
            why = choice.message.rstrip(".")
            return (guide["unchosen"].format(lead=lead, why=f"{why[0].lower()}{why[1:]}"),)
        if choice.build is None:
            return choice.remedy
        notes = [left.reason for left in choice.left_out]
        if choice.driver_needed:
            notes.append(f"it needs {choice.driver_needed}")
        removes = guide.get("removes", build.distributions) if build else ()
        command = install_command(machine.builds, build, choice.commands, removes)
        if build is not None and _is_from(build.version, guide.get("keeps_version_from")):
            command = command.replace("-U ", "").replace("]", f"]=={build.version}")
        elif lacks_python(choice.build, machine.builds.python_version):
            notes.append(f"it needs Python {choice.build.python}")
        note = f" ({'; '.join(notes)})" if notes else ""
        return (f"{lead}{note}: {command}",)

    def replace_build(
        self,
        machine: Machine,
        build: BuildReading,
        cause: str,
        *evidence: Evidence,
        summary: str = "",
        **values: str | None,
    ) -> Trouble:
        """Return a trouble of a build whose remedy is another build."""
        trouble = make_trouble(CAUSES, cause, *(evidence or _files(build)), **values)  # type: ignore[arg-type]
        lead = None if cause == "built-for-cpus" else trouble.remedy[0]
        steps = self.install_gpu_build(machine, build, lead)
        return trouble._replace(summary=summary or trouble.summary, remedy=steps)


def named_by(builds: BuildsReading) -> str:
    """Return the reason for the choice of the Python, empty if unknown."""
    if builds.named_by is None:
        return ""
    return "gpucheck's own" if builds.named_by == "gpucheck" else f"by {builds.named_by}"


def _is_from(version: str | None, first: str | None) -> bool:
    """Return whether a version is a release, and this one or a newer one."""
    own, least = parse_version(version), parse_version(first)
    return bool(own and least and own >= least and re.fullmatch(r"[0-9.]+", version or ""))


def _judge(machine: Machine, check: FrameworkCheck) -> Finding:
    """Judge one framework; its smoke test counts for more than its files."""
    name = check.ID
    builds = machine.builds
    if builds.builds is None:
        why = builds.unavailable or "the interpreter gave no answer"
        requested = machine.request.framework == name or machine.request.python is not None
        status = CheckStatus.UNKNOWN if requested else CheckStatus.SKIP
        return check.make_finding(
            status, f"not checked: {why}", cause="interpreter-silent" if requested else None
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
    """Return the finding by the files alone; whether the framework works stays open."""
    untried = check.ID in machine.tried
    why = "not tried: the driver does not answer" if untried else "--deep tries it"
    if build.gpu_build is None:
        summary = f"whether {shown} is a GPU build is unknown ({why})"
        return check.make_finding(
            CheckStatus.UNKNOWN, summary, *_files(build), cause="build-not-known"
        )
    cuda = f" for CUDA {build.cuda_build}" if build.cuda_build else ""
    if build.unchecked is not None:
        summary = f"{shown} is a GPU build{cuda}; its libraries were not checked"
        evidence = (Evidence("libraries", build.unchecked), *_files(build))
        return check.make_finding(
            CheckStatus.UNKNOWN, f"{summary} ({why})", *evidence, cause="build-not-known"
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
    late = sorted(
        capability for capability in capabilities if has_only_ptx(build.architectures, capability)
    )
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
    evidence = []
    if test.devices:
        evidence.append(Evidence("devices that it lists", ", ".join(test.devices)))
    if test.import_s is not None:
        evidence.append(Evidence("import", f"{test.import_s:.1f} s"))
    return tuple(evidence)


def _unusable(
    machine: Machine, check: FrameworkCheck, shown: str, problems: list[Trouble]
) -> Finding:
    status = CheckStatus.FAIL if machine.request.framework == check.ID else CheckStatus.WARN
    return check.make_finding(
        status,
        f"{shown} cannot use a GPU: {'; '.join(problem.summary for problem in problems)}",
        *(evidence for problem in problems for evidence in problem.evidence),
        remedy=_sort_steps(problems),
        cause=problems[0].cause,
    )


def _sort_steps(problems: Sequence[Trouble]) -> tuple[str, ...]:
    """Return the steps of all problems: the driver first, and repairs of what stays last."""
    causes = [problem.cause for problem in problems]
    steps = [
        step for problem in problems if problem.cause not in REPAIRED for step in problem.remedy
    ]
    steps.sort(key=FIX_THE_DRIVER.__ne__)
    repairs = [step for problem in problems if problem.cause in REPAIRED for step in problem.remedy]
    if "no-code-for-the-gpu" in causes:
        repairs = []
    elif "driver-too-old" in causes:
        repairs = [f"If you keep this build: {step[0].lower()}{step[1:]}" for step in repairs]
    return tuple(dict.fromkeys(steps + repairs))


def _failed_test(
    machine: Machine, check: FrameworkCheck, shown: str, test: TrialReading, problems: list[Trouble]
) -> Finding:
    """Return the finding of a smoke test that failed."""
    failure = test.failure
    if failure is not None and failure.code != CRASHED:
        reasons = "; ".join((failure.message, *(problem.summary for problem in problems)))
        return check.make_finding(
            CheckStatus.UNKNOWN,
            f"{shown} could not be tried: {reasons}",
            *(evidence for problem in problems for evidence in problem.evidence),
            remedy=_sort_steps(problems),
            cause=failure.code,
        )
    if failure is not None:
        problems = [*problems, _crash(machine, check, failure, problems)]
        return _unusable(machine, check, shown, problems)
    source, value = f"devices that {check.ID} lists", ", ".join(test.devices) or "none"
    if test.error is not None:
        source, value = f"{check.ID} itself", test.error
    own = Evidence(source, value)
    driver = machine.cuda.failure
    if driver is not None:
        # Some frameworks call a missing driver an insufficient one.
        missing = driver.code == "library-not-found"
        reason = "there is no CUDA driver (libcuda.so.1)" if missing else driver.message
        summary, repair = f"CUDA does not start: {reason}", [FIX_THE_DRIVER]
        if machine.absence is not None:  # a driver would not help
            summary, repair = machine.absence, [] if problems else [NO_GPU]
        problems = [*problems, Trouble(CheckStatus.WARN, summary, (), tuple(repair), driver.code)]
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


def _crash(
    machine: Machine, check: FrameworkCheck, failure: ProbeFailure, problems: Sequence[Trouble]
) -> Trouble:
    """Return the trouble of a crash; a fault of its files explains that, and has own steps."""
    again = _reinstall(machine, machine.build(check.ID) or BuildReading(check.ID))
    crash = make_trouble(CAUSES, CRASHED, names=framework_module(check.ID), again=again)
    explained = any(problem.cause in REPAIRED for problem in problems)
    return crash._replace(summary=failure.message, remedy=() if explained else crash.remedy)


# ------------------------------------------------------------------------------ reasons


def _problems(
    machine: Machine, build: BuildReading, test: TrialReading | None, check: FrameworkCheck
) -> Iterator[Trouble]:
    if any(name.partition(" ")[0] == ENDED for name in build.distributions):
        yield check.replace_build(machine, build, "package-ended", names=ENDED)
        return
    amd = next((note for note in build.notes if "AMD" in note), None)
    together = next((note for note in build.notes if "overwrite" in note), None)
    if together is not None:  # of what is left of both no more than this tells
        yield check.replace_build(machine, build, "twice-installed", summary=together)
        if build.gpu_build is False:
            yield make_trouble(CAUSES, "built-for-cpus")._replace(remedy=())
        return
    if build.broken:
        named = "; ".join(build.broken[:MOST_NAMED])
        more = len(build.broken) - MOST_NAMED
        named += f"; and {more} more" * (more > 0)
        evidence = (*_files(build), *_owners(build))
        again = _reinstall(machine, build)
        yield make_trouble(CAUSES, "installation-broken", *evidence, names=named, again=again)
        if build.path is None:
            return
    for note in build.notes:
        if note is not amd:
            yield check.replace_build(machine, build, "parts-do-not-fit", summary=note)
    if build.gpu_build is False:
        cause = "built-for-cpus" if amd is None else "built-for-amd"
        yield check.replace_build(machine, build, cause, summary=amd or "")
        return
    if build.rivals:
        yield _rivals(build)
    if build.missing_libraries:
        missing = _missing(machine, build, check)
        # The packages of damaged files are reinstalled together with those of deleted ones.
        yield missing._replace(remedy=()) if build.broken and build.owners else missing
    yield from _driver_troubles(machine, build, check)
    yield from _gpu_troubles(machine, build, test, check)


def _rivals(build: BuildReading) -> Trouble:
    """Return the trouble of NVIDIA's packages for two CUDAs, which overwrite each other."""
    own = f"-cu{(build.cuda_build or '').partition('.')[0]}"
    keep = [package for package in build.rivals if package.partition(" ")[0].endswith(own)]
    names = " and ".join(package.partition(" ")[0] for package in build.rivals)
    again = f"{remove_command(build.rivals)}pip install --no-deps {pinned(keep)}"
    return make_trouble(
        CAUSES,
        "requirements-twice-installed",
        Evidence("installed", ", ".join(build.rivals)),
        names=names,
        again=again,
    )


def _missing(machine: Machine, build: BuildReading, check: FrameworkCheck) -> Trouble:
    """Return the trouble of missing libraries, with the packages that have them."""
    evidence = (*(Evidence(name, "not found") for name in build.missing_libraries), *_owners(build))
    names = ", ".join(build.missing_libraries)
    if build.owners or build.conda_owners:
        again = _reinstall(machine, build)
        return make_trouble(CAUSES, "libraries-deleted", *evidence, names=names, again=again)
    missing = make_trouble(
        check.ID,
        "libraries-missing",
        *evidence,
        names=names,
        cuda=build.cuda_build or "12",
        version=f"=={build.version}" if _is_from(build.version, "0") else "",
    )
    steps = missing.remedy
    if check.ID == "numba" and build.cuda_build is None:
        (lead,) = make_trouble(check.ID, "target-missing").remedy
        steps = check.install_gpu_build(machine, None, lead)
    # CuPy 14, whose extra ctk brings them, has no build for CUDA 11.
    if check.ID == "cupy" and build.cuda_build == "11":
        steps = make_trouble(check.ID, "toolkit-missing").remedy
    if not machine.environment.get("LD_LIBRARY_PATH"):
        steps = tuple(step for step in steps if not step.startswith("Unset LD_LIBRARY_PATH"))
    if not build.not_searched:
        return missing._replace(remedy=steps)
    (folder,) = build.not_searched
    again = steps[0].removeprefix("Either ")
    trouble = make_trouble(
        CAUSES,
        "libraries-not-searched",
        *evidence,
        names=names,
        folder=folder,
        again=f"{again[0].lower()}{again[1:]}",
    )
    return trouble._replace(remedy=(*trouble.remedy, *steps[1:]))


def _owners(build: BuildReading) -> tuple[Evidence, ...]:
    owners = (*build.owners, *build.conda_owners)
    return (Evidence("belongs to", ", ".join(owners)),) if owners else ()


def _reinstall(machine: Machine, build: BuildReading) -> str:
    """Return the command that reinstalls exactly the packages whose files are harmed."""
    local = any("+" in name for name in (*build.owners, *build.distributions))
    guide = read_table("wheels")["guide"][build.name] if local else {}
    return reinstall_command(machine.builds, build, guide.get("index"))


def _driver_troubles(
    machine: Machine, build: BuildReading, check: FrameworkCheck
) -> Iterator[Trouble]:
    driver = machine.nvml.driver_version
    least = newer_driver_for(build.cuda_build, driver, windows=machine.is_wsl)
    if least is not None:
        yield check.replace_build(
            machine,
            build,
            "driver-too-old",
            Evidence("nvmlSystemGetDriverVersion", driver or "?"),
            version=build.cuda_build,
            needed=least,
            driver=driver,
        )


def _gpu_troubles(
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
        yield check.replace_build(
            machine,
            build,
            "no-code-for-the-gpu",
            Evidence("nvmlDeviceGetCudaComputeCapability", capability),
            capability=capability,
            why=mismatch,
        )


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
    if test is not None and (test.failure is None or test.failure.code == CRASHED):
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
