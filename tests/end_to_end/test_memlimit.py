"""`gpucheck memlimit` without a command: plans, code and settings."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpucheck.memlimit.environment import HOOK_VARIABLE
from tests.conftest import scrubbed_environment
from tests.end_to_end.conftest import Pretend, Program
from tests.end_to_end.limited import (
    GIB,
    events,
    limited,
    with_stand_ins,
)


@pytest.fixture
def machine(pretend: Pretend, tmp_path: Path) -> dict[str, str]:
    """Return a T4 on which stand-ins for all frameworks are installed."""
    return with_stand_ins(pretend("t4"), tmp_path)


class TestPlan:
    def test_a_document_for_the_python_at_hand(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(program, machine, "--json", "--python", sys.executable)

        result = ended.document("memlimit")["result"]
        assert result["software"]["frameworks"]["torch"] == "2.13.0"
        assert result["environment"]["PYTORCH_ALLOC_CONF"] == "per_process_memory_fraction:0.3"
        assert result["gpus"][0]["allocator_limit_bytes"] == result["gpus"][0]["limit_bytes"]
        assert result["overhead"]["included"] is False

    def test_the_overhead_is_subtracted_on_request(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(program, machine, "--json", "--include-overhead")

        result = ended.document("memlimit")["result"]
        (gpu,) = result["gpus"]
        overhead = gpu["context_estimate_bytes"] + gpu["library_estimate_bytes"]
        assert gpu["allocator_limit_bytes"] == gpu["limit_bytes"] - overhead
        assert len(result["overhead"]["sources"]) == 3

    @pytest.mark.parametrize("words", [(), ("--format", "shell")])
    def test_a_tighter_outer_limit_is_named(
        self, program: Program, machine: dict[str, str], words: tuple[str, ...]
    ) -> None:
        (gpu,) = limited(program, machine, "--json").document("memlimit")["result"]["gpus"]
        outer = json.dumps({"gpus": [{"uuid": gpu["uuid"], "bytes": GIB}]})

        ended = limited(program, {**machine, HOOK_VARIABLE: outer}, *words)

        assert "an outer memlimit stays in force: 1.0 GiB" in ended.said

    def test_a_gpu_is_chosen_by_string_or_uuid(self, program: Program, pretend: Pretend) -> None:
        machine = pretend("h100x8")
        by_number = program("memlimit", "8GiB", "--gpu", "cuda:3", "--json", env=machine)
        (chosen,) = by_number.document("memlimit")["result"]["gpus"]
        by_uuid = program("memlimit", "8GiB", "--gpu", chosen["uuid"], "--json", env=machine)

        result = by_uuid.document("memlimit")["result"]
        assert result["gpus"] == [chosen]
        assert result["environment"]["CUDA_VISIBLE_DEVICES"] == chosen["uuid"]

    @pytest.mark.parametrize(
        ("spec", "code"), [("/cpu:0", 2), ("nonsense", 2), ("GPU-0000", 1), ("cuda:9", 1)]
    )
    def test_a_gpu_that_cannot_be_chosen(
        self, program: Program, machine: dict[str, str], spec: str, code: int
    ) -> None:
        ended = limited(program, machine, "--gpu", spec)

        assert (ended.code, ended.stdout) == (code, b"")
        assert ended.said.count("Traceback") == 0

    def test_exports_are_evaluated_by_a_shell(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(program, machine, "--format", "shell")

        shown = subprocess.run(
            ["sh", "-c", f'{ended.text}\necho "$CUPY_GPU_MEMORY_LIMIT"'],
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout == "30%\n"
        assert "no variable limits onnxruntime 1.31.1: use -- COMMAND" in ended.said

    def test_a_refused_amount_exports_nothing(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = program("memlimit", "0", "--format", "shell", env=machine)

        assert (ended.code, ended.stdout) == (2, b"")

    @pytest.mark.parametrize(
        "framework", ["tensorflow", "pytorch", "jax", "cupy", "onnxruntime", "PyTorch"]
    )
    def test_code_is_python(
        self, program: Program, machine: dict[str, str], framework: str
    ) -> None:
        ended = limited(program, machine, "--code", framework)

        ast.parse(ended.text)
        assert ended.code == 0
        assert ended.text.startswith("# 30% of each visible GPU\n")

    def test_code_runs_and_caps(self, program: Program, machine: dict[str, str]) -> None:
        code = limited(program, machine, "--code", "pytorch").text

        subprocess.run([sys.executable, "-c", code], env=scrubbed_environment(machine), check=True)

        (fraction,) = [event[2] for event in events(machine) if event[1].startswith("set_per")]
        assert fraction == pytest.approx(0.3)

    def test_ineffective_variables_cause_a_warning(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        env = machine | {"TF_GPU_MEMORY_LIMIT": "1024", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

        document = limited(program, env, "--json").document("memlimit")

        assert [each["code"] for each in document["warnings"]] == ["no-memory-limit"] * 2
        assert document["status"] == "warn"

    def test_code_beside_a_command_is_refused(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        assert limited(program, machine, "--code", "cupy", "--", "true").code == 125

    def test_a_recording_answers_the_plan_alone(
        self, program: Program, machine: dict[str, str], tmp_path: Path
    ) -> None:
        snapshot = tmp_path / "s.json"
        program("snapshot", str(snapshot), env=machine)

        planned = program("memlimit", "30%", "--from", str(snapshot), "--json", env={})

        assert (
            planned.document("memlimit")["result"]["software"]["frameworks"]["torch"]
            == "2.13.0+stub"
        )


@pytest.mark.parametrize("amount", ["-5%", "-0.3", "-8GiB", "-.5"])
def test_an_amount_below_zero_gets_its_reason(program: Program, amount: str) -> None:
    ended = program("memlimit", amount, env={})

    assert (ended.code, ended.text) == (2, "")
    assert f"'{amount}' is negative" in ended.said
    assert f"write '{amount[1:]}'" in ended.said
    assert "No such option" not in ended.said
