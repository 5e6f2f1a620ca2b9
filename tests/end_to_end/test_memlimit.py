"""`gpucheck memlimit` as a program: plans, runs, watches and proves on pretended machines."""

from __future__ import annotations

import ast
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import scrubbed_environment
from tests.end_to_end.conftest import Ended, Pretend, Program
from tests.end_to_end.documents import assert_document

GIB = 1 << 30
STAND_INS = Path(__file__).parents[1] / "data" / "frameworks"
TORCH = "import torch; torch.empty(1, device='cuda'); print('done')"

#: Pretends to take GPU memory beside another user's process, until NVML has been asked for it by
#: two whole readings; or for a minute, if it is to be stopped.
TAKING = """
import os, sys, time
path, log = os.environ["FAKE_PROCESSES_FILE"], os.environ["FAKE_CALL_LOG"]
gib, stranger, wait = map(int, sys.argv[1:])

def readings():
    with open(log) as file:
        return file.read().count("nvmlDeviceGetMPSComputeRunningProcesses")

for size in (gib // 2, gib):
    with open(path + ".draft", "w") as file:
        for pid, used in ((os.getpid(), size), (stranger, 14)):
            file.write(f"0 {pid} 0 -1 {used << 30} 0 0 0 0\\n")
    os.replace(path + ".draft", path)
    before = readings()
    while wait and readings() < before + 2:
        time.sleep(0.05)
if wait > 1:
    time.sleep(60)
"""


@pytest.fixture
def machine(pretend: Pretend, tmp_path: Path) -> dict[str, str]:
    """Return a T4 on which stand-ins for all frameworks are installed."""
    log = tmp_path / "events.jsonl"
    return {
        **pretend("t4"),
        "PYTHONPATH": str(STAND_INS),
        "PYTHONDONTWRITEBYTECODE": "1",
        "STUB_LOG": str(log),
        "STUB_TOTAL_BYTES": str(16106127360),
    }


def events(machine: dict[str, str]) -> list[list[Any]]:
    """Return what the stand-ins noted, without process ids."""
    log = Path(machine["STUB_LOG"])
    return [json.loads(line)[1:] for line in log.read_text().splitlines()] if log.exists() else []


