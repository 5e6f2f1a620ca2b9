from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.model import GpuTelemetry
from gpucheck.bench.telemetry import (
    REASONS,
    best_link,
    extent,
    grown,
    limited_s,
    other_processes,
    reason_shares,
    reasons_for,
)
from gpucheck.drivers.nvml.sensors import Sample


def sample(**values: float) -> Sample:
    return Sample(time_s=0.0, uuid="GPU-0", values=values)


def test_several_reasons_at_once_are_all_counted() -> None:
    shares = reason_shares([sample(reasons=0x24), sample(reasons=0x4), sample(reasons=0)], {})

    assert shares == {"power-cap": pytest.approx(2 / 3), "software-thermal": pytest.approx(1 / 3)}


def test_readings_without_reasons_are_no_readings_of_none() -> None:
    assert reason_shares([sample(power_mw=1.0)], {}) == {}
    assert reason_shares([], {}) == {}


@pytest.mark.parametrize(
    ("facts", "locked"),
    [
        ({}, True),
        ({"clock_application_mhz": 1095, "clock_application_default_mhz": 1095}, False),
        ({"clock_application_mhz": 900, "clock_application_default_mhz": 1095}, True),
        ({"clock_application_mhz": 900}, True),
    ],
)
def test_the_application_clocks_that_a_card_comes_with_are_not_a_setting(
    facts: dict[str, int], *, locked: bool
) -> None:
    shares = reason_shares([sample(reasons=0x2)], facts)

    assert shares == ({"application-clocks": 1.0} if locked else {})


@given(st.lists(st.integers(0, 0xFFF), min_size=1))
def test_each_share_is_that_of_its_bit(masks: list[int]) -> None:
    shares = reason_shares([sample(reasons=mask) for mask in masks], {})

    for bit, name in REASONS.items():
        assert shares.get(name, 0.0) == sum(1 for mask in masks if mask & bit) / len(masks)


def test_counters_are_seconds_between_two_readings_and_unknown_ones_are_left_out() -> None:
    before = {"limited_ns": {"power": 10**9, "thermal": 5, "hw-thermal": 0}}
    after = {"limited_ns": {"power": 3 * 10**9, "thermal": 5, "sw-thermal": 7}}

    assert limited_s(before, after) == {"power-cap": 2.0}
    assert limited_s({}, after) == {}


def test_two_counters_of_one_reason_are_not_added_up() -> None:
    before = {"limited_ns": {"thermal": 0, "sw-thermal": 0}}
    after = {"limited_ns": {"thermal": 10**9, "sw-thermal": 2 * 10**9}}

    assert limited_s(before, after) == {"software-thermal": 2.0}


NOT_SUPPORTED = "not supported by this GPU (NVML 3)"
READ = GpuTelemetry(uuid="GPU-0", reading_count=1, period_s=0.05, vbios_version="9")


def test_every_reading_that_is_missing_has_its_reason_by_the_documents_name() -> None:
    refused = dict.fromkeys(("power_mw", "energy_mj", "clock_sm_mhz"), NOT_SUPPORTED)

    found = reasons_for(READ, refused)

    empty = {item.name for item in fields(READ) if getattr(READ, item.name) is None}
    assert set(found) == empty
    assert found["power_w"] == found["energy_j"] == found["clock_sm_mhz"] == NOT_SUPPORTED
    assert found["temperature_c"] == "it was not read before the run ended"
    assert "vbios_version" not in found


def test_a_gpu_that_nvml_does_not_find_has_one_reason_for_all() -> None:
    found = reasons_for(READ, {"gpu": "GPU is lost (NVML 15)"})

    assert set(found.values()) == {"GPU is lost (NVML 15)"}


def test_counters_that_a_driver_refuses_are_named_below_their_field() -> None:
    keys = ("pcie_replays", "limited-power", "limited-sw-thermal", "processes", "reasons")

    found = reasons_for(READ, dict.fromkeys(keys, NOT_SUPPORTED))

    told = {name for name, reason in found.items() if reason == NOT_SUPPORTED}
    # The policy's counter of heat is readable still, which is enough.
    assert told == {"new_errors.pcie_replays", "limited_s.power-cap", "other_processes", "reasons"}


def test_only_errors_that_grew_are_new() -> None:
    before = {"ecc_corrected": 5, "pcie_replays": 1, "remapped_rows": 0}
    after = {"ecc_corrected": 7, "pcie_replays": 1, "ecc_uncorrected": 9}

    assert grown(before, after) == {"ecc_corrected": 2}


def test_the_fastest_link_seen_counts() -> None:
    idle, loaded = (
        sample(pcie_generation=1, pcie_width=16),
        sample(pcie_generation=4, pcie_width=8),
    )

    assert best_link([idle, loaded, idle]) == (4, 8)
    assert best_link([sample(power_mw=1.0)]) is None


def test_an_extent_is_of_the_readings_that_there_are() -> None:
    found = extent([sample(power_mw=100_000), sample(), sample(power_mw=300_000)], "power_mw", 1e-3)

    assert found is not None
    assert (found.low, found.median, found.high) == (100.0, 200.0, 300.0)
    assert extent([sample()], "power_mw") is None


@pytest.mark.parametrize(
    ("before", "now", "others"),
    [
        ((), (1,), set()),  # ourselves
        ((), (1, 2), {2}),
        ((7,), (7, 100), {7}),  # in a container we may be 100
        ((7,), (7,), {7}),
        ((), (100,), set()),
        ((), (100, 101), {100, 101}),  # one of them is us, which one is not known
        ((), (), set()),
    ],
)
def test_who_else_uses_the_gpu(
    before: tuple[int, ...], now: tuple[int, ...], others: set[int]
) -> None:
    assert other_processes(frozenset(before), frozenset(now), 1) == others
