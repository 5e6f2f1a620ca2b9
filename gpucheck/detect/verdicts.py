"""Verdicts of `gpucheck detect` for CI systems: one for each finding."""

from __future__ import annotations

from collections import Counter

from gpucheck.detect.model import Detection, Finding
from gpucheck.report.envelope import CheckStatus
from gpucheck.report.verdicts import Kind, Verdict

#: What could not be read makes no job red by itself: where it decides the answer, the run's own
#: verdict says so.
_KINDS = {
    CheckStatus.OK: Kind.PASS,
    CheckStatus.WARN: Kind.WARNING,
    CheckStatus.FAIL: Kind.FAILURE,
    CheckStatus.SKIP: Kind.SKIPPED,
    CheckStatus.UNKNOWN: Kind.SKIPPED,
}
#: Nothing to look into, and nothing to do.
_QUIET = (CheckStatus.OK, CheckStatus.SKIP)


def verdicts(result: object) -> list[Verdict]:
    """Return the verdicts on a machine; a description of the checks has none."""
    if not isinstance(result, Detection):
        return []
    indices = {gpu.uuid: gpu.index for gpu in result.gpus if gpu.uuid is not None}
    seen: Counter[tuple[str, str | None]] = Counter()
    found = []
    for finding in result.checks:
        seen[finding.id, finding.gpu] += 1
        found.append(_finding_verdict(finding, indices, number=seen[finding.id, finding.gpu]))
    return found


def _finding_verdict(finding: Finding, indices: dict[str, int], *, number: int) -> Verdict:
    """Return one verdict; of several of a check, which GitLab would drop, each has its `number`."""
    index = None if finding.gpu is None else indices.get(finding.gpu)
    device = "node" if finding.gpu is None else finding.gpu if index is None else f"GPU {index}"
    evidence = (f"{one.source}: {one.value}" for one in finding.evidence)
    unknown = finding.status is CheckStatus.UNKNOWN
    return Verdict(
        device=device,
        check=finding.id if number == 1 else f"{finding.id} {number}",
        kind=_KINDS[finding.status],
        message=f"not known: {finding.summary}" if unknown else finding.summary,
        gpu_uuid=finding.gpu,
        class_=finding.cause,
        lines=() if finding.status in _QUIET else (*evidence, *finding.remedy),
    )
