"""`gpucheck detect` on a terminal: a line per layer, details where something is wrong, a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.models.finding import CheckStatus, Detection, Finding, Verdict
from gpucheck.models.report import Report
from gpucheck.render.base import View, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MARKS = {
    CheckStatus.OK: ("✓", "ok", "green"),
    CheckStatus.WARN: ("!", "warn", "yellow"),
    CheckStatus.FAIL: ("✗", "FAIL", "red"),
    CheckStatus.SKIP: ("–", "skip", "dim"),
    CheckStatus.UNKNOWN: ("?", "unknown", "yellow"),
}


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable."""
    from rich.console import Group

    detection = report.result
    if not isinstance(detection, Detection):
        raise TypeError(type(detection).__name__)
    lines: list[Text] = []
    for finding in detection.checks:
        if view.verbosity >= 0 or finding.status is not CheckStatus.OK:
            lines.extend(_lines(finding, view))
    return Group(*lines, _verdict(detection))


def _lines(finding: Finding, view: View) -> list[Text]:
    from rich.text import Text

    mark, word, style = MARKS[finding.status]
    shown = mark if view.unicode else f"{word:<7}"
    title = Text.assemble(
        (shown, style), f" {finding.layer.value}: ", (printable(finding.summary), "")
    )
    lines = [title]
    wrong = finding.status in (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.UNKNOWN)
    if wrong or view.verbosity > 0:
        lines.extend(
            Text(f"    {printable(item.source)}: {printable(item.value)}", style="dim")
            for item in finding.evidence
        )
    return lines


def _verdict(detection: Detection) -> Text:
    from rich.text import Text

    color = {Verdict.USABLE: "green", Verdict.UNUSABLE: "red"}.get(detection.verdict, "yellow")
    text = Text(printable(detection.conclusion), style=f"bold {color}")
    if not detection.remedy:
        return text
    text.append(". Do:")
    for position, step in enumerate(detection.remedy, start=1):
        text.append(f"\n  {position}. {printable(step)}", style="not bold default")
    return text
