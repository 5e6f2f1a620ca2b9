"""View of `gpucheck detect`: the verdict, what is wrong and what to do, and a line of layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice, zip_longest

from gpucheck.detect.checks import xid
from gpucheck.detect.model import (
    UNREACHED,
    Catalogue,
    Cause,
    CheckDescription,
    Detection,
    Finding,
    Layer,
    Verdict,
)
from gpucheck.inventory.memory import capped_sentences
from gpucheck.report.blocks import (
    Block,
    Command,
    Gap,
    Heading,
    Line,
    Span,
    counted,
    left_out,
    opening,
    remedies,
    verdict,
)
from gpucheck.report.envelope import CheckStatus, Evidence, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import View, group_by

WRONG = (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.UNKNOWN)
#: Text below a finding begins below its summary.
INDENT = 4
#: So many pieces of evidence stand below a finding; `-v` shows all.
MOST_EVIDENCE = 2
#: So many findings of one check are shown; `-v` shows all.
MOST_ALIKE = 2


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the blocks of a report of detect, or of the list of its checks."""
    if isinstance(report.result, Catalogue):
        yield from _catalogue(report.result)
        return
    detection = report.result_as(Detection)
    yield from opening(report, view, counted(gpu.name for gpu in detection.gpus))
    yield from (Line(text, CheckStatus.WARN) for text in capped_sentences(detection.memory_limits))
    yield from answer(report, detection, view)
    others = _others(detection)
    if view.verbosity > 0:
        yield Gap()
        yield from _every_layer(detection)
        return
    if others:
        yield Gap()
        yield from _findings(others)
    if view.verbosity == 0:
        yield Gap()
        yield from _layers(detection)


def records(result: object) -> Iterator[tuple[str, object]]:
    """Yield the lines of a detection for JSON lines: the findings, then the frameworks."""
    if isinstance(result, Detection):
        yield from (("finding", finding) for finding in result.checks)
        yield from (("framework", framework) for framework in result.frameworks)


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows: every warning."""
    return {notice.code for notice in report.warnings}


def answer(report: Report, detection: Detection, view: View) -> Iterator[Block]:
    """Yield the verdict, and if something is wrong what to do and where it was seen."""
    yield verdict(detection.conclusion, mark_of(report, detection))
    # Only --strict made the answer a bad one.
    failed = any(finding.status is CheckStatus.FAIL for finding in detection.checks)
    good = detection.verdict is not Verdict.UNUSABLE and not failed
    if report.exit_code is ExitCode.BAD and good:
        yield Line("--strict makes this a failure", indent=INDENT, style="dim")
    yield from remedies(detection.remedy, indent=INDENT)
    cause = _cause(detection)
    if cause is None:
        return
    if view.verbosity <= 0:
        yield from evidence_lines(cause.evidence, MOST_EVIDENCE)
    if view.verbosity >= 0 and cause.status is not CheckStatus.OK:
        named = f"{cause.cause}: " if cause.cause else ""
        yield Line(f"{named}why, and what else it can be:", indent=INDENT, style="dim")
        # Each Xid has a page of its own.
        page = cause.cause if cause.id == xid.ID else cause.id
        yield Command(f"gpucheck detect --explain {page}", INDENT + 2)


def mark_of(report: Report, detection: Detection) -> CheckStatus:
    """Return the status that marks the verdict."""
    if report.exit_code is ExitCode.BAD or detection.verdict is Verdict.UNUSABLE:
        return CheckStatus.FAIL
    if report.exit_code is ExitCode.INCONCLUSIVE:
        return CheckStatus.UNKNOWN
    if detection.verdict is Verdict.DEGRADED or _cause(detection) is not None:
        return CheckStatus.WARN
    return CheckStatus.OK if report.exit_code is ExitCode.OK else CheckStatus.UNKNOWN


def _cause(detection: Detection) -> Finding | None:
    """Return the finding that the verdict's sentence is about."""
    findings = [finding for finding in detection.checks if finding.id == detection.cause_check]
    return next(
        (finding for status in WRONG for finding in findings if finding.status is status), None
    )


