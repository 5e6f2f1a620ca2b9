"""Gates of a burn: what each measures, its limit, and who is blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.burn_gates import burn_gates, conclude_burn
from gpucheck.bench.model import (
    BurnEnd,
    BurnResult,
    Corruption,
    Extent,
    Gate,
    GateClass,
    GateStatus,
    GpuTelemetry,
)
from gpucheck.bench.workers import WORKER_SILENT
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from tests.bench.test_burn import burned

PASS, FAIL, SKIP = GateStatus.PASS, GateStatus.FAIL, GateStatus.SKIP
SILENT = Failure(code=WORKER_SILENT, message="it sent nothing")


@pytest.fixture(name="healthy", scope="module")
def _healthy() -> BurnResult:
    return burned(devices=["gpu:0"])[0]


def gates(healthy: BurnResult, **changes: Any) -> dict[str, Gate]:
    """Return the gates of the healthy burn's device with changes, those of its sensors too."""
    device = healthy.devices[0]
    assert device.telemetry is not None
    sensed = {name: value for name, value in changes.items() if hasattr(device.telemetry, name)}
    own = {name: value for name, value in changes.items() if name not in sensed}
    telemetry: GpuTelemetry = replace(device.telemetry, **sensed)
    found = replace(healthy, devices=(replace(device, telemetry=telemetry, **own),))
    return {gate.id.removeprefix("burn."): gate for gate in burn_gates(found)}


def figures(gate: Gate) -> tuple[GateStatus, float | None, float | None, str]:
    return gate.status, gate.measured, gate.limit, gate.unit


def test_a_healthy_device_passes_with_its_figures(healthy: BurnResult) -> None:
    assert {name: figures(gate) for name, gate in gates(healthy).items()} == {
        "alive": (PASS, None, None, ""),
        "corruption": (PASS, 0.0, 0.0, "numbers"),
        "temperature": (PASS, 50.0, 87.0, "C"),
        "memory_temperature": (SKIP, None, None, "C"),
        "throttling": (PASS, 0.0, 1.0, "%"),
        "ecc_uncorrected": (PASS, 0.0, 0.0, ""),
        "remapped_rows": (PASS, 0.0, 0.0, ""),
        "pace": (PASS, 0.0, 10.0, "%"),
    }


@pytest.mark.parametrize(
    ("products", "failure", "class_"),
    [
        (5, SILENT, GateClass.HARDWARE),
        (0, SILENT, GateClass.SOFTWARE),
        (5, Failure(code="cupy-missing", message="none"), GateClass.SOFTWARE),
    ],
)
def test_only_a_card_that_falls_silent_under_load_is_to_blame(
    healthy: BurnResult, products: int, failure: Failure, class_: GateClass
) -> None:
    check: Corruption = replace(healthy.devices[0].corruption, products=products)
    gate = gates(healthy, corruption=check, failure=failure)["alive"]

    assert (gate.status, gate.class_) == (FAIL, class_)
    assert (gate.evidence[0].value, gate.next) == (failure.code, ("Run: gpucheck detect",))


@pytest.mark.parametrize(
    ("products", "status", "reason"),
    [
        (0, GateStatus.INCONCLUSIVE, "no product compared; fewer than 100 are no burn"),
        (2, GateStatus.INCONCLUSIVE, "2 products compared; fewer than 100 are no burn"),
        (99, GateStatus.INCONCLUSIVE, "99 products compared; fewer than 100 are no burn"),
        (100, PASS, "100 identical products of 64 numbers: all bits match"),
    ],
)
@pytest.mark.parametrize("ended_by", [BurnEnd.TIME, BurnEnd.INTERRUPTED])
def test_a_few_products_are_no_burn(
    healthy: BurnResult, products: int, status: GateStatus, reason: str, ended_by: BurnEnd
) -> None:
    check: Corruption = replace(healthy.devices[0].corruption, products=products)
    gate = gates(replace(healthy, ended_by=ended_by), corruption=check)["corruption"]

    assert (gate.status, gate.reason) == (status, reason)
    advised = status is not PASS and ended_by is BurnEnd.TIME
    longer = ("Burn for longer, or with a smaller --size.",) if advised else ()
    assert (gate.next, gate.warning) == (longer, False)


