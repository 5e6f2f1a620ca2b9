"""Worker processes: the result of each kind of end, their order, and that nothing is left."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench import worker
from gpucheck.bench.turn import VARIABLE, Turn, wait_for_turn
from gpucheck.bench.workers import ProcessWorkers, WorkerAnswer, WorkerOrder, worker_environment

#: What a worker does by its first argument; it takes part in the common start as bench does.
PROGRAM = """
import fcntl, json, os, signal, sys, time
what = sys.argv[1]
def say(document):
    print(json.dumps(document), flush=True)
if what == "die-at-once":
    os.kill(os.getpid(), signal.SIGSEGV)
kind, _, path = os.environ["GPUCHECK_TURN"].partition(":")
if what == "never-ready":
    time.sleep(600)
lock = os.open(path, os.O_RDWR | os.O_APPEND)
os.write(lock, b".")
fcntl.flock(lock, fcntl.LOCK_EX if kind == "exclusive" else fcntl.LOCK_SH)
begun = time.monotonic()
if what == "hang":
    time.sleep(600)
if what == "fail":
    sys.exit(70)
if what == "babble":
    print("no document", flush=True)
    sys.exit(0)
if what == "pid":
    with open(sys.argv[2], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
time.sleep(0.1)
say({"begun": begun, "ended": time.monotonic(), "cpus": sorted(os.sched_getaffinity(0)),
     "padding": "x" * (300_000 if what == "long" else 0), "arguments": sys.argv[1:]})
if what == "stay":
    time.sleep(600)
"""


@pytest.fixture(name="command")
def _command(tmp_path: Path) -> tuple[str, ...]:
    script = tmp_path / "worker.py"
    script.write_text(PROGRAM, encoding="utf-8")
    return (sys.executable, str(script))


def orders(*words: str, cpus: frozenset[int] | None = None) -> list[WorkerOrder]:
    return [
        WorkerOrder(device=f"gpu:{place}", arguments=(word,), cpus=cpus)
        for place, word in enumerate(words)
    ]


def run(
    command: Sequence[str], *words: str, in_turn: bool = False, deadline_s: float = 30.0, **kw: Any
) -> list[WorkerAnswer]:
    workers = ProcessWorkers(command=command, start_s=kw.pop("start_s", 30.0))
    return list(workers.round(orders(*words, **kw), in_turn=in_turn, deadline_s=deadline_s))


def codes(answers: Sequence[WorkerAnswer]) -> list[str | None]:
    return [answer.failure.code if answer.failure else None for answer in answers]


def test_each_answer_stands_in_the_place_of_its_order(command: tuple[str, ...]) -> None:
    answers = run(command, "a", "b", "c")

    assert codes(answers) == [None, None, None]
    assert [answer.document["arguments"] for answer in answers if answer.document] == [
        ["a"],
        ["b"],
        ["c"],
    ]


def test_a_document_longer_than_a_pipe_holds(command: tuple[str, ...]) -> None:
    (answer,) = run(command, "long")

    assert answer.document is not None
    assert len(answer.document["padding"]) == 300_000


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("die-at-once", worker.DIED, "was ended by SIGSEGV"),
        ("fail", worker.DIED, "ended with code 70"),
        ("babble", worker.NO_DOCUMENT, "ended without a document"),
    ],
)
def test_a_bad_end_is_a_failure_and_the_others_go_on(
    command: tuple[str, ...], word: str, code: str, said: str, children: Callable[[], set[str]]
) -> None:
    bad, good = run(command, word, "good")

    assert bad.failure is not None
    assert bad.failure.code == code
    assert bad.failure.message == f"the process that measured gpu:0 {said}"
    assert good.document is not None
    assert children() == set()


def test_one_that_hangs_is_left_after_the_deadline(
    command: tuple[str, ...],
    children: Callable[[], set[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    hung, good = run(command, "hang", "good", deadline_s=1.5)

    assert hung.failure is not None
    assert hung.failure.message == "the process that measured gpu:0 gave no answer within 1.5 s"
    assert codes([hung, good]) == [worker.SILENT, None]
    assert children() == set()


def test_one_that_is_late_on_a_crowded_host_blames_the_crowd(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "getloadavg", lambda: (4.0 * cores + 2, 0.0, 0.0))

    late, good = run(command, "hang", "good", deadline_s=1.5)

    assert codes([late, good]) == [worker.LATE, None]
    assert late.failure is not None
    assert f"{4 * cores + 2} programs shared {cores} core" in late.failure.message
    assert late.failure.remedy == ("run it again when the machine is idle",)


def test_one_that_is_never_ready_does_not_keep_the_others(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    answers = run(command, "never-ready", "good", start_s=0.5, deadline_s=1.5)

    assert codes(answers) == [worker.SILENT, None]


def test_one_that_does_not_end_after_its_document_is_ended(
    command: tuple[str, ...], children: Callable[[], set[str]]
) -> None:
    answers = run(command, "stay")

    assert codes(answers) == [None]
    assert children() == set()


def test_what_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    answers = run((str(tmp_path / "nothing"), "x"), "a")

    assert codes(answers) == [worker.DIED]


def test_together_they_begin_when_the_last_is_ready(command: tuple[str, ...]) -> None:
    spans = [answer.document for answer in run(command, *"abcd") if answer.document]

    # Everyone had begun before the first ended.
    assert max(span["begun"] for span in spans) < min(span["ended"] for span in spans)


def test_in_turn_no_two_measure_at_once(command: tuple[str, ...]) -> None:
    found = [answer.document for answer in run(command, *"abcd", in_turn=True) if answer.document]
    spans = sorted((span["begun"], span["ended"]) for span in found)

    assert len(spans) == 4
    assert all(one[1] <= next_one[0] for one, next_one in pairwise(spans))


def test_a_worker_is_bound_to_the_processors_of_its_order(command: tuple[str, ...]) -> None:
    ours = os.sched_getaffinity(0)
    one = min(ours)

    (answer,) = run(command, "a", cpus=frozenset({one, 4095}))

    assert answer.document is not None
    assert answer.document["cpus"] == [one]
    assert os.sched_getaffinity(0) == ours


def test_processors_that_we_may_not_use_bind_nobody(command: tuple[str, ...]) -> None:
    (answer,) = run(command, "a", cpus=frozenset({4095}))

    assert answer.document is not None
    assert answer.document["cpus"] == sorted(os.sched_getaffinity(0))


def test_a_request_to_stop_ends_the_workers(
    command: tuple[str, ...], tmp_path: Path, children: Callable[[], set[str]]
) -> None:
    note = tmp_path / "pid"

    def interrupt(text: str) -> None:
        if note.exists() and note.read_text():
            raise KeyboardInterrupt

    wanted = [
        WorkerOrder(device="gpu:0", arguments=("good",)),
        WorkerOrder(device="gpu:1", arguments=("pid", str(note))),
    ]
    workers = ProcessWorkers(command=command, tell=interrupt)
    answers = workers.round(wanted, in_turn=False, deadline_s=60)

    assert codes(answers)[1] == worker.INTERRUPTED
    assert children() == set()
    assert not Path(f"/proc/{note.read_text()}").exists()


def test_the_turns_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    turn = Turn(in_turn=True)
    path = Path(turn.variables[VARIABLE].partition(":")[2])
    assert path.exists()
    assert list(tmp_path.iterdir()) == []

    turn.close()

    assert not path.exists()


def test_without_a_starter_nobody_waits() -> None:
    with wait_for_turn({}):
        pass


def test_a_starter_that_has_gone_keeps_nobody_waiting(tmp_path: Path) -> None:
    with wait_for_turn({VARIABLE: f"shared:{tmp_path / 'gone'}"}):
        pass


def test_a_file_of_defaults_is_not_the_workers() -> None:
    assert worker_environment({"GPUCHECK_CONFIG": "a.toml", "HOME": "/h"}).keys() == {
        *("HOME", "PYTHONPATH"),
    }


def test_workers_find_this_package_first_and_keep_what_was_there() -> None:
    path = worker_environment({"PYTHONPATH": "/one::/two:three:."})["PYTHONPATH"]

    import gpucheck

    root = str(Path(gpucheck.__file__).parents[1])
    assert path.split(os.pathsep) == [root, "/one", "/two"]
