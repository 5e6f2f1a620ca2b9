"""Run of the checks of `gpucheck detect`, and the answer made of their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gpucheck.detect.checks import (
    CHECKS,
    Check,
    cuda_driver,
    cupy,
    device_nodes,
    framework,
    launch,
    nvml,
    visibility,
)
from gpucheck.detect.checks.advice import fit
from gpucheck.detect.checks.machine import Machine, Wish, say_nothing
from gpucheck.detect.conclusion import conclude, exit_code_of, is_health_unknown
from gpucheck.detect.judgement import GOOD, KNOWN_BY_SIGNS, is_hung, judge, not_reached
from gpucheck.detect.model import Finding, Framework, Layer
from gpucheck.detect.request import DetectRequest, choose_checks, normal_framework
from gpucheck.drivers.interface import Probes
from gpucheck.inventory.inventory import complete_host
from gpucheck.report.envelope import Answer, CheckStatus, Notice

#: Checks that ask the driver again are not run after these have failed.
DOORS = frozenset({nvml.ID, cuda_driver.ID, visibility.ID})
ASKS_AGAIN = frozenset({Layer.VISIBILITY, Layer.LAUNCH, Layer.HEALTH})


def detect(
    probes: Probes,
    request: DetectRequest | None = None,
    tell: Callable[[str], None] = say_nothing,
) -> Answer:
    """Run the checks and judge: 0 usable, 1 unusable or unhealthy, 3 unknown.

    `tell` receives what is being waited for.

    Raises:
        WrongUseError: a requested check or framework does not exist.
    """
    wanted = request or DetectRequest()
    checks = choose_checks(wanted)
    machine = Machine(probes, _wish(wanted, checks), tell)
    findings = tuple(
        finding._replace(remedy=fit(machine, finding.remedy))
        for finding in _judge(machine, run_checks(machine, checks))
    )
    builds = machine.builds if any(f.layer is Layer.FRAMEWORK for f in findings) else None
    detection = conclude(findings, partial=len(checks) < len(CHECKS), looked_at=builds)
    return Answer(
        result=detection._replace(frameworks=_frameworks(machine, findings)),
        exit_code=exit_code_of(detection, machine.wish.framework),
        host=complete_host(machine.host, machine.nvml) if _looked_at_nvml(checks) else machine.host,
        warnings=tuple(_notices(findings)),
    )


def _notices(findings: Sequence[Finding]) -> Iterator[Notice]:
    for finding in findings:
        if finding.status is CheckStatus.WARN:
            yield Notice(code=finding.id, message=f"{finding.id}: {finding.summary}.")
    if is_health_unknown(findings):
        # A gate with --strict must not pass what was not checked.
        yield Notice(code="health-not-known", message="The health of the GPUs is unknown.")


def _wish(request: DetectRequest, checks: Sequence[Check]) -> Wish:
    name = normal_framework(request.framework)
    ids = {check.ID for check in checks}
    # A question about one framework need not wait for the import of the others.
    tried = (name,) if name else framework.NAMES if request.deep else ()
    return Wish(
        expect_gpus=request.expect_gpus,
        framework=name,
        tried=tuple(each for each in tried if each in ids),
        every_gpu=request.deep,
        python=request.python,
    )


def _judge(machine: Machine, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    signs = any(f.layer in KNOWN_BY_SIGNS and f.status is CheckStatus.FAIL for f in findings)
    # The files have been read already, by the check that failed.
    ran = any(f.id == launch.ID and f.status is not CheckStatus.SKIP for f in findings)
    # A smoke test of CuPy itself (--deep, --framework) says more.
    through_cupy = ran and cupy.ID not in machine.wish.tried
    return judge(
        findings,
        has_control_node=signs and device_nodes.has_control_node(machine),
        cupy_failure=machine.launch.cupy_failure if through_cupy else None,
    )


def _looked_at_nvml(checks: Iterable[Check]) -> bool:
    return any(check.LAYER not in (Layer.ENVIRONMENT, Layer.PCI, Layer.KERNEL) for check in checks)


def _frameworks(machine: Machine, findings: Sequence[Finding]) -> tuple[Framework, ...]:
    found = {f.id: f for f in findings if f.layer is Layer.FRAMEWORK}
    ran = [launch.went_through(f) for f in findings if f.id == launch.ID and f.status in GOOD]
    return tuple(
        each._replace(sees_gpu=True) if each.name in ran else each
        for each in (framework.describe(machine, found) if found else ())
    )


def run_checks(machine: Machine, checks: Sequence[Check]) -> list[Finding]:
    """Run the checks in order; one whose driver call would fail or hang again is skipped."""
    findings: list[Finding] = []
    for check in checks:
        cause = _in_the_way(check, findings)
        if cause is not None:
            findings.append(_unreached(check, cause))
            continue
        found = check.check(machine)
        findings.extend(found if isinstance(found, list) else [found])
    return findings


def _in_the_way(check: Check, findings: Sequence[Finding]) -> Finding | None:
    for finding in findings:
        if finding.id not in check.REQUIRES:
            continue
        if is_hung(finding):
            return finding
        broken = finding.status in (CheckStatus.FAIL, CheckStatus.SKIP)
        if broken and finding.id in DOORS and check.LAYER in ASKS_AGAIN:
            return finding
    return None


def _unreached(check: Check, cause: Finding) -> Finding:
    return Finding(
        id=check.ID,
        layer=check.LAYER,
        status=CheckStatus.SKIP,
        summary=not_reached(cause),
    )
