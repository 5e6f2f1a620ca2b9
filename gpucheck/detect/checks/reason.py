"""Parts of a finding: the reason, and the maker of one check's findings."""

from __future__ import annotations

from typing import NamedTuple

from gpucheck.detect.model import Finding, Layer
from gpucheck.report.envelope import CheckStatus, Evidence


class Reason(NamedTuple):
    """Problem: its cause, a sentence, the evidence, and the remedies in order."""

    cause: str
    summary: str
    evidence: tuple[Evidence, ...] = ()
    remedy: tuple[str, ...] = ()


class Teller(NamedTuple):
    """Maker of one check's findings about the whole machine."""

    id: str
    layer: Layer

    def __call__(
        self,
        status: CheckStatus,
        summary: str,
        *evidence: Evidence,
        remedy: tuple[str, ...] = (),
        cause: str | None = None,
    ) -> Finding:
        """Return a finding; `cause` and `remedy` if something is wrong."""
        return Finding(
            id=self.id,
            layer=self.layer,
            status=status,
            summary=summary,
            evidence=evidence,
            remedy=remedy,
            cause=cause,
        )