def test_a_few_wrong_products_are_wrong(healthy: BurnResult) -> None:
    check: Corruption = replace(healthy.devices[0].corruption, products=2, mismatches=1)

    assert gates(healthy, corruption=check)["corruption"].status is FAIL


def test_a_failure_brings_its_own_remedy(healthy: BurnResult) -> None:
    failure = Failure(code="cupy-missing", message="none", remedy=("Install it.",))

    assert gates(healthy, failure=failure)["alive"].next == ("Install it.",)


def test_digests_are_compared_between_gpus_alone() -> None:
    found = burned(devices=["gpu:0", "gpu:1", "cpu"])[0]
    alone = burned(devices=["gpu:0", "cpu"])[0]

    compared = [gate.device for gate in burn_gates(found) if gate.id == "burn.digest"]
    assert compared == ["gpu:0", "gpu:1"]
    assert not [gate for gate in burn_gates(alone) if gate.id == "burn.digest"]


def test_a_digest_that_no_identical_gpu_has_is_skipped() -> None:
    found = burned(devices=["gpu:0", "gpu:1"])[0]
    first, second = found.devices
    unlike = replace(found, devices=(first, replace(second, name="NVIDIA H200")))

    told = {gate.status: gate.reason for gate in burn_gates(unlike) if gate.id == "burn.digest"}

    assert told == {
        GateStatus.SKIP: "no identical GPU has the same product to compare",
    }


@pytest.mark.parametrize(
    ("margin", "status", "measured"), [(1.0, PASS, 1.0), (0.0, FAIL, 0.0), (-2.0, FAIL, -2.0)]
)
def test_a_margin_decides_where_there_is_no_limit(
    healthy: BurnResult, margin: float, status: GateStatus, measured: float
) -> None:
    extent = Extent(low=margin, median=20.0, high=30.0)
    found = gates(healthy, temperature_limit_c=None, temperature_margin_c=extent)

    assert figures(found["temperature"]) == (status, measured, 0.0, "C")


@pytest.mark.parametrize(("limit", "status"), [(50.5, PASS), (50.0, FAIL), (40.0, FAIL)])
def test_a_temperature_at_its_limit_fails(
    healthy: BurnResult, limit: float, status: GateStatus
) -> None:
    gate = gates(healthy, temperature_limit_c=limit)["temperature"]

    assert figures(gate) == (status, 50.0, limit, "C")


@pytest.mark.parametrize(
    ("limits", "reasons", "class_", "warning"),
    [
        ({"hardware-thermal": 0.25, "power-brake": 0.2}, {}, GateClass.THERMAL, False),
        ({"power-brake": 0.25, "power-cap": 0.9}, {}, GateClass.POWER_CAP, False),
        ({"hardware-slowdown": 0.25}, {"hardware-slowdown": 0.25}, None, True),
        (
            {"hardware-slowdown": 0.25},
            {"hardware-slowdown": 0.25, "power-brake": 0.01},
            GateClass.THERMAL,
            False,
        ),
        (
            {"hardware-slowdown": 0.25, "board-limit": 0.1},
            {"hardware-slowdown": 0.25},
            GateClass.THERMAL,
            False,
        ),
    ],
)
def test_who_holds_the_clock_down_is_to_blame(
    healthy: BurnResult,
    limits: dict[str, float],
    reasons: dict[str, float],
    class_: GateClass | None,
    warning: bool,
) -> None:
    gate = gates(healthy, clock_limits=limits, reasons=reasons)["throttling"]

    assert figures(gate) == (PASS if warning else FAIL, 25.0, 1.0, "%")
    assert (gate.class_, gate.warning) == (class_, warning)


