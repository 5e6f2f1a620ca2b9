from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from gpucheck.bench import model
from gpucheck.bench.model import Comparison, Measurement, Verified
from gpucheck.bench.request_model import BenchRequest
from tests.fakes.bench import FLOAT32

#: The fields that the contract names; they may not go without a new schema number.
MEASUREMENT = (
    "kernel variant device gpu_uuid dtype shape scope samples_s warmup_s median_s ci95_s converged "
    "throughput percent_of_peak percent_of_copy verified doubts joules_per_op"
)
COMPARISON = (
    "kernel dtype shape cpu gpu speedup_resident speedup_end_to_end speedup_amortised reuse_count "
    "break_even"
)
RESULT = "measurements comparisons gates telemetry environment profile"


@pytest.mark.parametrize(
    ("model", "promised"),
    [
        (model.Measurement, MEASUREMENT),
        (model.Comparison, COMPARISON),
        (model.BenchResult, RESULT),
        (model.DtypeSpec, "input accumulate output math_mode"),
        (model.Throughput, "value unit"),
        (model.Verified, "error bound ok reference"),
        (model.Doubt, "code message next"),
    ],
)
def test_every_promised_field_is_there(model: type[Any], promised: str) -> None:
    assert set(promised.split()) <= {field.name for field in dataclasses.fields(model)}


def test_an_unmeasured_row_has_no_figures_rather_than_zeros() -> None:
    row = Measurement(
        kernel="matmul",
        variant="blas",
        device="cpu",
        gpu_uuid=None,
        dtype=FLOAT32,
        shape=(8, 8, 8),
        scope=model.Scope.RESIDENT,
    )

    plain = json.loads(json.dumps(dataclasses.asdict(row), allow_nan=False))
    assert plain["median_s"] is plain["ci95_s"] is plain["throughput"] is None
    assert plain["scope"] == "resident"


def test_models_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BenchRequest().seed = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Verified(1e-7, 1e-5, True, "positional")  # type: ignore[misc]
    assert Comparison.__slots__
