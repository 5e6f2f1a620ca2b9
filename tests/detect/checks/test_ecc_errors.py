"""ecc-errors: uncorrected, the SRAM's threshold, a pending mode."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import ecc_errors
from gpucheck.report.envelope import CheckStatus
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {}, "ok", "no uncorrected"),
        ({}, {"ecc_uncorrected_volatile": 1}, "fail", "1 memory error could"),
        ({}, {"ecc_sram_threshold_exceeded": True}, "fail", "NVIDIA tolerates"),
        ({}, {"ecc_mode_pending": False}, "warn", "turned off at the next reset"),
        ({"ecc_mode": False}, {}, "warn", "turned on at the next reset"),
        ({}, {"ecc_corrected_volatile": 7}, "ok", "corrected memory errors: 7"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(ecc_errors, gpu, health)

    assert found.status == status
    assert says in found.summary
    assert bool(found.remedy) == (found.status in (CheckStatus.WARN, CheckStatus.FAIL))
