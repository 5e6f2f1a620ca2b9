"""Worker processes: the result of each kind of end, their order, and that nothing is left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.bench import workers as module
from gpucheck.bench.workers import (
    WORKER_DIED,
    WORKER_INTERRUPTED,
    WORKER_LATE,
    WORKER_NO_DOCUMENT,
    WORKER_SILENT,
    StartBarrier,
    WorkerAnswer,
    WorkerDevice,
    WorkerPool,
    Workers,
    wait_for_start,
    worker_environment,
)
from gpucheck.report.envelope import Failure
from tests.hang_watch import is_running

#: What a worker does by its first argument; it takes part in the common start as bench does.
PROGRAM = """
import fcntl, json, os, signal, sys, time
what = sys.argv[1]
def say(document):
    print(json.dumps(document), flush=True)
if what == "die-at-once":
    os.kill(os.getpid(), signal.SIGSEGV)
kind, _, path = os.environ["GPUCHECK_START"].partition(":")
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
if what == "meet":  # as many as it is told have begun, or it waits for ever
    folder, count = sys.argv[2:]
    open(os.path.join(folder, str(os.getpid())), "w").close()
    while len(os.listdir(folder)) < int(count):
        time.sleep(0.01)
time.sleep(0.1)
say({"begun": begun, "ended": time.monotonic(), "cpus": sorted(os.sched_getaffinity(0)),
     "padding": "x" * (300_000 if what == "long" else 0), "arguments": sys.argv[1:]})
if what == "stay":
    time.sleep(600)
if what == "leave":
    time.sleep(0.2)
    with open(sys.argv[2], "w") as file:
        file.write("left")
"""


@pytest.fixture(name="command")
def _command(tmp_path: Path) -> tuple[str, ...]:
    script = tmp_path / "worker.py"
    script.write_text(PROGRAM, encoding="utf-8")
    return (sys.executable, str(script))


START_S, DEADLINE_S = 600.0, 900.0


def orders(*words: str, cpus: frozenset[int] | None = None) -> list[WorkerDevice]:
    return [
        WorkerDevice(device=f"gpu:{place}", arguments=(word,), cpus=cpus)
        for place, word in enumerate(words)
    ]


def run(
    command: Sequence[str], *words: str, sequential: bool = False, **kw: Any
) -> list[WorkerAnswer]:
    workers = Workers(
        command=command, report_progress=kw.pop("report_progress", print), start_s=START_S
    )
    return list(workers.round(orders(*words, **kw), sequential=sequential, deadline_s=DEADLINE_S))


@pytest.fixture(name="only_one_left")
def _only_one_left(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a deadline pass as soon as a single worker is missing; return what shows progress."""
    passed_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr(module, "time", clock)
    look = module.crowd_on_the_host

    def progress(text: str) -> None:
        nonlocal passed_s
        if text == "1 of 2 processes are ready":
            passed_s += START_S

    def crowd(own: int) -> str | None:
        nonlocal passed_s
        passed_s += DEADLINE_S if own == 1 else 0.0
        return look(own)

    monkeypatch.setattr(module, "crowd_on_the_host", crowd)
    return progress


def codes(answers: Sequence[WorkerAnswer]) -> list[str | None]:
    return [answer.code if isinstance(answer, Failure) else None for answer in answers]


def test_each_answer_stands_in_the_place_of_its_order(command: tuple[str, ...]) -> None:
    answers = run(command, "a", "b", "c")

    assert codes(answers) == [None, None, None]
    assert [answer["arguments"] for answer in answers if isinstance(answer, dict)] == [
        ["a"],
        ["b"],
        ["c"],
    ]


def test_a_document_longer_than_a_pipe_holds(command: tuple[str, ...]) -> None:
    (answer,) = run(command, "long")

    assert isinstance(answer, dict)
    assert len(answer["padding"]) == 300_000


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("die-at-once", WORKER_DIED, "was ended by SIGSEGV"),
        ("fail", WORKER_DIED, "ended with code 70"),
        ("babble", WORKER_NO_DOCUMENT, "ended without a document"),
    ],
)
def test_a_bad_end_is_a_failure_and_the_others_go_on(
    command: tuple[str, ...], word: str, code: str, said: str, children: Callable[[], set[str]]
) -> None:
    bad, good = run(command, word, "good")

    assert isinstance(bad, Failure)
    assert bad.code == code
    assert bad.message == f"the process that measured gpu:0 {said}"
    assert isinstance(good, dict)
    assert children() == set()


