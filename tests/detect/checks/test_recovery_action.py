"""recovery-action: the action that the driver asks for."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import recovery_action
from gpucheck.report.envelope import CheckStatus
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {"recovery_action": 0}, "ok", "no recovery"),
        ({}, {"recovery_action": 1}, "fail", "a reset"),
        ({}, {"recovery_action": 2}, "fail", "reboot"),
        ({}, {"recovery_action": 3}, "warn", "peers"),
        ({}, {"recovery_action": 4}, "fail", "drained"),
        ({}, {"recovery_action": 5}, "warn", "IMEX"),
        ({}, {"recovery_action": 6}, "fail", "bus"),
        ({}, {"recovery_action": 7}, "fail", "reboot"),
        ({}, {"recovery_action": 99}, "warn", "unknown action 99"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(recovery_action, gpu, health)

    assert found.status == status
    assert says in found.summary
    assert bool(found.remedy) == (found.status in (CheckStatus.WARN, CheckStatus.FAIL))
