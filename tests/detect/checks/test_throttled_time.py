"""throttled-time: counters that grow during the check."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.gpu_health import THROTTLED_TIME
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {"throttled_ns": {"power cap": 0}}, "ok", "no time was lost"),
        ({}, {"throttled_ns": {"power cap": 90000000}}, "ok", "no time was lost"),
        ({}, {"throttled_ns": {"software thermal": 5000000}}, "warn", "software thermal"),
        (
            {},
            {"throttled_ns": {"power brake": 1, "hardware thermal": 1}},
            "warn",
            "power brake and hardware thermal",
        ),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(THROTTLED_TIME, gpu, health)

    assert found.status == status
    assert says in found.summary


def test_the_growth_is_evidence() -> None:
    found = judge(THROTTLED_TIME, health={"throttled_ns": {"power brake": 5_000_000}})

    assert found.evidence == (("power brake counter", "+5.0 ms in 100 ms"),)
