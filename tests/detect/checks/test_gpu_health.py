"""Checks of the conditions: each reports its own; the rules: tests/inventory/test_condition.py."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import gpu_health
from gpucheck.detect.run import explain_check
from gpucheck.report.envelope import CheckStatus
from tests.detect.checks.healthy import judge

PAGES = {"retired_pages_double_bit": 0, "retired_pages_single_bit": 0}


@pytest.mark.parametrize(
    ("check", "well", "changes", "status", "says"),
    [
        (gpu_health.RECOVERY_ACTION, "the driver asks for no recovery",
         {"recovery_action": 2}, "fail", "a reboot"),
        (gpu_health.ECC_ERRORS, "no uncorrected memory error",
         {"ecc_uncorrected_volatile": 1}, "fail", "1 memory error could"),
        (gpu_health.ROW_REMAPPING, "no memory row is waiting to be replaced",
         {"remapped_rows_pending": True}, "warn", "at the next reset"),
        (gpu_health.RETIRED_PAGES, "no memory page is waiting to be retired",
         {"retired_pages_pending": True}, "warn", "at the next reset"),
        (gpu_health.MEMORY_REPAIR, "no memory repair is pending",
         {"memory_unrepairable": True}, "fail", "cannot be repaired"),
        (gpu_health.CLOCK_THROTTLING, "no clock is throttled",
         {"clock_event_reasons": 0x21}, "warn", "heat (software)"),
        (gpu_health.TEMPERATURE, "temperatures are below the cards' limits",
         {"temperature_slowdown_c": 40}, "fail", "its slowdown temperature is 40 °C"),
    ],
    ids=lambda value: getattr(value, "ID", None),
)  # fmt: skip
def test_a_condition_is_a_finding_of_its_check(
    check: gpu_health.GpuCheck, well: str, changes: dict[str, object], status: str, says: str
) -> None:
    healthy = judge(check, health=PAGES)
    found = judge(check, health={**PAGES, **changes})

    assert (healthy.id, healthy.status, healthy.cause) == (check.ID, CheckStatus.OK, None)
    assert healthy.summary.startswith(f"{well} (")
    assert (found.id, found.status) == (check.ID, status)
    assert says in found.summary
    assert found.cause in explain_check(check).causes or found.cause == "recovery-action-2"
