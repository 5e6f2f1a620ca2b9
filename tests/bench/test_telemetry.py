from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.model import Extent, GpuTelemetry
from gpucheck.bench.telemetry import (
    MOST_PARTS,
    Observer,
    SensorSummary,
    best_link,
    extent,
    grown,
    held_down,
    history_of,
    is_clock_change,
    limited_s,
    other_processes,
    reason_shares,
    reasons_for,
    samples_within,
    why_unread,
)
from gpucheck.drivers.nvml.sensors import PERIOD_S, NvmlSensors, Sample, SensorBatch
from gpucheck.inventory.condition import CLOCK_REASONS
from tests.fakes.bench import ScriptedSensors


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

    for bit, name in CLOCK_REASONS.items():
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


NOT_SUPPORTED = "not supported by this GPU (NVML error 3)"
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
    found = reasons_for(READ, {"gpu": "GPU is lost (NVML error 15)"})

    assert set(found.values()) == {"GPU is lost (NVML error 15)"}


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
    assert best_link([sample(pcie_generation=4), sample(pcie_width=16)]) is None


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
    assert other_processes(frozenset(before), frozenset(now), frozenset({1})) == others


def test_a_history_has_the_median_of_each_part_and_when_a_reason_held() -> None:
    readings = [
        Sample(
            time_s=100.004 + place * 0.1,
            uuid="GPU-0",
            values={
                "power_mw": 1000.0 * place + 40,
                "temperature_c": 30.2,
                "reasons": 0x40 if 300 <= place < 600 else 0x1,
            },
        )
        for place in range(1200)
    ]

    found = history_of(readings, (100.0, 220.0))

    assert found is not None
    assert found.part_s == 1.0
    assert len(found.power_w) == MOST_PARTS
    assert found.power_w[:2] == (4.5, 14.5)
    assert set(found.temperature_c) == {30}
    assert set(found.clock_sm_mhz) == {None}
    assert found.limited == {"hardware-thermal": ((30.0, 59.95),)}


def test_a_gpu_without_readings_has_no_history_and_one_reading_is_one_part() -> None:
    assert history_of([], (0.0, 1.0)) is None

    found = history_of([sample(clock_sm_mhz=1700)], (0.0, 0.0))

    assert found is not None
    assert found.clock_sm_mhz == (1700,)


def test_pauses_shorter_than_a_part_do_not_break_a_period() -> None:
    def mask(place: int) -> int:
        return 0 if 100 <= place < 106 or place >= 200 else 4

    readings = [
        Sample(time_s=place * 0.1, uuid="GPU-0", values={"reasons": mask(place)})
        for place in range(1201)
    ]

    found = history_of(readings, (0.0, 120.0))

    assert found is not None
    assert found.limited == {"power-cap": ((0.0, 19.95),)}


def test_a_history_is_no_finer_than_the_readings_were() -> None:
    readings = [
        Sample(time_s=place * 0.2, uuid="GPU-0", values={"reasons": 4, "power_mw": 1000.0})
        for place in range(2)
    ]

    found = history_of(readings, (0.0, 0.2), 0.2)

    assert found is not None
    assert (found.part_s, found.power_w) == (0.2, (1.0, 1.0))
    assert found.limited == {"power-cap": ((0.0, 0.4),)}


def test_the_reasons_are_those_of_nvml() -> None:
    throttle = {
        value: name.removeprefix("nvmlClocksThrottleReason")
        for name, value in vars(pynvml).items()
        if name.startswith("nvmlClocksThrottleReason") and value in CLOCK_REASONS
    }

    assert set(throttle) == set(CLOCK_REASONS)
    assert {throttle[bit]: name for bit, name in CLOCK_REASONS.items()} == {
        "GpuIdle": "idle",
        throttle[2]: "application-clocks",
        "SwPowerCap": "power-cap",
        "HwSlowdown": "hardware-slowdown",
        "SyncBoost": "sync-boost",
        "SwThermalSlowdown": "software-thermal",
        "HwThermalSlowdown": "hardware-thermal",
        "HwPowerBrakeSlowdown": "power-brake",
        "DisplayClockSetting": "display",
        "BoardLimit": "board-limit",
        "Reliability": "reliability",
    }


