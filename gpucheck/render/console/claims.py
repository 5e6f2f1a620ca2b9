"""`gpucheck place --claims` on a terminal: who holds which GPU, and how many wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpucheck.models.claim import Claim, ClaimList
from gpucheck.models.report import Report
from gpucheck.render.base import View, printable

if TYPE_CHECKING:
    from rich.console import RenderableType


def build(report: Report, view: View) -> RenderableType:
    """Return a paragraph for each claim, or the sentence that there are none."""
    from rich.console import Group
    from rich.text import Text

    claims = report.result
    if not isinstance(claims, ClaimList):
        raise TypeError(type(claims).__name__)
    parts: list[RenderableType] = [part for claim in claims.claims for part in _claim(claim)]
    if not claims.claims:
        parts.append(Text("Nobody holds a GPU."))
    if claims.waiting:
        one = claims.waiting == 1
        parts.append(Text(f"{claims.waiting} {'process waits' if one else 'processes wait'}."))
    if view.verbosity >= 0:
        where = f"The locks are in {printable(claims.directory)}."
        parts.append(Text(where, style="dim", overflow="fold"))
    return Group(*parts)


def _claim(claim: Claim) -> Iterator[RenderableType]:
    from rich.text import Text

    part = "" if claim.share == 1 else f", {claim.slot + 1} of {claim.share}"
    yield Text(printable(f"{claim.uuid}{part}"), style="bold", overflow="fold")
    who = f"{claim.user or 'somebody'}, process {claim.pid or '?'}, since {claim.since or '?'}"
    yield Text(printable(f"  {who}"), overflow="fold")
    if claim.command:
        yield Text(printable(f"  {claim.command}"), no_wrap=True, overflow="ellipsis")
