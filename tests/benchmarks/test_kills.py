"""A sample of the killed runs: whatever ends gpucheck alone, nothing of it is left."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks import kills

TERM, HUP, KILL = signal.SIGTERM, signal.SIGHUP, signal.SIGKILL


@pytest.fixture(scope="module")
def machines(
    c_compiler: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, str]]:
    return kills.environments(tmp_path_factory.mktemp("machines"))


def until_it_has_a_child(process: subprocess.Popen[bytes], mark: str) -> None:
    while process.poll() is None and len(kills.members(mark)) < 2:
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "machine", "number"),
    [
        ("list", "hung", TERM),
        ("detect", "one GPU hung", HUP),
        ("snapshot FILE", "hung", TERM),
        ("memlimit", "hung", HUP),
        ("place --count --wait", "hung", KILL),
        ("bench --save", "healthy", KILL),
        ("bench --burn", "healthy", TERM),
    ],
)
def test_nothing_is_left_of_a_run_that_is_ended(
    machines: dict[str, dict[str, str]],
    tmp_path: Path,
    name: str,
    machine: str,
    number: signal.Signals,
) -> None:
    ended = kills.run(name, machines[machine], tmp_path / "run", number, until_it_has_a_child)

    assert ended.problems == ()
    assert ended.outcome == ("killed" if number is KILL else "answered")


def test_what_is_left_would_be_found(machines: dict[str, dict[str, str]], tmp_path: Path) -> None:
    def leave_things(process: subprocess.Popen[bytes], mark: str) -> None:
        (tmp_path / "run" / "tmp" / "folder").mkdir()
        (tmp_path / "run" / "work" / ".report.json.tmp").touch()
        (tmp_path / "run" / "work" / kills.REPORT).write_text("{")

    ended = kills.run("list", machines["healthy"], tmp_path / "run", KILL, leave_things)

    assert sorted(ended.problems) == [
        "half a file: report.json",
        "left beside the report: .report.json.tmp",
        "left in TMPDIR: folder",
    ]