def limited(program: Program, machine: dict[str, str], *words: str, **options: Any) -> Ended:
    """Run `gpucheck memlimit 30% WORDS`."""
    return program("memlimit", "30%", *words, env=machine, **options)


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

    def test_the_overhead_is_taken_off_where_asked(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(program, machine, "--json", "--include-overhead")

        result = ended.document("memlimit")["result"]
        (gpu,) = result["gpus"]
        overhead = gpu["context_estimate_bytes"] + gpu["library_estimate_bytes"]
        assert gpu["allocator_limit_bytes"] == gpu["limit_bytes"] - overhead
        assert len(result["overhead"]["sources"]) == 3

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

    def test_folklore_is_warned_of(self, program: Program, machine: dict[str, str]) -> None:
        env = machine | {"TF_GPU_MEMORY_LIMIT": "1024", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

        document = limited(program, env, "--json").document("memlimit")

        assert [each["code"] for each in document["warnings"]] == ["no-memory-limit"] * 2
        assert document["status"] == "warn"

    def test_two_questions_at_once_are_refused(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        assert limited(program, machine, "--verify", "--code", "cupy").code == 2
        assert limited(program, machine, "--code", "cupy", "--", "true").code == 125

    def test_a_recording_answers_the_plan_alone(
        self, program: Program, machine: dict[str, str], tmp_path: Path
    ) -> None:
        snapshot = tmp_path / "s.json"
        program("snapshot", str(snapshot), env=machine)

        planned = program("memlimit", "30%", "--from", str(snapshot), "--json", env={})
        proof = program("memlimit", "30%", "--from", str(snapshot), "--verify", env={})

        assert planned.document("memlimit")["result"]["software"]["reason"] == "not recorded"
        assert proof.code == 2


class TestRun:
    def test_pytorch_is_capped_by_the_environment(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(program, machine, "--", sys.executable, "-c", TORCH)

        assert (ended.code, ended.text) == (0, "done\n")
        assert events(machine) == [["torch", "cuda-init"]]
        assert "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.3" in ended.said

    def test_behind_a_shell_pytorch_is_capped_by_the_hook(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(program, machine, "--", "sh", "-c", f'{sys.executable} -c "{TORCH}"')

        assert (ended.code, ended.text) == (0, "done\n")
        assert ["torch", "set_per_process_memory_fraction", 0.3, 0] in events(machine)

    def test_tensorflow_and_onnxruntime_are_capped_by_the_hook(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        text = """
import tensorflow as tf, onnxruntime
tf.zeros([1])
onnxruntime.InferenceSession("m", providers=["CUDAExecutionProvider"])
"""
        limited(program, machine, "--", sys.executable, "-c", text)

        size = 4831838208
        assert ["tensorflow", "set_logical", "/physical_device:GPU:0", [size >> 20]] in events(
            machine
        )
        providers = [["CUDAExecutionProvider", {"gpu_mem_limit": str(size)}]]
        assert ["onnxruntime", "create", providers, None] in events(machine)

    def test_without_the_hook_only_the_environment_is_used(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        text = "import os, tensorflow as tf; tf.zeros([1]); print(os.environ['PYTHONPATH'])"

        ended = limited(program, machine, "--no-hook", "--", sys.executable, "-c", text)

        assert ended.text == f"{STAND_INS}\n"
        assert [event[1] for event in events(machine)] == ["devices-start", "zeros"]

    def test_the_users_pythonpath_stays_behind_the_hook(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        text = "import os, sys; print(os.environ['PYTHONPATH'].split(':')[1:], sys.path[1:2])"

        ended = limited(program, machine, "--", sys.executable, "-c", text)

        assert ended.text == f"{[str(STAND_INS)]} {[str(STAND_INS)]}\n"

    def test_a_limit_inside_a_limit_is_not_wider(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        text = "import os; print(os.environ['GPUCHECK_MEMORY_LIMIT'])"
        inner = [sys.executable, "-m", "gpucheck", "memlimit", "90%", "--"]

        ended = limited(program, machine, "--", *inner, sys.executable, "-c", text)

        assert json.loads(ended.text)["gpus"][0]["bytes"] == 4831838208

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (("--", "sh", "-c", "exit 7"), 7),
            (("--", "sh", "-c", "kill -9 $$"), 137),
            (("--", "/nonexistent/command"), 127),
            (("--", "/"), 126),
            (("--",), 125),
            (("--format", "xml", "--", "true"), 125),
            (("--watch", "never", "--", "true"), 125),
            (("--gpu", "cuda:9", "--", "true"), 125),
        ],
    )
    def test_exit_codes(
        self, program: Program, machine: dict[str, str], words: tuple[str, ...], code: int
    ) -> None:
        ended = limited(program, machine, *words)

        assert (ended.code, ended.stdout) == (code, b"")
        assert "Traceback" not in ended.said

    def test_stdout_is_the_commands_and_quiet_is_quiet(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(program, machine, "-q", "--", "sh", "-c", "echo out; echo err >&2")

        assert (ended.stdout, ended.said) == (b"out\n", "err\n")

    def test_a_descriptor_of_the_callers_is_handed_on(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        read_end, write_end = os.pipe()
        text = f"import os; os.write({write_end}, b'held')"

        limited(program, machine, "--", sys.executable, "-c", text, pass_fds=(write_end,))
        os.close(write_end)

        assert os.read(read_end, 10) == b"held"
        os.close(read_end)

    def test_an_interrupt_of_the_group_reaches_the_command_once(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        text = """
import signal, sys, time
count = []
signal.signal(signal.SIGINT, lambda *_: count.append(1))
print("ready", flush=True)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    time.sleep(0.05)
sys.exit(40 + len(count))
"""
        words = ("memlimit", "30%", "--", sys.executable, "-c", text)
        with program.start(*words, env=machine) as process:
            assert process.stdout is not None
            process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=60)

        assert process.returncode == 41

    def test_a_termination_of_gpucheck_alone_is_passed_on(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        words = ("memlimit", "30%", "--", "sh", "-c", "echo ready; exec sleep 60")
        with program.start(*words, env=machine) as process:
            assert process.stdout is not None
            process.stdout.readline()
            os.kill(process.pid, signal.SIGTERM)
            process.communicate(timeout=60)

        assert process.returncode == 143

    def test_a_program_on_a_terminal_has_it_to_itself(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        text = (
            "import os, sys; print([os.isatty(n) for n in (0, 1, 2)],"
            " os.tcgetpgrp(0) == os.getpgrp(), tuple(os.get_terminal_size()) > (0, 0))"
        )
        words = ["-q", "--", sys.executable, "-c", text]
        pid, master = pty.fork()
        if pid == 0:  # pragma: no cover - another process
            os.environ.clear()
            os.environ.update(scrubbed_environment(machine))
            os.execv(sys.executable, [sys.executable, "-m", "gpucheck", "memlimit", "30%", *words])
        shown = b""
        try:
            while chunk := os.read(master, 1000):
                shown += chunk
        except OSError:
            pass  # the terminal has gone with its last user
        _, status = os.waitpid(pid, 0)
        os.close(master)

        assert shown.split(b"\r\n")[0].startswith(b"[True, True, True] True")
        assert os.waitstatus_to_exitcode(status) == 0


class TestWatch:
    @pytest.fixture
    def watched(self, machine: dict[str, str], tmp_path: Path) -> dict[str, str]:
        """Let NVML read processes from a file that the command rewrites."""
        path = tmp_path / "processes"
        path.write_text("")
        log = tmp_path / "calls"
        log.write_text("")
        return machine | {"FAKE_PROCESSES_FILE": str(path), "FAKE_CALL_LOG": str(log)}

    def run(
        self,
        program: Program,
        watched: dict[str, str],
        action: str,
        gib: int,
        tmp_path: Path,
        stranger: int = 1,
    ) -> tuple[Ended, Any]:
        report = tmp_path / "report.json"
        words = ("--watch", action, "-o", str(report), "--json", "--")
        wait = {"off": "0", "warn": "1", "stop": "2" if gib > 4 else "1"}[action]
        script = (sys.executable, "-c", TAKING, str(gib), str(stranger), wait)
        ended = limited(program, watched, *words, *script)
        document = json.loads(report.read_text())
        assert_document(document, "memlimit", 0)
        exceeded = [each["code"] for each in document["warnings"]] == ["limit-exceeded"]
        run = document["result"]["run"]
        assert exceeded is bool(run["exceeded"])
        return ended, run

    def test_a_command_within_the_limit(
        self, program: Program, watched: dict[str, str], tmp_path: Path
    ) -> None:
        ended, run = self.run(program, watched, "stop", 4, tmp_path)

        assert (ended.code, run["exceeded"], run["action"]) == (0, False, None)
        assert "warning" not in ended.said

    def test_a_command_above_it_is_warned_of_and_runs_on(
        self, program: Program, watched: dict[str, str], tmp_path: Path
    ) -> None:
        ended, run = self.run(program, watched, "warn", 14, tmp_path)

        assert (ended.code, run["exceeded"], run["action"]) == (0, True, "warned")
        assert ended.said.count("above the limit of 4.5 GiB") == 1
        assert run["culprits"][0]["name"].startswith("python")
        assert run["peak_bytes"] == 14 * GIB

    def test_a_command_above_it_is_stopped_and_nobody_else(
        self, program: Program, watched: dict[str, str], tmp_path: Path
    ) -> None:
        with subprocess.Popen(["sleep", "60"]) as stranger:
            try:
                ended, run = self.run(program, watched, "stop", 12, tmp_path, stranger.pid)
                alive = stranger.poll() is None
            finally:
                stranger.kill()

        assert (ended.code, run["exit_code"], run["action"]) == (143, 143, "terminated")
        # Half of the 12 GiB is above 4.5 GiB and the allowance already: it never got further.
        assert run["peak_bytes"] == 6 * GIB
        assert alive

    def test_a_watch_that_is_off_reads_nothing(
        self, program: Program, watched: dict[str, str], tmp_path: Path
    ) -> None:
        ended, run = self.run(program, watched, "off", 14, tmp_path)

        assert (ended.code, run["peak_bytes"], run["exceeded"]) == (0, None, None)
        assert run["unavailable"]["peak_bytes"] == "--watch off"
        assert "peak" not in ended.said


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

        ended = limited(program, env, "--verify", "--python", sys.executable)

        assert ended.code == 1
        assert "The limit of cupy (CUPY_GPU_MEMORY_LIMIT) does not hold" in ended.said
        assert "the cap does not hold" in ended.text

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

    def test_without_a_python_there_is_nothing_to_try_with(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(program, machine | {"PATH": "/nonexistent"}, "--verify")

        assert ended.code == 4
