"""Environment of a limited command: the import hook, additions, and what an outer run left."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from gpucheck.drivers.python.frameworks import Software
from gpucheck.drivers.python.interpreters import Interpreter
from gpucheck.inventory.model import Gpu
from gpucheck.memlimit.environment import (
    HOOK_VARIABLE,
    RUNS_VARIABLE,
    hook_environment,
    hook_folder,
    hook_state,
    limited_environment,
    new_mark,
    outer_limit,
    warn_of_ineffective,
)
from gpucheck.memlimit.hook import gpucheck_limit_hook
from gpucheck.memlimit.model import MemoryLimit
from gpucheck.memlimit.plan import plan_limit
from gpucheck.report.units import parse_amount
from tests.fakes.gpus import sized_row

GIB = 1024**3


def plan(text: str, *gpus: Gpu, torch: str = "", env: dict[str, str] | None = None) -> MemoryLimit:
    software = Software(interpreter="python", frameworks={"torch": torch} if torch else {})
    return plan_limit(
        parse_amount(text),
        gpus or (sized_row(0),),
        environment=env or {},
        software=software,
    )


def document(variables: dict[str, str]) -> dict[str, object]:
    return json.loads(variables[HOOK_VARIABLE])  # type: ignore[no-any-return]


def test_the_folder_holds_the_hook_and_little_else() -> None:
    names = {path.name for path in Path(hook_folder()).glob("*.py")}

    assert names == {"__init__.py", "gpucheck_limit_hook.py", "sitecustomize.py"}
    assert Path(hook_folder()).is_absolute()


def test_both_sides_agree_on_the_variable() -> None:
    assert HOOK_VARIABLE == gpucheck_limit_hook.VARIABLE


def test_the_hook_gets_the_bytes_of_every_gpu() -> None:
    variables = hook_environment(plan("50%", sized_row(0), sized_row(1, 8 * GIB)), {})

    assert document(variables)["gpus"] == [
        {"uuid": "GPU-0", "bytes": 40 * GIB},
        {"uuid": "GPU-1", "bytes": 4 * GIB},
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, ""),
        ("", ""),
        ("/a:/b", ":/a:/b"),
        (":", "::"),
        # Of an outer run, which is not named twice.
        (hook_folder(), ""),
        (f"{hook_folder()}:/a:/b", ":/a:/b"),
    ],
)
def test_the_folder_comes_first_and_the_rest_stays(before: str | None, after: str) -> None:
    inherited = {} if before is None else {"PYTHONPATH": before}

    assert hook_environment(plan("1GiB"), inherited)["PYTHONPATH"] == hook_folder() + after


def test_an_unknown_limit_has_no_hook() -> None:
    assert hook_environment(plan("50%", sized_row(0, None)), {}) == {}


def test_the_hook_gets_what_was_set_for_pytorch() -> None:
    inherited = {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}

    variables = hook_environment(plan("50%", torch="2.10.0", env=inherited), inherited)

    assert document(variables)["torch"] == {
        "variable": "PYTORCH_CUDA_ALLOC_CONF",
        "value": "backend:native,per_process_memory_fraction:0.5",
        "before": "backend:native",
    }


def test_the_hook_gets_what_was_set_for_the_others() -> None:
    told = document(hook_environment(plan("50%"), {}))

    assert told["jax"] == {"variable": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "0.5"}
    assert told["cupy"] == "50%"
    assert told["torch"] is None  # no Python is known to have one that knows the key


def test_the_hook_gets_variables_that_were_not_set() -> None:
    inherited = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}

    told = document(hook_environment(plan("8GiB", env=inherited), inherited))

    assert (told["jax"], told["cupy"]) == (None, str(8 * GIB))


@pytest.mark.parametrize(("outer", "after"), [(GIB, GIB), (99 * GIB, 8 * GIB)])
def test_an_outer_limit_is_not_widened(outer: int, after: int) -> None:
    inherited = {HOOK_VARIABLE: json.dumps({"gpus": [{"uuid": "GPU-0", "bytes": outer}]})}

    found = document(hook_environment(plan("8GiB"), inherited))

    assert found["gpus"] == [{"uuid": "GPU-0", "bytes": after}]


@pytest.mark.parametrize(("outer", "told"), [("GPU-0", GIB), ("GPU-0", None), ("GPU-9", None)])
def test_a_tighter_outer_limit_is_reported(outer: str, told: int | None) -> None:
    size = GIB if told else 99 * GIB
    inherited = {HOOK_VARIABLE: json.dumps({"gpus": [{"uuid": outer, "bytes": size}]})}

    assert outer_limit(plan("8GiB"), inherited) == told
    assert outer_limit(plan("8GiB"), {}) is None


@pytest.mark.parametrize(("size", "told"), [(8 * GIB, None), (8 * GIB - 1, 8 * GIB - 1)])
def test_an_outer_limit_of_the_same_size_is_no_tighter_one(size: int, told: int | None) -> None:
    inherited = {HOOK_VARIABLE: json.dumps({"gpus": [{"uuid": "GPU-0", "bytes": size}]})}

    assert outer_limit(plan("8GiB"), inherited) == told


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"gpus": [{}]}', '{"gpus": 3}'])
def test_an_outer_limit_that_cannot_be_read_is_none(text: str) -> None:
    found = document(hook_environment(plan("8GiB"), {HOOK_VARIABLE: text}))

    assert found["gpus"] == [{"uuid": "GPU-0", "bytes": 8 * GIB}]


@pytest.mark.parametrize(
    ("interpreter", "wanted", "present", "why"),
    [
        (None, True, True, "every Python"),
        (Interpreter(path="python"), True, True, "runs it"),
        (Interpreter(path="python", isolated=True), True, False, "-I"),
        (Interpreter(path="python", bare=True), True, False, "-S"),
        (Interpreter(path="python"), False, False, "--no-hook"),
    ],
)
def test_whether_the_hook_will_be_there(
    interpreter: Interpreter | None, wanted: bool, present: bool, why: str
) -> None:
    found, reason = hook_state(interpreter, wanted=wanted)

    assert found is present
    assert why in reason


def test_a_folder_that_pythonpath_cannot_name_has_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucheck.memlimit.environment.hook_folder", lambda: f"/a{os.pathsep}b")

    assert hook_state(None, wanted=True)[0] is False


# --------------------------------------------------------------------------- the whole environment


def test_the_users_variables_stay_and_ours_come_on_top() -> None:
    inherited = {"HOME": "/home/me", "CUPY_GPU_MEMORY_LIMIT": "90%"}

    limited = limited_environment(plan("30%"), inherited, hook=False)

    assert (limited["HOME"], limited["CUPY_GPU_MEMORY_LIMIT"]) == ("/home/me", "30%")
    assert "PYTHONPATH" not in limited
    assert inherited == {"HOME": "/home/me", "CUPY_GPU_MEMORY_LIMIT": "90%"}


def test_a_run_inside_a_run_bears_both_marks() -> None:
    outer = limited_environment(plan("30%"), {}, hook=True, mark="first")
    inner = limited_environment(plan("30%"), outer, hook=True, mark="second")

    assert outer[RUNS_VARIABLE] == "first"
    assert inner[RUNS_VARIABLE] == "first,second"


def test_without_a_watcher_there_is_no_mark() -> None:
    assert RUNS_VARIABLE not in limited_environment(plan("30%"), {}, hook=True)


def test_no_two_marks_are_the_same() -> None:
    marks = {new_mark() for _ in range(100)}

    assert len(marks) == 100
    # 128 bits, as a UUID has.
    assert all(re.fullmatch("[0-9a-f]{32}", mark) for mark in marks)


class TestIneffectiveVariables:
    @pytest.mark.parametrize(
        "environment",
        [
            {"TF_GPU_MEMORY_LIMIT": "1024"},
            {"TF_MEMORY_ALLOCATION": "0.3"},
            {"TF_PER_DEVICE_MEMORY_LIMIT_MB": "1024"},
            {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
            {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
            {"CUDA_DEVICE_MEMORY_LIMIT": "1g"},
            {"CUDA_DEVICE_MEMORY_LIMIT_0": "1g", "LD_PRELOAD": "libother.so"},
            {"THEANO_FLAGS": "device=cuda,gpuarray.preallocate=0.3"},
            {"THEANO_FLAGS": "lib.cnmem = 0.3"},
            {"TF_GPU_ALLOCATOR": "cuda_malloc_async"},
            {"TF_GPU_MEMORY_FRACTION": "0.3"},
            {"TF_FORCE_UNIFIED_MEMORY": "true"},
            {"per_process_gpu_memory_fraction": "0.3"},
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": ""},
            {"CUDA_MEMORY_LIMIT": "4G"},
        ],
    )
    def test_an_uncapped_framework_is_reported_once(self, environment: dict[str, str]) -> None:
        (notice,) = warn_of_ineffective(environment)

        assert notice.code == "no-memory-limit"
        assert next(iter(environment)) in notice.message

    @pytest.mark.parametrize(
        "environment",
        [
            {},
            {"TF_GPU_MEMORY_LIMIT": ""},
            {"TF_FORCE_GPU_ALLOW_GROWTH": "false"},
            {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"},
            {"THEANO_FLAGS": "mylib.cnmem=1,x.gpuarray.preallocate=1"},
            {"CUDA_DEVICE_MEMORY_LIMIT": "1g", "LD_PRELOAD": "/lib/libvgpu.so"},
            {"THEANO_FLAGS": "device=cuda"},
            {"TF_GPU_ALLOCATOR": "cuda_malloc"},
            {"MY_CUDA_DEVICE_MEMORY_LIMIT": "1"},
        ],
    )
    def test_what_means_something_else_is_not(self, environment: dict[str, str]) -> None:
        assert list(warn_of_ineffective(environment)) == []

    def test_control_characters_are_made_visible(self) -> None:
        (notice,) = warn_of_ineffective({"TF_GPU_MEMORY_LIMIT": "\x1b[31m"})

        assert notice.message.isprintable()
