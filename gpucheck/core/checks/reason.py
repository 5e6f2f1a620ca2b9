"""How checks say what they found: a reason, and a finding of one check's own."""

from __future__ import annotations

from typing import NamedTuple

from gpucheck.models.finding import CheckStatus, Evidence, Finding, Layer


class Reason(NamedTuple):
    """What is wrong (its name and a sentence), by what it was seen, and what to try, in order."""

    cause: str
    summary: str
    evidence: tuple[Evidence, ...] = ()
    remedy: tuple[str, ...] = ()


class Teller(NamedTuple):
    """Makes the findings of one check, which speak of the whole machine."""

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
        """Return a finding; `cause` and `remedy` where something is wrong."""
        return Finding(
            id=self.id,
            layer=self.layer,
            status=status,
            summary=summary,
            evidence=evidence,
            remedy=remedy,
            cause=cause,
        )
