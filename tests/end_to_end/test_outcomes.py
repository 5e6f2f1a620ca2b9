"""Whatever happens, --json prints exactly one document, stderr one sentence, and the code fits."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Ended, Pretend, Program
from tests.end_to_end.documents import assert_document, only_document
from tests.end_to_end.sessions import until_it_waits
from tests.hang_watch import wait_until
from tests.sampling import THOROUGH


def assert_said(ended: Ended, error: dict[str, Any]) -> None:
    """Check that stderr has the error's one sentence and its steps, and nothing else."""
    first, *steps = ended.said.splitlines()
    assert first == f"gpucheck: {error['message']}"
    assert steps == [f"  {step}" for step in error["remedy"]]
    assert error["message"].strip().endswith((".", "?"))


def wrong_use(ended: Ended, name: str = "list") -> dict[str, Any]:
    """Return the error of a command line that could not be used."""
    assert ended.code == 2
    document = ended.document(name)
    assert document["status"] == "unknown"
    assert document["result"] is None
    assert_said(ended, document["error"])
    error: dict[str, Any] = document["error"]
    return error


# ---------------------------------------------------------------------------------- command lines


@pytest.mark.parametrize(
    ("word", "document"),
    [
        *[(word, "error") for word in ("nonsense", "lst", "List")],
        ("--nonsense", "detect"),  # an option alone is one of the short answer
    ],
)
def test_unknown_commands(pretend: Pretend, program: Program, word: str, document: str) -> None:
    ended = program(word, "--json", env=pretend("t4"))

    assert word in wrong_use(ended, document)["message"]


def test_unknown_commands_without_json(pretend: Pretend, program: Program) -> None:
    ended = program("nonsense", env=pretend("t4"))

    assert (ended.code, ended.stdout) == (2, b"")
    assert ended.said.startswith("gpucheck: ")
    assert "Traceback" not in ended.said


def test_no_such_gpu_is_a_bad_answer(pretend: Pretend, program: Program) -> None:
    ended = program("list", "--json", "--gpu", "7", env=pretend("t4"))

    document = ended.document()
    assert ended.code == 1
    assert "There is no GPU '7'" in document["error"]["message"]
    assert_said(ended, document["error"])


# ---------------------------------------------------------------------------------- bad recordings


def recorded(program: Program, env: dict[str, str]) -> Any:
    """Return a snapshot document."""
    return program("snapshot", env=env).document("snapshot")


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("null", "is not a JSON object"),
        ("[]", "is not a JSON object"),
        ("\x00\xff", "is not JSON"),
        ('{"schema": "gpucheck/list/1"}', "its schema is 'gpucheck/list/1'"),
        ('{"schema": "gpucheck/snapshot/2"}', "its schema is 'gpucheck/snapshot/2'"),
        ('{"schema": ["gpucheck/snapshot/1"]}', "its schema is"),
        ("{}", "it has no schema"),
        ('{"schema": "gpucheck/snapshot/1"}', "result: must be an object"),
        ('{"schema": "gpucheck/snapshot/1", "result": null}', "result: must be an object"),
        ('{"schema": "gpucheck/snapshot/1", "result": {}}', "result.time: is missing"),
        ('{"schema": "gpucheck/snapshot/1", "result": ' + nested(99) + "}", "must be an object"),
        ('{"schema": ' + nested(99) + "}", "its schema is"),
        (nested(100_000), "is not JSON"),
        ('{"a":' * 100 + "1" + "}" * 100, "it has no schema"),
        ('{"schema": "gpucheck/snapshot/1", "result": 1e999}', "must be an object"),
        ('{"schema": "' + "x" * 100_000 + '"}', "its schema is"),
    ],
    ids=str,
)
def test_files_that_are_no_snapshot(
    program: Program, tmp_path: Path, content: str, words: str
) -> None:
    file = tmp_path / "snapshot.json"
    file.write_text(content, encoding="latin-1")

    ended = program("list", "--json", "--from", file, env={})

    error = wrong_use(ended)
    assert error["code"] == "snapshot-unusable"
    assert words in error["message"]
    assert str(file) in error["message"]
    assert len(error["message"]) < 500 + len(str(file))


def test_a_missing_file_and_a_directory(program: Program, tmp_path: Path) -> None:
    missing = wrong_use(program("list", "--json", "--from", tmp_path / "none", env={}))
    folder = wrong_use(program("list", "--json", f"--from={tmp_path}", env={}))

    assert "No such file or directory" in missing["message"]
    assert "it is a directory" in folder["message"]


