"""Drawn fleets at the bar that docs/measurements/fleet.md states, in a small sample of it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fleet_statistics import absent, bad_node, bad_rack, draw, judged, planting, run
from gpucheck.fleet.model import GpuSpeed, JudgementRule


def test_gpus_eight_percent_slower_are_found_and_no_other() -> None:
    tally = run(100, 0.01, planting(0.02, 8), least=1600)

    assert tally.planted == 32
    assert tally.found >= 0.99 * tally.planted
    assert tally.false == 0


@pytest.mark.parametrize("plant", [bad_rack, bad_node])
def test_bad_places_are_named(plant: object) -> None:
    tally = run(64, 0.01, plant, least=512)  # type: ignore[arg-type]

    assert tally.placed == tally.places > 0
    assert tally.misplaced == 0


def test_missing_nodes_are_named() -> None:
    tally = run(50, 0.01, absent, least=400)

    assert tally.named == tally.missing > 0


def test_a_drawn_fleet_has_the_deviation_it_is_to_have() -> None:
    fleet = draw(200, 0.015, np.random.default_rng(3))

    assert fleet.speeds.std() == pytest.approx(0.015, rel=0.05)
    assert not [one for one in judged(fleet, JudgementRule()).slow if one.speed is GpuSpeed.SLOW]