def test_corrected_errors_warn_and_others_fail(healthy: BurnResult) -> None:
    found = gates(
        healthy,
        new_errors={"ecc_uncorrected": 2, "ecc_corrected": 3},
        unavailable={"new_errors.remapped_rows": "not supported"},
    )

    assert figures(found["ecc_uncorrected"]) == (FAIL, 2.0, 0.0, "")
    assert figures(found["ecc_corrected"]) == (PASS, 3.0, None, "")
    assert found["ecc_corrected"].warning
    assert figures(found["remapped_rows"]) == (SKIP, None, 0.0, "")
    assert "pcie_replays" not in found


@pytest.mark.parametrize(
    ("uuid", "last", "status", "class_"),
    [
        ("GPU-0", 90.0, PASS, None),
        ("GPU-0", 88.0, FAIL, GateClass.THERMAL),
        (None, 88.0, FAIL, GateClass.ENVIRONMENT),
    ],
)
def test_a_device_that_slows_down_is_warned_of(
    healthy: BurnResult,
    uuid: str | None,
    last: float,
    status: GateStatus,
    class_: GateClass | None,
) -> None:
    gate = gates(healthy, gpu_uuid=uuid, first_flops_per_s=100.0, last_flops_per_s=last)["pace"]

    assert (gate.status, gate.class_) == (status, class_)
    assert gate.measured == pytest.approx(100 - last)


@pytest.mark.parametrize(("read", "limit"), [(False, 87.0), (True, None), (False, None)])
def test_a_temperature_without_its_reading_or_limit_is_skipped(
    healthy: BurnResult, read: bool, limit: float | None
) -> None:
    extent = Extent(low=40.0, median=45.0, high=50.0) if read else None
    gate = gates(
        healthy, temperature_c=extent, temperature_limit_c=limit, temperature_margin_c=None
    )["temperature"]

    assert figures(gate) == (SKIP, None, None, "C")


def test_a_wrong_number_fails_against_a_limit_of_none(healthy: BurnResult) -> None:
    check = replace(healthy.devices[0].corruption, mismatches=3, first_index=7)
    gate = gates(healthy, corruption=check)["corruption"]

    assert figures(gate) == (FAIL, 3.0, 0.0, "numbers")
    assert gate.class_ is GateClass.HARDWARE


def test_without_a_product_nothing_is_decided(healthy: BurnResult) -> None:
    check = replace(healthy.devices[0].corruption, products=0)
    gate = gates(healthy, corruption=check)["corruption"]

    assert figures(gate) == (GateStatus.INCONCLUSIVE, None, 0.0, "numbers")


def test_an_interrupted_burn_says_so_unless_a_gate_failed(healthy: BurnResult) -> None:
    stopped = replace(healthy, ended_by=BurnEnd.INTERRUPTED, duration_s=12.4, asked_s=60.0)
    bad = replace(healthy.gates[0], status=FAIL, reason="it is wrong")

    good, failed = (
        conclude_burn(found, Host()) for found in (stopped, replace(stopped, gates=(bad,)))
    )

    assert good.error is not None
    assert (good.exit_code, good.error.code) == (ExitCode.INTERRUPTED, "interrupted")
    assert good.error.message == "Interrupted after 12 of 60 s."
    assert failed.error is not None
    assert failed.exit_code is ExitCode.INTERRUPTED
    assert "it is wrong" in failed.error.message


@pytest.mark.parametrize("code", [ExitCode.WRONG_USE, ExitCode.MISSING])
def test_where_no_device_began_for_one_reason_the_first_one_says_it(
    healthy: BurnResult, code: ExitCode
) -> None:
    failed = [
        replace(healthy.devices[0], exit_code=code, failure=Failure(code="x", message=message))
        for message in ("one", "other")
    ]
    whole = replace(healthy, devices=tuple(failed))
    mixed = replace(whole, devices=(failed[0], healthy.devices[0]))

    answer = conclude_burn(whole, Host())

    assert (answer.exit_code, answer.error) == (code, failed[0].failure)
    assert conclude_burn(mixed, Host()).error != failed[0].failure
