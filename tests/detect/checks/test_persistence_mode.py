"""persistence-mode: only noted, on GPUs without a display."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.gpu_health import PERSISTENCE_MODE
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({"persistence_mode": True}, {}, "ok", "is on"),
        ({"persistence_mode": False}, {}, "ok", "the first program waits"),
        ({"persistence_mode": False}, {"display_active": True}, "ok", "is on"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(PERSISTENCE_MODE, gpu, health)

    assert found.status == status
    assert says in found.summary
