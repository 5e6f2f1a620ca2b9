"""Can a program use a GPU here, and if not, which layer is broken first?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpucheck.core.checks import CHECKS, Check
from gpucheck.core.checks.machine import Machine
from gpucheck.core.inventory import complete_host
from gpucheck.models.errors import ExitCode
from gpucheck.models.finding import CheckStatus, Detection, Finding, Verdict
from gpucheck.models.report import Answer, Notice
from gpucheck.probes.interface import Probes

#: The check whose success proves that a program can use a GPU.
PROOF = "cuda-driver"

SENTENCES = {
    Verdict.USABLE: "GPU usable",
    Verdict.DEGRADED: "GPU usable, with warnings",
    Verdict.UNUSABLE: "GPU not usable",
    Verdict.UNKNOWN: "It is not known whether a GPU is usable",
}

#: A hung driver hangs whoever asks it next: what depends on it is not even tried.
_HUNG = "driver-not-answering"


def detect(probes: Probes) -> Answer:
    """Run every check and judge: 0 usable, 1 unusable, 3 unknown."""
    machine = Machine(probes)
    findings = judge(run_checks(machine, CHECKS))
    detection = conclude(findings)
    code = {
        Verdict.USABLE: ExitCode.OK,
        Verdict.DEGRADED: ExitCode.OK,
        Verdict.UNUSABLE: ExitCode.BAD,
        Verdict.UNKNOWN: ExitCode.INCONCLUSIVE,
    }[detection.verdict]
    return Answer(
        result=detection,
        exit_code=code,
        host=complete_host(machine.host, machine.nvml),
        warnings=tuple(
            Notice(code=finding.id, message=f"{finding.id}: {finding.summary}.")
            for finding in findings
            if finding.status is CheckStatus.WARN
        ),
    )


def run_checks(machine: Machine, checks: Sequence[Check]) -> list[Finding]:
    """Run the checks in order; one whose driver call would hang like an earlier one is skipped."""
    findings: list[Finding] = []
    for check in checks:
        hung = next((f for f in findings if f.id in check.REQUIRES and _is_hung(f)), None)
        findings.append(_unreached(check, hung) if hung else check.check(machine))
    return findings


def _is_hung(finding: Finding) -> bool:
    return any(evidence.value == _HUNG for evidence in finding.evidence)


def _unreached(check: Check, cause: Finding) -> Finding:
    return Finding(
        id=check.ID,
        layer=check.LAYER,
        status=CheckStatus.SKIP,
        summary=f"not reached: {cause.id}: {cause.summary}",
    )


def judge(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Give the blame to the first broken layer; let an observed success outweigh it.

    If CUDA starts and sees a GPU, a failure below it is a sign that was misread (in a sandbox the
    PCI bus may be masked): it becomes a warning. Otherwise what requires the first failure and
    failed as well is its consequence: it becomes a skip.
    """
    by_id = {finding.id: finding for finding in findings}
    requires = {check.ID: check.REQUIRES for check in CHECKS}
    if by_id[PROOF].status is CheckStatus.OK:
        return tuple(_outweighed(finding) for finding in findings)
    return tuple(_consequence(finding, by_id, requires) for finding in findings)


def _outweighed(finding: Finding) -> Finding:
    if finding.status is not CheckStatus.FAIL:
        return finding
    summary = f"{finding.summary}, yet CUDA works"
    return finding._replace(status=CheckStatus.WARN, summary=summary, remedy=())


def _consequence(
    finding: Finding,
    by_id: Mapping[str, Finding],
    requires: Mapping[str, tuple[str, ...]],
) -> Finding:
    causes = [by_id[name] for name in requires[finding.id]]
    cause = next((item for item in causes if item.status is CheckStatus.FAIL), None)
    if cause is None or finding.status not in (CheckStatus.FAIL, CheckStatus.UNKNOWN):
        return finding
    summary = f"not reached: {cause.summary}"
    return finding._replace(status=CheckStatus.SKIP, summary=summary, remedy=())


def conclude(findings: tuple[Finding, ...]) -> Detection:
    """Turn the findings into the verdict, the sentence that says it, and the steps to try."""
    failed = next((f for f in findings if f.status is CheckStatus.FAIL), None)
    open_ = next((f for f in findings if f.status is CheckStatus.UNKNOWN), None)
    proven = any(f.id == PROOF and f.status is CheckStatus.OK for f in findings)
    warned = any(f.status is CheckStatus.WARN for f in findings)
    cause = None if proven else failed or open_
    if proven:
        verdict, usable = (Verdict.DEGRADED if warned else Verdict.USABLE), True
    elif failed:
        verdict, usable = Verdict.UNUSABLE, False
    else:
        verdict, usable = Verdict.UNKNOWN, None
    words = SENTENCES[verdict]
    return Detection(
        usable=usable,
        verdict=verdict,
        conclusion=f"{words}: {cause.summary}" if cause else words,
        remedy=cause.remedy if cause else (),
        first_failure=failed.id if failed and not proven else None,
        checks=findings,
    )
