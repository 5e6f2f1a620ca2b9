"""Conclusion from the findings: a verdict, its sentence, and a line for each layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpucheck.detect.checks import CHECKS, cuda_driver, framework, gpu_lost, launch, xid
from gpucheck.detect.judgement import CHAIN, GOOD, is_unreached
from gpucheck.detect.model import Detection, Finding, Layer, LayerSummary, Verdict
from gpucheck.drivers.evidence import BuildsReading
from gpucheck.report.envelope import CheckStatus
from gpucheck.report.errors import ExitCode

SENTENCES = {
    Verdict.USABLE: "GPU usable",
    Verdict.DEGRADED: "GPU usable, with warnings",
    Verdict.UNUSABLE: "GPU not usable",
    Verdict.UNKNOWN: "Cannot tell whether a GPU is usable",
}
USABLE = {
    Verdict.USABLE: True,
    Verdict.DEGRADED: True,
    Verdict.UNUSABLE: False,
    Verdict.UNKNOWN: None,
}
BESIDE = frozenset(Layer) - CHAIN
#: Layers whose warnings are about the GPU rather than about a program that uses it.
BELOW = (CHAIN | {Layer.HEALTH}) - {Layer.VISIBILITY}
#: From worst to best: a layer has the worst status that was found in it.
WORST_FIRST = (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.UNKNOWN)


def conclude(
    findings: tuple[Finding, ...],
    *,
    partial: bool = False,
    looked_at: BuildsReading | None = None,
) -> Detection:
    """Turn the findings into the verdict, its sentence, and the remedies.

    `partial`: not all checks ran, so proof may be missing. `looked_at` is the Python whose
    frameworks were judged.
    """
    failed = _first(findings, CheckStatus.FAIL, CHAIN)
    beside = _first(findings, CheckStatus.FAIL, BESIDE)
    cause: Finding | None
    if failed is None:
        failed = _none_left(findings)
    if failed is not None:
        verdict, cause = Verdict.UNUSABLE, failed
    elif _is_proven(findings):
        warned = _first(findings, CheckStatus.WARN, BELOW)
        verdict = Verdict.DEGRADED if warned or beside else Verdict.USABLE
        cause = beside or warned or _first(findings, CheckStatus.WARN, frozenset(Layer))
    else:
        # The last one is closest to proof: what it leaves open is what is missing.
        verdict = Verdict.UNKNOWN
        cause = beside or _first(findings[::-1], CheckStatus.UNKNOWN, CHAIN)
        if cause is None and partial:
            cause = _first(findings, CheckStatus.WARN, frozenset(Layer))
    first = failed or beside
    return Detection(
        usable=USABLE[verdict],
        verdict=verdict,
        conclusion=_sentence(verdict, cause, findings, partial=partial),
        remedy=cause.remedy if cause else (),
        first_failure=first.id if first else None,
        checks=findings,
        layers=tuple(_layers(findings, looked_at or BuildsReading())),
        cause=cause.cause if cause else None,
        interpreter=looked_at.python if looked_at else None,
        interpreter_named_by=looked_at.named_by if looked_at else None,
    )


def _none_left(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding which says that every GPU is lost, whatever worked before."""
    lost = next((finding for finding in findings if finding.id == gpu_lost.ID), None)
    none = lost is not None and (gpu_lost.left_of(lost) or "").startswith("0 ")
    return lost if none else None


def _is_proven(findings: Sequence[Finding]) -> bool:
    """Return whether a kernel ran or, if none was tried, CUDA sees a GPU."""
    by_id = {finding.id: finding for finding in findings}
    ran = by_id.get(launch.ID)
    if ran is not None and ran.status is not CheckStatus.SKIP:
        return ran.status in GOOD
    sees = by_id.get(cuda_driver.ID)
    return sees is not None and sees.status in GOOD


def _sentence(
    verdict: Verdict, cause: Finding | None, findings: Sequence[Finding], *, partial: bool
) -> str:
    if verdict is Verdict.UNKNOWN and partial and cause is None:
        if any(finding.status in GOOD for finding in findings):
            return "The selected checks passed; whether a GPU is usable was not checked"
        return "None of the selected checks could be made"
    if cause is None:
        unknown = verdict is Verdict.USABLE and is_health_unknown(findings)
        return SENTENCES[verdict] + "; its health is unknown" * unknown
    failed = cause.status is CheckStatus.FAIL
    if verdict is Verdict.DEGRADED and cause.id == gpu_lost.ID:
        return f"{gpu_lost.left_of(cause)} GPUs usable: {cause.summary}"
    if failed and verdict is Verdict.DEGRADED:
        return f"GPU usable, but {'unhealthy: ' * (cause.layer is Layer.HEALTH)}{cause.summary}"
    if verdict is Verdict.UNKNOWN and (failed or cause.status is CheckStatus.WARN):
        return cause.summary
    if verdict is Verdict.USABLE:
        return f"{SENTENCES[verdict]}; note: {cause.summary}"
    return f"{SENTENCES[verdict]}: {cause.summary}"


