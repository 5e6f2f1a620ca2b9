"""Run of `gpucheck detect`: the checks to make, their findings, and the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpucheck.data import read_table
from gpucheck.detect.checks import (
    CHECKS,
    Check,
    cuda_driver,
    device_nodes,
    frameworks,
    launch,
    nvml,
    visibility,
    xid,
)
from gpucheck.detect.findings import explain_cause
from gpucheck.detect.frameworks import describe
from gpucheck.detect.machine import DetectRequest, Machine, ignore_progress
from gpucheck.detect.model import (
    About,
    Catalogue,
    CheckDescription,
    DetectedGpu,
    Finding,
    Framework,
    Layer,
)
from gpucheck.detect.remedies import adapt
from gpucheck.detect.verdict import (
    GOOD,
    KNOWN_BY_SIGNS,
    conclude,
    exit_code_of,
    is_health_unknown,
    is_hung,
    judge,
    limit_to_nvml,
    not_reached,
)
from gpucheck.drivers.interface import Probes
from gpucheck.inventory.inventory import complete_host
from gpucheck.inventory.memory import caps_of
from gpucheck.report.envelope import Answer, CheckStatus, Notice
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import FRAMEWORK_ALIASES, did_you_mean, framework_name

#: Layers that --quick leaves out: they start CUDA or another Python, or read what these use.
BEYOND_NVML = frozenset(
    {Layer.CUDA_DRIVER, Layer.VISIBILITY, Layer.TOOLKIT, Layer.FRAMEWORK, Layer.LAUNCH}
)
#: Checks that ask the driver again are not run after these have failed.
CALL_THE_DRIVER = frozenset({nvml.ID, cuda_driver.ID, visibility.ID})
CALL_IT_AGAIN = frozenset({Layer.VISIBILITY, Layer.LAUNCH, Layer.HEALTH})

#: The most names to suggest for one that does not exist.
MOST_SUGGESTED = 3


def detect(
    probes: Probes,
    request: DetectRequest | None = None,
    report_progress: Callable[[str], None] = ignore_progress,
) -> Answer:
    """Run the checks and judge: 0 usable, 1 unusable or unhealthy, 3 unknown.

    `report_progress` receives what is being waited for.

    Raises:
        WrongUseError: a requested check or framework does not exist.
    """
    return detect_on(open_machine(probes, request, report_progress))


def open_machine(
    probes: Probes,
    request: DetectRequest | None = None,
    report_progress: Callable[[str], None] = ignore_progress,
) -> Machine:
    """Return the machine as the checks of a request will see it, with nothing read yet.

    Raises:
        WrongUseError: a requested check or framework does not exist.
    """
    wanted = request or DetectRequest()
    wanted = wanted._replace(framework=normal_framework(wanted.framework))
    tried = _frameworks_to_try(wanted, choose_checks(wanted))
    return Machine(probes, wanted, tried, report_progress)


def detect_on(machine: Machine) -> Answer:
    """Run the checks on a machine, which keeps what they have read."""
    wanted = machine.request
    checks = choose_checks(wanted)
    findings = tuple(
        finding._replace(remedy=adapt(machine, finding.remedy))
        for finding in _judge(machine, run_checks(machine, checks))
    )
    builds = machine.builds if any(f.layer is Layer.FRAMEWORK for f in findings) else None
    detection = conclude(findings, partial=len(checks) < len(CHECKS), looked_at=builds)
    if wanted.quick:
        detection = limit_to_nvml(detection)
    files = (Layer.ENVIRONMENT, Layer.PCI, Layer.KERNEL)
    reads_nvml = any(check.LAYER not in files for check in checks)
    return Answer(
        result=detection._replace(
            frameworks=_frameworks(machine, findings),
            gpus=tuple(
                DetectedGpu(gpu.index, gpu.uuid, gpu.name, gpu.pci_bus_id)
                for gpu in machine.nvml.gpus
            )
            if reads_nvml
            else (),
            memory_limits=caps_of(machine.nvml.gpus) if reads_nvml else (),
        ),
        exit_code=exit_code_of(detection, wanted),
        host=complete_host(machine.host, machine.nvml) if reads_nvml else machine.host,
        warnings=tuple(_notices(findings)),
    )


def _notices(findings: Sequence[Finding]) -> Iterator[Notice]:
    for finding in findings:
        if finding.status is CheckStatus.WARN:
            yield Notice(code=finding.id, message=f"{finding.id}: {finding.summary}.")
    if is_health_unknown(findings):
        # A gate with --strict must not pass what was not checked.
        yield Notice(code="health-not-known", message="The health of the GPUs is unknown.")


def _frameworks_to_try(request: DetectRequest, checks: Sequence[Check]) -> list[str]:
    # A question about one framework need not wait for the import of the others.
    every = frameworks.NAMES if request.deep else ()
    wanted = (request.framework,) if request.framework else every
    ids = {check.ID for check in checks}
    return [name for name in wanted if name in ids]


def _judge(machine: Machine, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    signs = any(f.layer in KNOWN_BY_SIGNS and f.status is CheckStatus.FAIL for f in findings)
    # The files have been read already, by the check that failed.
    ran = any(f.id == launch.ID and f.status is not CheckStatus.SKIP for f in findings)
    # A smoke test of CuPy itself (--deep, --framework) says more.
    through_cupy = ran and frameworks.CUPY.ID not in machine.tried
    return judge(
        findings,
        has_control_node=signs and device_nodes.has_control_node(machine),
        cupy_failure=machine.launch.cupy_failure if through_cupy else None,
    )


def _frameworks(machine: Machine, findings: Sequence[Finding]) -> tuple[Framework, ...]:
    by_name = {f.id: f for f in findings if f.layer is Layer.FRAMEWORK}
    ran = [launch.went_through(f) for f in findings if f.id == launch.ID and f.status in GOOD]
    return tuple(
        framework._replace(sees_gpu=True) if framework.name in ran else framework
        for framework in (describe(machine, by_name) if by_name else ())
    )


def run_checks(machine: Machine, checks: Sequence[Check]) -> list[Finding]:
    """Run the checks in order; one whose driver call would fail or hang again is skipped."""
    findings: list[Finding] = []
    for check in checks:
        cause = _blocking_finding(check, findings)
        if cause is not None:
            unreached = not_reached(cause)
            findings.append(Finding(check.ID, check.LAYER, CheckStatus.SKIP, unreached))
            continue
        result = check.check(machine)
        findings.extend(result if isinstance(result, list) else [result])
    return findings


def _blocking_finding(check: Check, findings: Sequence[Finding]) -> Finding | None:
    for finding in findings:
        if finding.id not in check.REQUIRES:
            continue
        if is_hung(finding):
            return finding
        broken = finding.status in (CheckStatus.FAIL, CheckStatus.SKIP)
        if broken and finding.id in CALL_THE_DRIVER and check.LAYER in CALL_IT_AGAIN:
            return finding
    return None


# ------------------------------------------------------------------------------ which checks


def normal_framework(name: str | None) -> str | None:
    """Return the canonical name of a framework for any name in use.

    Raises:
        WrongUseError: the framework is unknown.
    """
    if name is None:
        return None
    known = framework_name(name)
    if known not in frameworks.NAMES:
        raise WrongUseError(
            code="unknown-framework",
            message=f"Unknown framework {name!r}.",
            remedy=(
                *_near(name, (*frameworks.NAMES, *FRAMEWORK_ALIASES)),
                f"Known frameworks: {known_frameworks()}.",
            ),
        )
    return known


def known_frameworks() -> str:
    """Return the frameworks' names with their other ones: "pytorch (torch), jax"."""
    also: dict[str, list[str]] = {}
    for alias, name in FRAMEWORK_ALIASES.items():
        also.setdefault(name, []).append(alias)
    return ", ".join(
        f"{name} ({', '.join(also[name])})" if name in also else name for name in frameworks.NAMES
    )


