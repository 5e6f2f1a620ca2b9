"""retired-pages: both causes together."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import retired_pages
from gpucheck.report.envelope import CheckStatus
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        (
            {},
            {"retired_pages_single_bit": 30, "retired_pages_double_bit": 32},
            "ok",
            "no memory page is waiting",
        ),
        (
            {},
            {"retired_pages_single_bit": 30, "retired_pages_double_bit": 33},
            "fail",
            "63 of at most 64 pages",
        ),
        (
            {},
            {
                "retired_pages_single_bit": 0,
                "retired_pages_double_bit": 1,
                "retired_pages_pending": True,
            },
            "warn",
            "next reset",
        ),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(retired_pages, gpu, health)

    assert found.status == status
    assert says in found.summary
    assert bool(found.remedy) == (found.status in (CheckStatus.WARN, CheckStatus.FAIL))
