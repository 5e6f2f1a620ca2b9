"""Can a program use a GPU here, and if not, which layer is broken first?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpucheck.core.checks import CHECKS, Check, nvml
from gpucheck.core.checks.machine import Machine
from gpucheck.core.inventory import HUNG, complete_host
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
    return any(evidence.value == HUNG for evidence in finding.evidence)


def _unreached(check: Check, cause: Finding) -> Finding:
    return Finding(
        id=check.ID,
        layer=check.LAYER,
        status=CheckStatus.SKIP,
        summary=f"not reached: {cause.id}: {cause.summary}",
    )


def judge(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Give the blame to the first broken layer; let what was observed outweigh the signs.

    If CUDA starts and sees a GPU, a failure below it is a sign that was misread (in a sandbox the
    PCI bus may be masked): it becomes a warning. The same holds below NVML, if that answers or
    hangs. What requires a failure that remains and went wrong as well is its consequence: it
    becomes a skip.
    """
    by_id = {finding.id: finding for finding in findings}
    requires = {check.ID: check.REQUIRES for check in CHECKS}
    if by_id[PROOF].status is CheckStatus.OK:
        return tuple(_outweighed(finding, "yet CUDA works") for finding in findings)
    witness = by_id[nvml.ID]
    said = None
    if witness.status in (CheckStatus.OK, CheckStatus.WARN):
        said = "yet NVML answers"
    elif _is_hung(witness):
        said = "yet there is a driver, which does not answer"
    if said is not None:
        for name in requires[nvml.ID]:
            by_id[name] = _outweighed(by_id[name], said)
    return tuple(_consequence(finding, by_id, requires) for finding in by_id.values())


def _outweighed(finding: Finding, observation: str) -> Finding:
    if finding.status is not CheckStatus.FAIL:
        return finding
    summary = f"{finding.summary}, {observation}"
    # NVML is wanted for its own sake; what a misread sign advises would mislead.
    remedy = finding.remedy if finding.id == nvml.ID else ()
    return finding._replace(status=CheckStatus.WARN, summary=summary, remedy=remedy)


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
    proven = any(f.id == PROOF and f.status is CheckStatus.OK for f in findings)
    failed = None if proven else _first(findings, CheckStatus.FAIL)
    cause: Finding | None
    if proven:
        cause, usable = _first(findings, CheckStatus.WARN), True
        verdict = Verdict.DEGRADED if cause else Verdict.USABLE
    elif failed:
        cause, usable, verdict = failed, False, Verdict.UNUSABLE
    else:
        # The last one is closest to the proof: what it leaves open is what is missing.
        cause, usable = _first(findings[::-1], CheckStatus.UNKNOWN), None
        verdict = Verdict.UNKNOWN
    words = SENTENCES[verdict]
    return Detection(
        usable=usable,
        verdict=verdict,
        conclusion=f"{words}: {cause.summary}" if cause else words,
        remedy=cause.remedy if cause else (),
        first_failure=failed.id if failed else None,
        checks=findings,
    )


def _first(findings: Sequence[Finding], status: CheckStatus) -> Finding | None:
    return next((finding for finding in findings if finding.status is status), None)
