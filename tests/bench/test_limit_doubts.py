from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.bench.limit_doubts import different_precision, doubts_about_limits
from gpucheck.bench.model import Doubt, DtypeSpec, Measurement, Scope, Throughput
from gpucheck.drivers.gpu import Board
from tests.fakes.bench import FLOAT32, FakeClock, FakeGpu

TF32 = DtypeSpec(input="float32", accumulate="float32", output="float32", math_mode="tf32")
BOARD = Board(
    name="some",
    source="datasheet",
    uncertainty={"float32": "two sheets disagree", "bytes_per_s": "half the chips were faster"},
)
GPU = replace(FakeGpu(FakeClock()).facts, board=BOARD)


def row(percent: float | None, **changes: object) -> Measurement:
    made = Measurement(
        kernel="matmul",
        variant="cublas",
        device="gpu:0",
        gpu_uuid=None,
        dtype=FLOAT32,
        shape=(8, 8, 8),
        scope=Scope.RESIDENT,
        percent_of_peak=percent,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_different_precision_is_doubted_and_equal_precision_is_not() -> None:
    assert different_precision(FLOAT32, FLOAT32) == ()
    (doubt,) = different_precision(FLOAT32, TF32)
    assert doubt.facts == {"cpu": "fp32", "gpu": "tf32"}


@pytest.mark.parametrize(
    ("percent", "expected"), [(99.0, []), (100.9, []), (130.0, ["above-peak"]), (None, [])]
)
def test_more_than_the_peak_is_doubted(percent: float | None, expected: list[str]) -> None:
    assert [doubt.code for doubt in doubts_about_limits(row(percent), None)] == expected


def test_more_than_the_memory_is_no_news_for_a_row_in_the_cache() -> None:
    cached = Doubt(code="l2-resident", message="it may stay in the L2", next="take a larger one")

    assert doubts_about_limits(row(300.0, doubts=(cached,)), None) == ()


def test_an_uncertain_peak_makes_the_percentage_uncertain() -> None:
    (doubt,) = doubts_about_limits(row(70.0), GPU)

    assert doubt.code == "peak-uncertain"
    assert "two sheets disagree" in doubt.message
    assert doubts_about_limits(row(None), GPU) == ()


def test_the_uncertainty_is_that_of_what_the_row_is_held_against() -> None:
    memory = row(70.0, kernel="copy", throughput=Throughput(value=1e12, unit="B/s"))

    (doubt,) = doubts_about_limits(memory, GPU)

    assert "half the chips were faster" in doubt.message
    assert doubts_about_limits(row(70.0, dtype=TF32), GPU) == ()


@pytest.mark.parametrize(
    ("percent", "expected"), [(97.0, []), (100.9, []), (124.0, ["above-copy"]), (None, [])]
)
def test_more_than_the_fastest_copy_is_doubted(percent: float | None, expected: list[str]) -> None:
    moved = row(None, kernel="triad", percent_of_copy=percent)

    assert [doubt.code for doubt in doubts_about_limits(moved, None)] == expected


def test_more_than_a_copy_is_no_news_for_a_row_in_the_cache() -> None:
    cached = Doubt(code="cache-resident", message="it may stay there", next="take a larger one")
    moved = row(None, kernel="softmax", percent_of_copy=300.0, doubts=(cached,))

    assert doubts_about_limits(moved, None) == ()
