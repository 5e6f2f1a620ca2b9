"""What a run comes to: the worst that was found decides, and nothing that was asked is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.corruption_model import Corruption
from gpucheck.bench.model import BenchResult, Measurement, Verified
from gpucheck.bench.outcome import conclude
from gpucheck.bench.sampler import off_by
from gpucheck.report.envelope import Answer, Failure, Host
from gpucheck.report.errors import ExitCode
from tests.fakes.bench_results import gpu as bench_gpu
from tests.fakes.bench_runs import row
from tests.fakes.verdicts import result

TAKEN = Failure(code="gpu-memory-taken", message="the memory of gpu:0 is taken")
NO_TIME = Failure(code="no-time", message="the time was over")
LOST = Failure(code="gpu-lost", message="the GPU stopped answering")
STUCK = Failure(code="clock-stuck", message="the clock cannot be trusted")
BUSY = Failure(code="gpu-busy", message="another process has the GPU for itself")
WRONG = Verified(error=0.5, bound=1e-2, ok=False, reference="float64")
CLEAN = Corruption(device="gpu:0", gpu_uuid=None, products=10, words=64, reference_ok=True)


def found(*rows: Measurement, corruption: tuple[Corruption, ...] = (), **more: Any) -> BenchResult:
    return replace(result(), measurements=rows, corruption=corruption, **more)


def concluded(result_: BenchResult, *, require_gpu: bool = False) -> Answer:
    return conclude(result_, Host(), require_gpu=require_gpu)


GOOD = row("cpu", 1e11)
UNMEASURED = row("gpu:0", 1e14, median_s=None, throughput=None, verified=None)


@pytest.mark.parametrize(
    ("result_", "code", "said"),
    [
        (found(GOOD), ExitCode.OK, None),
        (found(GOOD, corruption=(CLEAN,)), ExitCode.OK, None),
        (found(GOOD, interrupted=True), ExitCode.INTERRUPTED, "interrupted"),
        (found(GOOD, replace(UNMEASURED, device="cpu", error=NO_TIME)), ExitCode.OK, None),
        (found(GOOD, replace(UNMEASURED, error=NO_TIME)), ExitCode.INCONCLUSIVE, "no-time"),
        (found(replace(UNMEASURED, error=NO_TIME)), ExitCode.INCONCLUSIVE, "no-time"),
        (found(GOOD, replace(UNMEASURED, error=LOST)), ExitCode.BAD, "gpu-lost"),
        (found(GOOD, replace(UNMEASURED, error=STUCK)), ExitCode.INCONCLUSIVE, "clock-stuck"),
        (found(GOOD, replace(UNMEASURED, error=BUSY)), ExitCode.INCONCLUSIVE, "gpu-busy"),
        (found(row("gpu:0", 1e14, verified=WRONG)), ExitCode.BAD, "wrong-result"),
        (
            found(GOOD, corruption=(replace(CLEAN, mismatches=1),)),
            ExitCode.BAD,
            "silent-corruption",
        ),
        (found(GOOD, corruption=(replace(CLEAN, failure=LOST),)), ExitCode.BAD, "gpu-lost"),
        (
            found(GOOD, corruption=(replace(CLEAN, products=0, failure=TAKEN),)),
            ExitCode.INCONCLUSIVE,
            "gpu-memory-taken",
        ),
        (
            found(replace(UNMEASURED, error=NO_TIME), corruption=(replace(CLEAN, mismatches=1),)),
            ExitCode.BAD,
            "silent-corruption",
        ),
    ],
)
def test_the_worst_that_was_found_decides(
    result_: BenchResult, code: ExitCode, said: str | None
) -> None:
    answer = concluded(result_)

    assert answer.exit_code is code
    assert (answer.error.code if answer.error else None) == said


def test_a_gpu_that_is_required_and_not_there_is_missing() -> None:
    answer = concluded(found(GOOD), require_gpu=True)

    assert answer.exit_code is ExitCode.MISSING
    assert answer.error is not None
    assert "A GPU is required" in answer.error.message


def test_a_required_gpu_is_unknown_while_the_driver_does_not_answer() -> None:
    silent = replace(result().environment, gpus=(), gpu_unavailable="no answer", gpu_silent=True)

    assert concluded(found(GOOD, environment=silent), require_gpu=True).exit_code is (
        ExitCode.INCONCLUSIVE
    )
    assert (
        concluded(
            found(GOOD, environment=replace(silent, gpu_silent=False)), require_gpu=True
        ).exit_code
        is ExitCode.MISSING
    )


def test_a_busy_gpu_beside_others_decides_nothing_and_hides_nothing() -> None:
    refused = replace(
        result().environment, gpus=(bench_gpu(),), gpu_unavailable="gpu:1: busy", gpu_silent=True
    )

    busy = concluded(found(GOOD, environment=refused))
    corrupt = concluded(
        found(GOOD, environment=refused, corruption=(replace(CLEAN, mismatches=1),))
    )
    broken = concluded(found(GOOD, environment=replace(refused, gpu_silent=False)))

    assert (busy.exit_code, busy.error and busy.error.code) == (
        ExitCode.INCONCLUSIVE,
        "gpu-refused",
    )
    assert corrupt.error is not None
    assert corrupt.error.code == "silent-corruption"
    assert broken.exit_code is ExitCode.BAD


def test_a_copy_that_is_wrong_counts_its_numbers() -> None:
    counted = Verified(error=2.0, bound=0.0, ok=False, reference="the source, bit by bit")

    assert off_by(counted) == "2 of its numbers differ from the source, bit by bit"
    assert off_by(WRONG) == "its deviation from float64 is 0.5; at most 0.01 is allowed"