def choose_checks(request: DetectRequest) -> tuple[Check, ...]:
    """Return the checks to run, in their order.

    Raises:
        WrongUseError: an id is neither a check nor a layer, nothing is left to run, or `quick`
            contradicts another option.
    """
    if request.quick and (request.deep or request.framework or request.python):
        raise WrongUseError(
            code="quick-and-more",
            message="--quick starts no framework: leave out --deep, --framework and --python.",
        )
    only, skip = _known(request.only), _known(request.skip)
    name = normal_framework(request.framework)
    chosen = tuple(
        check
        for check in CHECKS
        if (not only or check.ID in {*only, name})
        and check.ID not in skip
        and not (request.quick and check.LAYER in BEYOND_NVML)
    )
    if not chosen:
        message = "--only, --skip and --quick together leave no check to run."
        raise WrongUseError(code="no-checks", message=message)
    return chosen


def _known(words: Iterable[str], kind: str = "check") -> frozenset[str]:
    ids: set[str] = set()
    for word in words:
        # Some layers share the name of their first check: the check is meant.
        matching = {check.ID for check in CHECKS if word == check.ID}
        matching = matching or {check.ID for check in CHECKS if word == check.LAYER.value}
        if not matching:
            names = list(dict.fromkeys([*(check.ID for check in CHECKS), *Layer]))
            raise WrongUseError(
                code="unknown-check",
                message=f"There is no {kind} {word!r}.",
                remedy=(*_near(word, names), "List the checks: gpucheck detect --list-checks"),
            )
        ids |= matching
    return frozenset(ids)


