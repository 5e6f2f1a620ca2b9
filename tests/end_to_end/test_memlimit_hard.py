"""`gpucheck memlimit --hard -- CMD`: the driver's own limit, and nothing left of it afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from tests.end_to_end.conftest import Program, end_session
from tests.end_to_end.documents import assert_document
from tests.fakes.cgroups import Capping, capping_machine, with_systemd, writable_kernel_tree
from tests.fakes.machine import load_machine
from tests.hang_watch import wait_until

pytestmark = pytest.mark.usefixtures("c_compiler")

GIB = 1 << 30
HARD = ("memlimit", "8GiB", "--hard")


@pytest.fixture
def capping(tmp_path: Path) -> Capping:
    return capping_machine(tmp_path)


def is_clean(capping: Capping) -> bool:
    return (capping.groups(), capping.limits(), capping.records()) == ([], [], [])


class TestRun:
    def test_the_command_runs_in_a_limited_group_of_its_own(
        self, program: Program, capping: Capping, tmp_path: Path
    ) -> None:
        script = tmp_path / "show.py"
        script.write_text(
            "import os, pathlib\n"
            f"state = pathlib.Path({str(capping.state)!r})\n"
            "soft, hard, group = next(state.glob('0-*')).read_text().split()\n"
            "print(soft, hard, str(os.getpid()) in open(group + '/cgroup.procs').read().split())\n"
            "raise SystemExit(7)\n"
        )

        ended = program(*HARD, "--", sys.executable, str(script), env=capping.env)

        assert (ended.code, ended.text) == (7, f"{8 * GIB} {8 * GIB} True\n")
        assert (
            "8.00 GiB on GPU 0: enforced by the driver, for every library and child" in ended.said
        )
        assert "its peak is unknown; limit and cgroup removed" in ended.said
        assert is_clean(capping)

    def test_a_refused_allocation_proves_it_before_the_command_starts(
        self, program: Program, capping: Capping, tmp_path: Path
    ) -> None:
        report = tmp_path / "report.json"

        ended = program(
            *HARD, "--verify", "--json", "-o", str(report), "--", "true", env=capping.env
        )

        assert ended.code == 0
        assert "an allocation up to 8.02 GiB was refused with out of memory" in ended.said
        document = json.loads(report.read_text())
        assert_document(document, "memlimit", 0)
        (gpu,) = document["result"]["hard"]["gpus"]
        assert gpu["soft_limit_bytes"] == gpu["hard_limit_bytes"] == 8 * GIB
        assert gpu["allocated_bytes"] + gpu["refused_bytes"] == 8 * GIB + (16 << 20)
        assert (document["result"]["hard"]["removed"], document["result"]["environment"]) == (
            True,
            {},
        )
        assert is_clean(capping)

    def test_the_peak_is_what_nvml_counts_for_the_group(
        self, program: Program, tmp_path: Path
    ) -> None:
        machine = load_machine("t4").with_gpu(0, memory_limit_used_bytes=3 * GIB)
        capping = capping_machine(tmp_path, machine=machine)
        log = tmp_path / "calls"
        until_read = (
            'count() { grep -c GetMemoryLimits_v1 "$1"; }; before=$(count "$1");'
            ' while [ "$(count "$1")" = "$before" ]; do sleep 0.05; done'
        )

        ended = program(
            *(*HARD, "--", "sh", "-c", until_read, "sh", str(log)),
            env={**capping.env, "FAKE_CALL_LOG": str(log)},
        )

        assert "peak 3.00 GiB; limit and cgroup removed" in ended.said

    def test_a_share_of_each_chosen_gpu(self, program: Program, tmp_path: Path) -> None:
        capping = capping_machine(tmp_path, machine=load_machine("h100x8").with_gpus(3))
        show = ["sh", "-c", f'cat {capping.state}/*; echo "$CUDA_VISIBLE_DEVICES"']

        ended = program(
            "memlimit", "50%", "--gpu", "cuda:1", "--hard", "--", *show, env=capping.env
        )

        *limits, visible = ended.text.splitlines()
        assert [line.split()[:2] for line in limits] == [["42759880704", "42759880704"]]
        assert visible.startswith("GPU-")

    def test_less_than_a_mebibyte_is_no_limit(self, program: Program, capping: Capping) -> None:
        ended = program("memlimit", "1000KB", "--hard", "--", "true", env=capping.env)

        assert ended.code == 125
        assert "is less than 1 MiB" in ended.said

    def test_a_command_that_does_not_exist(self, program: Program, capping: Capping) -> None:
        ended = program(*HARD, "--", "no-such-command", env=capping.env)

        assert (ended.code, is_clean(capping)) == (127, True)
        assert "'no-such-command' is not found in PATH" in ended.said

    def test_what_has_no_format_is_not_executable(
        self, program: Program, capping: Capping, tmp_path: Path
    ) -> None:
        program_file = tmp_path / "program"
        program_file.write_bytes(b"\0\1\2")
        program_file.chmod(0o755)

        ended = program(*HARD, "--", str(program_file), env=capping.env)

        assert (ended.code, is_clean(capping)) == (126, True)

    def test_what_the_command_leaves_running_stays_limited(
        self, program: Program, capping: Capping
    ) -> None:
        leave = [
            sys.executable,
            "-c",
            f"""