# ------------------------------------------------------------------------------ what else is wrong


def _others(detection: Detection) -> list[Finding]:
    """Return the other findings that are not ok, without the consequences of the cause."""
    cause = _cause(detection)
    return [
        finding
        for finding in detection.checks
        if finding.status in WRONG
        and finding is not cause
        and not _is_consequence(finding)
        # What could not be read and decides nothing stands with the layers.
        and not (finding.status is CheckStatus.UNKNOWN and not finding.remedy)
    ]


def _is_consequence(finding: Finding) -> bool:
    """Return whether another finding has the remedy for this one."""
    return len(finding.remedy) == 1 and finding.remedy[0].startswith("See ")


def _findings(findings: Sequence[Finding]) -> Iterator[Block]:
    """Yield findings; what several GPUs share stands once, below the last of them."""
    for name, alike in group_by(findings, lambda finding: finding.id).items():
        shown = alike[:MOST_ALIKE]
        for place, finding in enumerate(shown, start=1):
            yield Line(f"{name}: {finding.summary}", finding.status)
            if place == len(shown):
                yield from left_out(len(alike) - place, indent=INDENT)
            elif shown[place].remedy == finding.remedy:
                continue
            yield from remedies(finding.remedy, indent=INDENT)


def evidence_lines(
    evidence: Iterable[Evidence], most: int | None = None, *, indent: int = INDENT
) -> Iterator[Line]:
    """Yield where something was seen, by its source."""
    for item in islice(evidence, most):
        yield Line(f"{item.source}: {item.value}", lead="seen", indent=indent, style="dim")


# ------------------------------------------------------------------------------------ layers


def _layers(detection: Detection) -> Iterator[Block]:
    """Yield the layers in which all is well, those not reached, and what is not known."""
    by_status = group_by(detection.layers, lambda layer: layer.status)
    well = by_status.get(CheckStatus.OK, [])
    opened = [layer for layer in well if _tells_more(layer.layer, detection)]
    names = [layer.layer.value for layer in well if layer not in opened]
    if names:
        yield Line(", ".join(names), CheckStatus.OK)
    for layer in opened:
        yield Line(f"{layer.layer.value}: {layer.summary}", CheckStatus.OK)
    yield from (
        Line(f"{finding.id}: {finding.summary}", CheckStatus.OK)
        for finding in detection.checks
        if finding.id == xid.ID and finding.status is CheckStatus.OK and finding.evidence
    )
    same = [finding.layer.value for finding in detection.checks if _is_consequence(finding)]
    if same:
        yield Line(f"{', '.join(dict.fromkeys(same))}: from the same cause", CheckStatus.WARN)
    yield from _unread(detection)
    skipped = by_status.get(CheckStatus.SKIP, [])
    unreached = [layer for layer in skipped if layer.summary.startswith(UNREACHED)]
    if unreached:
        left_out = ", ".join(layer.layer.value for layer in unreached)
        yield Line(f"not reached: {left_out}", CheckStatus.SKIP, style="dim")
    for layer in skipped:
        if layer not in unreached:
            yield Line(f"{layer.layer.value}: {layer.summary}", CheckStatus.SKIP, style="dim")


def _tells_more(layer: Layer, detection: Detection) -> bool:
    """Return whether a layer says more than that all is well: what a program gets."""
    if layer is Layer.FRAMEWORK:
        return True
    return any(
        finding.layer is layer is Layer.VISIBILITY and finding.evidence
        for finding in detection.checks
    )