@pytest.mark.parametrize(
    ("seen", "counted", "share"),
    [
        (None, None, None),
        (0.049, 0.009, None),
        (0.05, None, 0.05),
        (None, 0.01, 0.01),
        (0.3, 0.5, 0.3),
        (0.049, 0.5, 0.5),
        (None, 1.2, 1.0),
    ],
)
def test_what_held_the_clock_down_was_seen_or_counted_long_enough(
    seen: float | None, counted: float | None, share: float | None
) -> None:
    def shares(value: float | None) -> dict[str, float]:
        return {} if value is None else {"power-brake": value}

    state = SensorSummary(reasons=shares(seen), limited_share=shares(counted))

    assert held_down(state) == shares(share)


@pytest.mark.parametrize(
    ("reason", "unavailable", "count", "why"),
    [
        ("power-brake", {}, 0, None),
        ("power-brake", {"reasons": "no"}, 5, None),
        ("power-brake", {"limited_s.power-brake": "old"}, 5, None),
        ("power-brake", {"limited_s.power-brake": "old"}, 0, "old"),
        ("power-brake", {"limited_s.power-brake": "old", "reasons": "no"}, 5, "no"),
        ("hardware-slowdown", {}, 5, None),
        ("hardware-slowdown", {"reasons": "no"}, 5, "no"),
        ("hardware-slowdown", {}, 0, "it was never read"),
    ],
)
def test_why_it_is_unknown_what_held_the_clock_down(
    reason: str, unavailable: dict[str, str], count: int, why: str | None
) -> None:
    gpu = replace(READ, reading_count=count, unavailable=unavailable)

    assert why_unread(gpu, reason) == why


@pytest.mark.parametrize(
    ("reasons", "alone"),
    [
        ([], False),
        (["hardware-slowdown"], True),
        (["hardware-slowdown", "power-cap"], True),
        (["hardware-slowdown", "hardware-thermal"], False),
        (["power-cap"], False),
    ],
)
def test_a_hardware_slowdown_alone_may_be_a_change_of_clocks(
    reasons: list[str], alone: bool
) -> None:
    assert is_clock_change(reasons) is alone


def test_readings_belong_to_the_slice_they_were_taken_in() -> None:
    taken = [Sample(time_s=at, uuid="GPU-0", values={}) for at in (0.5, 1.0, 2.0, 2.5, 3.0, 4.5)]

    inside = samples_within(taken, [(1.0, 2.0), (3.0, 4.0)])

    assert [each.time_s for each in inside] == [1.0, 2.0, 3.0]


def batch(*samples: Sample, **counters: Any) -> SensorBatch:
    return SensorBatch(samples=samples, counters={"GPU-0": counters})


VALUES = {
    "clock_sm_mhz": 1700.0,
    "clock_memory_mhz": 2600.0,
    "power_mw": 500_000.0,
    "temperature_c": 70.0,
    "temperature_margin_c": 20.0,
    "reasons": 4,
    "pcie_generation": 5,
    "pcie_width": 16,
}
FACTS = {
    "clock_sm_max_mhz": 1980.0,
    "power_limit_mw": 650_000,
    "power_limit_default_mw": 700_000,
    "temperature_slowdown_c": 87,
    "temperature_memory_max_c": 95,
    "vbios_version": "96.00",
    "ecc_mode": [1, 0],
    "confidential_computing": True,
    "pcie_generation_max": 5,
    "pcie_width_max": 8,
    "counters": {"energy_mj": 1000, "ecc_corrected": 1, "limited_ns": {"power": 0}},
}


def observed() -> Observer:
    """Return what two groups of slices gave, each with one reading."""
    first = batch(
        Sample(time_s=1.0, uuid="GPU-0", values=VALUES),
        **{"energy_mj": 3000, "ecc_corrected": 1, "processes": [1, 7], "limited_ns": {"power": 0}},
        **{"temperature_memory_c": 84.0},
    )
    second = batch(
        Sample(time_s=2.0, uuid="GPU-0", values=VALUES | {"power_mw": 600_000.0, "reasons": 0}),
        **{"energy_mj": 5000, "ecc_corrected": 4, "processes": [1, 8]},
        **{"limited_ns": {"power": 10**9}, "temperature_memory_c": 80.0},
    )
    observer = Observer(
        ScriptedSensors(FACTS, iter([first, second]).__next__),
        own_pid=1,
        before={},
        claims={"GPU-0": "held by process 9"},
    )
    observer.start(["GPU-0"])
    observer.end_slices(1, 2.0)
    observer.end_slices(2, 4.0)
    return observer


