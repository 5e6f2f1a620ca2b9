"""A report for a ticket: whole, readable, without names, and written only where it may be."""

from __future__ import annotations

import io
import json
import stat
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from gpucheck.bench import workers
from gpucheck.bench.workers import WorkerAnswer, WorkerDevice
from gpucheck.cli import main
from gpucheck.cli.report import ReportFile, gather
from gpucheck.drivers.evidence import HolderReading, HoldersReading, LaunchReading
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.readings import CudaReading, ProbeFailure, ProcessReading
from gpucheck.drivers.recorded import RecordedProbes, Snapshot
from gpucheck.report.envelope import Failure
from tests.end_to_end.documents import assert_document
from tests.fakes.documents import documents
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of
from tests.inventory.test_snapshot import machines
from tests.sampling import examples

LOST = ("--from", "example:lost-gpu")
PARTS = ("detect.html", "detect.json", "detect.txt", "list.html", "list.json", "list.txt")
NAMES = sorted(("README.txt", *PARTS, "snapshot.json"))


def gathered(
    probes: Probes, *, redacted: bool = True, bench: bool = False
) -> tuple[dict[str, ReportFile], dict[str, bytes]]:
    """Return the files of a report, and their contents, by name."""
    result, contents = gather(
        probes, Path("ticket"), redacted=redacted, bench=bench, tell=lambda text: None
    )
    return {file.name: file for file in result.files}, contents


def unpacked(file: Path) -> dict[str, bytes]:
    """Return the files of an archive by their name in it."""
    found = {}
    with tarfile.open(file) as tar:
        for entry in tar:
            content = tar.extractfile(entry)
            assert content is not None
            found[entry.name] = content.read()
    return found


# ------------------------------------------------------------------------------------- archives


def test_an_archive_holds_each_part_for_programs_and_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    file = tmp_path / "ticket.tar.gz"

    assert main(["report", str(file), *LOST]) == 0

    files = unpacked(file)
    assert list(files) == [f"gpucheck-report/{name}" for name in NAMES]
    parts = {name.rpartition("/")[2]: content.decode() for name, content in files.items()}
    assert "GPU 2" in parts["detect.txt"]
    assert "fell off the bus" in parts["README.txt"] + parts["detect.txt"]
    assert "NV" in parts["list.txt"]
    assert parts["detect.html"].startswith("<!DOCTYPE html>")
    for name, code in (("detect", 1), ("list", 0), ("snapshot", 0)):
        assert_document(json.loads(parts[f"{name}.json"]), name, code)
    shown = capsys.readouterr()
    assert f"{file} · 8 files" in shown.out
    assert all(name in shown.out for name in NAMES)
    verdict = "3 of 4 GPUs usable: GPU 2 (0000:2a:00.0) fell off the bus"
    assert shown.out.splitlines()[:2] == [
        "lost-gpu: recorded example, not this machine",
        f"✗ {verdict}",
    ]
    assert parts["README.txt"].splitlines()[0] == verdict
    assert "Redacted: paths" in shown.out
    assert f"Wrote {file}. Look at it, then attach it." in shown.err


def test_the_same_machine_gives_the_same_archive_of_nobody(tmp_path: Path) -> None:
    for name in ("a.tar.gz", "b.tgz"):
        assert main(["report", str(tmp_path / name), *LOST, "-q"]) == 0

    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tgz").read_bytes()
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        facts = {(one.uid, one.gid, one.uname, one.gname, one.mode, one.type) for one in tar}
    assert facts == {(0, 0, "", "", 0o644, tarfile.REGTYPE)}


def test_the_document_says_what_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "ticket"), *LOST, "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert_document(answer, "report", 0)
    sizes = {one["name"]: one["size_bytes"] for one in answer["result"]["files"]}
    assert sizes == {one.name: one.stat().st_size for one in (tmp_path / "ticket").iterdir()}
    assert answer["result"]["redacted"]["gpu_uuids"] == 4
    assert answer["host"]["name"] is None


