"""fabric: ready and healthy."""

from __future__ import annotations

import pytest

from gpucheck.core.checks import fabric
from gpucheck.models.finding import CheckStatus
from tests.core.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {}, "ok", "is ready"),
        ({}, {"fabric_state": 0}, "ok", "is ready"),
        ({}, {"fabric_state": 1}, "fail", "not set up"),
        ({}, {"fabric_state": 2}, "fail", "not set up"),
        ({}, {"fabric_status": 999}, "fail", "not set up"),
        ({}, {"fabric_health": 2}, "warn", "unhealthy"),
        ({}, {"fabric_health": 3}, "warn", "limited"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(fabric, gpu, health)

    assert found.status == status
    assert says in found.summary
    assert bool(found.remedy) == (found.status in (CheckStatus.WARN, CheckStatus.FAIL))
