"""Pipes, terminals, locales and files: what the program does where it writes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import stat
import struct
import subprocess
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import drop_root_rights
from tests.end_to_end.conftest import Ended, Pretend, Program
from tests.end_to_end.documents import assert_document, only_document
from tests.fakes.machine import load_machine

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MACHINES = ("h100x8", "a100-mig", "gpu-lost", "mixed-order", "wsl2", "busy", "old-driver")


# ------------------------------------------------------------------------------------------ pipes


@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("snapshot", "--redact")])
def test_a_reader_that_leaves_early(
    pretend: Pretend, program: Program, arguments: tuple[str, ...]
) -> None:
    read_end, write_end = os.pipe()
    with program.start(*arguments, env=pretend("h100x8", gpus=64), stdout=write_end) as process:
        os.close(write_end)
        os.close(read_end)  # before anything was written: `| head -0`
        _, stderr = process.communicate()

    assert stderr == b""
    assert process.returncode == 0


def test_head_of_a_long_report(pretend: Pretend, program: Program) -> None:
    # More than a pipe holds, so that the writer meets the closed end in the middle.
    env = pretend("h100x8", gpus=64)
    with program.start("snapshot", "--redact", env=env) as process:
        assert process.stdout is not None
        head = process.stdout.read(10)
        process.stdout.close()
        assert process.stderr is not None
        stderr = process.stderr.read()
        process.wait()

    assert head == b'{"schema":'
    assert stderr == b""
    assert process.returncode == 0


def test_a_watch_whose_reader_leaves(pretend: Pretend, program: Program) -> None:
    with program.start("list", "--watch", "0.1", "--json", env=pretend("t4")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        stderr = process.stderr.read()
        process.wait()

    assert stderr == b""
    assert process.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        *(("list", "--format", name) for name in ("table", "json", "csv")),
        *(("--help",), ("bench", "--help"), ("help", "profile")),
    ],
    ids=" ".join,
)
def test_a_full_device_is_one_sentence(
    pretend: Pretend, program: Program, words: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = program(*words, env=pretend("t4"), stdout=full)

    assert ended.code == 2
    assert "Traceback" not in ended.said
    assert "No space left on device" in ended.said
    assert len(ended.said.splitlines()) <= 2


def test_a_failure_on_a_full_device_keeps_its_code(pretend: Pretend, program: Program) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = program("place", "/gpu:99", "--json", env=pretend("t4"), stdout=full)

    assert ended.code == 1
    assert "Traceback" not in ended.said
    assert "/gpu:99" in ended.said
    assert "No space left on device" in ended.said


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 1, 2)], ids=str)
def test_closed_streams(
    pretend: Pretend, program: Program, tmp_path: Path, closed: tuple[int, ...]
) -> None:
    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    report = tmp_path / "report.json"
    arguments = ("list", "--json", "--output", report)

    ended = program(*arguments, env=pretend("t4"), preexec_fn=close)

    # With the report in a file nothing needs the streams; nothing of it may land in the file.
    assert ended.code == 0
    assert_document(only_document(report.read_text(encoding="utf-8")), "list", 0)
    assert ended.stdout == b""
    assert "Traceback" not in ended.said


@pytest.mark.parametrize("name", ["hung", "no-driver", "gpu-lost"])
def test_a_closed_stderr_swallows_what_is_said(
    pretend: Pretend, program: Program, name: str
) -> None:
    arguments = ("list", "--json", "--deadline", "1")

    ended = program(*arguments, env=pretend(name), preexec_fn=lambda: os.close(2))

    ended.document()
    assert ended.code in (0, 3, 4)


@pytest.mark.parametrize("format_", ["table", "json", "csv"])
def test_a_closed_stdout_without_a_file(pretend: Pretend, program: Program, format_: str) -> None:
    arguments = ("list", "--format", format_)

    ended = program(*arguments, env=pretend("t4"), preexec_fn=lambda: os.close(1))

    assert ended.code == 2
    assert "Traceback" not in ended.said
    assert "closed" in ended.said


# --------------------------------------------------------------------------------- colour and width


class Terminal:
    """A pseudo terminal on which a command runs."""

    def __init__(self, columns: int) -> None:
        self._ours, self.theirs = pty.openpty()
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, size)
        settings = termios.tcgetattr(self.theirs)
        settings[1] &= ~termios.OPOST  # no carriage returns before the line ends
        termios.tcsetattr(self.theirs, termios.TCSANOW, settings)
        self._seen: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._ours, 65536)
            except OSError:  # EIO: the last writer is gone
                return
            self._seen.append(chunk)

    def finish(self) -> str:
        """Return what was written, after the command has ended."""
        os.close(self.theirs)
        self._reader.join()
        os.close(self._ours)
        return b"".join(self._seen).decode("utf-8")


@pytest.fixture
def on_terminal(program: Program) -> Callable[..., tuple[str, int]]:
    """Run a command on a terminal and return what it wrote there, and its exit code."""

    def run(*arguments: str, env: dict[str, str], columns: int = 100) -> tuple[str, int]:
        terminal = Terminal(columns)
        variables = {"TERM": "xterm-256color"} | env
        ended = program(*arguments, env=variables, stdout=terminal.theirs)
        return terminal.finish(), ended.code

    return run


def without_colour(text: str) -> str:
    """Return the text alone; a coloured line may end in blanks."""
    return "".join(f"{line.rstrip()}\n" for line in ANSI.sub("", text).splitlines())


def test_colour_on_a_terminal(
    pretend: Pretend, on_terminal: Callable[..., tuple[str, int]]
) -> None:
    env = pretend("gpu-lost")

    colored, _ = on_terminal("list", env=env)
    plain, _ = on_terminal("list", env=env | {"NO_COLOR": "1"})
    dumb, _ = on_terminal("list", env=env | {"TERM": "dumb"})

    assert ANSI.search(colored)
    assert not ANSI.search(plain)
    assert not ANSI.search(dumb)
    assert without_colour(colored) == plain


def test_colour_in_a_pipe(pretend: Pretend, program: Program, tmp_path: Path) -> None:
    env = pretend("gpu-lost")
    report = tmp_path / "report.txt"

    plain = program("list", env=env).text
    forced = program("list", env=env | {"FORCE_COLOR": "1"}).text
    refused = program("list", env=env | {"FORCE_COLOR": "1", "NO_COLOR": "1"}).text
    json_text = program("list", "--json", env=env | {"FORCE_COLOR": "1"}).text
    program("list", "--output", report, env=env | {"FORCE_COLOR": "1"})

    assert not ANSI.search(plain)
    assert ANSI.search(forced)
    assert without_colour(forced) == plain
    assert refused == plain
    assert "\x1b" not in json_text
    assert report.read_text(encoding="utf-8") == plain


@pytest.mark.parametrize("name", ["a100-mig", "busy"])
def test_no_line_is_wider_than_the_terminal(pretend: Pretend, program: Program, name: str) -> None:
    env = pretend(name) | {"COLUMNS": "20"}

    for arguments in (("list", "--processes"), ("list", "--topology")):
        ended = program(*arguments, env=env)

        assert ended.code == 0
        assert [line for line in ended.text.splitlines() if len(line) > 20] == []


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("name", MACHINES)
def test_a_gpu_is_one_row_of_the_table(
    pretend: Pretend, program: Program, name: str, columns: int
) -> None:
    machine = load_machine(name)
    env = pretend(machine) | {"COLUMNS": str(columns)}

    lines = program("list", env=env).text.splitlines()

    rows = [line for line in lines if re.match(r" *!?\d+ +(\d+|-) ", line)]
    assert [int(row.split()[0].removeprefix("!")) for row in rows] == list(range(len(machine.gpus)))
    instances = [line for line in lines if re.match(r" *\d+:\d+ .*MIG ", line)]
    assert len(instances) == sum(len(gpu.mig) for gpu in machine.gpus)
    # Nothing stands between them: none is folded into two.
    first = lines.index(rows[0])
    assert set(lines[first : first + len(rows) + len(instances)]) == {*rows, *instances}


def test_the_terminal_decides_the_width(
    pretend: Pretend, on_terminal: Callable[..., tuple[str, int]]
) -> None:
    env = pretend("h100x8") | {"NO_COLOR": "1"}

    narrow, _ = on_terminal("list", env=env, columns=40)
    wide, _ = on_terminal("list", env=env, columns=160)

    assert max(map(len, narrow.splitlines())) <= 40
    assert 80 < max(map(len, wide.splitlines())) <= 160


# ------------------------------------------------------------------------------------------ locales

LOCALES: dict[str, dict[str, str]] = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "ascii-strict": {"PYTHONIOENCODING": "ascii:strict"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "POSIX": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.mark.parametrize("locale", LOCALES)
def test_locales_without_unicode(pretend: Pretend, program: Program, locale: str) -> None:
    env = pretend("busy") | LOCALES[locale]
    others = [("list", "--topology"), ("list", "--format", "csv")] if locale == "C" else []

    for arguments in (("list", "--processes"), *others):
        ended = program(*arguments, env=env)

        assert ended.code == 0
        assert ended.stdout
        assert ended.stdout.isascii()
        assert b"Traceback" not in ended.stderr
    json_ended = program("list", "--json", env=env)
    assert json_ended.stdout.isascii()
    json_ended.document()


def test_a_name_outside_the_locale(pretend: Pretend, program: Program) -> None:
    machine = load_machine("t4")
    machine = machine.with_gpu(0, name="Téslα T4")

    unicode_text = program("list", env=pretend(machine)).text
    ascii_bytes = program("list", env=pretend(machine) | LOCALES["ascii"]).stdout
    document = program("list", "--json", env=pretend(machine) | LOCALES["ascii"]).document()

    assert "Téslα T4" in unicode_text
    assert rb"T\xe9sl\u03b1 T4" in ascii_bytes
    assert document["result"]["gpus"][0]["name"] == "Téslα T4"


# -------------------------------------------------------------------------------------------- files


def assert_refused(ended: Ended, folder: Path) -> None:
    """Check that the report was refused in one sentence, with nothing written."""
    document = ended.document()
    assert ended.code == 2
    assert document["error"]["code"] == "output-not-writable"
    assert document["result"] is None
    assert ended.said.startswith("gpucheck: The report cannot be written to ")
    assert not [path for path in folder.rglob("*") if path.suffix == ".tmp"]


@pytest.mark.parametrize("place", ["missing/report.json", "file/report.json", "folder", "folder/"])
def test_places_where_no_report_can_be_written(
    pretend: Pretend, program: Program, call_log: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("kept", encoding="ascii")
    (tmp_path / "folder").mkdir()
    env = pretend("t4") | {"FAKE_CALL_LOG": str(call_log)}

    ended = program("list", "--json", "--output", place, env=env, cwd=tmp_path)

    assert_refused(ended, tmp_path)
    assert (tmp_path / "file").read_text(encoding="ascii") == "kept"
    assert sorted(path.name for path in tmp_path.iterdir() if path != call_log) == [
        "file", "folder",
    ]  # fmt: skip


def test_a_file_system_that_is_read_only(pretend: Pretend, program: Program) -> None:
    # /proc refuses new files even to root.
    ended = program("list", "--json", "--output", "/proc/report.json", env=pretend("t4"))

    assert_refused_late = ended.document()["error"]
    assert ended.code == 2
    assert assert_refused_late["code"] == "output-not-writable"
    assert not Path("/proc/report.json").exists()


def test_a_directory_without_permission(pretend: Pretend, program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)

    # Root writes everywhere, unless it has lost that right.
    ended = program(
        *("list", "--json", "--output", folder / "report.json"),
        env=pretend("t4"),
        preexec_fn=drop_root_rights,
    )

    assert_refused(ended, tmp_path)


def test_a_report_in_a_file(pretend: Pretend, program: Program, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("old", encoding="ascii")
    report.chmod(0o640)

    ended = program("list", "--json", "--output", report, env=pretend("h100x8"))

    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", b"")
    assert_document(only_document(report.read_text(encoding="utf-8")), "list", 0)
    assert list(tmp_path.iterdir()) == [report]
    assert stat.S_IMODE(report.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_permissions(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"

    program("list", "--json", "--output", report, env=pretend("t4"), umask=0o027)

    assert stat.S_IMODE(report.stat().st_mode) == 0o640


def test_a_link_to_a_file_stays_a_link(pretend: Pretend, program: Program, tmp_path: Path) -> None:
    target = tmp_path / "real" / "report.json"
    target.parent.mkdir()
    target.write_text("old", encoding="ascii")
    link = tmp_path / "latest.json"
    link.symlink_to(target)

    ended = program("list", "--json", "--output", link, env=pretend("t4"))

    assert ended.code == 0
    assert link.is_symlink()
    assert_document(only_document(target.read_text(encoding="utf-8")), "list", 0)


def test_an_existing_file_is_kept_when_writing_fails(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    report.write_text("old", encoding="ascii")

    def one_kilobyte() -> None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    ended = program(
        "list", "--json", "--output", report, env=pretend("h100x8"), preexec_fn=one_kilobyte
    )

    assert ended.code == 2
    assert report.read_text(encoding="ascii") == "old"
    assert list(tmp_path.iterdir()) == [report]
    # Rather to stdout than nowhere; and still one document, whose code is the one given.
    assert "Traceback" not in ended.said
    assert only_document(ended.text)["exit_code"] == 2
    assert "File too large" in ended.said


def test_nothing_is_created_when_there_is_no_report(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    arguments = ("list", "--json", "--output", report, "--gpu", "77")

    ended = program(*arguments, env=pretend("t4"))

    assert ended.code == 1
    assert not report.exists()


def test_no_gpu_is_a_report_too(pretend: Pretend, program: Program, tmp_path: Path) -> None:
    report = tmp_path / "report.json"

    ended = program("list", "--json", "--output", report, env=pretend("no-driver"))

    assert ended.code == 4
    assert_document(only_document(report.read_text(encoding="utf-8")), "list", 4)


def test_the_null_device(pretend: Pretend, program: Program) -> None:
    before = Path("/dev/null").stat()

    ended = program("list", "--json", "--output", "/dev/null", env=pretend("t4"))

    after = Path("/dev/null").stat()
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", b"")
    assert (after.st_ino, after.st_rdev) == (before.st_ino, before.st_rdev)
    assert stat.S_ISCHR(after.st_mode)


def test_a_fifo(pretend: Pretend, program: Program, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE)

    ended = program("list", "--json", "--output", fifo, env=pretend("t4"))

    text, _ = reader.communicate()
    assert ended.code == 0
    assert_document(only_document(text.decode()), "list", 0)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize("format_", ["table", "csv"])
def test_other_formats_in_a_file(
    pretend: Pretend, program: Program, tmp_path: Path, format_: str
) -> None:
    report = tmp_path / "report"
    env = pretend("a100-mig")

    ended = program("list", "--format", format_, "--output", report, env=env)

    shown = program("list", "--format", format_, env=env)
    assert (ended.code, ended.stdout) == (0, b"")
    assert report.read_bytes() == shown.stdout


# ---------------------------------------------------------------------------------- hostile names


@pytest.fixture
def hostile(pretend: Pretend) -> dict[str, Any]:
    """Return a machine on which a process chose its own name and command line."""
    machine = load_machine("t4")
    from tests.fakes.machine import Process

    words = (
        "/tmp/\x1b]0;owned\x07evil",
        "line\nfeed\r\ttab",
        "\x1b[2J\x1b[31mred",
        b"caf\xe9".decode("utf-8", "surrogateescape"),
        "\u202ereversed",
        "[bold]markup[/bold]",
    )
    process = Process(pid=42, command=words, name=words[0], user="mallory", uid=666)
    return {"env": pretend(machine.with_gpu(0, processes=(process,))), "words": words}


def test_hostile_names_in_the_table(hostile: dict[str, Any], program: Program) -> None:
    ended = program("list", "--processes", env=hostile["env"] | {"COLUMNS": "300"})

    text = ended.text
    assert ended.code == 0
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    (row,) = [line for line in text.splitlines() if " 42 " in line]
    assert r"\x1b]0;owned\x07" in row
    assert r"line\nfeed\r\ttab" in row
    assert r"\u202ereversed" in row
    assert "[bold]markup[/bold]" in row
    assert "\ufffd" in row  # the byte that is no UTF-8
    assert "mallory" in row


def test_hostile_names_in_json(hostile: dict[str, Any], program: Program) -> None:
    ended = program("list", "--json", env=hostile["env"])

    (process,) = ended.document()["result"]["gpus"][0]["processes"]
    assert ended.stdout.isascii()
    assert "\x1b" not in ended.text
    assert "line\nfeed\r\ttab" in process["command"]
    assert "\x1b[2J" in process["command"]
    assert process["user"] == "mallory"


def test_hostile_names_on_a_terminal(
    hostile: dict[str, Any], on_terminal: Callable[..., tuple[str, int]]
) -> None:
    text, code = on_terminal("list", "--processes", env=hostile["env"], columns=200)

    assert code == 0
    # Only our own colours remain.
    assert set(re.findall(r"\x1b.", text)) <= {"\x1b["}
    assert "\x1b[2J" not in text
    assert "\x07" not in text


def test_a_gpu_name_that_is_no_utf8(pretend: Pretend, program: Program) -> None:
    name = b"Tesla \xff".decode("utf-8", "surrogateescape")
    env = pretend(load_machine("t4").with_gpu(0, name=name), tree=False)

    row = program("list", "--json", env=env).document()["result"]["gpus"][0]

    assert row["state"] == "ok"
    assert row["name"] is None
    assert "not UTF-8" in row["unavailable"]["name"]


def test_csv_is_one_record_a_gpu(pretend: Pretend, program: Program) -> None:
    import csv

    machine = load_machine("h100x8").with_gpu(3, name='Odd, "quoted"\nname')

    text = program("list", "--format", "csv", env=pretend(machine, tree=False)).text

    records = list(csv.DictReader(text.splitlines()))
    assert [record["index"] for record in records] == [str(index) for index in range(8)]
    assert records[3]["name"] == 'Odd, "quoted"\\nname'
    assert records[0]["fan_percent"] == ""
    assert json.loads(records[0]["memory_total_bytes"]) == machine.gpus[0].memory_total_bytes
