"""Mappings of `gpucheck detect`: verdicts for CI systems, and metrics for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpucheck.detect import model
from gpucheck.detect.model import Detection, Finding
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.formats.prometheus import Metric, gauge, gpu_labels
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
    rows = []
    for finding in result.checks:
        seen[finding.id, finding.gpu] += 1
        rows.append(_finding_verdict(finding, indices, number=seen[finding.id, finding.gpu]))
    return rows


def _finding_verdict(finding: Finding, indices: dict[str, int], *, number: int) -> Verdict:
    """Return a finding's verdict; several of a check, which GitLab would drop, are numbered."""
    index = None if finding.gpu is None else indices.get(finding.gpu)
    device = "node" if finding.gpu is None else finding.gpu if index is None else f"GPU {index}"
    evidence = (f"{item.source}: {item.value}" for item in finding.evidence)
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


# --------------------------------------------------------------------------------------- Prometheus

Labels = dict[str, str | None]

#: Findings with these states have a series each; the others are only counted, so that a healthy
#: node of 8 GPUs stays at some twenty series.
_SHOWN = (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.UNKNOWN)


def metrics(report: Report) -> Iterator[Metric]:
    """Yield the metrics of a detection."""
    detection = report.result_as(Detection)
    yield gauge(
        "gpucheck_usable",
        "1 if a program started now can use a GPU, 0 if not; absent if not known.",
        [({}, detection.usable)],
    )
    yield gauge(
        "gpucheck_verdict",
        "1 for the verdict of the node, 0 for the others.",
        [({"verdict": value.value}, value is detection.verdict) for value in model.Verdict],
    )
    counts = Counter(finding.status for finding in detection.checks)
    yield gauge(
        "gpucheck_findings",
        "Number of findings in each state.",
        [({"status": value.value}, counts[value]) for value in CheckStatus],
    )
    yield from _gpu_metrics(detection)


def _gpu_metrics(detection: Detection) -> Iterator[Metric]:
    """Yield how many checks failed on each GPU, and each finding that is not ok."""
    gpus = [
        gpu_labels(index=gpu.index, uuid=gpu.uuid, pci_bus_id=gpu.pci_bus_id, name=gpu.name)
        for gpu in detection.gpus
    ]
    failed = Counter(
        finding.gpu for finding in detection.checks if finding.status is CheckStatus.FAIL
    )
    yield gauge(
        "gpucheck_gpu_failed_checks",
        "Number of checks that failed on the GPU.",
        [(labels, failed[labels["UUID"]] if labels["UUID"] else None) for labels in gpus],
    )
    by_uuid: dict[str | None, Labels] = {
        labels["UUID"]: labels for labels in gpus if labels["UUID"]
    }
    # A check may find several things of one kind: together they are one series.
    series = Counter(
        tuple(_labels(finding, by_uuid).items())
        for finding in detection.checks
        if finding.status in _SHOWN
    )
    yield gauge(
        "gpucheck_finding",
        "Number of findings that are not ok, by check, state, cause and GPU.",
        [(dict(labels), count) for labels, count in series.items()],
    )


def _labels(finding: Finding, by_uuid: dict[str | None, Labels]) -> Labels:
    return {
        "check": finding.id,
        "layer": finding.layer.value,
        "status": finding.status.value,
        "cause": finding.cause,
        **by_uuid.get(finding.gpu, {"UUID": finding.gpu}),
    }
