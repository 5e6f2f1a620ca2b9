"""persistence-mode: only noted, on GPUs without a display."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import persistence_mode
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
    found = judge(persistence_mode, gpu, health)

    assert found.status == status
    assert says in found.summary
