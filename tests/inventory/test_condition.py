"""Each condition at its limits, and which cards are refused or come last."""

from __future__ import annotations

import pytest

from gpucheck.data import read_table
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import ProbeFailure
from gpucheck.inventory.condition import (
    CONDITIONS,
    Trouble,
    lost,
    pcie_width,
    spare_bytes,
    unfit,
)
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import gpu_reading, healthy

REPLACE = "Ask the vendor to replace the GPU."
RESET = "When nothing runs on it: sudo nvidia-smi --gpu-reset"
COOL = "Check the airflow and the fans, and remove dust."
NO_SLOWDOWN = {"temperature_slowdown_c": None, "temperature_gpu_max_c": None}
LOST = ProbeFailure(code="gpu-is-lost", message="it is lost", library_code=15)
DENIED = ProbeFailure(code="no-permission", message="it may not be read", library_code=4)


def condition(
    name: str, *, gpu: dict[str, object] | None = None, **health: object
) -> Trouble | None:
    return CONDITIONS[name](gpu_reading(0, **gpu or {}), healthy(0, **health))


# ---------------------------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    ("name", "health", "status", "cause", "summary", "step"),
    [
        ("lost", {"failure": LOST}, "fail", "gpu-is-lost", "it is lost", ""),
        ("memory-repair", {"memory_unrepairable": True, "repair_pending": True},
         "fail", "memory-unrepairable", "cannot be repaired", REPLACE),
        ("memory-repair", {"repair_pending": True},
         "warn", "repair-pending", "at the next reset", RESET),
        ("row-remapping", {"remapped_rows_failed": True, "remapped_rows_uncorrected": 512},
         "fail", "row-not-replaced", "could not be replaced", REPLACE),
        ("row-remapping", {"remapped_rows_uncorrected": 512, "remapped_rows_pending": True},
         "fail", "rows-replaced", "512 rows", REPLACE),
        ("row-remapping", {"remapped_rows_uncorrected": 511, "remapped_rows_pending": True},
         "warn", "row-pending", "at the next reset", RESET),
        ("retired-pages", {"retired_pages_double_bit": 60, "retired_pages_single_bit": 3},
         "fail", "pages-retired", "63 of at most 64 pages", REPLACE),
        ("retired-pages", {"retired_pages_double_bit": 59, "retired_pages_single_bit": 3,
                           "retired_pages_pending": True},
         "warn", "page-pending", "at the next reset", RESET),
        ("ecc-errors", {"ecc_uncorrected_volatile": 1, "ecc_sram_threshold_exceeded": True},
         "fail", "ecc-uncorrected", "1 memory error could", "Drain the GPU"),
        ("ecc-errors", {"ecc_uncorrected_volatile": 2},
         "fail", "ecc-uncorrected", "2 memory errors could", "Drain the GPU"),
        ("ecc-errors", {"ecc_sram_threshold_exceeded": True, "ecc_mode_pending": False},
         "fail", "sram-threshold", "on-chip memory", REPLACE),
        ("ecc-errors", {"ecc_mode_pending": False, "ecc_corrected_volatile": 5},
         "warn", "ecc-change-pending", "ECC will be turned off", "Reset the GPU"),
        ("ecc-errors", {"ecc_corrected_volatile": 5}, "ok", None, "corrected memory errors: 5", ""),
        *(("recovery-action", {"recovery_action": action}, status, f"recovery-action-{action}",
           f"the driver asks for {what}", step)
          for action, status, what, step in (
              (1, "fail", "a reset", "Stop what runs"),
              (2, "fail", "a reboot of the machine", "Reboot."),
              (3, "warn", "its peers", "Stop programs"),
              (4, "fail", "to be drained", "Let programs"),
              (5, "warn", "its IMEX domain", "Restart"),
              (6, "fail", "a reset of its bus", "Reboot, or"),
              (7, "fail", "a reboot of the system", "Reboot."),
              (8, "warn", "the unknown action 8", "Update gpucheck"))),
        *(("clock-throttling", {"clock_event_reasons": mask}, status, cause, summary, step)
          for mask, status, cause, summary, step in (
              (0x80 | 0x20, "fail", "clocks-lowered", "power supply or rack) and heat (software)",
               "Check the power supply and its cables"),
              (0x40, "warn", "clocks-lowered", "heat (hardware", COOL),
              (0x20, "warn", "clocks-lowered", "heat (software)", COOL),
              (0x8, "warn", "clocks-lowered", "a hardware slowdown", "Check temperature"),
              (0x4, "ok", None, "runs at its power limit", ""))),
    ],
)  # fmt: skip
def test_a_condition_has_its_cause_and_its_remedy(
    name: str,
    health: dict[str, object],
    status: str,
    cause: str | None,
    summary: str,
    step: str,
) -> None:
    found = condition(name, **health)

    assert isinstance(found, Trouble)
    assert (found.status, found.cause) == (status, cause)
    assert summary in found.summary
    texts = read_table("causes").get(name, {}).get(cause, {})
    steps = found.remedy or texts.get("remedy", ())
    assert "".join(steps[:1]).startswith(step)
    assert bool(steps) == bool(step)


