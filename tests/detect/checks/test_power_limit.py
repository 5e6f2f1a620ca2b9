"""power-limit: lowered limits and insufficient supplies."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.gpu_health import POWER_LIMIT
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {}, "ok", "are the defaults"),
        ({"power_limit_w": 699.5}, {}, "ok", "are the defaults"),
        ({"power_limit_w": 500.0}, {}, "ok", "lowered to 500 W of 700 W"),
        ({}, {"power_source": 1}, "warn", "battery"),
        ({}, {"power_source": 2}, "warn", "undersized"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(POWER_LIMIT, gpu, health)

    assert found.status == status
    assert says in found.summary