def is_health_unknown(findings: Sequence[Finding]) -> bool:
    """Return whether the health could not be read at all, the kernel log aside."""
    found = {f.status for f in findings if f.layer is Layer.HEALTH and f.id != xid.ID}
    return CheckStatus.UNKNOWN in found and CheckStatus.OK not in found


def _first(
    findings: Sequence[Finding], status: CheckStatus, layers: frozenset[Layer]
) -> Finding | None:
    return next((f for f in findings if f.status is status and f.layer in layers), None)


def exit_code_of(detection: Detection, framework_asked: str | None) -> ExitCode:
    """Return 0 usable, 1 anything failed, 3 unknown; for selected checks, 0 if all passed."""
    if detection.first_failure is not None:
        return ExitCode.BAD
    asked = next((f for f in detection.checks if f.id == framework_asked), None)
    if asked is not None and asked.status not in GOOD:
        return ExitCode.INCONCLUSIVE
    if detection.usable:
        return ExitCode.OK
    complete = len({finding.id for finding in detection.checks}) == len(CHECKS)
    open_ = _first(detection.checks, CheckStatus.UNKNOWN, CHAIN) is not None
    well = any(finding.status in GOOD for finding in detection.checks)
    return ExitCode.OK if well and not open_ and not complete else ExitCode.INCONCLUSIVE


def _layers(findings: Sequence[Finding], looked_at: BuildsReading) -> Iterable[LayerSummary]:
    """Return a line for each layer that was checked, with the worst status found in it."""
    for layer in Layer:
        own = [finding for finding in findings if finding.layer is layer]
        if own:
            yield _layer(layer, own, looked_at)


def _layer(layer: Layer, own: Sequence[Finding], looked_at: BuildsReading) -> LayerSummary:
    if layer is Layer.HEALTH:
        return _health(own)
    for status in WORST_FIRST:
        alike = list(dict.fromkeys(f.summary for f in own if f.status is status))
        if alike:
            return LayerSummary(layer=layer, status=status, summary=_first_of(alike))
    skipped = [finding for finding in own if finding.status is CheckStatus.SKIP]
    unreached = next(filter(is_unreached, skipped), None)
    well = [finding.summary for finding in own if finding.status is CheckStatus.OK]
    if unreached is not None or not well:
        summary = (unreached or skipped[0]).summary
        if layer is Layer.FRAMEWORK:
            summary = _no_framework(looked_at)
        return LayerSummary(layer=layer, status=CheckStatus.SKIP, summary=summary)
    # The first check of a layer speaks for it; frameworks are all listed.
    summary = well[0]
    if layer is Layer.FRAMEWORK:
        where = ", ".join(filter(None, (looked_at.python, framework.named_by(looked_at))))
        where = f" (in {where})" if where else ""
        summary = f"{'; '.join(well)}{where}"
    return LayerSummary(layer=layer, status=CheckStatus.OK, summary=summary)


def _no_framework(looked_at: BuildsReading) -> str:
    """Return where no framework was found, or why that Python gave no answer."""
    if looked_at.unavailable is not None:
        return f"not checked: {looked_at.unavailable}"
    where = looked_at.python or "this Python"
    by = framework.named_by(looked_at)
    return f"none in {where} ({f'{by}; ' if by else ''}--python PATH selects another)"


def _first_of(summaries: Sequence[str]) -> str:
    more = len(summaries) - 1
    return f"{summaries[0]}; and {more} more" if more else summaries[0]


def _health(own: Sequence[Finding]) -> LayerSummary:
    """Return the worst finding; if nothing is wrong, count the passed checks and name the others.

    Few users may read the kernel log. An unreadable log alone does not make a GPU's health unknown,
    and an empty log alone does not make a GPU healthy.
    """
    for status in (CheckStatus.FAIL, CheckStatus.WARN):
        bad = [finding.summary for finding in own if finding.status is status]
        if bad:
            return LayerSummary(layer=Layer.HEALTH, status=status, summary=_first_of(bad))
    well = [finding for finding in own if finding.status is CheckStatus.OK]
    open_ = [finding for finding in own if finding.status is CheckStatus.UNKNOWN]
    if all(finding.id == xid.ID for finding in well):
        worst = open_ or [finding for finding in own if is_unreached(finding)] or list(own)
        return LayerSummary(layer=Layer.HEALTH, status=worst[0].status, summary=worst[0].summary)
    names = ", ".join(dict.fromkeys(finding.id for finding in open_))
    checks = "1 check" if len(well) == 1 else f"{len(well)} checks"
    summary = f"{checks} passed" + (f"; not checked: {names}" * bool(names))
    return LayerSummary(layer=Layer.HEALTH, status=CheckStatus.OK, summary=summary)
