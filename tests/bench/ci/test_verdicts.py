"""Figures as CI systems show them: a prefix where there is none yet, and never two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.ci.model import ComparedRow, ComparedRun, RunComparison
from gpucheck.bench.ci.verdicts import spoken
from gpucheck.bench.model import Corruption, Direction, FrameworkUse, Gate, GateStatus, Verified
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import ExitCode
from gpucheck.report.verdicts import Kind, verdicts_of
from tests.fakes.bench_results import doubt, measurement
from tests.fakes.verdicts import of_every_kind, report, result
from tests.report.formats.recorded import in_lines, recorded

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
        (1e15, "B/s", "1 PB/s"),
        (9.99e14, "B/s", "999 TB/s"),
        (1e12, "B/s", "1 TB/s"),
        (1e9, "FLOP/s", "1 GFLOP/s"),
        (9.99e8, "FLOP/s", "999 MFLOP/s"),
        (1e6, "image/s", "1 Mimage/s"),
        (1e3, "image/s", "1 kimage/s"),
        (999.0, "image/s", "999 image/s"),
        (0.0, "failed", "0 failed"),
        (24000.0, "lanes", "24000 lanes"),
        (999.96, "GB/s", "1000 GB/s"),
        (1000.4, "GB/s", "1000 GB/s"),
        (9999999.0, "GB/s", "9999999 GB/s"),
        (1e7, "GB/s", "1e+07 GB/s"),
        (85.5, "C", "85.5 °C"),
        (0.5, "", "0.5"),
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

    assert verdict.values == (("measured", shown),)


def test_a_comparison_shows_both_sides() -> None:
    found = RunComparison(first=SIDE, second=SIDE, rows=(replace(ROW, ratio=0.3936),))

    (verdict,) = verdicts_of(report(found, code=ExitCode.BAD, command="compare"))

    assert verdict.kind is Kind.FAILURE
    assert verdict.values == (
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

    verdicts = verdicts_of(report(found, code=ExitCode.INCONCLUSIVE))
    (verdict,) = [one for one in verdicts if one.check == "corruption"]

    assert (verdict.kind, verdict.class_) == (kind, class_)


def test_each_gate_has_the_kind_of_its_status_and_severity() -> None:
    assert [(one.device, one.kind) for one in verdicts_of(of_every_kind())] == [
        ("gpu:0", Kind.PASS),
        ("gpu:0", Kind.FAILURE),
        ("gpu:1", Kind.FAILURE),
        ("gpu:2", Kind.ERROR),
        ("gpu:3", Kind.SKIPPED),
        ("gpu:4", Kind.WARNING),
        ("gpu:5", Kind.WARNING),
        ("node", Kind.PASS),
    ]


RIGHT = Verified(error=1e-9, bound=1e-5, ok=True, reference="float64")
WRONG = replace(RIGHT, error=0.5, ok=False)
LATE = Failure(code="no-time", message="the time was over")


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"verified": RIGHT}, Kind.PASS, "verified"),
        ({"verified": WRONG, "error": LATE}, Kind.FAILURE, "the time was over"),
        ({"verified": RIGHT, "error": LATE}, Kind.ERROR, "the time was over"),
        ({"verified": None, "error": LATE}, Kind.ERROR, "the time was over"),
        ({"time_s": None}, Kind.ERROR, "interrupted before it was measured"),
    ],
)
def test_a_row_without_gates_is_right_or_wrong_or_not_measured(
    changes: dict[str, Any], kind: Kind, message: str
) -> None:
    row = replace(measurement("copy", 1e9), **changes)
    found = replace(result(), profile=None, gates=(), measurements=(row,))

    verdict, *_ = verdicts_of(report(found, code=ExitCode.INCONCLUSIVE))

    assert (verdict.kind, verdict.message) == (kind, message)
    assert verdict.class_ == ("no-time" if "error" in changes else None)


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.BAD, ExitCode.INCONCLUSIVE])
def test_a_row_without_time_is_skipped_where_the_code_is_0_and_red_elsewhere(
    code: ExitCode,
) -> None:
    rows = (measurement("copy", 1e9), replace(measurement("copy", 1e9), error=LATE))
    found = replace(result(), profile=None, gates=(), measurements=rows)

    _, second = verdicts_of(report(found, code=code))

    assert second.kind is (Kind.SKIPPED if code is ExitCode.OK else Kind.ERROR)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("burn.ecc_uncorrected", "uncorrected ECC errors"),
        ("burn.alive", "alive"),
        ("remapped_rows", "remapped rows"),
        (
            "matmul/cublas/float32/64x64x64/end-to-end",
            "matmul cublas float32 64x64x64 with transfers",
        ),
        ("copy/kernel/float32/4096/resident", "copy kernel float32 4096"),
        (
            "softmax/softmax/float32/64x64/framework=pytorch/form=eager",
            "softmax PyTorch eager softmax float32 64x64",
        ),
        ("inventory-pcie-full", "inventory-pcie-full"),
        ("mine/of/four/parts", "mine/of/four/parts"),
    ],
)
def test_checks_have_names_of_words(check: str, words: str) -> None:
    assert spoken(check) == words


def test_verdicts_are_as_recorded() -> None:
    """Of gates, compared rows, and rows and checks of a run without gates."""
    side = RunComparison(
        first=SIDE, second=SIDE, rows=(ROW, replace(ROW, ratio=0.3936, second=None))
    )
    rows = (
        measurement("copy", 1e9, doubts=(doubt("host-busy"), doubt("bimodal"))),
        measurement("copy", 1e9, threads=None, throughput=None, error=LATE),
        measurement("copy", 1e9, shape=(), framework=FrameworkUse(
            name="torch", version="2.12.0", form="eager", python="python")),
    )  # fmt: skip
    checks = [
        Corruption(device="gpu:0", gpu_uuid="GPU-1", products=9, words=64, digest="ab",
                   reference_ok=True, **changes)
        for changes in ({}, {"mismatches": 2, "first_index": 5, "largest_ulp": 3},
                        {"failure": LATE})
    ]  # fmt: skip
    ungated = replace(result(), profile=None, gates=(), measurements=rows, corruption=tuple(checks))
    found = [
        *verdicts_of(of_every_kind()),
        *verdicts_of(report(side, code=ExitCode.BAD, command="compare")),
        *verdicts_of(report(ungated, code=ExitCode.INCONCLUSIVE)),
    ]

    text = in_lines(found)

    assert text == recorded("verdicts", text)
