"""pcie-replays: the rate, and chance left out."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.gpu_health import PCIE_REPLAYS
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {"pcie_replays_grown": 0}, "ok", "no PCIe transfer"),
        ({}, {"pcie_replays_grown": 1}, "ok", "no PCIe transfer"),
        ({}, {"pcie_replays_grown": 2}, "warn", "2 in 100 ms"),
        ({}, {"pcie_replays_grown": 2, "sample_s": None}, "warn", "2 in 100 ms"),
        ({}, {"pcie_replays_grown": 2, "sample_s": 10.0}, "ok", "no PCIe transfer"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(PCIE_REPLAYS, gpu, health)

    assert found.status == status
    assert says in found.summary


def test_the_rate_is_held_against_what_the_link_may_have() -> None:
    link = {"pcie_width": 16, "pcie_generation": 4}

    found = judge(PCIE_REPLAYS, link, {"pcie_replays_grown": 2, "sample_s": 6.0})

    assert found.evidence[0] == ("replays a minute", "20, limit 15")
    assert judge(PCIE_REPLAYS, link, {"pcie_replays_grown": 2, "sample_s": 8.0}).status == "ok"


@pytest.mark.parametrize(
    ("generation", "limit"),
    # GT/s of a lane x 16 lanes x 60 / 1000; an unknown link is taken for one of generation 3.
    [(1, "2"), (2, "5"), (3, "8"), (4, "15"), (5, "31"), (6, "61"), (7, "8"), (None, "8")],
)
def test_each_generation_has_its_limit(generation: int | None, limit: str) -> None:
    link = {"pcie_width": 16, "pcie_generation": generation}

    found = judge(PCIE_REPLAYS, link, {"pcie_replays_grown": 2, "sample_s": 1.0})

    assert found.evidence[0] == ("replays a minute", f"120, limit {limit}")


def test_a_rate_at_the_limit_is_allowed() -> None:
    # One lane of generation 5: 1.92 a minute, and 48 in 25 minutes.
    link = {"pcie_width": 1, "pcie_generation": 5}

    at, beyond = (
        judge(PCIE_REPLAYS, link, {"pcie_replays_grown": grown, "sample_s": 1500.0})
        for grown in (48, 49)
    )

    assert (at.status, beyond.status) == ("ok", "warn")
