"""Identity of processes, on written trees of /proc."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpucheck.drivers.command_lines import answer
from gpucheck.drivers.host.processes import (
    INITIAL_PID_NAMESPACE,
    identify,
    is_in_initial_namespace,
    memory_by_process,
    program_of,
    without_secrets,
)
from gpucheck.drivers.readings import (
    GpuReading,
    MigReading,
    ProcessIdentity,
    ProcessReading,
)

OTHER_NAMESPACE = "pid:[4026532001]"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with two users and no process."""
    (tmp_path / "etc").mkdir()
    passwd = "root:x:0:0::/:/bin/sh\nalice:x:1001:1001::/:/bin/sh\n\nbroken\n"
    (tmp_path / "etc/passwd").write_text(passwd, encoding="ascii")
    (tmp_path / "proc").mkdir()
    return tmp_path


def looked_up(pids: Iterable[int], root: Path = Path("/")) -> dict[int, ProcessIdentity]:
    """Identify processes whose command lines are read here, not in a child."""
    wanted = list(pids)
    read = answer({"command_lines": wanted, "proc": f"{root}/proc"})
    texts = {one["pid"]: one["text"] for one in read if one["text"] is not None}
    return identify(wanted, root, texts)


def in_namespace(root: Path, name: str) -> None:
    folder = root / "proc/self/ns"
    folder.mkdir(parents=True)
    (folder / "pid").symlink_to(name)


def write_process(
    root: Path,
    pid: int,
    *,
    uid: str = "1001",
    words: bytes = b"python3\0train.py\0",
    comm: bytes = b"python3\n",
    files: tuple[str, ...] | None = ("/dev/null",),
) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir()
    (folder / "comm").write_bytes(comm)
    (folder / "cmdline").write_bytes(words)
    (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\nGid:\t0\n", encoding="ascii")
    if files is not None:
        (folder / "fd").mkdir()
        for number, target in enumerate(files):
            (folder / "fd" / str(number)).symlink_to(target)


def test_a_process_of_ours(root: Path) -> None:
    in_namespace(root, INITIAL_PID_NAMESPACE)
    write_process(root, 7)

    found = looked_up([7], root)[7]

    assert (found.name, found.user, found.command, found.namespace) == (
        "python3", "alice", "python3 train.py", "own",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("uptime", "ticks", "age_s"),
    [
        ("100.50 400.00\n", 25, 100.25),
        ("100.50 400.00\n", 10050, 0.0),
        ("100.50 400.00\n", 99999, None),  # no process of this boot
        ("100.50 400.00\n", None, None),
        ("soon", 25, None),
        (None, 25, None),
    ],
)
def test_the_age_of_a_process(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    uptime: str | None,
    ticks: int | None,
    age_s: float | None,
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    write_process(root, 7)
    if ticks is not None:
        stat = f"7 (a) b) S {' '.join(['1'] * 18)} {ticks} 0\n"
        (root / "proc/7/stat").write_text(stat, encoding="ascii")
    if uptime is not None:
        (root / "proc/uptime").write_text(uptime, encoding="ascii")

    assert looked_up([7], root)[7].age_s == age_s


def test_our_own_age_is_less_than_the_machines() -> None:
    age_s = looked_up([os.getpid()])[os.getpid()].age_s

    assert age_s is not None
    assert 0 <= age_s < float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (b"a b\0c\0", "'a b' c"),
        (b"sh\0-c\0echo $HOME; rm -rf /\0", "sh -c 'echo $HOME; rm -rf /'"),
        (b"one\0\0three\0", "one '' three"),
        (b"no-end", "no-end"),
        (b"caf\xe9\0", "'caf\ufffd'"),
        (b"line\nfeed\0", "'line\nfeed'"),
        (b"", None),
        (b"\0\0", None),
    ],
)
def test_command_lines(root: Path, words: bytes, command: str | None) -> None:
    write_process(root, 7, words=words)

    found = looked_up([7], root)[7].command

    assert found == command


@pytest.mark.parametrize(
    ("uid", "user"),
    [
        ("0\t0\t0\t0", "root"),
        ("1001\t0\t0\t0", "alice"),  # the real one, not the effective
        ("4242\t0\t0\t0", "4242"),
        ("x", "x"),
        ("", None),
        ("99999999999999999999", "99999999999999999999"),
    ],
)
def test_users(root: Path, uid: str, user: str | None) -> None:
    write_process(root, 7, uid=uid)

    assert looked_up([7], root)[7].user == user


def test_a_process_that_has_ended(root: Path) -> None:
    in_namespace(root, INITIAL_PID_NAMESPACE)

    found = looked_up([7], root)[7]

    assert (found.name, found.user, found.command, found.namespace) == (None, None, None, "own")


@pytest.mark.parametrize(
    ("files", "namespace"),
    [
        (("/dev/null", "/dev/nvidia0"), "own"),
        (("/dev/nvidiactl",), "own"),
        (("/dev/null", "/home/nvidia/x", "socket:[1]"), "other"),
        ((), "other"),
        (None, "unknown"),
    ],
)
def test_in_another_namespace_only_an_open_device_is_proof(
    root: Path, files: tuple[str, ...] | None, namespace: str
) -> None:
    in_namespace(root, OTHER_NAMESPACE)
    write_process(root, 7, files=files)

    found = looked_up([7], root)[7]

    assert found.namespace == namespace
    assert (found.command is not None) == (namespace == "own")
    assert (found.user is not None) == (namespace == "own")