def test_a_file_that_is_too_large(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "huge.json"
    with file.open("wb") as handle:
        handle.truncate(1 << 40)  # takes no room

    error = wrong_use(program("list", "--json", "--from", file, env={}))

    assert "it is larger than 8 MiB" in error["message"]


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/stdin"])
def test_devices_are_no_snapshots(program: Program, path: str) -> None:
    # /dev/zero has no end: reading it whole would take all memory.
    wrong_use(program("list", "--json", "--from", path, env={}))


DAMAGE: dict[str, tuple[tuple[str | int, ...], object, str]] = {
    "text for a number": (
        ("nvml", "gpus", 0, "temperature_c"), "hot",
        "result.nvml.gpus[0].temperature_c: must be a whole number",
    ),
    "a number for text": (
        ("nvml", "gpus", 1, "uuid"), 7, "result.nvml.gpus[1].uuid: must be text"
    ),
    "a boolean for a number": (
        ("nvml", "gpus", 0, "index"), True, "result.nvml.gpus[0].index: must be a whole number"
    ),
    "a fraction for a count": (
        ("nvml", "gpu_count"), 1.5, "result.nvml.gpu_count: must be a whole number"
    ),
    "an object for a list": (("nvml", "gpus"), {}, "result.nvml.gpus: must be a list"),
    "a list for an object": (("host",), [], "result.host: must be an object"),
    "a number for a reason": (
        ("nvml", "gpus", 0, "unavailable"), {"fan_percent": 3},
        "result.nvml.gpus[0].unavailable.fan_percent: must be text",
    ),
    "a number for a variable": (
        ("environment",), {"CUDA_VISIBLE_DEVICES": 0},
        "result.environment.CUDA_VISIBLE_DEVICES: must be text",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_values_are_named_by_their_path(
    pretend: Pretend, program: Program, tmp_path: Path, kind: str
) -> None:
    place, value, words = DAMAGE[kind]
    document = recorded(program, pretend("mixed-order"))
    at = document["result"]
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    file = tmp_path / "damaged.json"
    file.write_text(json.dumps(document), encoding="utf-8")

    error = wrong_use(program("list", "--json", "--from", file, env={}))

    assert f"is damaged: {words}" in error["message"]


def paths(value: Any, here: tuple[str | int, ...] = ()) -> Any:
    """Yield the place of every value in a document."""
    yield here
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*here, key))
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield from paths(item, (*here, position))


def test_every_value_of_a_snapshot_damaged_in_turn(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    """Whatever one value becomes: a listing, or one sentence that says what is wrong."""
    from gpucheck.drivers.recorded import RecordedProbes, read_snapshot
    from gpucheck.inventory.inventory import take_inventory
    from gpucheck.report.errors import WrongUseError

    document = recorded(program, pretend("a100-mig"))
    file = tmp_path / "damaged.json"
    outcomes = {"listed": 0, "refused": 0}
    values = (None, "x", -1, 1e308, True, [], {}, [None], {"x": "y"}, 2**70, "")
    for place in list(paths(document["result"]))[1:]:
        # Each place with one value, and over the places with all of them.
        for value in values if THOROUGH else random.Random(str(place)).sample(values, 1):
            changed = json.loads(json.dumps(document))
            at = changed["result"]
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = value
            file.write_text(json.dumps(changed), encoding="utf-8")
            refusal = None
            try:
                probes = RecordedProbes(read_snapshot(file))
            except WrongUseError as error:
                refusal = error.message
            if refusal is not None:
                assert "is damaged: result" in refusal
                outcomes["refused"] += 1
                continue
            answer = take_inventory(probes, ask_driver=True, topology=True)
            assert answer.exit_code in (0, 3, 4), place
            outcomes["listed"] += 1
    assert min(outcomes.values()) > (200 if THOROUGH else 30)


# ------------------------------------------------------------------------------ watch and interrupt


def test_watch_prints_a_document_a_line(pretend: Pretend, program: Program) -> None:
    with program.start("list", "--json", "--watch", "0.1", env=pretend("a100-mig")) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        lines += [line.decode() for line in process.stdout.readlines()]
        assert process.stderr is not None
        said = process.stderr.read()
        code = process.wait()

    assert code == 0
    assert said == b""
    for line in lines:
        assert_document(only_document(line), "list", 0)


def test_watch_repeats_the_heading_of_csv_never(pretend: Pretend, program: Program) -> None:
    arguments = ("list", "--format", "csv", "--select", "index,name", "--watch", "0.1")
    with program.start(*arguments, env=pretend("t4")) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        process.send_signal(signal.SIGINT)
        process.communicate()

    assert lines == [b"index,name\n", b"0,Tesla T4\n", b"0,Tesla T4\n", b"0,Tesla T4\n"]
    assert process.returncode == 0


def test_watch_interrupted_by_the_terminal(pretend: Pretend, program: Program) -> None:
    """Ctrl-C reaches the whole foreground: the child too."""
    with program.start("list", "--json", "--watch", "0.1", env=pretend("h100x8")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(3):
            lines = [process.stdout.readline()]
        os.killpg(process.pid, signal.SIGINT)
        lines += process.stdout.readlines()
        assert process.stderr is not None
        said = process.stderr.read()
        code = process.wait()

    assert (code, said) == (0, b"")
    for line in lines:
        assert_document(only_document(line.decode()), "list", 0)


def test_watch_of_a_driver_that_goes_away_and_comes_back(
    pretend: Pretend, program: Program
) -> None:
    env = pretend("t4")
    with program.start("list", "--json", "--watch", "0.1", env=env) as process:
        assert process.stdout is not None
        first = only_document(process.stdout.readline().decode())
        (child,) = [
            int(pid)
            for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ]
        os.kill(child, signal.SIGKILL)
        codes = (only_document(line.decode())["exit_code"] for line in process.stdout)
        # What was said before it is still in the pipe.
        assert 3 in codes
        assert 0 in codes
        process.send_signal(signal.SIGINT)
        process.communicate()

    assert first["exit_code"] == 0
    assert process.returncode == 0


@pytest.mark.parametrize("whole_group", [False, True], ids=["alone", "foreground"])
@pytest.mark.parametrize("command", ["list", "snapshot"])
def test_an_interrupt_while_the_driver_hangs(
    pretend: Pretend, program: Program, call_log: Path, command: str, whole_group: bool
) -> None:
    env = pretend("hung") | {"FAKE_CALL_LOG": str(call_log)}
    with program.start(command, "--json", "--deadline", "600", env=env) as process:
        wait_until(call_log.exists)
        until_it_waits(process.pid)  # the imports are over
        if whole_group:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()

    document = only_document(stdout.decode())
    assert process.returncode == 130
    assert_document(document, command, 130)
    assert document["error"]["code"] == "interrupted"
    assert stderr == b"gpucheck: interrupted\n"


@pytest.mark.parametrize("delay_ms", range(0, 200, 20))
def test_an_interrupt_at_any_moment(pretend: Pretend, program: Program, delay_ms: int) -> None:
    """From the first line of ours on; before that it is Python that is interrupted."""
    env = pretend("hung") | {"PYTHONVERBOSE": ""}
    with program.start("list", "--json", "--deadline", "600", env=env) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not children.read_text():
            time.sleep(0.001)
        time.sleep(delay_ms / 1000)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()

    # Python ends itself by the signal, which a shell shows as 130 too, if it came while a text
    # was being evaluated (as for each named tuple), even where the interrupt was answered.
    assert process.returncode in (130, -signal.SIGINT)
    assert stderr == b"gpucheck: interrupted\n"
    assert only_document(stdout.decode())["exit_code"] == 130


# ------------------------------------------------------------------------------------- all outcomes


@pytest.mark.parametrize(
    ("machine", "arguments", "code"),
    [
        ("h100x8", (), 0),
        ("gpu-lost", (), 0),
        ("gpu-lost", ("--strict",), 1),
        ("h100x8", ("--strict",), 0),
        ("t4", ("--gpu", "9"), 1),
        ("t4", ("--bad",), 2),
        ("hung", ("--deadline", "0.5"), 3),
        ("hung", ("--deadline", "0.5", "--strict"), 1),
        ("no-driver", (), 4),
        ("no-driver", ("--strict",), 4),
        ("driver-not-loaded", ("--topology", "--processes"), 4),
        ("h100x8", ("--user", "nobody-at-all"), 0),
        ("h100x8", ("--user", "alice", "--gpu", "0"), 0),
        ("a100-mig", ("--visible",), 0),
        ("h100x8", ("--sort", "-temperature_c"), 0),
        ("h100x8", ("--quiet",), 0),
        ("h100x8", ("-v",), 0),
    ],
)
def test_exit_codes(
    pretend: Pretend, program: Program, machine: str, arguments: tuple[str, ...], code: int
) -> None:
    ended = program("list", "--json", *arguments, env=pretend(machine))

    assert ended.code == code
    ended.document()


def test_a_library_that_cannot_be_loaded_is_not_called_missing(
    program: Program, pretend: Pretend, tmp_path: Path
) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    env = pretend("h100x8") | {"LD_LIBRARY_PATH": str(tmp_path)}

    error = program("list", "--json", env=env).document("list")["error"]

    assert error["code"] == "nvml-library-not-found"
    assert "libnvidia-ml.so.1 cannot be loaded: " in error["message"]
    assert "file too short" in error["message"]
