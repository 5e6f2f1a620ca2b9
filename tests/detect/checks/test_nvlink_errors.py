"""nvlink-errors: new errors during the check, by DCGM's limits."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.gpu_health import NVLINK_ERRORS
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("health", "status", "says"),
    [
        ({}, "ok", "no new NVLink error during the check (2 GPUs)"),
        ({"nvlink_errors_grown": {"CRC": 9}}, "warn", "9 CRC in 100 ms"),
        ({"nvlink_errors_grown": {"CRC": 10}}, "fail", "10 CRC in 100 ms"),
        ({"nvlink_errors_grown": {"CRC": 10}, "sample_s": 1.0}, "warn", "10 CRC in 1000 ms"),
        (
            {"nvlink_errors_grown": {"CRC": 0, "replay": 500}},
            "fail",
            "new errors: 500 replay in 100 ms",
        ),
        ({"nvlink_errors_grown": {"recovery": 1}}, "fail", "1 recovery"),
        # NVLink 5: a link that came back, and one that did not.
        ({"nvlink_errors_grown": {"successful recovery": 2}}, "warn", "2 successful recovery"),
        ({"nvlink_errors_grown": {"failed recovery": 1}}, "fail", "1 failed recovery"),
        ({"nvlinks_active": 0}, "ok", "(1 GPU)"),
        ({"nvlinks": 0, "nvlinks_active": 0}, "ok", "(1 GPU)"),
        ({"nvlink_errors_grown": None}, "unknown", "not checked on GPU 0"),
        ({"nvlinks": None, "nvlinks_active": None}, "unknown", "not checked on GPU 0"),
    ],
)
def test_judgement(health: dict[str, object], status: str, says: str) -> None:
    found = judge(NVLINK_ERRORS, health=health)

    assert found.status == status
    assert says in found.summary
