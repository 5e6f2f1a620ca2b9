"""`gpucheck detect` on a terminal: a line per layer, details where it is broken, a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpucheck.detect.model import (
    Catalogue,
    CheckDescription,
    Detection,
    Finding,
    LayerSummary,
    Verdict,
)
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.text import View, printable

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
WRONG = (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.UNKNOWN)
#: Details stand to the right of the mark and the layer's line.
INDENT = 4


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable."""
    from rich.console import Group

    if isinstance(report.result, Catalogue):
        return Group(*_catalogue(report.result))
    detection = report.result
    if not isinstance(detection, Detection):
        raise TypeError(type(detection).__name__)
    parts: list[RenderableType] = []
    for layer in detection.layers:
        parts.extend(_layer(layer, detection, view))
    return Group(*parts, *_verdict(detection))


# ------------------------------------------------------------------------------ layers


def _layer(layer: LayerSummary, detection: Detection, view: View) -> Iterator[RenderableType]:
    """Yield one line, and below it the checks that found something, or all of them with -v."""
    from rich.padding import Padding

    if view.verbosity < 0 and layer.status not in WRONG:
        return
    own = [finding for finding in detection.checks if finding.layer is layer.layer]
    shown = own if view.verbosity > 0 else [f for f in own if f.status in WRONG]
    yield _line(layer.status, f"{layer.layer.value}: {layer.summary}", view)
    outweighed = shown and all(f.status is CheckStatus.UNKNOWN and f.cause is None for f in shown)
    if view.verbosity <= 0 and (layer.status is CheckStatus.OK or outweighed):
        return
    # What the layer's own line says is not repeated.
    same = [finding for finding in shown if finding.summary == layer.summary]
    names = list(dict.fromkeys(finding.id for finding in same))
    if names not in ([], [layer.layer.value]):
        yield _unbroken(f"found by {', '.join(names)}", 1, style="dim")
    for finding in same:
        yield from _evidence(finding, 1)
        yield from _steps(finding, 1)
    others = [finding for finding in shown if finding not in same]
    for position, finding in enumerate(others):
        line = _line(finding.status, f"{finding.id}: {finding.summary}", view)
        yield Padding(line, (0, 0, 0, INDENT))
        # Evidence and remedies that several GPUs share stand once, below the last of them.
        after = others[position + 1] if position + 1 < len(others) else None
        alike = after is not None and (after.id, after.remedy) == (finding.id, finding.remedy)
        if not (alike and after is not None and after.evidence == finding.evidence):
            yield from _evidence(finding, 2)
        if not alike:
            yield from _steps(finding, 2)


def _line(status: CheckStatus, text: str, view: View) -> RenderableType:
    from rich.text import Text

    mark, word, style = MARKS[status]
    shown = Text(mark if view.unicode else f"{word:<7}", style=style)
    return _hanging(shown, Text(printable(text)))


def _evidence(finding: Finding, depth: int) -> Iterator[RenderableType]:
    for item in finding.evidence:
        yield _unbroken(f"{item.source}: {item.value}", depth, style="dim")


def _steps(finding: Finding, depth: int) -> Iterator[RenderableType]:
    for position, step in enumerate(finding.remedy, start=1):
        yield _unbroken(f"{position}. {step}", depth)


def _unbroken(text: str, depth: int = 0, *, style: str = "") -> Text:
    """Return what people copy (paths, commands, settings) as one line, however long it is."""
    from rich.text import Text

    indented = " " * (depth * INDENT) + printable(text)
    return Text(indented, style=style, no_wrap=True, overflow="ignore")


def _verdict(detection: Detection) -> Iterator[RenderableType]:
    """Yield the last line: the conclusion, and the first remedy."""
    color = {Verdict.USABLE: "green", Verdict.UNUSABLE: "red"}.get(detection.verdict, "yellow")
    text = _unbroken(detection.conclusion, style=f"bold {color}")
    if detection.remedy:
        text.append(f". Do: {printable(detection.remedy[0])}", style="not bold default")
    yield text


def _hanging(mark: Text, body: Text) -> RenderableType:
    """Return a mark and a text that wraps beside it, not below it."""
    from rich.table import Table

    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, width=mark.cell_len)
    table.add_column(overflow="fold")
    table.add_row(mark, body)
    return table


# ------------------------------------------------------------------------------ the checks


def _catalogue(found: Catalogue) -> Iterator[RenderableType]:
    from rich.text import Text

    layer = None
    for check in found.catalogue:
        if found.explained:
            yield from _explanation(check)
            continue
        if check.layer is not layer:
            layer = check.layer
            yield Text(layer.value, style="bold")
        yield _hanging(Text(f"  {check.id:<18}"), Text(check.question))


def _explanation(check: CheckDescription) -> Iterator[RenderableType]:
    from rich.text import Text

    about = check.about
    yield Text(f"{check.id} ({check.layer.value})", style="bold")
    yield Text(check.question)
    parts = (
        ("Looks at", about.looks_at),
        ("Why", (about.why,)),
        ("Judges", about.rules),
        ("Causes", (", ".join(about.causes),) if about.causes else ()),
        ("Sources", about.sources),
        ("After", (", ".join(check.requires),) if check.requires else ()),
    )
    for title, lines in parts:
        for position, line in enumerate(lines):
            mark = f"{title if position == 0 else '':<9}"
            yield _hanging(Text(mark, style="dim"), Text(line))
