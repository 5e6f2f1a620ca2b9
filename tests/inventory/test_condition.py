"""What makes a card unfit for work, and which cards are refused outright."""

from __future__ import annotations

import pytest

from gpucheck.drivers.readings import ProbeFailure
from gpucheck.inventory.condition import CONDITIONS, Unfit, spare_bytes, unfit
from tests.fakes.probes import gpu_reading, healthy


def judged(**changes: object) -> Unfit | None:
    return unfit(gpu_reading(0), healthy(0, **changes))


def test_a_healthy_card_is_fit() -> None:
    assert judged() is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ecc_sram_threshold_exceeded": True}, "on-chip memory"),
        ({"remapped_rows_failed": True}, "could not be replaced"),
        ({"remapped_rows_uncorrected": 512}, "512 rows"),
        ({"memory_unrepairable": True}, "cannot be repaired"),
        ({"retired_pages_double_bit": 60, "retired_pages_single_bit": 3}, "63 of at most 64 pages"),
        (
            {"failure": ProbeFailure(code="gpu-is-lost", message="it is lost", library_code=15)},
            "it is lost",
        ),
    ],
)
def test_what_is_to_be_replaced_or_lost_is_refused(changes: dict, reason: str) -> None:
    found = judged(**changes)
    assert found is not None
    assert reason in found.reason
    assert found.refused


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ecc_uncorrected_volatile": 1}, "1 memory error could not be corrected"),
        ({"recovery_action": 1}, "the driver asks for a reset"),
        ({"temperature_slowdown_c": 41}, "41 C, and its slowdown temperature is 41 C"),
        ({"clock_event_reasons": 0x80}, "power brake"),
        ({"clock_event_reasons": 0x40}, "clocks are lowered by heat"),
    ],
)
def test_what_is_unwell_is_the_last_choice(changes: dict, reason: str) -> None:
    found = judged(**changes)
    assert found is not None
    assert reason in found.reason
    assert not found.refused


@pytest.mark.parametrize(
    "changes",
    [
        {"clock_event_reasons": 0x4},
        {"remapped_rows_pending": True},
        {"ecc_mode_pending": False},
        {"recovery_action": 3},
        {"ecc_uncorrected_volatile": None},
    ],
)
def test_what_can_wait_or_was_not_read_speaks_for_nothing(changes: dict) -> None:
    assert judged(**changes) is None


def test_a_replacement_outranks_an_error_that_a_reset_clears() -> None:
    found = judged(ecc_uncorrected_volatile=7, remapped_rows_failed=True)
    assert found == Unfit("a bad row of memory could not be replaced", refused=True)


def test_each_condition_is_reported_by_the_check_of_its_name() -> None:
    from gpucheck.detect.checks import CHECKS

    assert CONDITIONS.keys() - {"lost"} <= {check.ID for check in CHECKS}


# -------------------------------------------------------------------------- unified memory


GIB = 1 << 30


@pytest.mark.parametrize(
    ("available", "spare"),
    [
        (0, 0),
        (7 * GIB, 0),
        (8 * GIB, 0),
        (10 * GIB, 2 * GIB),
        (40 * GIB, 32 * GIB),
        (120 * GIB, 96 * GIB),
    ],
)
def test_the_larger_of_8_gib_and_a_fifth_stays_free(available: int, spare: int) -> None:
    assert spare_bytes(available) == spare
