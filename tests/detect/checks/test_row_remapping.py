"""row-remapping: failed, many, pending."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import row_remapping
from gpucheck.report.envelope import CheckStatus
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {}, "ok", "no memory row is waiting"),
        (
            {},
            {"remapped_rows_failed": True, "remapped_rows_pending": True},
            "fail",
            "could not be replaced",
        ),
        ({}, {"remapped_rows_uncorrected": 511}, "ok", "no memory row is waiting"),
        ({}, {"remapped_rows_uncorrected": 512}, "fail", "512 rows"),
        ({}, {"remapped_rows_pending": True}, "warn", "at the next reset"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(row_remapping, gpu, health)

    assert found.status == status
    assert says in found.summary
    assert bool(found.remedy) == (found.status in (CheckStatus.WARN, CheckStatus.FAIL))
