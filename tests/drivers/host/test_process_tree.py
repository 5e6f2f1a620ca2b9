"""Descendants of a process, and signals that reach only them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpucheck.drivers.host.process_tree import ProcessTree, Stat, read_stat

#: A daemon: it forks twice with a new session between, and says its id once its parent is gone.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    print(pid, end="", flush=True)
    os._exit(0)
os.wait()
print(flush=True)
sys.stdin.readline()
"""
MARK = "0123456789abcdef"

#: A child that starts a grandchild, says its id, and ends or waits.
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print(child.pid, flush=True)
sys.stdin.readline()
"""


def put(
    root: Path, pid: int, parent: int, *, started: int = 100, name: str = "p", state: str = "S"
) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    rest = " ".join(["0"] * 17)
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {rest} {started} 0 0\n")


@pytest.fixture
def running() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a parent with one grandchild in a session of its own."""
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", PARENT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        yield process, grandchild
        for pid in (grandchild, process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def test_children_of_children_belong_to_it_and_others_do_not(tmp_path: Path) -> None:
    put(tmp_path, 1, 0)
    put(tmp_path, 10, 1)
    put(tmp_path, 11, 10, name="a) S 1 (b")
    put(tmp_path, 9, 11)
    put(tmp_path, 20, 1)

    found = ProcessTree(10, tmp_path).refresh()

    assert set(found) == {9, 10, 11}
    assert found[11].name == "a) S 1 (b"


def test_a_process_without_its_parent_stays_a_member(tmp_path: Path) -> None:
    put(tmp_path, 10, 1)
    put(tmp_path, 11, 10)
    tree = ProcessTree(10, tmp_path)
    tree.refresh()
    put(tmp_path, 11, 1)
    put(tmp_path, 12, 11)
    (tmp_path / "proc" / "10" / "stat").unlink()

    assert set(tree.refresh()) == {11, 12}


def test_an_id_that_was_given_to_another_process_is_another(tmp_path: Path) -> None:
    put(tmp_path, 10, 1)
    put(tmp_path, 11, 10, started=100)
    tree = ProcessTree(10, tmp_path)
    tree.refresh()
    put(tmp_path, 11, 1, started=200)

    assert set(tree.refresh()) == {10}


ZEROS = " 0" * 17


@pytest.mark.parametrize(
    "text",
    ["", "11", "11 (x", "11 (x) S", f"11 (x) S 10{ZEROS}", f"11 (x) S ?{ZEROS} 9",
     f"11 (x) S 10{ZEROS} -9"],
)  # fmt: skip
def test_an_unreadable_stat_is_no_process(tmp_path: Path, text: str) -> None:
    put(tmp_path, 10, 1)
    put(tmp_path, 11, 10)
    (tmp_path / "proc" / "11" / "stat").write_text(text)

    assert set(ProcessTree(10, tmp_path).refresh()) == {10}


def test_a_stat_has_its_name_between_the_first_and_the_last_bracket(tmp_path: Path) -> None:
    (tmp_path / "stat").write_bytes(b"11 (a) T\r(\xff)) Z 10" + ZEROS.encode() + b" 9\n")

    found = read_stat(tmp_path)

    assert found == Stat(parent=10, started=9, name="a) T\r(\ufffd)", state="Z")
    assert [Stat(1, 1, "p", state).zombie for state in "RSDTtZX"] == [False] * 5 + [True] * 2


def test_zombies_are_no_members(tmp_path: Path) -> None:
    put(tmp_path, 10, 1)
    put(tmp_path, 11, 10, state="Z")

    assert set(ProcessTree(10, tmp_path).refresh()) == {10}


def test_a_signal_reaches_the_whole_tree(running: tuple[subprocess.Popen[str], int]) -> None:
    process, grandchild = running

    reached, refused = ProcessTree(process.pid).send(signal.SIGTERM)

    assert process.wait() == -signal.SIGTERM
    assert set(reached) == {process.pid, grandchild}
    assert refused == []


def test_a_stopped_process_takes_the_signal_too(
    running: tuple[subprocess.Popen[str], int],
) -> None:
    process, _ = running
    os.kill(process.pid, signal.SIGSTOP)

    ProcessTree(process.pid).send(signal.SIGTERM)

    assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize("error", [PermissionError, OSError])
def test_without_process_descriptors_it_works_too(
    running: tuple[subprocess.Popen[str], int],
    monkeypatch: pytest.MonkeyPatch,
    error: type[OSError],
) -> None:
    def forbidden(pid: int) -> int:
        raise error

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    process, grandchild = running

    reached, refused = ProcessTree(process.pid).send(signal.SIGTERM)

    assert (set(reached), refused) == ({process.pid, grandchild}, [])
    assert process.wait() == -signal.SIGTERM


def test_only_the_tree_is_signalled(
    running: tuple[subprocess.Popen[str], int],
) -> None:
    process, grandchild = running

    reached, _ = ProcessTree(grandchild).send(signal.SIGTERM)

    assert reached == [grandchild]
    assert process.poll() is None


def test_a_process_that_has_ended_is_no_error(tmp_path: Path) -> None:
    put(tmp_path, 2**22 + 5, 1)  # more than any process id

    assert ProcessTree(2**22 + 5, tmp_path).send(signal.SIGTERM) == ([], [])


def test_another_process_behind_the_id_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            put(tmp_path, other.pid, 1, started=1)
            tree = ProcessTree(other.pid, tmp_path)
            stat = tree.refresh()[other.pid]
            put(tmp_path, other.pid, 1, started=2)

            assert not tree._send(other.pid, stat, signal.SIGKILL)
            assert other.poll() is None
        finally:
            other.kill()


@pytest.fixture
def daemon() -> Iterator[tuple[int, int]]:
    """Start a process that bears the mark, and a daemon that has left its tree."""
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON],
        env={"MARKS": f"another,{MARK}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        left = int(process.stdout.readline())
        yield process.pid, left
        os.kill(left, signal.SIGKILL)


class TestWhoLeftTheTree:
    def test_is_a_member_by_its_mark_and_stays_one(self, daemon: tuple[int, int]) -> None:
        pid, left = daemon
        tree = ProcessTree(pid, mark=MARK)

        assert left not in tree.refresh()
        assert left in tree.refresh([left, os.getpid()])
        assert set(tree.refresh()) == {pid, left}

    @pytest.mark.parametrize("mark", [None, "fedcba9876543210"])
    def test_is_no_member_without_that_mark(
        self, daemon: tuple[int, int], mark: str | None
    ) -> None:
        pid, left = daemon

        assert left not in ProcessTree(pid, mark=mark).refresh([left])

    def test_one_that_may_not_be_looked_at_is_nobody(self, tmp_path: Path) -> None:
        put(tmp_path, 10, 1)
        put(tmp_path, 20, 1)  # and no environment that could be read

        assert set(ProcessTree(10, tmp_path, mark=MARK).refresh([20, 21])) == {10}
