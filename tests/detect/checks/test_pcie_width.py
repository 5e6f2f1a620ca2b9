"""pcie-width: fewer lanes than possible."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.gpu_health import PCIE_WIDTH
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({"pcie_width": 16}, {}, "ok", "full width"),
        ({"pcie_width": 8}, {}, "warn", "PCIe x8 of x16"),
        ({"pcie_width": 8, "pcie_width_max": 8}, {}, "ok", "full width"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(PCIE_WIDTH, gpu, health)

    assert found.status == status
    assert says in found.summary
