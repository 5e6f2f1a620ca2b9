"""memory-repair: the driver's own report."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import memory_repair
from gpucheck.report.envelope import CheckStatus
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {}, "ok", "no memory repair is pending"),
        ({}, {"memory_unrepairable": True}, "fail", "cannot be repaired"),
        ({}, {"repair_pending": True}, "warn", "next reset"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(memory_repair, gpu, health)

    assert found.status == status
    assert says in found.summary
    assert bool(found.remedy) == (found.status in (CheckStatus.WARN, CheckStatus.FAIL))