@pytest.mark.parametrize(
    ("example", "status"), [("h100x8", "ok"), ("nouveau", "fail"), ("version-mismatch", "fail")]
)
def test_the_verdict_is_that_of_detect(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    example: str,
    status: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    file = tmp_path / "report.json"
    words = ("--from", f"example:{example}", "-q")
    main(["detect", *words])
    verdict = capsys.readouterr().out.splitlines()[1]

    assert main(["report", str(tmp_path / "a"), *words]) == 0
    assert capsys.readouterr().out.splitlines()[1] == verdict
    assert main(["report", str(tmp_path / "b"), *words, "--json", "--output", str(file)]) == 0
    result = json.loads(file.read_text())["result"]
    assert result["conclusion_status"] == status
    assert verdict.endswith(f" {result['conclusion']}")
    assert (tmp_path / "a/README.txt").read_text().startswith(f"{result['conclusion']}\n")
    assert main(["show", str(file), "-q"]) == 0
    assert verdict in capsys.readouterr().out.splitlines()[:3]


def test_a_saved_part_is_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ticket"
    main(["report", str(folder), *LOST, "-q"])
    capsys.readouterr()

    assert main(["show", str(folder / "detect.json")]) == 0
    assert "fell off the bus" in capsys.readouterr().out
    assert main(["list", "--from", str(folder / "snapshot.json")]) == 0


# ---------------------------------------------------------------------------------------- names


class Everywhere(RecordedProbes):
    """A recorded machine whose live answers are full of names, too."""

    def __init__(self, snapshot: Snapshot, secrets: Sequence[str]) -> None:
        super().__init__(snapshot)
        self._host, self._user, other, self._process, self._command, _ = secrets[:6]
        self._said = f"/home/{self._user}/{self._command} refused {other} on {self._host}"

    def open_nodes(self, paths: Sequence[str]) -> Mapping[str, str | None]:
        """Refuse every file."""
        return dict.fromkeys(paths, self._said)

    def cuda(self, *, unrestricted: bool = False) -> CudaReading:
        """Fail, unless it is recorded."""
        if not unrestricted:
            return super().cuda()
        return CudaReading(failure=ProbeFailure(code="no", message=self._said))

    def launch(self, python: str | None, **more: Any) -> LaunchReading:
        """Fail."""
        return LaunchReading(failure=ProbeFailure(code="launch-failed", message=self._said))

    def device_holders(self) -> HoldersReading:
        """Return a process that is left over."""
        holder = HolderReading(
            pid=77,
            minors=(0,),
            state="orphaned",
            name=self._process,
            user=self._user,
            command=f"/home/{self._user}/{self._command}",
        )
        return HoldersReading(holders=(holder,), minors={"0000:1a:00.0": 0})


@settings(max_examples=examples(6))
@given(machines())
def test_no_name_is_in_any_file(machine: tuple[Snapshot, list[str]]) -> None:
    snapshot, secrets = machine
    # Who uses the cards is known by name, and so are the names in what the live answers say.
    used = tuple(ProcessReading(pid=pid, type="compute") for pid in (1, 2))
    assert snapshot.nvml is not None
    first, *others = snapshot.nvml.gpus
    gpus = (first._replace(processes=used), *others)
    snapshot = snapshot._replace(nvml=snapshot.nvml._replace(gpus=gpus))

    _, contents = gathered(Everywhere(snapshot, secrets))

    for name, content in contents.items():
        text = content.decode().lower()
        assert [secret for secret in secrets if secret in text] == [], name
        assert "/home" not in text, name


def test_without_redaction_the_names_are_there_and_only_the_owner_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "all.tar.gz", tmp_path / "all"
    for path in (file, folder):
        assert main(["report", str(path), "--no-redact", *LOST]) == 0

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}
    uuid = json.loads((folder / "list.json").read_text())["result"]["gpus"][0]["uuid"]
    assert not uuid.startswith("GPU-00000001")
    shown = capsys.readouterr()
    assert "Not redacted: it names the host" in shown.out
    assert "for people you trust" in shown.err


# ------------------------------------------------------------------------------- broken machines


def test_the_machine_is_read_once() -> None:
    probes = FakeProbes(readings=reading_of(gpu_reading(0), gpu_reading(1)))

    files, _ = gathered(probes)

    assert {one for one in probes.asked if probes.asked.count(one) > 1} <= {"launch"}
    assert files["detect.json"].error is None


