"""`detect --pid`: which GPU a running program uses, or why it uses none, as a user asks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Pretend, Program
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import load_machine
from tests.fakes.processes import CUDA, PID, add, map_line, write
from tests.fakes.tree import write_tree

SITE = "/opt/venv/lib/python3.12/site-packages"
INITIAL = "pid:[4026531836]"
OTHER = "pid:[4026532999]"
#: A process of this machine's, on GPU 2 and 3.
ON_GPUS = 41023


@pytest.fixture
def seen(c_compiler: str, tmp_path: Path) -> Callable[..., tuple[dict[str, str], Path]]:
    """Return the variables and the files of eight H100, in the host's namespace or another."""

    def build(namespace: str = INITIAL) -> tuple[dict[str, str], Path]:
        machine = load_machine("h100x8")
        root = write_tree(machine, tmp_path / "root")
        link = root / "proc/1/ns/pid"  # what /proc/self leads to
        link.parent.mkdir()
        link.symlink_to(namespace)
        variables = build_libraries(machine, tmp_path / "libraries")
        return variables | {"GPUCHECK_ROOT": str(root)}, root

    return build


def hidden_trainer(root: Path) -> None:
    """Add a training program that a terminal has cut off from every GPU."""
    module = (root / "sys/module/nvidia/version").read_text(encoding="ascii").strip()
    torch = write(root, f"{SITE}/torch/lib/libtorch_cpu.so")
    write(root, f"{SITE}/torch/version.py", "__version__ = '2.14.0+cpu'\ncuda = None\n")
    write(root, "/dev/nvidia0")
    add(root, 4600, parent=0, name="systemd")
    add(root, 4690, parent=4600, name="tmux", environ={"CUDA_VISIBLE_DEVICES": ""})
    add(
        root,
        parent=4690,
        opened=("/dev/null",),
        environ={"CUDA_VISIBLE_DEVICES": "", "WANDB_API_KEY": "s3cret"},
        maps="".join(
            map_line(path, inode=number)
            for number, path in enumerate(
                (
                    torch,
                    CUDA.replace("570.133.20", module),
                    "/opt/conda/lib/libcudnn.so.9.1.0",
                    f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9",
                )
            )
        ),
    )


SCREEN = """\
h100x8 · driver 580.95.05 · CUDA 13.0

✗ PID 4711 (train.py) does not use a GPU: CUDA_VISIBLE_DEVICES="" hides every
  GPU from it, and came from PID 4690 (tmux).
    → Start it again without the variable:
      unset CUDA_VISIBLE_DEVICES
    seen CUDA_VISIBLE_DEVICES: PID 4690 (tmux) was started with it; its parent,
         PID 4600 (systemd), was started without it

! PyTorch 2.14.0+cpu is built for CPUs: it has no CUDA at all
    seen /opt/venv/lib/python3.12/site-packages/torch: no library for CUDA
    → Install a build for this GPU; which one fits:
      gpucheck detect --wheel torch
! libcudnn.so.9 is loaded from 2 files; which one answers cannot be seen
    seen libcudnn.so.9: /opt/conda/lib/libcudnn.so.9.1.0
    seen libcudnn.so.9:
         /opt/venv/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9
    → Remove one of them from its environment, or from LD_LIBRARY_PATH.

process    user root, sleeping, 3 threads
command    python train.py '--token=***'
frameworks PyTorch 2.14.0+cpu (for CPUs)
libraries  libcuda 580.95.05, libcudnn 9.1.0, libcudnn 9
files open none of the driver
variables  CUDA_VISIBLE_DEVICES=''
cgroup     /user.slice/session-1.scope
"""


def test_the_screen_of_a_program_without_gpus(program: Program, seen: Any) -> None:
    env, root = seen()
    hidden_trainer(root)

    shown = program("detect", "--pid", str(PID), env=env | {"COLUMNS": "80"})
    document = program("detect", "--pid", str(PID), "--json", env=env).document("process")

    assert (shown.code, shown.text, shown.said) == (1, SCREEN, "")
    assert document["result"]["cause"] == "hidden-devices"
    assert [each["id"] for each in document["result"]["obstacles"]] == [
        *("hidden-devices", "built-for-cpus", "loaded-twice"),
    ]
    assert "s3cret" not in repr(document)


def test_a_program_on_two_gpus(program: Program, seen: Any) -> None:
    env, _ = seen()

    document = program("detect", "--pid", str(ON_GPUS), "--json", env=env).document("process")

    assert document["exit_code"] == 0
    assert [gpu["index"] for gpu in document["result"]["gpus"]] == [2, 3]


def test_in_another_namespace_it_cannot_be_told(program: Program, seen: Any) -> None:
    env, root = seen(OTHER)
    add(root, opened=("/dev/nvidia0", "/dev/nvidia-uvm"))

    ended = program("detect", "--pid", str(PID), "--json", env=env)

    assert ended.code == 3
    assert ended.document("process")["result"]["uses_gpu"] is None


def test_a_recording_has_only_the_processes_on_its_gpus(pretend: Pretend, program: Program) -> None:
    recorded = ("detect", "--from", "example:h100x8", "--json", "--pid")

    unknown = program(*recorded, "9", env=pretend("no-driver")).document("process")
    known = program(*recorded, str(ON_GPUS), env=pretend("no-driver")).document("process")

    assert (unknown["exit_code"], unknown["error"]["code"]) == (3, "not-recorded")
    assert (known["exit_code"], known["result"]["user"]) == (0, "alice")


# ------------------------------------------------------------------------------ real processes


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Start a program whose variables hide every GPU, and that waits."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "print('ready', flush=True); input()"],
        env={"CUDA_VISIBLE_DEVICES": "-1", "MY_TOKEN": "s3cret"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    yield child
    child.kill()
    child.communicate()


def test_a_real_process(
    pretend: Pretend, program: Program, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    env = pretend("h100x8", tree=False)
    listed = tmp_path / "listed"
    listed.write_text("")
    env["FAKE_PROCESSES_FILE"] = str(listed)
    asked = ("detect", "--pid", str(sleeper.pid), "--json")

    without = program(*asked, env=env)
    listed.write_text(f"5 {sleeper.pid} 0 -1 1073741824 0 0 0 0\n")
    using = program(*asked, env=env).document("process")["result"]
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    listed.write_text("")
    ended = program(*asked, env=env).document("process")["result"]

    result = without.document("process")["result"]
    assert (without.code, result["cause"]) == (1, "hidden-devices")
    assert result["environment"] == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert "s3cret" not in without.text
    assert [(gpu["index"], gpu["pid"]) for gpu in using["gpus"]] == [(5, sleeper.pid)]
    assert (ended["cause"], ended["state"]) == ("ended", "ended")