@pytest.mark.parametrize(
    ("now", "health", "status", "summary"),
    [
        (84, {}, None, None),
        (85, {}, "warn", "85 °C, near its slowdown temperature of 89 °C"),
        (88, {}, "warn", "88 °C, near its slowdown temperature of 89 °C"),
        (89, {"temperature_margin_c": 9}, "fail", "89 °C, and its slowdown temperature is 89 °C"),
        (65, {"temperature_gpu_max_c": 65}, None, None),
        (66, {"temperature_gpu_max_c": 65}, "warn",
         "66 °C, near its slowdown temperature of 89 °C"),
        (95, {**NO_SLOWDOWN, "temperature_margin_c": 6}, None, None),
        (60, {**NO_SLOWDOWN, "temperature_margin_c": 5}, "warn",
         "60 °C, 5 °C below its slowdown temperature"),
        (60, {**NO_SLOWDOWN, "temperature_margin_c": 1}, "warn",
         "60 °C, 1 °C below its slowdown temperature"),
        (60, {**NO_SLOWDOWN, "temperature_margin_c": 0}, "fail",
         "60 °C, 0 °C below its slowdown temperature"),
        # Older recordings have the 0 of a driver that knows no limit.
        (60, {"temperature_slowdown_c": 0, "temperature_gpu_max_c": 0}, None, None),
        (60, {"temperature_gpu_max_c": 0}, None, None),
        (60, {"temperature_slowdown_c": 0, "temperature_margin_c": 5}, "warn",
         "60 °C, 5 °C below its slowdown temperature"),
        (60, {"temperature_memory_c": 70, "temperature_memory_max_c": 0}, None, None),
        (82, NO_SLOWDOWN, None, None),
        (83, NO_SLOWDOWN, "warn", "83 °C; the card reports no limit"),
        (89, NO_SLOWDOWN, "warn", "89 °C; the card reports no limit"),
        (90, NO_SLOWDOWN, "fail", "90 °C; the card reports no limit"),
    ],
)  # fmt: skip
def test_temperature_against_the_limits_of_the_card(
    now: int, health: dict[str, object], status: str | None, summary: str | None
) -> None:
    found = condition("temperature", gpu={"temperature_c": now}, **health)

    assert (found and found.status, found and found.summary) == (status, summary)


@pytest.mark.parametrize(
    "limits", [{}, NO_SLOWDOWN, {**NO_SLOWDOWN, "temperature_margin_c": 40}], ids=str
)
def test_hot_memory_counts_whatever_the_limits_of_the_gpu(limits: dict[str, object]) -> None:
    def memory(now: int | None, highest: int | None) -> Trouble | None:
        return condition(
            "temperature", temperature_memory_c=now, temperature_memory_max_c=highest, **limits
        )

    hot = memory(96, 95)
    assert isinstance(hot, Trouble)
    assert (hot.status, hot.cause) == ("warn", "memory-hot")
    assert hot.evidence == (("temperature", "96 C"), ("the card's limit", "95 C"))
    assert memory(95, 95) is memory(None, 95) is memory(96, None) is None


@pytest.mark.parametrize(
    ("name", "health", "reason"),
    [
        ("memory-repair", {"memory_unrepairable": None}, "the driver does not report it"),
        ("row-remapping", {"remapped_rows_pending": None}, "the driver does not report it"),
        ("row-remapping", {"remapped_rows_failed": None}, "the driver does not report it"),
        ("retired-pages", {}, "not supported by this GPU (NVML error 3)"),
        ("ecc-errors", {"ecc_uncorrected_volatile": None}, "the driver does not report it"),
        ("recovery-action", {"recovery_action": None}, "the driver does not report it"),
        ("clock-throttling", {"clock_event_reasons": None}, "the driver does not report it"),
    ],
)
def test_what_was_not_read_is_not_judged(name: str, health: dict[str, object], reason: str) -> None:
    assert condition(name, **health) == Trouble(CheckStatus.UNKNOWN, reason)