def _unread(detection: Detection) -> Iterator[Block]:
    """Yield the checks whose answer is not known and decided nothing: one with its reason."""
    cause = _cause(detection)
    unread = [
        finding
        for finding in detection.checks
        if finding.status is CheckStatus.UNKNOWN and not finding.remedy and finding is not cause
    ]
    names = list(dict.fromkeys(finding.id for finding in unread))
    if len(names) == 1:
        yield Line(f"{names[0]}: {unread[0].summary}", CheckStatus.UNKNOWN)
    elif names:
        yield Line(f"not known: {', '.join(names)} (-v: why)", CheckStatus.UNKNOWN)


def _every_layer(detection: Detection) -> Iterator[Block]:
    """Yield each layer with all that was found in it: summaries, evidence and remedies."""
    for layer in detection.layers:
        yield Line(f"{layer.layer.value}: {layer.summary}", layer.status)
        for finding in detection.checks:
            if finding.layer is not layer.layer:
                continue
            same = finding.summary == layer.summary
            text = f"check: {finding.id}" if same else f"{finding.id}: {finding.summary}"
            mark = None if same else finding.status
            yield Line(text, mark, indent=INDENT, style="dim" if same else "")
            yield from evidence_lines(finding.evidence, indent=2 * INDENT)
            yield from remedies(finding.remedy, indent=2 * INDENT)


# ------------------------------------------------------------------------------ the checks


#: How the rules of a check begin, and what --explain says instead.
RULES = {"fail": "Fails if", "warn": "Warns if", "unknown": "Unknown if", "ok": "Well if"}


def _catalogue(catalogue: Catalogue) -> Iterator[Block]:
    if catalogue.explained:
        yield from _explained(catalogue.catalogue)
        return
    layer = None
    for check in catalogue.catalogue:
        if check.layer is not layer:
            layer = check.layer
            yield Heading(layer.value)
        yield Line(check.question, lead=f"{check.id:<18}", indent=2)


def _explained(checks: Sequence[CheckDescription]) -> Iterator[Block]:
    """Yield each check in full, or one cause with the checks for which it is the same."""
    alone = [check for check in checks if 0 < len(check.causes) < len(check.about.causes)]
    for (cause,), alike in group_by(alone, lambda check: check.causes).items():
        yield Heading(f"{cause.name} (found by {', '.join(check.id for check in alike)})")
        yield Line(cause.sentence)
        yield from remedies(cause.remedy, indent=INDENT)
        yield Line("what else it can be:", style="dim")
        yield Command(f"gpucheck detect --explain {alike[0].id}")
    for check in checks:
        if check not in alone:
            yield from _explanation(check)


def _causes(causes: Sequence[Cause]) -> Iterator[Block]:
    """Yield each cause in words, and what to do; steps that several share stand below the last."""
    for cause, following in zip_longest(causes, causes[1:]):
        yield Line((Span(cause.name, "bold"), Span(f": {cause.sentence}")), indent=2)
        if following is None or following.remedy != cause.remedy:
            yield from remedies(cause.remedy, indent=INDENT)


def _explanation(check: CheckDescription) -> Iterator[Block]:
    about = check.about
    yield Heading(f"{check.id} ({check.layer.value})")
    yield Line(check.question)
    if check.causes:
        yield Gap()
        yield Heading("Causes, and what to do")
        yield from _causes(check.causes)
        yield Gap()
    rules = group_by(about.rules, lambda rule: RULES.get(rule.partition(": ")[0], "Rules"))
    parts = (
        ("Why", (about.why,)),
        *(
            (title, [rule if title == "Rules" else rule.partition(": ")[2] for rule in alike])
            for title, alike in rules.items()
        ),
        ("Looks at", about.looks_at),
        ("After", (", ".join(check.requires),) if check.requires else ()),
        ("Sources", about.sources),
    )
    for title, lines in parts:
        for position, line in enumerate(lines):
            yield Line(line, lead=f"{title if position == 0 else '':<11}")


# ------------------------------------------------------------------------------------ one line


def line(detection: Detection) -> str:
    """Return the sentence of --format line."""
    return detection.conclusion
