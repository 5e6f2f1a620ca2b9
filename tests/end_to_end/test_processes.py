"""Who the processes on a GPU are, and when that cannot be known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Pretend, Program
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import Machine, load_machine
from tests.fakes.tree import write_tree

#: The PID namespace of the host, by its fixed number, and another one.
INITIAL = "pid:[4026531836]"
OTHER = "pid:[4026532999]"


@pytest.fixture
def seen(c_compiler: str, tmp_path: Path) -> Any:
    """Return a machine's variables and the tree of files that gpucheck sees."""

    def build(machine: Machine, namespace: str | None) -> tuple[dict[str, str], Path]:
        root = write_tree(machine, tmp_path / "root")
        if namespace is not None:
            link = root / "proc/1/ns/pid"  # what /proc/self leads to
            link.parent.mkdir()
            link.symlink_to(namespace)
        variables = build_libraries(machine, tmp_path / "libraries")
        return variables | {"GPUCHECK_ROOT": str(root)}, root

    return build


def processes(program: Program, env: dict[str, str]) -> dict[int, dict[str, Any]]:
    document = program("list", "--json", env=env).document()
    return {
        process["pid"]: process
        for row in document["result"]["gpus"]
        for process in row["processes"]
    }


@pytest.mark.parametrize("namespace", [INITIAL, None])
def test_processes_of_this_machine(program: Program, seen: Any, namespace: str | None) -> None:
    env, _ = seen(load_machine("h100x8"), namespace)

    found = processes(program, env)

    machine = load_machine("h100x8")
    expected = {process.pid: process for gpu in machine.gpus for process in gpu.processes}
    assert set(found) == set(expected)
    for pid, process in found.items():
        assert process["namespace"] == "own"
        assert process["user"] == expected[pid].user
        assert process["command"].split()[0] == expected[pid].command[0]
        assert process["memory_used_bytes"] == expected[pid].memory_used_bytes


def test_a_process_in_several_lists_is_one_row(program: Program, seen: Any) -> None:
    env, _ = seen(load_machine("busy"), INITIAL)

    document = program("list", "--json", env=env).document()

    first, second = document["result"]["gpus"]
    blender = [item for item in first["processes"] if item["command"] == "blender"]
    assert [item["type"] for item in blender] == ["compute+graphics"]
    assert blender[0]["memory_used_bytes"] == 536_870_912  # the lists repeat the same total
    both = [item for row in (first, second) for item in row["processes"] if item["pid"] == 3000]
    assert [item["memory_used_bytes"] for item in both] == [4_294_967_296, 2_147_483_648]
    kinds = {item["type"] for row in (first, second) for item in row["processes"]}
    assert kinds == {"compute", "graphics", "mps", "compute+graphics"}
    unknown = next(item for item in first["processes"] if item["command"] == "unknown-memory")
    assert unknown["memory_used_bytes"] is None
    assert "processes.memory_used_bytes" in first["unavailable"]


def test_a_process_that_has_ended(program: Program, seen: Any) -> None:
    env, root = seen(load_machine("h100x8"), INITIAL)
    gone = load_machine("h100x8").gpus[0].processes[0].pid
    shutil.rmtree(root / "proc" / str(gone))

    found = processes(program, env)
    table = program("list", "--processes", env=env)

    assert found[gone]["namespace"] == "own"
    assert (found[gone]["name"], found[gone]["user"], found[gone]["command"]) == (None,) * 3
    assert str(gone) in table.text


def test_a_user_without_a_name_is_a_number(program: Program, seen: Any) -> None:
    machine = load_machine("h100x8")
    env, root = seen(machine, INITIAL)
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nbroken line\n", encoding="ascii")
    process = machine.gpus[0].processes[0]

    found = processes(program, env)

    assert found[process.pid]["user"] == str(process.uid)


# ---------------------------------------------------------------------- another PID namespace


def hold_device(root: Path, pid: int, target: str) -> None:
    """Let a process have a file open."""
    folder = root / f"proc/{pid}/fd"
    folder.mkdir()
    (folder / "0").symlink_to("/dev/null")
    (folder / "7").symlink_to(target)


