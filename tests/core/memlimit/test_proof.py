"""When a cap counts as held, as broken, and as not tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpucheck.core.memlimit.plan import plan_limit
from gpucheck.core.memlimit.proof import check_frameworks, prove
from gpucheck.models.device import Gpu
from gpucheck.models.errors import MissingError, WrongUseError
from gpucheck.models.memory import MemoryLimit, Verification
from gpucheck.models.report import Answer
from gpucheck.models.units import parse_amount
from gpucheck.probes.frameworks import FrameworksReading
from gpucheck.probes.other_python import Interpreter, OtherPythonError

MIB = 1024**2
#: What NVML says of the process.
NVML = {7: 2100 * MIB}
LIMIT, STEP = 1600 * MIB, 100 * MIB
START = {"step": "start", "pid": 7, "version": "14.2.0", "size": STEP, "free": 9 * LIMIT}
REFUSED = {"step": "refused", "error": "OOM", "message": "no", "proper": True, "free": 9 * LIMIT}
END = {"step": "end", "refused": True, "restored": True}


def took(size: int) -> dict[str, Any]:
    return {"step": "took", "taken": size, "counted": size}


HELD = [START, took(LIMIT), REFUSED, END]


def plan(**changes: Any) -> MemoryLimit:
    gpu = Gpu(index=0, cuda_index=0, visible=True, uuid="GPU-0", memory_total_bytes=10 * LIMIT)
    frameworks = FrameworksReading(
        interpreter=Interpreter(path="python"), frameworks={"cupy": "14.2.0"}
    )
    return plan_limit(
        parse_amount("10%"), [gpu], **({"frameworks": frameworks, "environment": {}} | changes)
    )


def tried(
    *steps: Mapping[str, Any], framework: str = "cupy", **changes: Any
) -> tuple[Answer, Verification]:
    def run(*_: Any, **__: Any) -> Iterator[Mapping[str, Any]]:
        yield from steps

    limit = plan(**changes)
    answer = prove(Answer(result=limit), limit, [framework], {}, run=run, measure=NVML.get)
    assert isinstance(answer.result, MemoryLimit)
    assert answer.result.verification is not None
    return answer, answer.result.verification


def test_a_cap_that_holds() -> None:
    answer, found = tried(*HELD)

    assert (answer.exit_code, answer.error) == (0, None)
    assert (found.held, found.allocated_bytes, found.refused_bytes) == (True, LIMIT, STEP)
    assert (found.refused_with, found.restored, found.version) == ("OOM", True, "14.2.0")
    assert found.mechanism == "CUPY_GPU_MEMORY_LIMIT"
    assert (found.nvml_bytes, found.overhead_bytes) == (2100 * MIB, 500 * MIB)


@pytest.mark.parametrize("taken", [LIMIT - STEP, LIMIT - 2 * STEP])
def test_rounding_of_an_allocator_is_no_failure(taken: int) -> None:
    assert tried(START, took(taken), REFUSED, END)[1].held is True


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([START, took(2 * LIMIT), {"step": "end", "refused": False}], "nothing was refused"),
        ([START, took(LIMIT + STEP), REFUSED, END], "only above the limit"),
        ([START, took(LIMIT), REFUSED | {"proper": False}, END], "another error: no"),
        ([START, took(LIMIT), REFUSED, END | {"restored": False}], "could not be taken again"),
    ],
)
def test_a_cap_that_does_not(steps: list[dict[str, Any]], why: str) -> None:
    answer, found = tried(*steps)

    assert (answer.exit_code, found.held) == (1, False)
    assert answer.error is not None
    assert answer.error.code == "limit-not-held"
    assert "CUPY_GPU_MEMORY_LIMIT" in answer.error.message
    assert why in answer.error.message


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([], "it ended early"),
        ([START, took(STEP)], "it ended early"),
        ([START, {"step": "failed", "error": "E", "message": "no driver"}], "E: no driver"),
        ([START, took(LIMIT // 2), REFUSED | {"free": STEP - 1}, END], "the card itself was full"),
        ([START, took(LIMIT // 2), REFUSED | {"free": None}, END], "well below the limit"),
    ],
)
def test_what_proves_nothing(steps: list[dict[str, Any]], why: str) -> None:
    answer, found = tried(*steps)

    assert (answer.exit_code, found.held) == (3, None)
    assert answer.error is not None
    assert why in answer.error.message


def test_a_framework_that_does_not_answer() -> None:
    def run(*_: Any, **__: Any) -> Iterator[Mapping[str, Any]]:
        yield START
        problem = "it did not answer in time"
        raise OtherPythonError(problem)

    limit = plan()
    answer = prove(Answer(result=limit), limit, ["cupy"], {}, run=run)

    assert answer.exit_code == 3


def test_a_framework_that_is_not_installed_is_missing() -> None:
    answer, found = tried(*HELD, framework="torch")

    assert (answer.exit_code, found.held) == (4, None)


def test_a_framework_that_nothing_caps_is_not_capped() -> None:
    answer, found = tried(*HELD, environment={"CUPY_GPU_MEMORY_LIMIT": "1"})
    assert found.held is True

    frameworks = FrameworksReading(
        interpreter=Interpreter(path="python"), frameworks={"jax": "0.10.2"}
    )
    answer, found = tried(
        framework="jax",
        frameworks=frameworks,
        environment={"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
    )

    assert (answer.exit_code, found.held) == (1, False)


def test_without_a_python() -> None:
    limit = plan(frameworks=FrameworksReading(reason="none"))

    with pytest.raises(MissingError):
        prove(Answer(result=limit), limit, ["cupy"], {})


def test_names_are_checked_first() -> None:
    check_frameworks(["cupy", "torch", "jax", "tensorflow"])
    with pytest.raises(WrongUseError):
        check_frameworks(["caffe"])