def test_without_a_temperature_nothing_is_judged() -> None:
    hidden = {
        "temperature_c": None,
        "unavailable": {"temperature_c": "no permission (NVML error 4)"},
    }

    assert condition("temperature", gpu=hidden) == Trouble(
        CheckStatus.UNKNOWN, "no permission (NVML error 4)"
    )
    assert condition("temperature", gpu={"temperature_c": None, "unavailable": {}}) == Trouble(
        CheckStatus.UNKNOWN, "the driver does not report it"
    )


NOT_REPORTED = "the driver does not report it"


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        ({"pcie_width": None, "unavailable": {"pcie_width": "not now"}}, "not now"),
        ({"pcie_width": None, "unavailable": {"pcie.width": "not now"}}, "not now"),
        ({"pcie_width_max": None, "unavailable": {"pcie_width_max": "never"}}, "never"),
        ({"pcie_width_max": None, "unavailable": {"pcie.width_max": "never"}}, "never"),
        (
            {"pcie_width": None, "unavailable": {"pcie_width_max": "x"}},
            "the driver does not report it",
        ),
    ],
)
def test_lanes_that_were_not_read_have_the_reason_of_what_is_missing(
    gpu: dict[str, object], reason: str
) -> None:
    assert pcie_width(gpu_reading(0, **gpu), healthy(0)) == Trouble(CheckStatus.UNKNOWN, reason)


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_healthy_card_has_no_condition(name: str) -> None:
    below = {"retired_pages_double_bit": 32, "retired_pages_single_bit": 30,
             "remapped_rows_uncorrected": 511}  # fmt: skip

    assert condition(name, failure=DENIED, clock_event_reasons=0x113, **below) is None


def test_ecc_may_be_about_to_be_turned_on() -> None:
    found = condition("ecc-errors", gpu={"ecc_mode": False}, ecc_mode_pending=True)

    assert isinstance(found, Trouble)
    assert found.summary == "ECC will be turned on at the next reset"


@pytest.mark.parametrize("mode", [None, False])
def test_a_change_of_ecc_is_only_pending_where_both_modes_are_known(mode: bool | None) -> None:
    assert condition("ecc-errors", gpu={"ecc_mode": mode}, ecc_mode_pending=mode) is None


# ------------------------------------------------------------------------------------ unfit cards


def judged(**changes: object) -> Trouble | None:
    return unfit(gpu_reading(0), healthy(0, **changes))


def test_a_healthy_card_is_fit() -> None:
    assert judged() is None


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"failure": LOST}, True),
        ({"remapped_rows_failed": True}, True),
        ({"ecc_sram_threshold_exceeded": True}, True),
        ({"ecc_uncorrected_volatile": 1}, False),
        ({"recovery_action": 1}, False),
        ({"temperature_slowdown_c": 41}, False),
        ({"temperature_memory_c": 96, "temperature_memory_max_c": 95}, False),
        ({"clock_event_reasons": 0x40}, False),
    ],
)
def test_a_lost_card_and_one_to_replace_are_refused_and_others_come_last(
    changes: dict[str, object], refused: bool
) -> None:
    found = judged(**changes)

    assert found is not None
    assert found.refuses_work is refused


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


def test_a_failure_outranks_a_warning() -> None:
    found = judged(temperature_slowdown_c=44, clock_event_reasons=0x80)
    assert found is not None
    assert "power brake" in found.summary


def test_a_replacement_outranks_an_error_that_a_reset_clears() -> None:
    found = judged(ecc_uncorrected_volatile=7, remapped_rows_failed=True)
    assert found is not None
    assert found.summary == "a bad row of memory could not be replaced"
    assert found.refuses_work


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


@pytest.mark.parametrize(
    ("function", "source"), [("nvmlDeviceGetEccMode", "nvmlDeviceGetEccMode"), (None, "NVML")]
)
def test_the_function_that_a_lost_card_refused_is_evidence(
    function: str | None, source: str
) -> None:
    failure = LOST._replace(function=function)

    found = lost(gpu_reading(0), GpuHealthReading(index=0, failure=failure))

    assert isinstance(found, Trouble)
    assert found.evidence == ((source, "NVML error 15"),)