import os, subprocess
left = subprocess.Popen(["sleep", "600"], stdin=0, stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL, start_new_session=True)
group = next(__import__("pathlib").Path({str(capping.mount)!r}).glob("gpucheck-*"))
open(group / "cgroup.procs", "a").write(f"{{left.pid}}\\n")
print(left.pid)
""",
        ]
        ended = program(*HARD, "--", *leave, env=capping.env)
        pid = int(ended.text)
        try:
            assert f"the limit stays for what still runs (PID {pid})" in ended.said
            assert (len(capping.groups()), len(capping.limits())) == (1, 1)
            again = program(*HARD, "--", "true", env=capping.env)
            # The fork that owned it has ended, and its child has not.
            assert "cannot be removed yet: its command still runs" in again.said
            assert len(capping.groups()) == 1
        finally:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}/stat").exists() or _is_zombie(pid))
        last = program(*HARD, "--", "true", env=capping.env)
        assert "removed the cgroup of a run that was killed" in last.said
        assert is_clean(capping)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class TestEnd:
    def started(self, program: Program, capping: Capping) -> subprocess.Popen[bytes]:
        process = program.start(*HARD, "--", "sleep", "600", env=capping.env)
        wait_until(lambda: len(capping.limits()) == 1 and bool(self.members(capping)))
        return process

    def members(self, capping: Capping) -> list[int]:
        found = []
        for name in capping.groups():
            procs = capping.mount / name / "cgroup.procs"
            found += [int(word) for word in procs.read_text().split()] if procs.exists() else []
        return found

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
    def test_a_signal_ends_the_command_and_leaves_nothing(
        self, program: Program, capping: Capping, number: int
    ) -> None:
        with self.started(program, capping) as process:
            (pid,) = self.members(capping)
            # The gate ignores nothing, and the command has begun once it is `sleep`.
            wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
            process.send_signal(number)
            process.communicate()

        assert (process.returncode, is_clean(capping)) == (128 + number, True)

    def test_kill_9_keeps_the_limit_until_the_next_call_after_the_command(
        self, program: Program, capping: Capping
    ) -> None:
        with self.started(program, capping) as process:
            (pid,) = self.members(capping)
            wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
            process.kill()
            process.wait()
            assert (len(capping.groups()), len(capping.limits())) == (1, 1)
            end_session(process.pid)

        wait_until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid))
        ended = program(*HARD, "--", "true", env=capping.env)

        assert "removed the cgroup of a run that was killed" in ended.said
        assert (ended.code, is_clean(capping)) == (0, True)


class TestPlace:
    def test_systemd_makes_a_scope_where_nothing_is_delegated(
        self, program: Program, capping: Capping, tmp_path: Path
    ) -> None:
        under_systemd = with_systemd(capping, sys.executable)
        report = tmp_path / "report.json"

        ended = program(*HARD, "-o", str(report), "--json", "--", "true", env=under_systemd.env)

        assert ended.code == 0
        hard = json.loads(report.read_text())["result"]["hard"]
        assert hard["place"] == "scope"
        assert hard["cgroup"].endswith(".scope")
        assert Path(hard["cgroup"]).parent == capping.mount
        assert is_clean(capping)

    def test_a_scope_that_systemd_does_not_make(self, program: Program, capping: Capping) -> None:
        under_systemd = with_systemd(capping, sys.executable)
        script = capping.root.parent / "bin/systemd-run"
        script.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")

        ended = program(*HARD, "--", "true", env=under_systemd.env)

        assert (ended.code, is_clean(capping)) == (125, True)
        assert "its starter ended, or did not answer" in ended.said

    def test_the_kernels_dmem_controller_enforces_it(
        self, program: Program, tmp_path: Path
    ) -> None:
        files = {"cgroup.controllers": "cpu dmem\n", "cgroup.subtree_control": "dmem\n"}
        capping = capping_machine(tmp_path, back_end="dmem", files=files)
        under_systemd = with_systemd(capping, sys.executable, dmem=True)

        ended = program(*HARD, "--", "true", env=under_systemd.env)

        assert ended.code == 0
        assert "enforced by the kernel (dmem) for the driver" in ended.said
        assert is_clean(capping)

    def test_a_group_of_the_running_kernel(self, program: Program, tmp_path: Path) -> None:
        tree = writable_kernel_tree()
        if tree is None:
            pytest.skip("no cgroup tree of version 2 may be written here")
        capping = capping_machine(tmp_path, kernel_mount=tree)

        ended = program(*HARD, "--", "grep", "^0::", "/proc/self/cgroup", env=capping.env)

        assert ended.code == 0
        assert "/gpucheck-" in ended.text
        assert not list(tree.glob("gpucheck-*"))
        assert (capping.limits(), capping.records()) == ([], [])


#: What is missing, and the machine on which it is: its code, and a part of its remedy.
MISSING = {
    "driver": (
        {"version": "580.95.05"},
        "the driver is 580.95.05, and 615 or newer is needed",
        "nvidia-open",
    ),
    "function": (
        {"missing": ["nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"]},
        "libnvidia-ml.so.1 lacks nvmlDeviceSetMemoryLimits_v1",
        "gpucheck detect",
    ),
    "kernel": ({"back_end": ""}, "without the dmem controller (6.14)", "RmMemacctMode=3"),
    "root": ({"uid": 1000}, "only root may set such a limit", "-m gpucheck memlimit 8GiB --hard"),
    "cgroup": ({"group": "v1"}, "is version 1", "systemd.unified_cgroup_hierarchy=1"),
    "delegation": (
        {"back_end": "dmem", "files": {"cgroup.controllers": "dmem\n"}},
        "the kernel's dmem controller is not on for groups below",
        "echo +dmem | sudo tee",
    ),
    "mig": ({"machine": "a100-mig"}, "in MIG mode", "-mig 0"),
}


class TestMissing:
    @pytest.mark.parametrize("name", MISSING)
    def test_each_prerequisite_is_told_apart(
        self, program: Program, tmp_path: Path, name: str
    ) -> None:
        how, fact, step = MISSING[name]
        first_version = how.get("group") == "v1"
        capping = capping_machine(tmp_path, **{**how, "group": "/"} if first_version else how)
        if first_version:
            (capping.mount / "cgroup.controllers").unlink()
            (capping.mount / "memory").mkdir()

        amount = "1GiB" if name == "mig" else "8GiB"
        ended = program("memlimit", amount, "--hard", "--", "echo", "x", env=capping.env)

        assert (ended.code, ended.text) == (125, "")
        assert fact in ended.said
        assert step in ended.said
        assert "; " not in ended.said.partition("\n")[0]  # it is the only one
        assert f"Without it, by the frameworks: gpucheck memlimit {amount} -- echo x" in ended.said
        assert is_clean(capping)

    @pytest.mark.parametrize(("function", "code"), [("Set", 4), ("Set", 999), ("Get", 15)])
    def test_an_error_of_nvml_starts_nothing_and_leaves_nothing(
        self, program: Program, tmp_path: Path, function: str, code: int
    ) -> None:
        capping = capping_machine(
            tmp_path, fail=[f"nvmlDevice{function}MemoryLimits_v1 gpu=0 {code}"]
        )

        ended = program(*HARD, "--", "echo", "started", env=capping.env)

        assert (ended.code, ended.text) == (125, "")
        assert "Traceback" not in ended.said
        assert (capping.groups(), capping.records()) == ([], [])

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--hard",), "--hard needs a command: add one after `--`."),
            (("--as-root",), "--as-root needs --hard."),
            (("--hard", "--no-hook", "--", "true"), "omit --hook"),
            (("--hard", "--watch", "stop", "--", "true"), "omit --watch"),
            (("--hard", "--verify"), "--hard needs a command"),
        ],
    )
    def test_wrong_use(self, program: Program, words: tuple[str, ...], said: str) -> None:
        ended = program("memlimit", "8GiB", *words, env={})

        assert ended.code == (125 if "--" in words else 2)
        assert said in ended.said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
class TestUser:
    SUDO: ClassVar = {"SUDO_UID": "65534", "SUDO_GID": "65534", "SUDO_USER": "nobody"}

    @pytest.mark.parametrize(("words", "expected"), [((), "65534 65534"), (("--as-root",), "0 0")])
    def test_under_sudo_the_command_runs_as_the_caller(
        self, program: Program, capping: Capping, words: tuple[str, ...], expected: str
    ) -> None:
        show = ["sh", "-c", 'echo "$(id -u) $(id -g)"; echo "$HOME"']

        ended = program(
            *HARD, *words, "--", *show, env={**capping.env, **self.SUDO, "HOME": "/root"}
        )

        ids, home = ended.text.splitlines()
        assert (ended.code, ids) == (0, expected)
        assert (home == "/root") == (expected == "0 0")
        assert is_clean(capping)

    @pytest.mark.parametrize("uid", ["", "-1", "x", "0", "9" * 5000])
    def test_what_names_no_other_user_changes_nothing(
        self, program: Program, capping: Capping, uid: str
    ) -> None:
        env = {**capping.env, **self.SUDO, "SUDO_UID": uid}

        ended = program(*HARD, "--", "id", "-u", env=env)

        assert (ended.code, ended.text) == (0, "0\n")
