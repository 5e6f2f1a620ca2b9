"""`gpucheck memlimit --verify`: caps tried on stand-ins and on the pretended CuPy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Ended, Pretend, Program
from tests.end_to_end.limited import (
    GIB,
    STAND_INS,
    WAIT_FOR_A_READING,
    limited,
    with_stand_ins,
)
from tests.fakes.libraries import cupy_environment
from tests.fakes.machine import load_machine


@pytest.fixture
def machine(pretend: Pretend, tmp_path: Path) -> dict[str, str]:
    """Return a T4 on which stand-ins for all frameworks are installed."""
    return with_stand_ins(pretend("t4"), tmp_path)


class TestProof:
    def test_every_cap_holds(self, program: Program, machine: dict[str, str]) -> None:
        ended = limited(
            program,
            machine,
            "--verify",
            "--verify-with",
            "torch,jax,tensorflow",
            "--json",
            "--python",
            sys.executable,
        )

        result = ended.document("memlimit")["result"]
        found = {each["framework"]: each for each in result["verifications"]}
        assert [each["held"] for each in found.values()] == [True] * 4, found
        assert found["cupy"]["refused_with"] == "cupy.cuda.memory.OutOfMemoryError"
        assert all(each["restored"] for each in found.values())
        assert all(each["allocated_bytes"] <= each["limit_bytes"] for each in found.values())
        assert result["verification"] == result["verifications"][0]

    def test_a_cap_that_does_not_hold_is_1_and_names_the_mechanism(
        self, program: Program, machine: dict[str, str], tmp_path: Path
    ) -> None:
        # As if something in the environment took the limit away again.
        (tmp_path / "sitecustomize.py").write_text(
            "import os; os.environ['CUPY_GPU_MEMORY_LIMIT'] = '0'\n"
        )
        env = machine | {"PYTHONPATH": f"{tmp_path}:{STAND_INS}", "STUB_FREE_BYTES": str(99 * GIB)}

        ended = limited(program, env, "--verify", "--no-hook", "--python", sys.executable)

        assert ended.code == 1
        assert "The limit of cupy (CUPY_GPU_MEMORY_LIMIT) does not hold" in ended.said
        assert "the limit does not hold" in ended.text

    @pytest.mark.parametrize(("words", "count"), [((), 3), (("--gpu", "2"), 1)])
    def test_every_gpu_is_tried_or_those_that_are_chosen(
        self, program: Program, pretend: Pretend, machine: dict[str, str], words: Any, count: int
    ) -> None:
        env = machine | pretend("h100x8", gpus=3)
        env |= {"STUB_DEVICES": str(count), "STUB_TOTAL_BYTES": str(85520809984)}

        ended = program(
            "memlimit", "10%", "--verify", "--json", *words, "--python", sys.executable, env=env
        )

        document = ended.document("memlimit")
        found = document["result"]["verifications"]
        assert ended.code == 0, document["error"]
        assert len(found) == count
        assert [each["cuda_index"] for each in found] == [
            gpu["cuda_index"] for gpu in document["result"]["gpus"]
        ]
        assert all(each["held"] for each in found)

    def test_a_full_card_proves_nothing(self, program: Program, machine: dict[str, str]) -> None:
        env = machine | {"STUB_FREE_BYTES": str(2 * GIB)}

        ended = limited(program, env, "--verify", "--json", "--python", sys.executable)

        document = ended.document("memlimit")
        assert ended.code == 3
        assert document["result"]["verification"]["held"] is None

    def test_a_framework_that_is_not_there(self, program: Program, pretend: Pretend) -> None:
        ended = program(
            "memlimit", "30%", "--verify-with", "tensorflow", "--python", sys.executable,
            env=pretend("t4"),
        )  # fmt: skip

        assert ended.code == 4
        assert "has no tensorflow" in ended.said

    def test_a_framework_that_cannot_be_tried_at_all(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        assert limited(program, machine, "--verify-with", "caffe").code == 2

    def test_without_a_python_in_path_gpuchecks_own_is_tried_and_named(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(
            program, machine | {"PATH": "/nonexistent", "VIRTUAL_ENV": ""}, "--verify", "--json"
        )

        result = ended.document("memlimit")["result"]
        assert result["software"]["named_by"] == "gpucheck"
        assert (ended.code, result["verification"]["held"]) == (0, True)


class TestPretendedCupy:
    """The pretended CuPy has real pools, and the pretended NVML is told what it takes."""

    @pytest.fixture
    def cupy(self, pretend: Pretend, tmp_path: Path) -> dict[str, str]:
        (tmp_path / "processes").write_text("")
        return {
            **pretend("t4"),
            **cupy_environment(),
            "FAKE_PROCESSES_FILE": str(tmp_path / "processes"),
            "FAKE_GPU_REPORTS": "1",
            # A user's program has its kernels beside it, where there is a folder for them.
            "CUPY_CACHE_DIR": str(tmp_path / "kernels"),
        }

    def verify(self, program: Program, env: dict[str, str], amount: str, *words: str) -> Ended:
        return program(
            "memlimit", amount, "--verify", "--json", "--python", sys.executable, *words, env=env
        )

    @pytest.mark.parametrize("amount", ["30%", "1GiB"])
    def test_the_cap_holds_and_nvml_agrees(
        self, program: Program, cupy: dict[str, str], amount: str
    ) -> None:
        ended = self.verify(program, cupy, amount)

        (found,) = ended.document("memlimit")["result"]["verifications"]
        assert (ended.code, found["held"], found["restored"]) == (0, True, True), found
        assert found["refused_bytes"] == 16 << 20
        # A percentage is of the total that CUDA reports, which is a little less than NVML's.
        share = float(amount.removesuffix("%")) / 100 if amount.endswith("%") else 1
        real = min(
            found["limit_bytes"], int(share * load_machine("t4").gpus[0].cuda_memory_total_bytes)
        )
        assert found["allocated_bytes"] <= real < found["allocated_bytes"] + (16 << 20)
        assert found["deviation_bytes"] == found["allocated_bytes"] - found["limit_bytes"]
        assert found["nvml_bytes"] <= found["nvml_most_bytes"]
        assert found["refused_with"] == "cupy.cuda.memory.OutOfMemoryError"
        assert found["overhead_bytes"] == 500 << 20  # the pretended context

    def test_a_pool_without_its_limit_is_caught(
        self, program: Program, cupy: dict[str, str], tmp_path: Path
    ) -> None:
        (tmp_path / "sitecustomize.py").write_text(
            "import os; os.environ['CUPY_GPU_MEMORY_LIMIT'] = '0'\n"
        )
        env = cupy | {"PYTHONPATH": f"{tmp_path}:{cupy['PYTHONPATH']}"}

        ended = self.verify(program, env, "10%", "--no-hook")

        error = ended.document("memlimit")["error"]
        assert ended.code == 1
        assert error["code"] == "limit-not-held"
        assert "The limit of cupy (CUPY_GPU_MEMORY_LIMIT) does not hold" in error["message"]

    def test_the_hook_puts_a_lost_limit_back(
        self, program: Program, cupy: dict[str, str], tmp_path: Path
    ) -> None:
        (tmp_path / "sitecustomize.py").write_text(
            "import os; os.environ['CUPY_GPU_MEMORY_LIMIT'] = '0'\n"
        )
        env = cupy | {"PYTHONPATH": f"{tmp_path}:{cupy['PYTHONPATH']}"}

        assert self.verify(program, env, "10%").code == 0

    def test_a_busy_card_proves_nothing_and_has_a_remedy(
        self, program: Program, pretend: Pretend, call_log: Path
    ) -> None:
        env = pretend("h100x8", gpus=1) | cupy_environment()  # a training job is on it

        ended = self.verify(program, env | {"FAKE_CALL_LOG": str(call_log)}, "90%")

        assert ended.code == 3
        assert " GiB is free and the proof needs" in ended.said
        assert "--gpu" in ended.said
        # Whether it has memory of its own was asked; nobody took the last bytes of others.
        assert call_log.read_text().count("\ncuInit") == 1

    def test_an_unmodified_program_is_capped_and_its_peak_is_read(
        self, program: Program, cupy: dict[str, str], tmp_path: Path, call_log: Path
    ) -> None:
        text = """
