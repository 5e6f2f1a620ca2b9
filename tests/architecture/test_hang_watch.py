"""The watch over tests that hang: what it ends, what it lets go on, and what it takes along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.house import ROOT
from tests.conftest import scrubbed_environment
from tests.hang_watch import HANGS_VARIABLE, Family, is_running, wait_until, watch

#: Has a child, and does what it is told: in the words of a test, its body.
TESTING = """
import faulthandler, os, subprocess, sys, time
faulthandler.enable()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stderr=-3)
print(child.pid, flush=True)
"""
#: Has a grandchild, whose parent ends when it reads a line.
GRANDCHILD = """
parent = subprocess.Popen([sys.executable, "-c", '''
import subprocess, sys
sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(sleeping, stdin=-3, stdout=-3, stderr=-3).pid, flush=True)
input()
'''], stdin=0, stderr=-3)
print(parent.pid, flush=True)
parent.wait()
time.sleep(600)
"""
LOOK_S = 0.02


@pytest.fixture(name="pipe")
def _pipe() -> Iterator[tuple[int, int]]:
    """Return both ends of what a process tells its watch."""
    ends = os.pipe()
    yield ends
    for each in ends:
        os.close(each)


def start(body: str, **options: Any) -> tuple[subprocess.Popen[str], int]:
    """Start a process with such a test, and return it and its child's number."""
    command = [sys.executable, "-c", TESTING + body]
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, **options)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.parametrize(
    ("body", "hangs_s", "said"),
    [
        ("time.sleep(600)", 0.2, "nothing has wanted a processor for 0 s"),
        ("while True: pass", 0.5 / (os.cpu_count() or 1), " s of a processor"),
    ],
    ids=["sleeps", "spins"],
)
def test_a_test_that_hangs_shows_where_and_ends_with_its_children(
    pipe: tuple[int, int], capfd: pytest.CaptureFixture[str], body: str, hangs_s: float, said: str
) -> None:
    process, child = start(body)
    os.write(pipe[1], b"t")

    hung = watch(process.pid, pipe[0], hangs_s=hangs_s, look_s=LOOK_S)

    _, stack = process.communicate()
    assert hung is not None
    assert said in hung
    assert f"  {child} " in capfd.readouterr().err
    assert process.returncode == -signal.SIGABRT
    assert 'File "<string>", line 6 in <module>' in stack
    wait_until(lambda: not is_running(child))


@pytest.mark.parametrize(
    ("messages", "body"),
    [
        (b"t", "end = time.process_time() + 1\nwhile time.process_time() < end: pass"),
        (b"t", "for _ in range(10): os.write({pipe}, b't'), time.sleep(0.1)"),
        (b"t-", "time.sleep(1)"),
        (b"", "time.sleep(1)"),
    ],
    ids=["it computes", "test after test", "after a test", "before the first"],
)
def test_who_goes_on_has_not_hung(pipe: tuple[int, int], messages: bytes, body: str) -> None:
    process, child = start(body.format(pipe=pipe[1]), pass_fds=[pipe[1]])
    os.write(pipe[1], messages)

    assert watch(process.pid, pipe[0], hangs_s=0.6, look_s=LOOK_S) is None

    assert process.wait() == 0
    process.communicate()
    wait_until(lambda: not is_running(child))


def test_what_is_left_over_is_killed_though_its_parent_has_ended() -> None:
    process, child = start(GRANDCHILD, stdin=-1)
    assert process.stdout is not None
    assert process.stdin is not None
    told = {int(process.stdout.readline()), int(process.stdout.readline())}
    family = Family(process.pid)
    assert {*family.look()} == {process.pid, child, *told}

    process.stdin.write("\n")
    process.stdin.flush()
    wait_until(lambda: len(family.look()) == 3)
    (orphan,) = told & {*family.look()}
    family.kill_others()

    wait_until(lambda: not is_running(child) and not is_running(orphan))
    assert is_running(process.pid)
    process.kill()
    process.communicate()


SUITE = """
import subprocess, sys, time
from pathlib import Path

def test_that_hangs():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path({note!r}).write_text(str(child.pid))
    time.sleep(600)

def test_that_passes():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_ends_and_names_what_hung(tmp_path: Path, workers: str) -> None:
    note = tmp_path / "pid"
    (tmp_path / "test_suite.py").write_text(SUITE.format(note=str(note)), encoding="utf-8")
    variables = {"PYTEST_ADDOPTS": "", HANGS_VARIABLE: "1", "PYTHONPATH": os.fspath(ROOT)}

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", workers, "-p", "no:cacheprovider",
         "-p", "tests.conftest", "--rootdir", os.fspath(tmp_path), "."],
        cwd=tmp_path, env=scrubbed_environment(variables),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip

    assert "A test has hung: nothing has wanted a processor for 1 s." in ran.stdout
    assert 'test_suite.py", line 8 in test_that_hangs' in ran.stdout
    if workers == "0":
        assert ran.returncode == -signal.SIGABRT
    else:
        assert "crashed while running 'test_suite.py::test_that_hangs'" in ran.stdout
        assert "1 failed, 1 passed" in ran.stdout
    wait_until(lambda: not is_running(int(note.read_text())))
