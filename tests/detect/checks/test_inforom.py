"""inforom: valid or not."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.gpu_health import INFOROM
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {"inforom_valid": True}, "ok", "valid"),
        ({}, {"inforom_valid": False}, "warn", "corrupted"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(INFOROM, gpu, health)

    assert found.status == status
    assert says in found.summary