def test_host_pids_in_a_container_are_nobody_here(program: Program, seen: Any) -> None:
    machine = load_machine("h100x8")
    env, root = seen(machine, OTHER)
    pids = [process.pid for gpu in machine.gpus for process in gpu.processes]
    for pid in pids:
        shutil.rmtree(root / f"proc/{pid}", ignore_errors=True)  # not to be seen from inside

    found = processes(program, env)
    table = program("list", "--processes", env=env).text

    assert set(found) == set(pids)
    for process in found.values():
        assert process["namespace"] == "other"
        assert (process["name"], process["user"], process["command"]) == (None, None, None)
        assert process["memory_used_bytes"] is not None
    assert "another PID namespace" in table


def test_a_local_process_with_the_same_number_is_not_taken_for_it(
    program: Program, seen: Any
) -> None:
    machine = load_machine("h100x8")
    env, root = seen(machine, OTHER)
    first, second, third = [gpu.processes[0].pid for gpu in machine.gpus[:3]]
    # Three local processes with the numbers of three others: an innocent one, one whose files we
    # may not see, and one that really has the device open.
    hold_device(root, first, "/home/alice/notes.txt")
    hold_device(root, third, "/dev/nvidia2")

    found = processes(program, env)

    assert found[first]["namespace"] == "other"
    assert found[first]["user"] is None
    assert found[second]["namespace"] == "unknown"
    assert found[second]["command"] is None
    assert found[third]["namespace"] == "own"
    assert found[third]["user"] == machine.gpus[2].processes[0].user
    assert found[first]["command"] is None


def test_filtering_by_user(program: Program, seen: Any) -> None:
    machine = load_machine("busy")
    env, _ = seen(machine, INITIAL)
    user = machine.gpus[0].processes[0].user

    document = program("list", "--json", "--user", user, env=env).document()

    users = {item["user"] for row in document["result"]["gpus"] for item in row["processes"]}
    assert users == {user}


def test_our_own_processes_are_found_by_the_system_itself(
    program: Program, pretend: Pretend
) -> None:
    """Without another root, the real /proc and the real user database answer."""
    import os
    import pwd

    from tests.fakes.machine import Process

    machine = load_machine("t4").with_gpu(0, processes=(Process(pid=os.getpid()),))
    env = pretend(machine, tree=False)

    found = processes(program, env)

    process = found[os.getpid()]
    if process["namespace"] == "own":
        assert process["user"] == pwd.getpwuid(os.getuid()).pw_name
        assert "python" in process["command"]
    else:  # the tests run in a container: a number there is not believed without a device
        assert process["namespace"] == "other"
        assert process["command"] is None


def test_a_stopped_process_that_still_has_a_card_open(program: Program, seen: Any) -> None:
    """The card's memory is in use, and the driver lists nobody who uses so much."""
    env, root = seen(load_machine("busy"), INITIAL)
    left = root / "proc/4711"
    (left / "fd").mkdir(parents=True)
    (left / "fd/3").symlink_to("/dev/nvidia1")
    (left / "comm").write_text("python\n")
    (left / "cmdline").write_text("python\0train.py\0")
    (left / "stat").write_text(f"4711 (python) T 900{' 0' * 17} 100\n")

    table = program("list", env=env)
    plain = program("list", "--json", env=env).document()["result"]["gpus"][1]
    asked = program("list", "--json", "--processes", env=env).document()["result"]["gpus"][1]

    assert "PID 4711 (train.py), stopped, still has the card open" in " ".join(table.text.split())
    assert "\n    kill 4711 && kill -CONT 4711\n" in table.text
    assert (plain["holders"], plain["memory_unaccounted_bytes"]) == (None, None)
    assert asked["memory_unaccounted_bytes"] > 4 << 30
    lines = program("list", "--format", "jsonl", "--processes", env=env).text.splitlines()
    assert json.loads(lines[1]).items() >= asked.items()
    [holder] = asked["holders"]
    assert (holder["pid"], holder["state"], holder["command"]) == (
        4711,
        "stopped",
        "python train.py",
    )
