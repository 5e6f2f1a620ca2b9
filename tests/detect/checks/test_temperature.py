"""temperature: against the card's own limits."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import temperature
from gpucheck.report.envelope import CheckStatus
from tests.detect.checks.healthy import judge


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({"temperature_c": 41}, {}, "ok", "below the cards' limits"),
        ({"temperature_c": 84}, {}, "ok", "below the cards' limits"),
        ({"temperature_c": 85}, {}, "warn", "near its slowdown"),
        ({"temperature_c": 88}, {}, "warn", "near its slowdown"),
        ({"temperature_c": 89}, {}, "fail", "its slowdown temperature is 89 C"),
        ({"temperature_c": 70}, {"temperature_gpu_max_c": 65}, "warn", "near its slowdown"),
        # Newer cards name no limit, but how far they are from it.
        ({"temperature_c": 95}, {"temperature_slowdown_c": None, "temperature_margin_c": 6}, "ok",
         "below"),
        ({"temperature_c": 60}, {"temperature_slowdown_c": None, "temperature_margin_c": 5}, "warn",
         "5 C below its slowdown temperature"),
        ({"temperature_c": 60}, {"temperature_slowdown_c": None, "temperature_margin_c": -2},
         "fail", "0 C below its slowdown temperature"),
        (
            {"temperature_c": 82},
            {"temperature_slowdown_c": None, "temperature_gpu_max_c": None},
            "ok",
            "below",
        ),
        (
            {"temperature_c": 83},
            {"temperature_slowdown_c": None, "temperature_gpu_max_c": None},
            "warn",
            "reports no limit",
        ),
        (
            {"temperature_c": 90},
            {"temperature_slowdown_c": None, "temperature_gpu_max_c": None},
            "fail",
            "reports no limit",
        ),
        (
            {"temperature_c": 41},
            {"temperature_memory_c": 96, "temperature_memory_max_c": 95},
            "warn",
            "memory at 96 C",
        ),
        # Hot memory counts on a card that says nothing of its own limits too.
        (
            {"temperature_c": 41},
            {"temperature_slowdown_c": None, "temperature_gpu_max_c": None,
             "temperature_memory_c": 96, "temperature_memory_max_c": 95},
            "warn",
            "memory at 96 C",
        ),
        (
            {"temperature_c": 41},
            {"temperature_memory_c": 95, "temperature_memory_max_c": 95},
            "ok",
            "below",
        ),
    ],
)  # fmt: skip
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(temperature, gpu, health)

    assert found.status == status
    assert says in found.summary
    assert bool(found.remedy) == (found.status in (CheckStatus.WARN, CheckStatus.FAIL))