def test_one_that_hangs_is_left_after_the_deadline(
    command: tuple[str, ...],
    children: Callable[[], set[str]],
    monkeypatch: pytest.MonkeyPatch,
    only_one_left: Callable[[str], None],
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    hung, good = run(command, "hang", "good")

    assert isinstance(hung, Failure)
    assert hung.message == "the process that measured gpu:0 gave no answer within 900 s"
    assert codes([hung, good]) == [WORKER_SILENT, None]
    assert children() == set()


@pytest.mark.parametrize("looks", [1, 1000], ids=["at first", "always"])
def test_one_that_is_late_on_a_crowded_host_blames_the_crowd(
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    only_one_left: Callable[[str], None],
    looks: int,
) -> None:
    cores = len(os.sched_getaffinity(0))
    loads = iter([4.0 * cores + 2] * looks)
    monkeypatch.setattr(os, "getloadavg", lambda: (next(loads, 0.0), 0.0, 0.0))

    late, good = run(command, "hang", "good")

    assert codes([late, good]) == [WORKER_LATE, None]
    assert isinstance(late, Failure)
    assert f"{4 * cores + 2} programs shared {cores} core" in late.message
    assert late.remedy == ("run it again when the machine is idle",)


def test_one_that_is_never_ready_does_not_keep_the_others(
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    only_one_left: Callable[[str], None],
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    answers = run(command, "never-ready", "good", report_progress=only_one_left)

    assert codes(answers) == [WORKER_SILENT, None]


def test_one_that_does_not_end_after_its_document_is_ended(
    command: tuple[str, ...], children: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAVE_S", 0.2)

    answers = run(command, "stay")

    assert codes(answers) == [None]
    assert children() == set()


def test_one_that_has_answered_may_release_its_gpu(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    note = tmp_path / "note"
    order = WorkerDevice(device="gpu:0", arguments=("leave", str(note)))

    Workers(command=command).round([order], sequential=False, deadline_s=DEADLINE_S)

    assert note.read_text() == "left"


def test_what_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    answers = run((str(tmp_path / "nothing"), "x"), "a")

    assert codes(answers) == [WORKER_DIED]


def test_together_they_begin_when_the_last_is_ready(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    place = tmp_path / "begun"
    place.mkdir()
    four = [
        WorkerDevice(device=f"gpu:{number}", arguments=("meet", str(place), "4"))
        for number in range(4)
    ]

    answers = Workers(command=command).round(four, sequential=False, deadline_s=DEADLINE_S)

    # None ended before all had begun.
    assert codes(list(answers)) == [None] * 4


def test_in_turn_no_two_measure_at_once(command: tuple[str, ...]) -> None:
    found = [
        answer for answer in run(command, *"abcd", sequential=True) if isinstance(answer, dict)
    ]
    spans = sorted((span["begun"], span["ended"]) for span in found)

    assert len(spans) == 4
    assert all(one[1] <= next_one[0] for one, next_one in pairwise(spans))


def test_a_worker_is_bound_to_the_processors_of_its_order(command: tuple[str, ...]) -> None:
    ours = os.sched_getaffinity(0)
    one = min(ours)

    (answer,) = run(command, "a", cpus=frozenset({one, 4095}))

    assert isinstance(answer, dict)
    assert answer["cpus"] == [one]
    assert os.sched_getaffinity(0) == ours


def test_processors_that_we_may_not_use_bind_nobody(command: tuple[str, ...]) -> None:
    (answer,) = run(command, "a", cpus=frozenset({4095}))

    assert isinstance(answer, dict)
    assert answer["cpus"] == sorted(os.sched_getaffinity(0))


def test_a_request_to_stop_ends_the_workers(
    command: tuple[str, ...], tmp_path: Path, children: Callable[[], set[str]]
) -> None:
    note = tmp_path / "pid"

    def interrupt(text: str) -> None:
        if note.exists() and note.read_text():
            raise KeyboardInterrupt

    wanted = [
        WorkerDevice(device="gpu:0", arguments=("good",)),
        WorkerDevice(device="gpu:1", arguments=("pid", str(note))),
    ]
    workers = Workers(command=command, report_progress=interrupt)
    answers = workers.round(wanted, sequential=False, deadline_s=DEADLINE_S)

    assert codes(answers)[1] == WORKER_INTERRUPTED
    assert children() == set()
    assert not is_running(int(note.read_text()))


def test_the_barriers_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    barrier = StartBarrier(sequential=True)
    path = Path(barrier.variables["GPUCHECK_START"].partition(":")[2])
    assert path.exists()
    assert list(tmp_path.iterdir()) == []

    barrier.close()

    assert not path.exists()


@pytest.mark.parametrize(("sequential", "others"), [(True, 0), (False, 1)])
def test_who_has_begun_keeps_off_those_that_want_to_be_alone(
    *, sequential: bool, others: int
) -> None:
    barrier = StartBarrier(sequential=sequential)
    assert barrier.ready() == 0
    early = os.open(barrier.variables["GPUCHECK_START"].partition(":")[2], os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(early, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(early)
    barrier.release()

    with wait_for_start(barrier.variables):
        assert barrier.ready() == 1
        beside = os.open(f"/proc/self/fd/{barrier._lock}", os.O_RDWR)
        begun = 0
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(beside, fcntl.LOCK_SH | fcntl.LOCK_NB)
            begun += 1
        assert begun == others
        fcntl.flock(beside, fcntl.LOCK_UN)

    fcntl.flock(beside, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(beside)
    barrier.close()
    barrier.close()


def test_without_a_starter_nobody_waits() -> None:
    with wait_for_start({}):
        pass


def test_a_starter_that_has_gone_keeps_nobody_waiting(tmp_path: Path) -> None:
    with wait_for_start({"GPUCHECK_START": f"shared:{tmp_path / 'gone'}"}):
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


# ---------------------------------------------------------------------------------- streams

#: Sends several documents, as a burn's worker does; its argument says what it does.
STREAM = """
import fcntl, json, os, select, sys, time
what = sys.argv[1]
def say(document):
    print(json.dumps(document), flush=True)
if what == "refuse":
    say({"part": "failure", "code": "no-gpu", "message": "none", "remedy": [], "exit_code": 4})
    sys.exit(0)
say({"part": "ready"})
lock = os.open(os.environ["GPUCHECK_START"].partition(":")[2], os.O_RDWR | os.O_APPEND)
fcntl.flock(lock, fcntl.LOCK_SH)
while not select.select([0], [], [], 0.02)[0]:
    if what == "die":
        os.kill(os.getpid(), 9)
    if what == "desert":
        sys.exit(0)
    say({"part": "progress"})
if what == "deaf":
    time.sleep(600)
say({"part": "end"})
"""


@pytest.fixture(name="pool")
def _pool(tmp_path: Path) -> WorkerPool:
    script = tmp_path / "streaming.py"
    script.write_text(STREAM, encoding="utf-8")
    return WorkerPool("none", "loads", command=(sys.executable, str(script)))


Answers = list[tuple[str, WorkerAnswer]]


def part_of(answer: WorkerAnswer) -> str | None:
    return None if isinstance(answer, Failure) else answer.get("part")


def heard(pool: WorkerPool, part: str, count: int) -> Answers:
    """Return the answers until `count` of them are `part`, or one fails."""
    found: Answers = []
    while True:
        found += pool.answers(0.2)
        parts = [part_of(answer) for _, answer in found]
        if parts.count(part) >= count or any(isinstance(answer, Failure) for _, answer in found):
            return found


def test_a_pool_begins_when_it_is_released_and_ends_when_it_is_asked(
    pool: WorkerPool, children: Callable[[], set[str]]
) -> None:
    pool.start(orders("load", "load"))
    assert {device for device, _ in heard(pool, "ready", 2)} == {"gpu:0", "gpu:1"}
    assert pool.answers(0.1) == []

    pool.begin()
    assert heard(pool, "progress", 2)
    pool.stop()
    ends = {device for device, answer in heard(pool, "end", 2) if part_of(answer) == "end"}
    assert pool.running == ()
    pool.close()

    assert ends == {"gpu:0", "gpu:1"}
    assert children() == set()


@pytest.mark.parametrize(
    ("what", "how"), [("die", "was ended by SIGKILL"), ("desert", "ended with code 0")]
)
def test_a_worker_that_ends_under_load_is_a_failure(pool: WorkerPool, what: str, how: str) -> None:
    pool.start(orders(what))
    heard(pool, "ready", 1)
    pool.begin()
    _, last = heard(pool, "never", 1)[-1]
    pool.close()

    assert isinstance(last, Failure)
    assert last.code == WORKER_DIED
    assert last.message == f"the process that loads gpu:0 {how}"


def test_a_refusal_is_the_last_document(pool: WorkerPool) -> None:
    pool.start(orders("refuse"))
    ((_, answer),) = heard(pool, "failure", 1)
    pool.close()

    assert isinstance(answer, dict)
    assert answer["code"] == "no-gpu"
    assert pool.running == ()
    assert pool._barrier is not None
    assert pool._barrier._lock == -1


def test_a_worker_that_does_not_listen_is_killed(
    pool: WorkerPool, children: Callable[[], set[str]]
) -> None:
    pool.start(orders("deaf"))
    heard(pool, "ready", 1)
    pool.begin()
    pool.stop()
    pool.close()

    assert children() == set()


def test_a_pool_that_cannot_be_started_answers_with_the_failure(tmp_path: Path) -> None:
    pool = WorkerPool("none", "loads", command=(str(tmp_path / "none"), "x"))
    pool.start(orders("load"))
    ((_, answer),) = pool.answers(1.0)
    pool.close()

    assert isinstance(answer, Failure)
    assert "could not be started" in answer.message
