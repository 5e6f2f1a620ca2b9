"""Terminal view of `gpucheck place --claims`: the claims and the queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpucheck.place.model import Claim, ClaimList, Holder, ProcessState
from gpucheck.place.operations_view import indented
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable

if TYPE_CHECKING:
    from rich.console import OverflowMethod, RenderableType

_REMARKS = {
    ProcessState.ENDED: " (ended, but its children run)",
    ProcessState.ELSEWHERE: " (in another PID namespace)",
}


def build(report: Report, view: View) -> RenderableType:
    """Return a paragraph for each claim, or the sentence that there are none."""
    from rich.console import Group
    from rich.text import Text

    claims = report.result
    if not isinstance(claims, ClaimList):
        raise TypeError(type(claims).__name__)
    parts: list[RenderableType] = [
        part for claim in claims.claims for part in _claim(claim, more=view.verbosity > 0)
    ]
    if not claims.claims:
        parts.append(Text("No GPU is held."))
    if claims.waiting:
        one = claims.waiting == 1
        number = f"{claims.waiting} {'process waits' if one else 'processes wait'}"
        parts.append(Text(f"{number}{':' if one else ' in this order:'}"))
    for waiter in claims.queue:
        parts.extend(_person(waiter, more=view.verbosity > 0))
    if view.verbosity >= 0:
        where = f"The locks are in {printable(claims.directory)}"
        parts.append(Text(where, style="dim", no_wrap=True, overflow="ignore"))
    return Group(*parts)


def _claim(claim: Claim, *, more: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    part = "" if claim.share == 1 else f", {claim.slot + 1} of {claim.share}"
    title = printable(f"{claim.uuid}{part}")
    yield Text(title, style="bold", no_wrap=True, overflow="ignore")
    yield from _person(claim, more=more)
    if more:
        yield Text(printable(f"  {claim.path}"), style="dim", no_wrap=True, overflow="ignore")


def _person(who: Claim | Holder, *, more: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    remark = _REMARKS.get(who.process, "") if who.process else ""
    process = f"process {who.pid or '?'}{remark}"
    line = f"{who.user or 'an unknown user'}, {process}, since {who.since or '?'}"
    yield indented(Text(printable(line), overflow="fold"))
    if who.command:
        overflow: OverflowMethod = "ignore" if more else "ellipsis"
        line = printable(f"  {who.command}")
        yield Text(line, style="dim", no_wrap=True, overflow=overflow)