def test_the_whole_run_has_each_sensor_in_the_documents_units() -> None:
    def span(low: float, high: float) -> Extent:
        return Extent(low=low, median=(low + high) / 2, high=high)

    (gpu,) = observed().result().gpus

    assert gpu.history is not None
    assert replace(gpu, unavailable={}, history=None) == GpuTelemetry(
        uuid="GPU-0",
        reading_count=2,
        period_s=PERIOD_S,
        clock_sm_mhz=span(1700.0, 1700.0),
        clock_memory_mhz=span(2600.0, 2600.0),
        power_w=span(500.0, 600.0),
        temperature_c=span(70.0, 70.0),
        temperature_memory_c=84.0,
        temperature_memory_max_c=95,
        temperature_margin_c=span(20.0, 20.0),
        clock_sm_max_mhz=1980.0,
        power_limit_w=650.0,
        power_limit_default_w=700.0,
        temperature_slowdown_c=87,
        vbios_version="96.00",
        ecc_mode=True,
        confidential_computing=True,
        energy_j=4.0,
        pcie_generation=5,
        pcie_width=16,
        reasons={"power-cap": 0.5},
        limited_s={"power-cap": 1.0},
        new_errors={"ecc_corrected": 3},
        other_processes=(7, 8),
    )


@pytest.mark.parametrize(
    ("capability", "seconds", "power"),
    [
        ([9, 0], 0.9, None),
        ([9, 0], 1.0, 600.0),
        ([8, 6], 0.9, None),
        ([8, 0], 0.9, 500.0),  # GA100 tells the power of now
        ([7, 5], 0.9, 500.0),
    ],
)
def test_power_that_was_averaged_over_the_time_before_the_run_is_not_the_run_s(
    capability: list[int], seconds: float, power: float | None
) -> None:
    found = batch(
        Sample(time_s=1.0, uuid="GPU-0", values=VALUES),
        Sample(time_s=1.0 + seconds, uuid="GPU-0", values=VALUES | {"power_mw": 600_000.0}),
        energy_mj=3000,
    )
    observer = Observer(
        ScriptedSensors(FACTS | {"compute_capability": capability}, lambda: found),
        own_pid=1,
        before={},
        claims={},
    )
    observer.start(["GPU-0"])
    observer.end_slices(1, 2.0)

    (gpu,) = observer.result().gpus

    assert (None if gpu.power_w is None else gpu.power_w.low) == power
    assert ("power_w" in gpu.unavailable) is (power is None)
    assert gpu.energy_j == 2.0  # a counter is exact
    assert gpu.clock_sm_mhz is not None
    assert gpu.history is not None
    assert (gpu.history.power_w[0] is None) is (capability > [8, 0])


def test_a_row_has_the_readings_of_its_slices_and_the_counts_of_its_group() -> None:
    state = observed().state("GPU-0", [(1.5, 2.5)], 2)

    assert state == SensorSummary(
        reading_count=1,
        reasons={},
        limited_share={"power-cap": 0.25},
        new_errors={"ecc_corrected": 3},
        other_processes=(8,),
        link=(5, 16),
        link_max=(5, 8),
        claimed_by="held by process 9",
        clock_sm_max_mhz=1980.0,
        confidential=True,
    )


@pytest.mark.parametrize("known", ["pcie_generation_max", "pcie_width_max"])
def test_half_of_the_fastest_link_is_none(known: str) -> None:
    facts = {known: 5, "counters": {}}
    observer = Observer(ScriptedSensors(facts, batch), own_pid=1, before={}, claims={})
    observer.start(["GPU-0"])
    observer.end_slices(1, 1.0)

    assert observer.state("GPU-0", [], 1) == SensorSummary()


def test_a_group_without_slices_has_no_counts() -> None:
    state = observed().state("GPU-0", [], 3)

    assert state == SensorSummary(
        link_max=(5, 8),
        claimed_by="held by process 9",
        clock_sm_max_mhz=1980.0,
        confidential=True,
    )


def test_without_sensors_only_the_claim_is_known() -> None:
    silent = Observer(NvmlSensors("none"), own_pid=1, before={}, claims={"GPU-0": "held"})
    silent.start(["GPU-0"])

    assert silent.state("GPU-0", [], 1) == SensorSummary(claimed_by="held")
    assert silent.state("GPU-1", [], 1) == SensorSummary()
    assert silent.state(None, [], 1) == SensorSummary()
    assert silent.result().unavailable == "none"
