"""`gpucheck memlimit … -- CMD`: what limits the command, and what stays untouched."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import scrubbed_environment
from tests.end_to_end.conftest import Pretend, Program
from tests.end_to_end.limited import (
    STAND_INS,
    TORCH,
    events,
    limited,
    with_stand_ins,
)


@pytest.fixture
def machine(pretend: Pretend, tmp_path: Path) -> dict[str, str]:
    """Return a T4 on which stand-ins for all frameworks are installed."""
    return with_stand_ins(pretend("t4"), tmp_path)


class TestRun:
    def test_pytorch_is_capped_by_the_environment(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(program, machine, "-v", "--", sys.executable, "-c", TORCH)

        assert (ended.code, ended.text) == (0, "done\n")
        assert events(machine) == [["torch", "_lazy_call"], ["torch", "cuda-init"]]
        assert "cupy 14.2.0 by CUPY_GPU_MEMORY_LIMIT; " in ended.said
        assert "pytorch 2.13.0 by PYTORCH_ALLOC_CONF and the import hook" in ended.said

    def test_the_line_before_the_run_names_what_is_limited(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(program, machine, "--", sys.executable, "-c", "pass")

        first, *_ = ended.said.splitlines()
        assert first.startswith("gpucheck: limit 4.5 GiB on GPU 0, for cupy 14.2.0, jax ")
        assert " by " not in first

    def test_a_program_that_changes_the_environment_is_capped_all_the_same(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        text = f"""
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.95"
os.environ["CUPY_GPU_MEMORY_LIMIT"] = "0"
import cupy, jax
cupy.empty(1); jax.devices()
{TORCH}
"""
        ended = limited(program, machine, "--", sys.executable, "-c", text)

        assert (ended.code, ended.text) == (0, "done\n")
        assert ["cupy", "pool", 0, 4831838208] in events(machine)
        assert ["jax", "options", None, "0.3"] in events(machine)
        assert ["torch", "set_per_process_memory_fraction", 0.3, 0] in events(machine)

    @pytest.mark.parametrize("option", ["-S", "-I"])
    def test_a_python_without_the_hook_has_the_environments_limits(
        self, program: Program, machine: dict[str, str], tmp_path: Path, option: str
    ) -> None:
        report = tmp_path / "report.json"
        finders = "[type(each).__name__ for each in sys.meta_path]"
        text = f"import os, sys; print(os.environ['CUPY_GPU_MEMORY_LIMIT'], 'Finder' in {finders})"
        words = ("-o", str(report), "--json", "--", sys.executable, option, "-c", text)

        ended = limited(program, machine, *words)

        assert ended.text == "30% False\n"
        found = json.loads(report.read_text())["result"]["mechanisms"]
        (row,) = [row for row in found if row["mechanism"] == "set_logical_device_configuration"]
        assert row["applies"] is False
        assert option in row["reason"] or row["installed"] is False

    def test_more_is_said_where_more_is_asked_for(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(program, machine, "-v", "--", sys.executable, "-c", "")

        assert "gpucheck: PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.3\n" in ended.said

    def test_behind_a_shell_pytorch_is_capped_by_the_hook(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        ended = limited(
            program, machine, "--", "sh", "-c", f'{shlex.quote(sys.executable)} -c "{TORCH}"'
        )

        assert (ended.code, ended.text) == (0, "done\n")
        assert "by the import hook in every Python that reads PYTHONPATH\n" in ended.said
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
while not count:
    time.sleep(0.05)
end = time.monotonic() + 1
while time.monotonic() < end:
    time.sleep(0.05)
sys.exit(40 + len(count))
"""
        words = ("memlimit", "30%", "--", sys.executable, "-c", text)
        with program.start(*words, env=machine) as process:
            assert process.stdout is not None
            process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)
            process.communicate()

        assert process.returncode == 41

    def test_a_termination_of_gpucheck_alone_is_passed_on(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        words = ("memlimit", "30%", "--", "sh", "-c", "echo ready; exec sleep 600")
        with program.start(*words, env=machine) as process:
            assert process.stdout is not None
            process.stdout.readline()
            os.kill(process.pid, signal.SIGTERM)
            process.communicate()

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