def _near(word: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return a question with similar names; empty if no name is similar."""
    suggestion = did_you_mean(word, names, most=MOST_SUGGESTED)
    return (suggestion,) if suggestion else ()


def _describe_xid(number: int) -> CheckDescription:
    """Describe an error of the driver by its number, as the check of them knows it."""
    from gpucheck.detect.xids import described  # only who asks for a number needs the table

    description = described(number)
    if description is None:
        message = f"NVIDIA's catalogue of Xids has no number {number}."
        raise WrongUseError(code="unknown-xid", message=message)
    question, about = description
    return CheckDescription(
        id=f"{xid.ID}-{number}", layer=xid.LAYER, question=question, requires=(), about=about
    )


def explain_check(check: Check) -> About:
    """Return a check's description: its subject, reason, rules, sources and causes."""
    texts = read_table("checks")
    own = texts[check.ID]
    shared = texts["framework"] if check.LAYER is Layer.FRAMEWORK else {}
    lists = ("looks_at", "rules", "sources", "causes")
    return About(
        why=own["why"], **{name: (*own.get(name, ()), *shared.get(name, ())) for name in lists}
    )


def describe_checks(name: str | None = None) -> Answer:
    """Describe every check in a line, or one in full, or a cause, or an Xid such as `xid-79`.

    Raises:
        WrongUseError: there is no such check, cause or number.
    """
    number = re.fullmatch(r"xid-([0-9]{1,5})", name or "")
    if number is not None:
        return Answer(result=Catalogue((_describe_xid(int(number[1])),), explained=True))
    every = tuple(
        CheckDescription(
            id=check.ID,
            layer=check.LAYER,
            question=(check.__doc__ or "").partition("\n")[0],
            requires=check.REQUIRES,
            about=explain_check(check),
        )
        for check in CHECKS
    )
    if name is None:
        return Answer(result=Catalogue(catalogue=every))
    return Answer(result=Catalogue(catalogue=tuple(_explained(every, name)), explained=True))


def _explained(every: Sequence[CheckDescription], name: str) -> Iterator[CheckDescription]:
    """Yield the checks of this name with their causes, or those that know a cause with it alone."""
    cause = re.sub(r"^(recovery-action)-\d+$", r"\1-N", name)
    knowing = {check.id for check in every if cause in check.about.causes}
    is_cause = knowing and not any(name in (check.id, check.layer.value) for check in every)
    wanted = knowing if is_cause else _known([name], "check or cause")
    for check in every:
        if check.id in wanted:
            names = (cause,) if is_cause else check.about.causes
            causes = tuple(explain_cause(check.id, check.layer, cause_name) for cause_name in names)
            yield check._replace(causes=causes)
