"""Conclusion of detect: its sentence, and the lines of healthy layers."""

from __future__ import annotations

import pytest

from gpucheck.detect.conclusion import conclude, is_health_unknown
from gpucheck.detect.model import Finding, Layer
from gpucheck.report.envelope import CheckStatus

OK, UNKNOWN, SKIP = CheckStatus.OK, CheckStatus.UNKNOWN, CheckStatus.SKIP


def health(**found: CheckStatus) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            id=name.replace("_", "-"), layer=Layer.HEALTH, status=status, summary=f"{name} says"
        )
        for name, status in found.items()
    )


@pytest.mark.parametrize(
    ("findings", "status", "summary"),
    [
        (health(fan=OK), OK, "1 check passed"),
        (health(fan=OK, xid=OK), OK, "2 checks passed"),
        (health(fan=OK, xid=UNKNOWN), OK, "1 check passed; not checked: xid"),
        # The log alone makes no GPU well.
        (health(fan=UNKNOWN, xid=OK), UNKNOWN, "fan says"),
    ],
)
def test_the_line_of_health(
    findings: tuple[Finding, ...], status: CheckStatus, summary: str
) -> None:
    (layer,) = conclude(findings).layers

    assert (layer.status, layer.summary) == (status, summary)


@pytest.mark.parametrize(
    ("findings", "unknown"),
    [
        (health(fan=UNKNOWN), True),
        (health(fan=UNKNOWN, xid=OK), True),
        (health(fan=OK, xid=UNKNOWN), False),
        (health(fan=SKIP), False),
        ((), False),
    ],
)
def test_health_that_nobody_read_is_not_known(findings: tuple[Finding, ...], unknown: bool) -> None:
    assert is_health_unknown(findings) is unknown