import cupy
held = []
try:
    while True:
        held.append(cupy.empty(1 << 28, dtype="uint8"))
except cupy.cuda.memory.OutOfMemoryError:
    print(len(held))
wait_for_a_reading()
"""
        report = tmp_path / "report.json"
        env = cupy | {"FAKE_GPU_TIME": "real", "FAKE_CALL_LOG": str(call_log)}

        ended = program(
            *("memlimit", "2GiB", "-o", report, "--json", "--"),
            *(sys.executable, "-c", WAIT_FOR_A_READING + text),
            env=env,
        )

        run = json.loads(report.read_text())["result"]["run"]
        assert (ended.code, ended.text) == (0, "8\n"), ended.said
        assert (run["peak_bytes"], run["exceeded"]) == ((2 << 30) + (500 << 20), False)


@pytest.mark.parametrize(("amount", "code"), [("70%", 0), ("90%", 3)])
def test_a_board_whose_memory_is_the_systems_is_never_filled(
    program: Program, pretend: Pretend, amount: str, code: int
) -> None:
    env = pretend("gb10") | cupy_environment()

    ended = program("memlimit", amount, "--verify", "--json", "--python", sys.executable, env=env)

    document = ended.document("memlimit")
    (found,) = document["result"]["verifications"]
    assert ended.code == code, document["error"]
    if code:
        assert "it shares the system's memory" in found["reason"]
        assert "would stop the whole machine" in document["error"]["message"]
    else:
        # A fifth of 112 GiB stays free.
        assert found["allocated_bytes"] + found["refused_bytes"] <= 112 * GIB * 4 // 5
