"""Command under `gpucheck memlimit`: as if gpucheck were not there, and still watched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import scrubbed_environment
from tests.end_to_end.conftest import Pretend, Program
from tests.end_to_end.limited import WAIT_FOR_A_READING
from tests.enough_time import with_enough_time
from tests.hang_watch import is_running, wait_until
from tests.place.command_driver import COUNTING_CHILD, state_of
from tests.place.test_supervise_terminal import FULL_SCREEN
from tests.terminal import Terminal

GIB = 1 << 30
GPUCHECK = [sys.executable, "-m", "gpucheck"]
LIMITED = [*GPUCHECK, "memlimit", "30%", "-q", "--"]


@pytest.fixture
def screen(pretend: Pretend, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Start a command line on a terminal of a pretended T4."""
    opened: list[Terminal] = []

    def start(*words: str) -> Terminal:
        variables = pretend("t4") | {"TERM": "xterm", "HOME": str(tmp_path)}
        opened.append(Terminal([*LIMITED, *words], scrubbed_environment(variables)))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


class TestOnATerminal:
    def test_keys_arrive_once_and_it_is_stopped_and_continued(
        self, screen: Callable[..., Terminal]
    ) -> None:
        running = screen(sys.executable, "-c", COUNTING_CHILD)
        running.until("ready")
        running.until("\n")
        child = int(running.seen.split("ready ")[1].split()[0])

        running.type(b"\x03")
        running.until("SIGINT")
        running.type(b"\x1c")
        running.until("SIGQUIT")
        for times in (1, 2):
            running.type(b"\x1a")
            assert running.job_event() == "stopped SIGTSTP"
            wait_until(lambda: state_of(child) == "T")
            running.foreground()
            running.until("SIGCONT", times=times)
        running.resize(30, 100)
        running.until("SIGWINCH")
        os.kill(child, signal.SIGTERM)

        assert running.job_event() == "ended 7"
        shown = running.rest()
        counts = [shown.count(name) for name in ("SIGINT", "SIGQUIT", "SIGCONT", "SIGWINCH")]
        assert counts == [1, 1, 2, 1]

    def test_a_command_that_dies_of_the_interrupt_is_130(
        self, screen: Callable[..., Terminal]
    ) -> None:
        running = screen("sh", "-c", "echo ready; exec sleep 60")
        running.until("ready")

        running.type(b"\x03")

        assert running.job_event() == "ended 130"

    def test_a_program_with_the_whole_screen(self, screen: Callable[..., Terminal]) -> None:
        running = screen(sys.executable, "-c", FULL_SCREEN)
        running.until("size 24 80")

        running.resize(30, 100)
        running.until("size 30 100")
        running.type(b"x")
        running.until("key x")
        running.type(b"q")

        assert running.job_event() == "ended 3"
        assert running.rest().count("\x1b[?1049l") == 1


class TestClaims:
    SHOW = "import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); sys.stdin.read()"

    @pytest.fixture
    def machine(self, pretend: Pretend, tmp_path: Path) -> dict[str, str]:
        """Return eight H100 with claims of this test's own."""
        return pretend("h100x8") | {"GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims")}

    def start(self, program: Program, machine: dict[str, str], *words: str) -> Any:
        """Run a Python under memlimit under place; its command waits for the end of its input."""
        inner = [*GPUCHECK, "memlimit", "30%", *words, "--", sys.executable, "-c", self.SHOW]
        return program.start(
            "place", "--count", "1", "--", *inner, env=machine, stdin=subprocess.PIPE
        )

    @staticmethod
    def held(program: Program, machine: dict[str, str]) -> list[str]:
        found = program("place", "--claims", "--json", env=machine).document("claims")
        return [claim["uuid"] for claim in found["result"]["claims"]]

    def test_a_claim_of_place_is_kept_while_the_command_runs(
        self, program: Program, machine: dict[str, str], tmp_path: Path
    ) -> None:
        report = tmp_path / "report.json"
        with self.start(program, machine, "-o", str(report), "--json") as process:
            uuid = process.stdout.readline().decode().strip()
            during = self.held(program, machine)
            process.communicate(b"")

        assert process.returncode == 0
        assert during == [uuid]
        assert self.held(program, machine) == []
        (gpu,) = json.loads(report.read_text())["result"]["gpus"]
        assert (gpu["uuid"], gpu["cuda_index"]) == (uuid, 0)

    def test_it_outlives_a_gpucheck_that_is_killed(
        self, program: Program, machine: dict[str, str]
    ) -> None:
        with self.start(program, machine) as process:
            uuid = process.stdout.readline().decode().strip()
            process.kill()
            process.wait()
            left = self.held(program, machine)
            process.stdin.close()
            wait_until(lambda: self.held(program, machine) == [])

        assert left == [uuid]


#: A command that ends when NVML has been asked for the processes so often since it was started.
UNTIL_READ = """
import os, sys, time
from pathlib import Path
def lists():
    calls = Path(os.environ["FAKE_CALL_LOG"]).read_text()
    return calls.rpartition("nvmlInit")[2].count("RunningProcesses")
while lists() < int(sys.argv[1]):
    time.sleep(0.05)
"""


def until_read(gpus: int, readings: int) -> tuple[str, ...]:
    """Return a command that goes on until so many readings: three lists a GPU, one before it."""
    return ("--", sys.executable, "-c", UNTIL_READ, str(3 * gpus * (readings + 1)))


