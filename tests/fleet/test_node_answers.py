"""What the engine's child says, or does not say, as outcomes of nodes; the file of results."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpucheck.fleet import connector
from gpucheck.fleet.collect import Collected
from gpucheck.fleet.connector import (
    Asked,
    Order,
    Verb,
    check_order,
    check_scheduler,
    check_wave,
    node_answers,
    waves,
)
from gpucheck.fleet.dask_child import Node, one_per_machine
from gpucheck.fleet.documents import ResultsFile, read_earlier
from gpucheck.fleet.model import NodeAnswer, Outcome
from gpucheck.report.errors import MissingError, WrongUseError
from tests.architecture.commands import built_command
from tests.fleet.documents import detect


def saying(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: Any, then: str = "") -> None:
    """Let the child say these lines, and then do something."""
    script = folder / "child.py"
    said = "".join(json.dumps(line) + "\n" for line in lines)
    text = f"import os, sys, time\nsys.stdin.readline()\nsys.stdout.write({said!r})\n"
    script.write_text(f"{text}sys.stdout.flush()\n{then}\n", encoding="utf-8")
    monkeypatch.setattr(connector, "SCRIPT", script)


def nodes(*names: str, **more: Any) -> dict[str, Any]:
    found = [
        {"address": name, "host": name, "worker": f"{name}-0", "ip": "10.0.0.1", "last_seen_s": 3.0}
        for name in names
    ]
    return {"part": "nodes", "nodes": found, "limit_s": 1.0, **more}


def answer(name: str, how: str, **more: Any) -> dict[str, Any]:
    return {"part": "answer", "address": name, "how": how, "seconds": 0.5, **more}


def ended(name: str, text: str, code: int, stderr: str = "") -> dict[str, Any]:
    return answer(name, "ended", exit_code=code, stdout=text, stderr=stderr)


def answers(order: Order, expected: tuple[str, ...] = ()) -> dict[str, NodeAnswer]:
    found = node_answers(order, expected)
    return {one.host: one for one in found if isinstance(one, NodeAnswer)}


@pytest.mark.parametrize(
    ("line", "outcome", "said"),
    [
        (ended("n", json.dumps(detect("n")), 0), "ok", None),
        (ended("n", json.dumps(detect("n", failing={"a": "b"})), 1), "failed", None),
        (ended("n", json.dumps(detect("n")), 3), "inconclusive", None),
        (ended("n", '{"a":' + "[" * 600 + "]" * 600 + "}", 0), "unreadable", "no document"),
        (ended("n", "", 127, "env: 'gpucheck': No such file"), "not-installed", "No such file"),
        (ended("n", "", 126, "env: not allowed"), "not-installed", "not allowed"),
        (ended("n", "", -9), "lost", "signal 9"),
        (ended("n", "[1]", 5, "bad\nlast words"), "unreadable", "code 5: last words"),
        (answer("n", "timeout"), "timeout", "after 7 s"),
        (answer("n", "silent", last_seen_s=48.2, limit_s=17.0), "no-answer", "within 17 s"),
        (answer("n", "scheduler-gone"), "no-answer", "scheduler"),
        (answer("n", "gone", message="x"), "lost", "went away"),
        (answer("n", "queued", limit_s=17.0), "busy", "no free GPU for 17 s"),
        (answer("n", "incompatible", message="it has dask 1"), "incompatible", "dask 1"),
        (answer("n", "not-found", message="no env"), "not-installed", "no env"),
        (answer("n", "too-much", bytes=9, exit_code=0), "unreadable", "9 bytes"),
        (answer("n", "error", message="MemoryError: \x1b[2J"), "no-answer", "MemoryError"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_came_of_a_node_is_its_outcome(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: Any, outcome: str, said: str | None
) -> None:
    saying(monkeypatch, tmp_path, nodes("n"), line, {"part": "end"})

    found = answers(Order(Verb("detect"), scheduler="tls://x:1", node_timeout_s=7.0))["n"]

    assert found.outcome == outcome
    assert (found.document is None) == (outcome not in ("ok", "failed", "inconclusive"))
    assert (found.reason is None) if said is None else (said in (found.reason or ""))
    assert "\x1b" not in (found.reason or "")
    assert found.seconds == 0.5
    assert found.last_seen_s == line.get("last_seen_s")
    assert found.gpucheck_version == ("0.1.0" if found.document else None)


def test_samples_that_are_asked_for_replace_the_summary() -> None:
    asked = [
        Order(Verb("bench"), scheduler="tls://x:1", words=words)
        for words in ((), ("--samples", "all"))
    ]
    same = Order(Verb("bench"), scheduler="tls://x:1", words=("--samples=all",))

    plain, chosen = (order.request()["command"][3:] for order in asked)

    assert plain == ["--samples", "summary"]
    assert chosen == ["--samples", "all"]
    assert same.request()["command"][3:] == ["--samples=all"]


@pytest.mark.parametrize(
    ("then", "why"), [("time.sleep(600)", "deadline of 600 s"), ("os._exit(3)", "code 3")]
)
def test_nodes_of_which_nothing_came_have_no_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str, why: str
) -> None:
    begun = {"part": "begun", "address": "a"}
    good = ended("a", json.dumps(detect("a")), 0)
    saying(monkeypatch, tmp_path, nodes("a", "b"), begun, good, then=then)

    found = {}
    for one in node_answers(Order(Verb("detect"), scheduler="tls://x:1", deadline_s=600.0), ()):
        if isinstance(one, NodeAnswer):
            found[one.host] = one
            if "sleep" in then:  # nothing more will come: the deadline passes now
                monkeypatch.setattr(connector, "_now", lambda: time.monotonic() + 600.0)

    assert found["a"].outcome is Outcome.OK
    assert found["b"].outcome is Outcome.NO_ANSWER
    assert why in (found["b"].reason or "")
    assert found["b"].last_seen_s == 3.0


def test_a_silent_node_is_called_as_it_is_expected_or_by_its_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed = nodes("a", "b")
    for node, worker in zip(listed["nodes"], ("gpu7", "tls://10.0.0.1:5"), strict=True):
        node.update(host=None, worker=worker)
    saying(monkeypatch, tmp_path, listed, {"part": "end"})

    found = list(node_answers(Order(Verb("list"), scheduler="tls://x:1"), ("gpu7",)))

    assert [one.host for one in found if isinstance(one, Asked)] == ["gpu7", "10.0.0.1"]


def test_only_nodes_that_are_left_are_asked_and_each_by_one_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed = nodes("a", "b", "c", "d", "e")
    for node, ip in zip(listed["nodes"], "98765", strict=True):
        node["ip"] = f"10.0.0.{ip}"
    a, b, c, d, _ = listed["nodes"]
    a["host"] = b["host"] = "copied"
    c.update(host="ip-10-0-0-7", worker="gpu7.cluster")
    d.update(host="ip-10-0-0-6")
    asked = tmp_path / "asked"
    then = f"open({str(asked)!r}, 'w').write(sys.stdin.readline())"
    saying(monkeypatch, tmp_path, listed, then=then)
    order = Order(Verb("list"), scheduler="tls://x:1", wave="50%", skip=frozenset({"copied", "e"}))

    found = answers(order, ("gpu7", "10.0.0.6"))

    # The first machine of a name has it, whichever the scheduler names first.
    assert list(found) == ["copied (10.0.0.9)", "gpu7.cluster", "10.0.0.6"]
    assert json.loads(asked.read_text()) == {"addresses": ["a", "c", "d"], "at_once": 1}


def worker(address: str, ip: str, host: str | None, gpus: int = 1) -> Node:
    node = Node(address, {"host": ip, "name": address, "resources": {"GPU": gpus}})
    node.host = host
    return node


def test_a_machine_with_the_name_of_another_is_asked_beside_it() -> None:
    found = [
        worker("tls://10.0.0.1:1", "10.0.0.1", "copied", gpus=0),
        worker("tls://10.0.0.1:2", "10.0.0.1", "copied"),
        worker("tls://10.0.0.2:1", "10.0.0.2", "copied"),
        worker("tls://10.0.0.2:2", "10.0.0.2", None),
        worker("tls://10.0.0.3:1", "10.0.0.3", None),
    ]

    asked = [node.address for node in one_per_machine(found)]

    assert asked == ["tls://10.0.0.1:2", "tls://10.0.0.2:1", "tls://10.0.0.3:1"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("no-engine", "pip install"),
        ("no-certificates", "DASK_DISTRIBUTED__COMM__TLS__CA_FILE"),
        ("engine-version", "scheduler's version"),
        ("scheduler-unreachable", "certificates"),
    ],
)
def test_an_engine_that_cannot_be_used_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, said: str
) -> None:
    saying(monkeypatch, tmp_path, {"part": "failure", "code": code, "message": "told so."})

    with pytest.raises(MissingError) as raised:
        answers(Order(Verb("list"), scheduler="tls://x:1"))

    assert raised.value.code == code
    assert "told so" in raised.value.message
    assert said in raised.value.remedy[0]


def test_workers_of_this_machine_that_do_not_start_are_no_scheduler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times_s = iter([0.0, 1000.0])
    saying(monkeypatch, tmp_path, then="time.sleep(600)")
    monkeypatch.setattr(connector, "_now", lambda: next(times_s))

    with pytest.raises(MissingError) as raised:
        answers(Order(Verb("list"), local=20))

    assert raised.value.code == "workers-not-started"
    assert raised.value.message == "The workers did not start on this machine: nothing in 320 s."


@pytest.mark.parametrize(
    ("address", "insecure", "code"),
    [
        ("tls://head:8786", False, None),
        ("tls://[fd00::1]:8786", False, None),
        ("tcp://127.0.0.1:8786", False, None),
        ("tcp://localhost:8786", False, None),
        ("tcp://[::1]:8786", False, None),
        ("tcp://head:8786", True, None),
        ("tcp://head:8786", False, "insecure-scheduler"),
        ("tcp://127.0.0.1.evil.example:8786", False, "insecure-scheduler"),
        ("head:8786", True, "bad-scheduler"),
        ("http://head:8786", True, "bad-scheduler"),
        ("tls://head", True, "bad-scheduler"),
        ("tls://user@head:1", True, "bad-scheduler"),
        ("tls://head:1/path", True, "bad-scheduler"),
        ("inproc://1/2/3", True, "bad-scheduler"),
    ],
)
def test_only_an_encrypted_or_local_scheduler_is_asked(
    address: str, insecure: bool, code: str | None
) -> None:
    if code is None:
        check_scheduler(address, insecure=insecure)
        return
    with pytest.raises(WrongUseError) as raised:
        check_scheduler(address, insecure=insecure)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("wave", "count", "at_once"),
    [("5%", 1000, 50), ("5%", 39, 1), ("5%", 1, 1), ("100%", 7, 7), ("20", 7, 20), ("3", 7, 3),
     ("0.5%", 1000, 5), (None, 7, 7), (None, 5000, 400), (None, 0, 1)],
)  # fmt: skip
def test_a_wave_is_at_least_one_node_and_never_more_than_the_engine_bears(
    wave: str | None, count: int, at_once: int
) -> None:
    if wave is not None:
        check_wave(wave)
    assert waves(Order(Verb.LIST, wave=wave), count) == at_once


@pytest.mark.parametrize(
    ("order", "code"),
    [
        (Order(Verb.LIST, local=64), None),
        (Order(Verb.LIST, scheduler="tls://head:8786"), None),
        (Order(Verb.LIST, local=65), "bad-local"),
        (Order(Verb.LIST, local=-1), "bad-local"),
        (Order(Verb.LIST), "which-cluster"),
        (Order(Verb.LIST, local=1, scheduler="tls://head:8786"), "which-cluster"),
        (Order(Verb.LIST, local=1, wave="5 %"), "bad-wave"),
        (Order(Verb.LIST, local=1, node_timeout_s=-1.0), "bad-node-timeout"),
    ],
)
def test_an_order_names_one_cluster_and_what_it_can_bear(order: Order, code: str | None) -> None:
    if code is None:
        check_order(order)
        return
    with pytest.raises(WrongUseError) as raised:
        check_order(order)
    assert raised.value.code == code


@pytest.mark.parametrize("wave", ["0", "0%", "-1", "101%", "five", "", "5 %", "1e3", "nan%"])
def test_another_wave_is_refused(wave: str) -> None:
    with pytest.raises(WrongUseError):
        check_wave(wave)


def line(host: str, outcome: Outcome, command: str = "detect") -> NodeAnswer:
    return NodeAnswer("gpucheck/fleet-node/1", host, outcome, command=command)


def test_only_nodes_that_answered_are_settled(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    file = ResultsFile(path, resume=False)
    for number, outcome in enumerate(Outcome):
        file.append(line(f"n{number}", outcome))
    file.append(line("back", Outcome.LOST))
    file.append(line("back", Outcome.OK))
    file.close()

    found, verb = read_earlier(path)

    settled = {Outcome.OK, Outcome.UNEXPECTED, Outcome.FAILED, Outcome.INCONCLUSIVE}
    expected = {f"n{number}" for number, outcome in enumerate(Outcome) if outcome in settled}
    assert found == expected | {"back"}
    assert verb == "detect"


def test_a_line_that_was_cut_off_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"schema": "gpucheck/fleet-node/1", "host": "cut', encoding="utf-8")
    file = ResultsFile(path, resume=True)
    file.append(line("whole", Outcome.OK))
    file.close()

    assert read_earlier(path)[0] == {"whole"}


def test_a_file_of_results_is_never_overwritten_nor_followed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("", encoding="utf-8")
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "elsewhere")

    for name, resume, code in (
        (path, False, "results-exist"),
        (link, False, "results-exist"),
        (link, True, "results-not-writable"),
        (tmp_path / "no" / "folder", False, "results-not-writable"),
    ):
        with pytest.raises(WrongUseError) as raised:
            ResultsFile(name, resume=resume)
        assert raised.value.code == code
    assert not os.path.lexists(tmp_path / "elsewhere")


def test_a_line_that_was_cut_off_is_kept_if_it_names_its_host(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    good = json.dumps({"schema": "gpucheck/fleet-node/1", "host": "n", "outcome": "ok"})
    for cut, kept in (
        ('{"schema": "gpu', False),
        ('{"host": "cut", "out', True),
        ("x" * 9000, True),
    ):
        path.write_text(f"{good}\n" * 60 + cut, encoding="utf-8")
        file = ResultsFile(path, resume=True)
        collected = Collected()
        assert read_earlier(path, collected.add)[0] == {"n"}
        assert collected.problem_count == 0
        file.append(line("whole", Outcome.OK))
        file.close()
        assert path.read_text().splitlines()[60:-1] == ([cut] if kept else [])


@pytest.mark.parametrize("content", ["notes", "notes\n", "{}\n", json.dumps(detect("n")) + "\n"])
def test_a_file_of_something_else_is_not_continued_and_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text(content, encoding="utf-8")

    file = ResultsFile(path, resume=True)
    with pytest.raises(WrongUseError) as raised:
        read_earlier(path)
    file.close()

    assert raised.value.code == "no-results"
    assert path.read_text() == content


def test_a_run_that_ended_before_its_first_answer_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.touch()
    collected = Collected()

    assert read_earlier(path, collected.add) == (frozenset(), None)
    assert collected.documents == 0


def test_a_second_run_does_not_write_to_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = ResultsFile(path, resume=False)
    before = len(list(Path("/proc/self/fd").iterdir()))

    with pytest.raises(WrongUseError) as raised:
        ResultsFile(path, resume=True)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    first.close()
    ResultsFile(path, resume=True).close()

    assert raised.value.code == "results-in-use"


def test_answers_to_several_commands_are_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    file = ResultsFile(path, resume=False)
    file.append(line("a", Outcome.OK))
    file.append(line("b", Outcome.OK, "bench"))
    file.close()

    with pytest.raises(WrongUseError) as raised:
        read_earlier(path)
    assert raised.value.code == "mixed-results"


def test_the_times_of_a_node_are_those_of_the_help() -> None:
    (option,) = (one for one in built_command("fleet run").params if one.name == "node_timeout_s")

    said = ", ".join(f"{verb} {seconds:g}" for verb, seconds in connector.NODE_TIMEOUT_S.items())
    assert said in " ".join(option.help.split())
