"""The proof in a process of its own: its steps, its chatter, and its end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpucheck.core.memlimit.hooking import hook_folder
from gpucheck.probes.limit_proof import run_proof
from gpucheck.probes.other_python import Interpreter, OtherPythonError
from tests.probes.limit_hook.limited_python import payload

STAND_INS = Path(__file__).parents[1] / "data" / "frameworks"
PYTHON = Interpreter(path=sys.executable)
LIMIT = 1 << 30


def environment(**more: str) -> dict[str, str]:
    return {"PYTHONPATH": str(STAND_INS), "CUPY_GPU_MEMORY_LIMIT": str(LIMIT), **more}


def test_steps_up_to_the_refusal_and_back() -> None:
    steps = list(run_proof(PYTHON, "cupy", [LIMIT], environment()))

    assert [step["step"] for step in steps] == ["start", *["took"] * 16, "refused", "end"]
    assert steps[-3]["taken"] == LIMIT
    assert steps[-2]["proper"] is True
    assert steps[-1] == {"step": "end", "gpu": 0, "refused": True, "restored": True}


@pytest.mark.parametrize("framework", ["cupy", "torch", "jax", "tensorflow"])
def test_every_gpu_is_tried_on_its_own(framework: str) -> None:
    limits = [LIMIT, LIMIT // 2, LIMIT // 4]
    hook = {"GPUCHECK_MEMORY_LIMIT": payload(*limits), "CUPY_GPU_MEMORY_LIMIT": str(LIMIT)}
    share = str(LIMIT / (16 << 30))
    env = environment(STUB_DEVICES="3", XLA_PYTHON_CLIENT_MEM_FRACTION=share, **hook)
    env["PYTHONPATH"] = f"{hook_folder()}:{STAND_INS}"

    steps = list(run_proof(PYTHON, framework, limits, env))

    ends = [step for step in steps if step["step"] == "end"]
    # JAX's one fraction is too wide for the last GPU, and the proof must not miss that.
    assert [end["refused"] for end in ends] == [True, True, framework != "jax"]
    assert [end["gpu"] for end in ends] == [0, 1, 2]


def test_a_cap_that_is_not_there_does_not_fill_the_card() -> None:
    env = environment(CUPY_GPU_MEMORY_LIMIT="0", STUB_FREE_BYTES=str(1 << 40))

    steps = list(run_proof(PYTHON, "cupy", [LIMIT], env))

    assert steps[-1] == {"step": "end", "gpu": 0, "refused": False}
    assert LIMIT < steps[-2]["taken"] <= 2 * LIMIT + LIMIT // 16


def test_a_limit_of_a_few_bytes() -> None:
    steps = list(run_proof(PYTHON, "cupy", [5], environment(CUPY_GPU_MEMORY_LIMIT="5")))

    assert steps[-1]["refused"] is True


def test_a_framework_that_cannot_be_imported_is_a_step() -> None:
    (step,) = run_proof(PYTHON, "cupy", [LIMIT], {"PYTHONPATH": "/nonexistent"})

    assert (step["step"], step["error"]) == ("failed", "ModuleNotFoundError")


def test_chatter_on_stdout_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello'); print('{\"a\": 1}'); print('[]')\n")
    env = environment(PYTHONPATH=f"{tmp_path}:{STAND_INS}")

    assert next(iter(run_proof(PYTHON, "cupy", [LIMIT], env)))["step"] == "start"


def test_one_that_hangs_is_left(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(60)\n")

    with pytest.raises(OtherPythonError):
        list(run_proof(PYTHON, "cupy", [1], {"PYTHONPATH": str(tmp_path)}, deadline_s=0.5))


def test_a_python_that_is_not_there() -> None:
    with pytest.raises(OtherPythonError):
        list(run_proof(Interpreter(path="/nonexistent"), "cupy", [1], {}))