class TestWatch:
    @pytest.fixture
    def machine(self, pretend: Pretend, tmp_path: Path) -> dict[str, str]:
        """Return eight H100 whose calls are noted and whose processes are read from a file."""
        for name in ("calls", "processes"):
            (tmp_path / name).write_text("")
        return pretend("h100x8") | {
            "FAKE_PROCESSES_FILE": str(tmp_path / "processes"),
            "FAKE_CALL_LOG": str(tmp_path / "calls"),
        }

    def run(
        self, program: Program, machine: dict[str, str], tmp_path: Path, *words: str
    ) -> tuple[int, Any]:
        report = tmp_path / "report.json"
        ended = program("memlimit", "30%", "-o", report, "--json", *words, env=machine)
        assert "Traceback" not in ended.said
        return ended.code, json.loads(report.read_text())["result"]["run"]

    @pytest.mark.parametrize(("words", "gpus"), [((), 8), (("--gpu", "3"), 1)])
    def test_a_reading_asks_for_the_processes_alone(
        self,
        program: Program,
        machine: dict[str, str],
        tmp_path: Path,
        words: tuple[str, ...],
        gpus: int,
    ) -> None:
        _, run = self.run(program, machine, tmp_path, *words, *until_read(gpus, 2))

        calls = (tmp_path / "calls").read_text().splitlines()
        start = max(n for n, call in enumerate(calls) if call.startswith("nvmlInit"))
        asked = [call.split()[0] for call in calls[start:]]
        lists = [name for name in asked if "RunningProcesses" in name]
        # The first reading is before the command starts.
        assert len(lists) == 3 * gpus * (run["readings"] + 1)
        assert run["readings"] >= 2
        # The rest is asked once: versions of the library, handles, UUIDs and MIG modes.
        assert len(asked) - len(lists) <= 3 * gpus + 10

    def test_a_key_that_ends_others_does_not_end_the_watch(
        self, program: Program, machine: dict[str, str], tmp_path: Path
    ) -> None:
        text = """
import os, signal
signal.signal(signal.SIGQUIT, lambda *_: None)
os.kill(0, signal.SIGQUIT)
"""
        *python, waiting, count = until_read(8, 1)

        code, run = self.run(program, machine, tmp_path, *python, text + waiting, count)

        assert (code, run["exceeded"], run["unavailable"]) == (0, False, {})
        assert run["readings"] >= 1

    def test_a_daemon_that_left_the_tree_is_stopped_too(
        self, program: Program, machine: dict[str, str], tmp_path: Path
    ) -> None:
        daemon = """
import os, sys, time
path = os.environ["FAKE_PROCESSES_FILE"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(path + ".draft", "w") as file:
            file.write(f"0 {os.getpid()} 0 -1 {70 << 30} 0 0 0 0\\n")
        os.replace(path + ".draft", path)
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""
        code, run = self.run(
            program, machine, tmp_path, "--watch", "stop", "--", sys.executable, "-c", daemon
        )

        (culprit,) = run["culprits"]
        assert (code, run["action"], run["peak_bytes"]) == (143, "terminated", 70 * GIB)
        # The first process of a container may collect nobody.
        wait_until(lambda: not is_running(culprit["pid"]))

    def test_what_is_no_descendant_is_left_alone(
        self, program: Program, machine: dict[str, str], tmp_path: Path
    ) -> None:
        with subprocess.Popen(["sleep", "600"]) as stranger:
            line = f"0 {stranger.pid} 0 -1 {70 << 30} 0 0 0 0\n"
            (tmp_path / "processes").write_text(line)
            try:
                code, run = self.run(
                    program, machine, tmp_path, "--watch", "stop", *until_read(8, 1)
                )
                alive = stranger.poll() is None
            finally:
                stranger.kill()

        assert (code, run["exceeded"], run["peak_bytes"], alive) == (0, False, 0, True)

    def test_in_a_pid_namespace_of_its_own_no_id_is_believed(
        self, machine: dict[str, str], tmp_path: Path
    ) -> None:
        inside = ["unshare", "--pid", "--fork", "--mount-proc"]
        if shutil.which(inside[0]) is None or subprocess.run([*inside, "true"]).returncode != 0:
            pytest.skip("no PID namespace can be made here")
        # NVML names a process of the host by an id that is the command's own in here.
        text = """
with open(os.environ["FAKE_PROCESSES_FILE"], "w") as file:
    file.write(f"0 {os.getpid()} 0 -1 75000000000 0 0 0 0\\n")
wait_for_a_reading()
raise SystemExit(9)
"""
        report = tmp_path / "report.json"
        words = ["--watch", "stop", "-o", str(report), "--json", "--", sys.executable, "-c"]

        ended = subprocess.run(
            [*inside, *GPUCHECK, "memlimit", "30%", *words, WAIT_FOR_A_READING + text],
            env=scrubbed_environment(machine),
            capture_output=True,
        )

        run = json.loads(report.read_text())["result"]["run"]
        assert (ended.returncode, run["action"]) == (9, None)
        assert "PID namespace" in run["unavailable"]["peak_bytes"]

    def test_a_driver_that_falls_silent_leaves_the_command_alone(
        self, program: Program, pretend: Pretend, tmp_path: Path
    ) -> None:
        machine = pretend("t4", hang=["nvmlDeviceGetComputeRunningProcesses* after=2"])

        def sleep(seconds: float) -> tuple[int, Any]:
            words = ("--", "sh", "-c", f"sleep {seconds}; exit 9")
            return self.run(program, machine, tmp_path, *words)

        code, run = with_enough_time(sleep, 2, is_whole=lambda found: found[1]["unavailable"])

        assert code == 9
        assert "did not answer" in json.dumps(run["unavailable"])
