"""Metrics of `gpucheck detect`: the verdict, and the findings that are not ok."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpucheck.detect.model import Detection, Finding, Verdict
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.formats.prometheus import Metric, gauge, gpu_labels

Labels = dict[str, str | None]

#: Findings with these states have a series each; the others are only counted, so that a healthy
#: node of 8 GPUs stays at some twenty series.
_SHOWN = (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.UNKNOWN)


def metrics(report: Report) -> Iterator[Metric]:
    """Yield the metrics of a detection."""
    detection = report.result
    if not isinstance(detection, Detection):
        raise TypeError(type(detection).__name__)
    yield gauge(
        "gpucheck_usable",
        "1 if a program started now can use a GPU, 0 if not; absent if not known.",
        [({}, detection.usable)],
    )
    yield gauge(
        "gpucheck_verdict",
        "1 for the verdict of the node, 0 for the others.",
        [({"verdict": each.value}, each is detection.verdict) for each in Verdict],
    )
    counts = Counter(finding.status for finding in detection.checks)
    yield gauge(
        "gpucheck_findings",
        "Number of findings in each state.",
        [({"status": each.value}, counts[each]) for each in CheckStatus],
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
    found = Counter(
        tuple(_labels(finding, by_uuid).items())
        for finding in detection.checks
        if finding.status in _SHOWN
    )
    yield gauge(
        "gpucheck_finding",
        "Number of findings that are not ok, by check, state, cause and GPU.",
        [(dict(labels), count) for labels, count in found.items()],
    )


def _labels(finding: Finding, by_uuid: dict[str | None, Labels]) -> Labels:
    return {
        "check": finding.id,
        "layer": finding.layer.value,
        "status": finding.status.value,
        "cause": finding.cause,
        **by_uuid.get(finding.gpu, {"UUID": finding.gpu}),
    }
