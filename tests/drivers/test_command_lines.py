"""Command lines of processes, read by a child that may hang."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import cast

import pytest

from gpucheck.drivers import command_lines
from gpucheck.drivers.child import Child
from gpucheck.drivers.command_lines import read_in_time
from gpucheck.drivers.host.processes import identify


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a /proc with the processes 7, 8 and 9; the line of 8 never comes."""
    for pid in (7, 8, 9):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        line = tmp_path / "proc" / str(pid) / "cmdline"
        if pid == 8:
            os.mkfifo(line)
        else:
            line.write_bytes(f"serve\0--port\0{pid}\0".encode())
    return tmp_path / "proc"


def test_lines_come_from_a_child_that_already_runs(proc: Path) -> None:
    child = Child(command_lines.__name__)
    try:
        found, given_up = read_in_time([7, 5, 9], str(proc), child)
        again, _ = read_in_time([9], str(proc), child)
    finally:
        child.close()

    assert found == {7: "serve\0--port\x007\0", 9: "serve\0--port\x009\0"}
    assert given_up is False
    assert sorted(again) == [9]


class StuckChild:
    """Child that answers for one process, and then for none."""

    def __init__(self) -> None:
        self.abandoned = False
        self._answers = [{"part": "command", "pid": 7, "text": "first\0"}]

    def ask(self, request: object) -> None:
        """Take a request."""

    def next_document(self, _wait_s: float) -> dict[str, object] | None:
        return self._answers.pop() if self._answers else None

    def abandon(self) -> None:
        self.abandoned = True


def test_a_process_that_hangs_costs_its_own_line_only(proc: Path) -> None:
    child = StuckChild()

    found, given_up = read_in_time([7, 8, 9], str(proc), cast("Child", child), deadline_s=60)

    assert sorted(found) == [7, 9]
    assert given_up is True
    assert child.abandoned is True


def test_after_two_that_hang_the_rest_is_given_up(proc: Path) -> None:
    (proc / "6").mkdir()
    os.mkfifo(proc / "6" / "cmdline")

    assert read_in_time([6, 8, 9], str(proc), deadline_s=0.2) == ({}, True)


def test_a_child_that_has_ended_is_replaced(proc: Path) -> None:
    child = Child(command_lines.__name__)
    os.kill(child._pid or 0, signal.SIGKILL)

    found, given_up = read_in_time([7, 9], str(proc), child)

    assert sorted(found) == [7, 9]
    assert given_up is True


def test_who_it_is_comes_without_the_line(proc: Path) -> None:
    """State, user and name never hang."""
    (proc / "8" / "comm").write_text("python\n")
    (proc / "8" / "status").write_text("Uid:\t0\t0\t0\t0\n")

    found = identify([8], proc.parent, {})[8]

    assert (found.name, found.user, found.command) == ("python", "0", None)
