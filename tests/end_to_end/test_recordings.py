"""A machine and its snapshot give the same answers; a redacted one tells no names."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Pretend, Program, end_session
from tests.end_to_end.documents import assert_document, only_document
from tests.fakes.machine import Machine, load_machine, machine_names
from tests.hang_watch import wait_until
from tests.sampling import THOROUGH

ARGUMENTS = ("--json", "--topology", "--processes")


def without_time(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what differs between two looks at the same machine."""
    host = {**document["host"], "recorded": None}
    return {key: value for key, value in document.items() if key != "time"} | {"host": host}


def without_file(text: bytes, file: Path) -> bytes:
    """Return what was said with commands that ask the machine and not its recording."""
    return text.replace(f" --from {file}".encode(), b"")


def take(program: Program, env: dict[str, str], file: Path, *arguments: str) -> Any:
    """Record a machine to a file, and return the document in it."""
    ended = program("snapshot", file, "--replace", *arguments, env=env)
    assert ended.code == 0
    assert ended.stdout == b""
    text = file.read_text(encoding="ascii")
    document = only_document(text)
    assert_document(document, "snapshot", 0)
    return document


#: What is visible matters by the kind of device: several alike, instances, a lost one, unlike ones.
SEEN = [
    *(pytest.param(name, {}, id=f"{name}-unset") for name in machine_names()),
    *(
        pytest.param(name, {"CUDA_VISIBLE_DEVICES": "1,0"}, id=f"{name}-set")
        for name in ("h100x8", "a100-mig", "gpu-lost", "mixed-order")
    ),
]


@pytest.mark.parametrize(("name", "variables"), SEEN)
def test_a_snapshot_answers_as_the_machine(
    pretend: Pretend, program: Program, tmp_path: Path, name: str, variables: dict[str, str]
) -> None:
    env = pretend(name) | variables
    file = tmp_path / "machine.json"
    take(program, env, file)

    live = program("list", *ARGUMENTS, env=env)
    recorded = program("list", *ARGUMENTS, "--from", file, env={})

    found, told = live.document(), recorded.document()
    for here, there in zip(found["result"]["gpus"], told["result"]["gpus"], strict=True):
        # Who has a card open is looked for on a live machine only.
        if here.pop("holders") is not None:
            assert there["unavailable"].pop("holders") == "not recorded"
        assert there.pop("holders") is None
    assert recorded.code == live.code
    assert without_time(told) == without_time(found)
    assert without_file(recorded.stderr, file) == live.stderr


