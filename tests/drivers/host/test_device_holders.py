"""Who holds a GPU open, on pretended trees of /proc."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from gpucheck.drivers.evidence import HolderReading, HoldersReading
from gpucheck.drivers.host.device_holders import DEADLINE_S, read_holders
from gpucheck.drivers.host.process_tree import PF_KTHREAD
from tests.drivers.host.test_processes import looked_up
from tests.fakes.machine import load_machine
from tests.fakes.tree import write_tree

#: Fields of /proc/PID/stat behind the flags, up to the start.
REST_OF_STAT = " 0" * 12 + " 100"


def searched(root: Path, *, deadline_s: float = DEADLINE_S) -> HoldersReading:
    return read_holders(root, partial(looked_up, root=root), deadline_s=deadline_s)


def add(
    root: Path,
    pid: int,
    *opened: str,
    state: str = "S",
    parent: int = 900,
    name: str = "python",
    group: str = "/user.slice/session-1.scope",
    thread: bool = False,
    flags: int = 0x400000,
) -> Path:
    """Write a process that has these files open, `thread`: in a thread other than its first."""
    folder = root / "proc" / str(pid)
    files = folder / "task" / "77" / "fd" if thread else folder / "fd"
    (folder / "fd").mkdir(parents=True)
    files.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(opened):
        (files / str(number)).symlink_to(path)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cmdline").write_text(f"{name}\0train.py\0")
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{os.getuid()}\t0\t0\t0\n")
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} 0 0 0 0 {flags}{REST_OF_STAT}\n")
    (folder / "cgroup").write_text(f"0::{group}\n")
    return folder


def only(root: Path) -> HolderReading:
    [found] = searched(root).holders
    return found


@pytest.mark.parametrize(
    ("process", "state"),
    [
        ({}, "running"),
        ({"state": "T"}, "stopped"),
        ({"state": "Z", "thread": True}, "zombie"),
        ({"parent": 1}, "orphaned"),
        ({"parent": 1, "group": "/system.slice/triton.service"}, "running"),
        ({"name": "a) T 1 ("}, "running"),
    ],
)
def test_state_of_a_holder(tmp_path: Path, process: dict, state: str) -> None:
    add(tmp_path, 41, "/dev/null", "/dev/nvidia3", "/dev/nvidia0", "/dev/nvidiactl", **process)

    found = only(tmp_path)

    assert (found.pid, found.minors, found.state, found.mine) == (41, (0, 3), state, True)
    assert found.command is not None
    assert found.command.endswith("train.py")


def test_others_are_left_out(tmp_path: Path) -> None:
    add(tmp_path, 41, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0x")
    add(tmp_path, 42, "/dev/nvidia0", name="nvidia-persiste")
    (tmp_path / "proc/43").mkdir()

    reading = searched(tmp_path)

    assert (reading.holders, reading.hidden, reading.complete) == ((), 0, True)


def test_processes_that_may_not_be_read_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not threads of the kernel."""
    add(tmp_path, 41, "/dev/nvidia0")
    add(tmp_path, 42, flags=PF_KTHREAD | 0x40)
    listdir = os.listdir

    def refusing(path: str | Path) -> list[str]:
        if str(path).endswith("/fd"):
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr("os.listdir", refusing)

    assert searched(tmp_path).hidden == 1


def test_the_search_ends_in_time(tmp_path: Path) -> None:
    add(tmp_path, 41, "/dev/nvidia0")

    assert searched(tmp_path, deadline_s=-1).complete is False


def test_without_proc_there_is_a_reason(tmp_path: Path) -> None:
    assert searched(tmp_path).unavailable == "/proc: No such file or directory"


def test_numbers_of_the_device_files(tmp_path: Path) -> None:
    machine = load_machine("h100x8")

    minors = searched(write_tree(machine, tmp_path)).minors

    assert sorted(minors.values()) == list(range(8))
    assert set(minors) == {gpu.pci_bus_id.lower() for gpu in machine.gpus}
