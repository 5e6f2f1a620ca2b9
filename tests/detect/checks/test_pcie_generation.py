"""pcie-generation: only under load."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.gpu_health import PCIE_GENERATION
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({"pcie_generation": 1, "utilization_gpu_percent": 0}, {}, "ok", "as expected"),
        ({"pcie_generation": 1, "utilization_gpu_percent": 49}, {}, "ok", "as expected"),
        (
            {"pcie_generation": 1, "utilization_gpu_percent": 50},
            {},
            "warn",
            "PCIe generation 1 of 5 under load",
        ),
        ({"pcie_generation": 1, "utilization_gpu_percent": None}, {}, "ok", "as expected"),
        (
            {"pcie_generation": 4, "pcie_generation_max": 4},
            {},
            "ok",
            "the slot supports PCIe generation 4, the card 5",
        ),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(PCIE_GENERATION, gpu, health)

    assert found.status == status
    assert says in found.summary