def test_an_error_speaks_of_the_recorded_machine(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "machine.json"
    take(program, pretend("t4"), file)

    ended = program("list", "--json", "--gpu", "9", "--from", file, env={})

    document = ended.document()
    assert (ended.code, document["error"]["code"]) == (1, "no-such-gpu")
    assert document["host"]["name"] == "t4"
    assert document["host"]["driver_version"] == "550.163.01"


@pytest.mark.parametrize("name", ["a100-mig", "gpu-lost"])
def test_every_format_from_a_snapshot(
    pretend: Pretend, program: Program, tmp_path: Path, name: str
) -> None:
    wide = {"COLUMNS": "300"}  # the name of the file makes lines longer
    env = pretend(name) | wide
    file = tmp_path / "machine.json"
    take(program, env, file)

    for arguments in (
        ("list",),
        ("list", "--processes"),
        ("list", "--topology"),
        ("list", "--format", "csv"),
        ("list", "--ask-driver", "--visible"),
    ):
        live = program(*arguments, env=env)
        recorded = program(*arguments, "--from", file, env=wide)
        assert without_file(recorded.stdout, file) == live.stdout


def test_the_snapshot_brings_its_own_environment(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "machine.json"
    take(program, pretend("h100x8") | {"CUDA_VISIBLE_DEVICES": "3"}, file)

    ended = program("list", "--json", "--from", file, env={"CUDA_VISIBLE_DEVICES": "5"})

    visibility = ended.document()["result"]["visibility"]
    assert visibility["cuda_visible_devices"] == "3"


def test_only_variables_of_gpu_programs_are_recorded(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "machine.json"
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "s3cret-1",
        "GITHUB_TOKEN": "s3cret-2",
        "PASSWORD": "s3cret-3",
        "PATH_TO_SECRET": "s3cret-4",
    }

    document = take(program, pretend("t4") | secrets | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, file)

    assert document["result"]["environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "s3cret" not in file.read_text(encoding="ascii")


def test_a_snapshot_asks_nobody(
    pretend: Pretend, program: Program, tmp_path: Path, call_log: Path
) -> None:
    env = pretend("mixed-order")
    file = tmp_path / "machine.json"
    take(program, env, file)

    arguments = ("list", "--json", "--ask-driver", "--from", file)
    program(*arguments, env=env | {"FAKE_CALL_LOG": str(call_log)})

    assert not call_log.exists()


def test_what_was_not_recorded_is_said(pretend: Pretend, program: Program, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    document = take(program, pretend("mixed-order"), file)
    document["result"]["cuda"] = None
    document["result"]["kernel"] = None
    document["result"]["processes"] = []
    file.write_text(json.dumps(document), encoding="ascii")

    rows = program("list", "--json", "--from", file, env={}).document()["result"]["gpus"]
    document["result"]["nvml"] = None
    file.write_text(json.dumps(document), encoding="ascii")
    nothing = program("list", "--json", "--from", file, env={})

    assert [row["cuda_index"] for row in rows] == [None, None]
    assert "the snapshot did not record it" in rows[0]["unavailable"]["cuda_index"]
    assert "the snapshot did not record it" in rows[0]["unavailable"]["numa_node"]
    assert nothing.code == 3
    assert nothing.document()["error"]["code"] == "nvml-not-recorded"


def test_a_hung_machine_is_recorded_within_one_deadline(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "machine.json"

    ended = program("snapshot", file, "--deadline", "1", env=pretend("hung"))

    assert ended.code == 0
    document = only_document(file.read_text(encoding="ascii"))
    failure = document["result"]["nvml"]["failure"]
    assert failure["code"] == "driver-not-answering"
    assert "within 1 s" in failure["message"]
    assert document["result"]["cuda"] is None


def test_a_snapshot_goes_to_stdout_without_a_file(pretend: Pretend, program: Program) -> None:
    ended = program("snapshot", env=pretend("t4"))

    assert ended.code == 0
    assert ended.document("snapshot")["result"]["nvml"]["gpu_count"] == 1


def test_a_snapshot_of_a_snapshot_is_the_same(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    first = take(program, pretend("a100-mig"), tmp_path / "first.json")

    again = program("snapshot", "--from", tmp_path / "first.json", env={}).document("snapshot")

    assert again["result"] == first["result"]


# ---------------------------------------------------------------------------------------- redacted


def names_of(machine: Machine) -> set[str]:
    """Return every name by which this very machine, its devices or its users could be found."""
    names = {machine.name}
    for gpu in machine.gpus:
        names |= {gpu.uuid, *([gpu.serial] if gpu.serial else [])}
        names |= {instance.uuid for instance in gpu.mig}
        for process in gpu.processes:
            names |= {process.user, process.name or "", *process.command}
            names |= {Path(word).name for word in process.command}
    uuids = {name for name in names if name.startswith(("GPU-", "MIG-"))}
    names |= {uuid[4:] for uuid in uuids} | {uuid[4:].replace("-", "") for uuid in uuids}
    # The first group of a UUID is what people abbreviate it to.
    names |= {uuid[4:12] for uuid in uuids}
    # One or two letters are in every text, and CUDA is in our own sentences.
    return {name for name in names if len(name) > 2 and name != "cuda"}


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text of a document; the keys are ours."""
    if isinstance(value, dict):
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, str):
        yield value


def told(content: str, secrets: set[str]) -> list[str]:
    """Return which of the names a document tells."""
    everything = "\n".join(texts_in(json.loads(content))).lower()
    return sorted(secret for secret in secrets if secret.lower() in everything)


def visible_place(document: dict[str, Any]) -> list[Any]:
    """Return what is visible as positions: what redaction must leave as it is."""
    return [
        [row["index"], row["cuda_index"], row["visible"],
         [instance["cuda_index"] for instance in row["mig"]["instances"]]]
        for row in document["result"]["gpus"]
    ]  # fmt: skip


def selections(machine: Machine) -> dict[str, str | None]:
    """Return texts of CUDA_VISIBLE_DEVICES that name devices in every way."""
    first, last = machine.gpus[0], machine.gpus[-1]
    instances = [instance.uuid for instance in first.mig]
    return {
        "unset": None,
        "empty": "",
        "ordinals": "1,0",
        "uuids": f"{last.uuid},{first.uuid}",
        "prefix": last.uuid[:13],
        "ambiguous": "GPU-",
        "unknown": f"GPU-{'12345678'}-aaaa,{first.uuid}",
        "twice": f"{first.uuid},{first.uuid}",
        "twice by prefix": f"{first.uuid},{first.uuid[:14]}",
        "word": "my-secret-cluster-partition",
        "upper case": first.uuid.upper(),
        "blanks": f" {first.uuid}",
        **{f"instance {position}": uuid for position, uuid in enumerate(instances)},
        **({"legacy": f"MIG-{first.uuid}/5/0"} if instances else {}),
    }


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("a100-mig", ("unset", "uuids", "prefix", "ambiguous", "instance 0", "legacy")),
        ("mixed-order", ("ordinals", "upper case")),
        ("h100x8", ("twice by prefix", "unknown")),
        ("gpu-lost", ("uuids",)),
        ("busy", ("word",)),
    ],
)
def test_a_redacted_snapshot_tells_no_names(
    pretend: Pretend, program: Program, tmp_path: Path, name: str, kinds: tuple[str, ...]
) -> None:
    machine = load_machine(name)
    env = pretend(machine)
    file = tmp_path / "machine.json"

    for kind, text in selections(machine).items():
        if kind not in kinds and not THOROUGH:
            continue
        variables = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
        take(program, env | variables, file, "--redact")

        secrets = names_of(machine) | {"my-secret-cluster-partition"}
        assert told(file.read_text(encoding="ascii"), secrets) == [], kind
        live = program("list", "--json", env=env | variables).document()
        recorded = program("list", "--json", "--from", file, env={}).document()
        assert visible_place(recorded) == visible_place(live), kind
        decided = recorded["result"]["visibility"]["decided_by"]
        assert decided == live["result"]["visibility"]["decided_by"], kind


def test_redaction_keeps_what_is_measured(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    env = pretend("busy")
    take(program, env, tmp_path / "plain.json")
    take(program, env, tmp_path / "redacted.json", "--redact")

    plain = program("list", *ARGUMENTS, "--from", tmp_path / "plain.json", env={}).document()
    redacted = program("list", *ARGUMENTS, "--from", tmp_path / "redacted.json", env={}).document()

    replaced = {"uuid", "serial", "name", "user", "command", "mig_uuid", "visible"}

    def measured(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: measured(item) for key, item in value.items() if key not in replaced}
        return [measured(item) for item in value] if isinstance(value, list) else value

    assert measured(redacted["result"]) == measured(plain["result"])
    # The same name gets the same stand-in, another name another one.
    for field in ("user", "command"):
        pairs = {
            (one[field], two[field])
            for first, second in zip(
                plain["result"]["gpus"], redacted["result"]["gpus"], strict=True
            )
            for one, two in zip(first["processes"], second["processes"], strict=True)
        }
        assert len(pairs) > 3
        assert len({one for one, _ in pairs}) >= len({two for _, two in pairs})
    users = {two["user"] for row in redacted["result"]["gpus"] for two in row["processes"]}
    assert all(user is None or re.fullmatch(r"user-\d+", user) for user in users)
    assert redacted["host"]["name"] == "host"


def test_redacting_a_recording_afterwards(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    machine = load_machine("h100x8")
    take(program, pretend(machine), tmp_path / "plain.json")

    ended = program("snapshot", "--redact", "--from", tmp_path / "plain.json", env={})

    assert ended.code == 0
    assert told(ended.text, names_of(machine)) == []


# ------------------------------------------------------------------------------------------- files


def test_a_snapshot_is_written_in_one_step(
    pretend: Pretend, program: Program, tmp_path: Path, call_log: Path
) -> None:
    file = tmp_path / "old" / "machine.json"
    file.parent.mkdir()
    file.write_text("old", encoding="ascii")
    env = pretend("hung") | {"FAKE_CALL_LOG": str(call_log)}

    words = ("snapshot", file, "--replace", "--deadline", "600")
    with program.start(*words, env=env) as process:
        wait_until(call_log.exists)
        assert file.read_text(encoding="ascii") == "old"
        end_session(process.pid)
        process.wait()

    assert file.read_text(encoding="ascii") == "old"
    assert list(file.parent.iterdir()) == [file]


def test_a_snapshot_through_a_pipe(pretend: Pretend, program: Program) -> None:
    env = pretend("t4")
    with program.start("snapshot", env=env) as recorder:
        assert recorder.stdout is not None
        arguments = ("list", "--json", "--from", "/dev/stdin")
        with program.start(*arguments, env={}, stdin=recorder.stdout) as reader:
            stdout, _ = reader.communicate()

    assert_document(only_document(stdout.decode()), "list", 0)
    assert reader.returncode == 0
    assert isinstance(recorder, subprocess.Popen)


def test_what_was_recorded_is_said_on_stderr(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "machine.json"

    loud = program("snapshot", file, env=pretend("t4"))
    quiet = program("snapshot", file, "--quiet", "--replace", env=pretend("t4"))

    *lines, names = loud.said.splitlines()
    assert lines == [
        f"Recorded t4 in {file}: driver 550.163.01, Tesla T4, no processes on it.",
        "Look at it, on any machine:",
        f"    gpucheck detect --from {file}",
    ]
    assert names.endswith("make it with --redact.")
    assert quiet.said == ""


def test_a_recording_is_not_replaced_by_itself(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "machine.json"
    file.write_text("precious", encoding="utf-8")
    env = pretend("t4")

    ended = program("snapshot", file, env=env)

    assert ended.code == 2
    assert "exists already." in ended.said
    assert "--replace" in ended.said
    assert file.read_text(encoding="utf-8") == "precious"
    assert program("snapshot", file, "--replace", env=env).code == 0
    assert file.read_text(encoding="utf-8").startswith("{")
