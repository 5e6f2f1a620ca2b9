"""fan: stopped fans on a hot card."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.gpu_health import FAN
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        (
            {"fan_percent": 0, "temperature_c": 74},
            {"fan_count": 2},
            "ok",
            "no hot GPU has stopped fans",
        ),
        ({"fan_percent": 0, "temperature_c": 75}, {"fan_count": 2}, "warn", "are stopped at 75 C"),
        (
            {"fan_percent": 30, "temperature_c": 90},
            {"fan_count": 2},
            "ok",
            "no hot GPU has stopped fans",
        ),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(FAN, gpu, health)

    assert found.status == status
    assert says in found.summary