def test_a_part_that_fails_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*words: Any, **more: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr("gpucheck.detect.run.detect", broken)

    files, contents = gathered(FakeProbes(readings=reading_of(gpu_reading(0))))

    assert "bug in gpucheck (KeyError in test_report.py:" in str(files["detect.json"].error)
    failed = json.loads(contents["detect.json"])
    assert (failed["exit_code"], failed["error"]["code"]) == (70, "internal-error")
    readme = contents["README.txt"]
    assert readme.startswith(b"This is a bug in gpucheck (KeyError in test_report.py:")
    assert b"detect: This is a bug" in readme
    assert files["list.json"].error is None


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the process that measures answer with this."""

    def answer(found: WorkerAnswer) -> None:
        class Pretended:
            def __init__(self, **more: Any) -> None:
                pass

            def round(self, orders: Sequence[WorkerDevice], **more: Any) -> list[WorkerAnswer]:
                assert orders[0].arguments[:2] == ("bench", "--quick")
                return [found]

        monkeypatch.setattr(workers, "Workers", Pretended)

    return answer


def test_a_benchmark_is_a_part_without_names(measured: Any) -> None:
    plain = json.loads(json.dumps(documents()["bench"]))
    plain["host"]["name"] = "node17"
    plain["result"]["notes"] = ["alice at /home/alice/x took GPU-" + "1" * 8 + "-1111" * 3]
    plain["result"]["environment"]["variables"] = {"CUDA_PATH": "/home/alice", "OMP_NUM": "x"}
    measured(plain)

    _, contents = gathered(FakeProbes(readings=reading_of(gpu_reading(0))), bench=True)

    found = json.loads(contents["bench.json"])
    assert_document(found, "bench", 0)
    assert found["host"]["name"] == "host"
    assert found["result"]["environment"]["variables"] == {
        "CUDA_PATH": "redacted",
        "OMP_NUM": "redacted",
    }
    assert b"/home" not in contents["bench.txt"] + contents["bench.html"]


def test_a_benchmark_that_gives_no_answer_is_said(measured: Any) -> None:
    measured(Failure(code="worker-late", message="it took too long"))

    files, contents = gathered(FakeProbes(readings=reading_of(gpu_reading(0))), bench=True)

    assert files["bench.json"].error == "it took too long"
    assert json.loads(contents["bench.json"])["exit_code"] == 3


def test_no_benchmark_of_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "a.tar.gz"), "--bench", *LOST]) == 2
    assert "--bench measures this machine" in capsys.readouterr().err


# -------------------------------------------------------------------------- where it is written


def test_what_exists_is_replaced_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "a.tar.gz", tmp_path / "a"):
        assert main(["report", str(path), *LOST]) == 0
        before = path.stat().st_ino

        assert main(["report", str(path), *LOST]) == 2
        assert path.stat().st_ino == before
        assert "Replace it with --replace" in capsys.readouterr().err
        assert main(["report", str(path), *LOST, "--replace"]) == 0
        assert path.stat().st_ino != before
    assert {one.name for one in tmp_path.iterdir()} == {"a", "a.tar.gz"}
    assert sorted(one.name for one in (tmp_path / "a").iterdir()) == NAMES


def test_a_folder_with_other_files_is_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()

    assert main(["report", str(tmp_path / "mine"), *LOST, "--replace"]) == 2

    assert "has other files" in capsys.readouterr().err
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    assert main(["report", str(tmp_path / "empty"), *LOST]) == 0

    assert sorted(one.name for one in (tmp_path / "empty").iterdir()) == NAMES


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.zip", "a file that ends with .tar.gz"),
        ("a.json", "a file that ends with .tar.gz"),
        ("no/a.tar.gz", "there is no directory"),
        ("no/a", "there is no directory"),
        ("file", "is not a folder"),
        ("link", "a file that ends with .tar.gz"),
        (".", "a file that ends with .tar.gz"),
        ("..", "a file that ends with .tar.gz"),
        ("-", "a file that ends with .tar.gz"),
    ],
)
def test_a_place_that_will_not_do_is_refused_before_anything_is_read(
    name: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("link").symlink_to(tmp_path)
    monkeypatch.setattr("gpucheck.cli.report.gather", None)

    assert main(["report", name, *LOST]) == 2

    assert said in capsys.readouterr().err
    assert {one.name for one in tmp_path.iterdir()} == {"file", "link"}


class Keyboard(io.StringIO):
    """A terminal on which somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "options", "code"),
    [
        ("\n", (), 0),
        ("y\n", (), 0),
        ("n\n", (), 1),
        ("", (), 1),
        ("n\n", ("--yes",), 0),
        ("n\n", ("--json",), 1),
    ],
)
def test_only_a_person_is_asked(
    typed: str,
    options: tuple[str, ...],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "a.tar.gz"
    monkeypatch.setattr("gpucheck.cli.report.is_watched", lambda: True)
    monkeypatch.setattr("sys.stdin", Keyboard(typed))

    assert main(["report", str(file), *LOST, *options]) == code

    shown = capsys.readouterr()
    assert file.exists() is (code == 0)
    assert ("Write it? [Y/n]" in shown.err) is ("--yes" not in options)
    # What it is about to write is shown before the question.
    assert "snapshot.json" in (shown.err if "--json" in options else shown.out)
    assert ("Nothing was written." in shown.err) is (code == 1)
