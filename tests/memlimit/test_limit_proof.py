"""Proof in a separate process: its steps, its other output, and its end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gpucheck.drivers.python.interpreters import Interpreter, OtherPythonError
from gpucheck.memlimit.environment import hook_folder
from gpucheck.memlimit.verify import run_proof
from tests.memlimit.hook.limited_python import payload

STAND_INS = Path(__file__).parents[1] / "data" / "frameworks"
PYTHON = Interpreter(path=sys.executable)
LIMIT = 1 << 30
MIB = 1 << 20


def up_to_twice(*limits: int) -> list[tuple[int, int]]:
    """Return what the proof is told of limits."""
    return [(limit, 2 * limit) for limit in limits]


def taken(steps: list[dict[str, Any]]) -> int:
    """Return what was taken at the end."""
    return max(int(step["taken"]) for step in steps if step["step"] == "took")


def environment(**more: str) -> dict[str, str]:
    return {"PYTHONPATH": str(STAND_INS), "CUPY_GPU_MEMORY_LIMIT": str(LIMIT), **more}


def test_steps_up_to_the_refusal_and_back() -> None:
    steps = list(run_proof(PYTHON, "cupy", up_to_twice(LIMIT), environment()))

    assert [step["step"] for step in steps] == ["start", *["took"] * 16, "refused", "end"]
    assert steps[-3]["taken"] == LIMIT
    assert (steps[-2]["proper"], steps[-2]["size"]) == (True, 16 * MIB)
    assert steps[-1] == {"step": "end", "gpu": 0, "refused": True, "restored": True}


@pytest.mark.parametrize("real", [0.55, 0.985, 1.0, 1.01, 1.03, 1.06, 1.9])
def test_the_real_limit_is_found_to_16_mib(real: float) -> None:
    limit = 10 * LIMIT
    environment_ = environment(
        CUPY_GPU_MEMORY_LIMIT=str(int(real * limit)), STUB_FREE_BYTES=str(1 << 40)
    )

    steps = list(run_proof(PYTHON, "cupy", up_to_twice(limit), environment_))

    assert taken(steps) <= real * limit < taken(steps) + 16 * MIB
    assert [step["size"] for step in steps if step["step"] == "refused"] == [16 * MIB]
    assert len(steps) < 50


def test_jax_gets_no_edge_beyond_31_bits() -> None:
    # An H200's 70 %: a step has 6.5e9 bytes.
    limit = 105 * LIMIT
    env = environment(STUB_TOTAL_BYTES=str(150 * LIMIT), XLA_PYTHON_CLIENT_MEM_FRACTION="0.7")
    env |= {"STUB_FREE_BYTES": str(150 * LIMIT)}

    steps = list(run_proof(PYTHON, "jax", up_to_twice(limit), env))

    assert steps[-1] == {"step": "end", "gpu": 0, "refused": True, "restored": True}


def test_it_ends_at_the_most_that_may_be_taken() -> None:
    env = environment(CUPY_GPU_MEMORY_LIMIT="0", STUB_FREE_BYTES=str(1 << 40))

    steps = list(run_proof(PYTHON, "cupy", [(LIMIT, LIMIT + LIMIT // 16)], env))

    assert taken(steps) == LIMIT + LIMIT // 16
    assert steps[-1]["refused"] is False


@pytest.mark.parametrize("framework", ["cupy", "torch", "jax", "tensorflow"])
def test_every_gpu_is_tried_on_its_own(framework: str) -> None:
    limits = [LIMIT, LIMIT // 2, LIMIT // 4]
    hook = {"GPUCHECK_MEMORY_LIMIT": payload(*limits), "CUPY_GPU_MEMORY_LIMIT": str(LIMIT)}
    share = str(LIMIT / (16 << 30))
    env = environment(STUB_DEVICES="3", XLA_PYTHON_CLIENT_MEM_FRACTION=share, **hook)
    env["PYTHONPATH"] = f"{hook_folder()}:{STAND_INS}"

    steps = list(run_proof(PYTHON, framework, up_to_twice(*limits), env))

    ends = [step for step in steps if step["step"] == "end"]
    # JAX's one fraction is too wide for the smaller GPUs, and the proof must not miss that.
    assert [end["refused"] for end in ends] == [True, framework != "jax", framework != "jax"]
    assert [end["gpu"] for end in ends] == [0, 1, 2]


def test_a_cap_that_is_not_there_does_not_fill_the_card() -> None:
    env = environment(CUPY_GPU_MEMORY_LIMIT="0", STUB_FREE_BYTES=str(1 << 40))

    steps = list(run_proof(PYTHON, "cupy", up_to_twice(LIMIT), env))

    assert steps[-1] == {"step": "end", "gpu": 0, "refused": False}
    assert taken(steps) == 2 * LIMIT


def test_a_limit_of_a_few_bytes() -> None:
    env = environment(CUPY_GPU_MEMORY_LIMIT="5")
    steps = list(run_proof(PYTHON, "cupy", up_to_twice(5), env))

    assert steps[-1]["refused"] is True


def test_a_framework_that_cannot_be_imported_is_a_step() -> None:
    (step,) = run_proof(PYTHON, "cupy", up_to_twice(LIMIT), {"PYTHONPATH": "/nonexistent"})

    assert (step["step"], step["error"]) == ("failed", "ModuleNotFoundError")


def test_chatter_on_stdout_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello'); print('{\"a\": 1}'); print('[]')\n")
    env = environment(PYTHONPATH=f"{tmp_path}:{STAND_INS}")

    assert next(iter(run_proof(PYTHON, "cupy", up_to_twice(LIMIT), env)))["step"] == "start"


def test_one_that_hangs_is_left(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(60)\n")

    with pytest.raises(OtherPythonError):
        list(run_proof(PYTHON, "cupy", [(1, 2)], {"PYTHONPATH": str(tmp_path)}, deadline_s=0.1))


def test_a_python_that_is_not_there() -> None:
    with pytest.raises(OtherPythonError):
        list(run_proof(Interpreter(path="/nonexistent"), "cupy", [(1, 2)], {}))
