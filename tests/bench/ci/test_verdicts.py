"""Figures as CI systems show them: a prefix where there is none yet, and never two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.ci.model import ComparedRow, ComparedRun, RunComparison
from gpucheck.bench.model import Corruption, Direction, Gate, GateStatus
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import ExitCode
from gpucheck.report.verdicts import Kind, verdicts_of
from tests.fakes.verdicts import report, result

SIDE = ComparedRun(file="a.json", time="", host=None, gpucheck="0.1.0", profile=None)
ROW = ComparedRow(
    device="gpu:0",
    id="copy",
    unit="B/s",
    direction=Direction.HIGHER,
    first=2.0364e12,
    second=8.015e11,
    first_count=3,
    second_count=3,
    tolerance_percent=5.0,
    status=GateStatus.FAIL,
    reason="60.6 % worse",
)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (2.0364e12, "B/s", "2.036 TB/s"),
        (2036.4, "GB/s", "2036 GB/s"),
        (801.52, "GB/s", "801.5 GB/s"),
        (52.19, "TFLOP/s", "52.19 TFLOP/s"),
        (12345.0, "image/s", "12.35 kimage/s"),
        (0.0, "failed", "0 failed"),
        (24000.0, "lanes", "24000 lanes"),
    ],
)
def test_a_figure_has_one_prefix(value: float, unit: str, shown: str) -> None:
    gate = Gate(
        id="copy",
        device="gpu:0",
        status=GateStatus.PASS,
        direction=Direction.HIGHER,
        unit=unit,
        measured=value,
    )

    (verdict,) = verdicts_of(report(result(gate)))

    assert verdict.figures == (("measured", shown),)


def test_a_comparison_shows_both_sides() -> None:
    found = RunComparison(first=SIDE, second=SIDE, rows=(replace(ROW, ratio=0.3936),))

    (verdict,) = verdicts_of(report(found, code=ExitCode.BAD, command="compare"))

    assert verdict.kind is Kind.FAILURE
    assert verdict.figures == (
        ("before", "2.036 TB/s"),
        ("measured", "801.5 GB/s"),
        ("ratio", "0.3936"),
    )


@pytest.mark.parametrize(
    ("changes", "kind", "class_"),
    [
        ({}, Kind.PASS, None),
        ({"mismatches": 1}, Kind.FAILURE, "hardware"),
        ({"reference_ok": False}, Kind.FAILURE, "hardware"),
        ({"failure": Failure(code="gpu-lost", message="it is gone")}, Kind.ERROR, "gpu-lost"),
    ],
)
def test_a_check_for_corruption_without_a_profile_has_its_verdict(
    changes: dict[str, Any], kind: Kind, class_: str | None
) -> None:
    checked = Corruption(
        device="gpu:0", gpu_uuid="GPU-1", products=9, words=64, digest="ab", reference_ok=True
    )
    found = replace(result(), profile=None, gates=(), corruption=(replace(checked, **changes),))

    (verdict,) = [one for one in verdicts_of(report(found)) if one.check == "corruption"]

    assert (verdict.kind, verdict.class_) == (kind, class_)
