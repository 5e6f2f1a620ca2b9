"""clock-throttling: bits, never the whole mask."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import clock_throttling
from gpucheck.report.envelope import CheckStatus
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {"clock_event_reasons": 0}, "ok", "no clock is throttled"),
        ({}, {"clock_event_reasons": 1}, "ok", "no clock is throttled"),
        ({}, {"clock_event_reasons": 275}, "ok", "no clock is throttled"),
        ({}, {"clock_event_reasons": 5}, "ok", "runs at its power limit"),
        ({}, {"clock_event_reasons": 8}, "warn", "hardware slowdown"),
        ({}, {"clock_event_reasons": 33}, "warn", "heat (software)"),
        ({}, {"clock_event_reasons": 64}, "warn", "heat (hardware"),
        ({}, {"clock_event_reasons": 128}, "fail", "power brake"),
        ({}, {"clock_event_reasons": 200}, "fail", "power brake"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(clock_throttling, gpu, health)

    assert found.status == status
    assert says in found.summary
    assert bool(found.remedy) == (found.status in (CheckStatus.WARN, CheckStatus.FAIL))
