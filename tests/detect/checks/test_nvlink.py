"""nvlink: links that are down."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import nvlink
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {}, "ok", "all NVLinks are up"),
        ({}, {"nvlinks_active": 17}, "warn", "1 of 18 NVLinks are down"),
        ({}, {"nvlinks_active": 0}, "warn", "18 of 18 NVLinks are down"),
        ({}, {"nvlinks": 0, "nvlinks_active": 0}, "ok", "(1 GPU)"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(nvlink, gpu, health)

    assert found.status == status
    assert says in found.summary
