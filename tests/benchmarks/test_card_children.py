"""Children of the suite: deadlines, leftovers, the log, and a stopped run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.card.checks import run_tests
from benchmarks.card.children import CHECKOUT, Children, Ended, environment
from benchmarks.card.figures import NO_TIME
from benchmarks.card.program import COMMANDS, LATE, Program, burn_commands
from benchmarks.card.redaction import DocumentRedactor
from benchmarks.gpu import Watch
from tests.hang_watch import is_running, wait_until


@pytest.fixture(name="children")
def _children(tmp_path: Path) -> Children:
    return Children(tmp_path / "run.log")


def test_a_child_is_run_from_the_checkout_and_its_last_line_is_kept(
    children: Children, tmp_path: Path
) -> None:
    program = "import os, benchmarks.gpu; print('here'); print(os.getcwd()); print()"

    ended = children.python(["-c", program], 60)

    assert ended == Ended(code=0, said=str(CHECKOUT))
    assert "here\n" in (tmp_path / "run.log").read_text()


def test_each_child_has_a_last_line_of_its_own(children: Children) -> None:
    children.python(["-c", "print('the first')"], 60)

    assert children.python(["-c", "import sys; sys.exit(7)"], 60) == Ended(code=7, said="no word")


@pytest.mark.parametrize(
    ("code", "how"),
    [(3, "code 3"), (-11, "signal 11"), (None, "it hung, or its time was over")],
)
def test_an_end_is_told_in_words(code: int | None, how: str) -> None:
    assert Ended(code=code, said="").how == how


def test_at_the_deadline_the_child_and_its_children_are_gone(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_s = time.monotonic

    def clock() -> float:
        is_waiting = "waiting" in (tmp_path / "run.log").read_text().splitlines()
        return real_s() + 3600 * is_waiting  # the deadline comes once there is something to end

    monkeypatch.setattr("benchmarks.card.children.time.monotonic", clock)
    monkeypatch.setattr("benchmarks.card.children._LOOK_S", 0.02)
    note = tmp_path / "pids"
    program = (
        "import os, subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{other.pid}}')\n"
        "print('waiting', flush=True)\n"
        "time.sleep(600)\n"
    )

    ended = children.python(["-c", program], 600)

    assert ended == Ended(code=None, said="waiting")
    wait_until(lambda: not any(is_running(int(pid)) for pid in note.read_text().split()))


def test_a_child_that_is_found_hanging_is_ended_before_its_deadline(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.card.children._LOOK_S", 0.1)

    ended = children.python(["-c", "import time; time.sleep(600)"], 600, lambda: True)

    assert ended.code is None


def test_a_program_that_is_not_there_is_no_traceback(children: Children) -> None:
    ended = children.run(["/nowhere/compute-sanitizer"], 5)

    assert ended.code == 127
    assert "No such file" in ended.said


def test_nothing_new_for_too_long_is_hanging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    monkeypatch.setattr("benchmarks.gpu.time.monotonic", lambda: seconds[0])
    put: list[str] = []
    report = type("Kept", (), {"put": lambda self, part, figures: put.append(part)})()
    notes = tmp_path / "notes.jsonl"
    watch = Watch(report, "softmax", notes)

    assert not watch()
    seconds[0] = 40
    notes.write_text('{"begun": "row", "unit": "s"}\n')
    assert not watch()
    seconds[0] = 80
    assert not watch()
    seconds[0] = 110
    assert watch()
    assert put == ["softmax", "softmax"]


@pytest.mark.parametrize(
    ("ended", "verdict", "remark"),
    [
        (Ended(code=0, said="5 passed in 1s"), "right", None),
        (Ended(code=1, said="1 failed, 4 passed"), "wrong", "1 failed, 4 passed"),
        (Ended(code=124, said="1 failed, 3 passed in 9s"), "wrong", "1 failed, 3 passed in 9s"),
        (Ended(code=124, said="4 passed in 9s"), "no figure", "4 passed in 9s"),
        (Ended(code=0, said="5 skipped"), None, "none was run: 5 skipped"),
        (Ended(code=4, said="ERROR: not found"), None, "code 4: ERROR: not found"),
        (Ended(code=None, said="...."), None, "it hung, or its time was over: ...."),
    ],
)
def test_only_a_test_that_fails_is_a_wrong_result(
    ended: Ended, verdict: str | None, remark: str | None
) -> None:
    children: Any = SimpleNamespace(run=lambda words, seconds: ended)

    figures, said = run_tests(children, 10)

    assert said == remark
    found = [figure.verdict or "right" for figure in figures]
    assert found == ([verdict] if verdict else [])


def test_each_command_of_the_program_leaves_its_document_whatever_becomes_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    monkeypatch.setattr("benchmarks.card.program.time.monotonic", lambda: seconds[0])
    given: list[float] = []

    def run(words: list[str], most_s: float) -> Ended:
        timeout, alone, given_s, _, _, _, name, *_, file = words
        assert (timeout, alone, int(given_s)) == ("timeout", "--foreground", most_s - 15)
        given.append(int(given_s))
        seconds[0] += 20
        if name == "bench":
            return Ended(code=None, said="measuring")
        Path(file).write_text('{"schema": "' + name + '"}')
        return Ended(code={"detect": 1, "place": 124}.get(name, 0), said="")

    kept = tmp_path / "documents.json"
    children: Any = SimpleNamespace(run=run)
    figures, remark = Program(children, tmp_path, kept).run("program", COMMANDS, 90)

    named = {figure.name: figure.verdict for figure in figures}
    assert list(named) == list(COMMANDS)
    assert list(named.values()) == ["", "", "wrong", *["no figure"] * 4]
    assert {figure.ours for figure in figures if figure.error is None} == {20.0}
    assert [figure.error for figure in figures][4:] == [LATE, *[NO_TIME] * 2]
    # No command gets more than its own time, nor more than the part has left.
    assert given == [40, 30, 50, 30, 10]
    documents = json.loads(kept.read_text())
    assert list(documents) == ["snapshot", "list", "detect", "bench", "place"]
    assert documents["list"]["document"] == {"schema": "list"}
    assert documents["list"]["command"].startswith("gpucheck list --json")
    assert documents["bench"]["document"] is None
    assert documents["place"]["document"] == {"schema": "place"}
    assert (documents["detect"]["exit_code"], documents["bench"]["exit_code"]) == (1, None)
    assert remark is not None
    assert "detect ended early or badly (code 1)" in remark


@pytest.mark.parametrize(
    ("share", "command"),
    [
        (1.0, "gpucheck bench --burn 10 --device gpu:0 --json"),
        (0.002, "gpucheck bench --burn 10 --size 256 --device gpu:0 --json"),
    ],
)
def test_the_documents_of_an_earlier_part_stay(share: float, command: str, tmp_path: Path) -> None:
    def run(words: list[str], most_s: float) -> Ended:
        Path(words[-1]).write_text('{"schema": "new"}')
        return Ended(code=0, said="")

    kept = tmp_path / "documents.json"
    kept.write_text('{"list": "old", "burn": "old"}')
    children: Any = SimpleNamespace(run=run)

    figures, remark = Program(children, tmp_path, kept).run("burn", burn_commands(share), 40)

    assert [(figure.part, figure.name, figure.verified) for figure in figures] == [
        ("burn", "burn", True)
    ]
    assert remark is None
    documents = json.loads(kept.read_text())
    assert documents["list"] == "old"
    assert documents["burn"]["document"] == {"schema": "new"}
    assert documents["burn"]["command"] == command


def test_published_documents_name_no_host_user_or_path() -> None:
    uuid = "GPU-756a79d4-4cf2-5e9f-88b6-03d84e3e737d"
    document = {
        "schema": "gpucheck/list/1",
        "host": {"name": "node17.example.org", "kernel": "6.8.0"},
        "warnings": [{"message": f"node17: alice holds {uuid} (see /home/alice/log)"}],
        "result": {
            "device": "/job:localhost/replica:0/task:0/device:GPU:0",
            "serial": "1650000000000",
            "interpreter": "/home/alice/venv/bin/python3",
            "gpus": [{"uuid": uuid, "name": "NVIDIA H100", "processes": [
                {"pid": 7, "user": "alice", "name": "secret", "command": "secret --key 1"},
                {"pid": 8, "user": "root", "name": None, "command": None},
            ]}],
        },
    }  # fmt: skip
    redactor = DocumentRedactor()

    found = redactor.document(document)

    text = json.dumps(found)
    for name in ("node17", "alice", "/home", uuid, "1650000000000", "secret", "--key"):
        assert name not in text
    assert found["schema"] == "gpucheck/list/1"
    assert found["host"] == {"name": "host", "kernel": "6.8.0"}
    assert found["result"]["device"] == "/job:localhost/replica:0/task:0/device:GPU:0"
    (gpu,) = found["result"]["gpus"]
    assert gpu["name"] == "NVIDIA H100"
    assert gpu["uuid"] in found["warnings"][0]["message"]
    assert [process["user"] for process in gpu["processes"]][1] == "root"
    assert redactor.text("alice on node17: /home/alice/x").count("alice") == 0


def test_names_too_short_to_be_told_from_words_are_replaced_at_their_keys() -> None:
    document = {"host": {"name": "vm"}, "result": {"processes": [{"pid": 7, "user": "al"}]}}

    found = DocumentRedactor().document(document)

    assert found["host"] == {"name": "host"}
    assert found["result"]["processes"][0]["user"].startswith("user-")


def test_a_redacted_snapshot_keeps_its_stand_ins() -> None:
    snapshot = {"result": {"redacted": True, "gpus": [{"uuid": f"GPU-{'0' * 8}"}]}}

    assert DocumentRedactor().document(snapshot) == snapshot
    assert DocumentRedactor().document(None) is None


def test_the_compilers_pool_and_pytests_plugins_take_no_part() -> None:
    found = environment()

    assert found["PYTHONPATH"].split(os.pathsep)[0] == str(CHECKOUT)
    assert found["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    assert found["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"


def test_a_stop_is_an_error_once(tmp_path: Path) -> None:
    """In a process of its own: it changes what signals do."""
    program = (
        "import os, signal\n"
        "from benchmarks.card.children import StoppedError, stop_when_asked\n"
        "stop_when_asked()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "except StoppedError:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('reported')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stdout) == (0, "reported\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