def test_in_another_namespace_an_absent_process_is_somewhere_else(root: Path) -> None:
    in_namespace(root, OTHER_NAMESPACE)

    assert looked_up([7], root)[7].namespace == "other"


def test_ourselves_on_the_real_system() -> None:
    here = os.getpid()

    found = looked_up([here], Path("/"))[here]

    if str(Path("/proc/self/ns/pid").readlink()) == INITIAL_PID_NAMESPACE:
        assert found.namespace == "own"
        assert found.user == pwd.getpwuid(os.getuid()).pw_name
        assert "python" in (found.command or "")
    else:
        assert found.namespace == "other"
        assert found.command is None


def test_several_at_once(root: Path) -> None:
    write_process(root, 1)
    write_process(root, 2, uid="0")

    found = looked_up([2, 1, 3], root)

    assert set(found) == {1, 2, 3}
    assert [found[pid].user for pid in (1, 2, 3)] == ["alice", "root", None]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["mysql", "--password=S3CRET", "db"], ["mysql", "--password=***", "db"]),
        (["serve", "--api-key", "hf_S3CRET", "--port", "80"],
         ["serve", "--api-key", "***", "--port", "80"]),
        (["run", "--hf-token", "S3CRET"], ["run", "--hf-token", "***"]),
        (["env", "WANDB_API_KEY=S3CRET", "python"], ["env", "WANDB_API_KEY=***", "python"]),
        (["curl", "https://anna:S3CRET@host/x"], ["curl", "https://anna:***@host/x"]),
        (["x", "--secret", "--verbose"], ["x", "--secret", "--verbose"]),
        (["x", "--token"], ["x", "--token"]),
        (["train.py", "--tokenizer", "gpt2", "--keyboard=de", "key.txt", "a=b"],
         ["train.py", "--tokenizer", "gpt2", "--keyboard=de", "key.txt", "a=b"]),
    ],
)  # fmt: skip
def test_passwords_are_masked(words: list[str], shown: list[str]) -> None:
    assert without_secrets(words) == shown


def test_a_command_line_is_read_without_its_passwords(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "7"
    folder.mkdir(parents=True)
    (folder / "comm").write_bytes(b"serve\n")
    (folder / "cmdline").write_bytes(b"serve\0--token\0S3CRET\0")

    assert looked_up([7], tmp_path)[7].command == "serve --token '***'"


# ------------------------------------------------------------------------------ memory by process


def process(pid: int, size: int | None, **changes: object) -> ProcessReading:
    return ProcessReading(pid=pid, type="compute", memory_used_bytes=size, **changes)  # type: ignore[arg-type]


def gpu(*processes: ProcessReading, **changes: object) -> GpuReading:
    return GpuReading(index=0, uuid="GPU-0", processes=processes, **changes)  # type: ignore[arg-type]


def test_each_process_on_each_gpu() -> None:
    other = GpuReading(index=1, uuid="GPU-1", processes=(process(7, 30),))

    assert memory_by_process([gpu(process(7, 10), process(8, 20)), other]) == {
        "GPU-0": {7: 10, 8: 20},
        "GPU-1": {7: 30},
    }


def test_lists_that_overlap_count_once() -> None:
    assert memory_by_process([gpu(process(7, 10), process(7, 12), process(7, None))]) == {
        "GPU-0": {7: 12}
    }


def test_missing_memory_is_none() -> None:
    assert memory_by_process([gpu(process(7, None))]) == {"GPU-0": {7: None}}


def test_an_instance_is_a_device_of_its_own() -> None:
    migs = tuple(
        MigReading(uuid=f"MIG-{n}", gpu_instance_id=n, compute_instance_id=0) for n in (1, 2)
    )
    inside = process(7, 10, gpu_instance_id=2, compute_instance_id=0)
    unknown = process(8, 20, gpu_instance_id=5, compute_instance_id=0)

    found = memory_by_process([gpu(inside, unknown, process(9, 30), mig_instances=migs)])

    assert found == {"MIG-2": {7: 10}, "GPU-0": {8: 20, 9: 30}}


@pytest.mark.parametrize(
    ("link", "initial"),
    [("pid:[4026531836]", True), ("pid:[4026532000]", False), (None, None)],
)
def test_the_initial_namespace_is_known_by_its_number(
    tmp_path: Path, link: str | None, initial: bool | None
) -> None:
    folder = tmp_path / "proc/self/ns"
    folder.mkdir(parents=True)
    if link is not None:
        (folder / "pid").symlink_to(link)

    assert is_in_initial_namespace(tmp_path) is initial


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("/opt/venv/bin/python3.11 -u train.py --lr 1", "train.py"),
        ("python -m torch.distributed.run x.py", "torch.distributed.run"),
        ("python -c 'print(1)'", "python"),
        ("bash -e /a/run.sh", "run.sh"),
        ("env CUDA_VISIBLE_DEVICES=1 ./serve --port 1", "serve"),
        ("tritonserver --model-repository=/models", "tritonserver"),
        ("an unclosed 'quote", "an"),
        ("python", "python"),
        ("", ""),
        (None, ""),
    ],
)
def test_what_a_command_line_runs(command: str | None, program: str) -> None:
    assert program_of(command) == program
