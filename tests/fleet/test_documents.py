"""Many documents, read as a stream: every way they may come, and every way they may be broken."""

from __future__ import annotations

import errno
import gzip
import json
import os
import sys
from pathlib import Path

import pytest

from gpucheck.drivers.host.files import MOST_JSON_BYTES
from gpucheck.fleet import documents
from gpucheck.fleet.documents import Entry, read_documents
from gpucheck.report.errors import WrongUseError

ONE = {"schema": "gpucheck/detect/1", "host": {"name": "n1"}}
TWO = {"schema": "gpucheck/detect/1", "host": {"name": "n2"}}


def read(*names: Path) -> list[Entry]:
    return list(read_documents([str(name) for name in names]))


def hosts(found: list[Entry]) -> list[str | None]:
    return [one.document["host"]["name"] if one.document else None for one in found]


@pytest.mark.parametrize("indent", [None, 2])
def test_one_document_in_a_file(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ONE, indent=indent))

    assert hosts(read(path)) == ["n1"]


@pytest.mark.parametrize("packed", [False, True])
def test_lines_and_spread_documents_may_be_mixed(tmp_path: Path, packed: bool) -> None:
    text = f"{json.dumps(ONE)}\n\n{json.dumps(TWO, indent=1)}\n{json.dumps(ONE)}\n"
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())

    found = read(path)

    assert hosts(found) == ["n1", "n2", "n1"]
    assert found[1].line == 3


def test_folder_is_read_with_its_folders_and_without_other_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/2.json", "1.json", "notes.txt", ".hidden.json"):
        (tmp_path / name).write_text(json.dumps(ONE))
    (tmp_path / "loop").symlink_to(tmp_path)

    assert [Path(one.file).name for one in read(tmp_path)] == ["1.json", "2.json"]


def test_a_text_that_is_no_json_is_one_problem_however_long(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("# A page\n\nwith text\n" * 100)
    good = json.dumps(ONE)
    (tmp_path / "b.jsonl").write_text(f"a warning\n{good}\nanother\n{good}\n")

    found = read(tmp_path)

    assert [one.document is None for one in found] == [True, True, False, False]
    assert (found[0].line, found[1].line) == (None, 1)


@pytest.mark.parametrize(
    ("text", "problem", "host"),
    [
        ("", "it is empty", None),
        ('{"schema": "gpucheck/detect/1", "host": {"name": "n7", "os', "it is not JSON", "n7"),
        ('{"host": "n8", "outcome', "it is not JSON", "n8"),
        ("[1, 2]", "it is no document", None),
        ("[" * 100_000, "it is n", None),
        ('{"a": NaN}', "it is not JSON", None),
        ('{"a": -Infinity}', "it is not JSON", None),
        ('{"host": "' + "9" * 300, "it is not JSON", None),
        ("\ud800".encode("utf-8", "surrogatepass"), "it is not JSON: ", None),
        ('{"a": ' + "1" * 5000 + "}", "it is not JSON: ", None),
    ],
    ids=["empty", "cut", "cut line", "list", "deep", "nan", "infinity", "long", "bytes", "number"],
)
def test_damaged_document_is_a_problem_with_the_host_it_names(
    tmp_path: Path, text: str | bytes, problem: str, host: str | None
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())

    (found,) = read(path)

    assert found.document is None
    assert found.problem is not None
    assert found.problem.startswith(problem)
    assert found.host == host


def test_documents_are_read_without_the_fast_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "orjson", None)
    documents._parser.cache_clear()
    for name, text in (("good", json.dumps(ONE)), ("nan", '{"a": NaN}'), ("cut", '{"a": ')):
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "bytes.json").write_bytes(b'{"a": "\xff"}')
    (tmp_path / "number.json").write_text(f'{{"a": {"1" * 5000}}}')
    try:
        found = {Path(one.file).stem: one for one in read(tmp_path)}
    finally:
        documents._parser.cache_clear()

    assert found["good"].document == ONE
    assert found["nan"].problem is not None
    assert found["cut"].problem == "it is not JSON: Expecting value"
    assert found["bytes"].problem == "it is not JSON: it is not UTF-8"
    assert found["number"].problem == "it is not JSON: a number is too long"


def test_damaged_line_costs_its_line_only(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(ONE)}\n{{broken\n{json.dumps(TWO)}\n")

    assert hosts(read(path)) == ["n1", None, "n2"]


@pytest.mark.parametrize("line", [True, False])
def test_too_large_document_is_passed_over(tmp_path: Path, line: bool) -> None:
    filler = '"' + "x" * MOST_JSON_BYTES + '"'
    large = (
        f'{{"host": "big", "x": {filler}}}' if line else f'{{\n"host": "big",\n"x": {filler}\n}}'
    )
    path = tmp_path / "a.jsonl"
    path.write_text(f"{large}\n{json.dumps(TWO)}\n")

    found = read(path)

    assert hosts(found) == [None, "n2"]
    assert found[0].problem == "it is larger than 8 MiB"
    assert found[0].host == "big"


def test_gzip_that_breaks_off_ends_its_file_only(tmp_path: Path) -> None:
    lines = "".join(f"{json.dumps({**ONE, 'salt': os.urandom(40).hex()})}\n" for _ in range(50))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-900])
    (tmp_path / "b.json").write_text(json.dumps(TWO))

    found = read(tmp_path)

    assert hosts(found)[-1] == "n2"
    problems = [one.problem for one in found if one.document is None]
    assert "its gzip data are damaged or cut short" in problems


def test_unreadable_file_of_a_folder_is_a_problem(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(json.dumps(TWO))

    assert hosts(read(tmp_path)) == [None, "n2"]


@pytest.mark.parametrize("indent", [None, 2])
def test_document_that_was_cut_off_costs_no_other(tmp_path: Path, indent: int | None) -> None:
    """A gathered file is what `cat` makes of many: a cut one has no end of line."""
    cut = json.dumps(ONE, indent=indent)[:-12] + ("\n" if indent else "")
    path = tmp_path / "a.jsonl"
    path.write_text(f"{cut}{json.dumps(TWO, indent=indent)}\n{json.dumps(ONE)}\n")

    found = read(path)

    assert hosts(found) == [None, "n2", "n1"]
    assert found[0].problem is not None
    assert found[2].line == (7 + 4 if indent else 2)


def test_a_document_inside_of_a_cut_one_is_none_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"schema": "gpucheck/fleet-node/1", "document": ONE})[:-1])

    assert hosts(read(path)) == [None]


def test_only_document_of_a_file_has_no_line(tmp_path: Path) -> None:
    for name, count in (("one.json", 1), ("two.json", 2)):
        (tmp_path / name).write_text(f"{json.dumps(ONE)}\n" * count)

    assert [one.line for one in read(tmp_path)] == [None, 1, 2]


@pytest.mark.parametrize("spread", [False, True])
def test_a_document_without_end_ends_its_file(
    tmp_path: Path, spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MOST_JSON_BYTES", 1000)
    monkeypatch.setattr(documents, "_GIVEN_UP_BYTES", 1 << 20)
    endless = b"{\n" + b'"a": 1\n' * (1 << 18) if spread else b"x" * (2 << 20)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"{}\n" + endless + b"\n}\n{}\n"))

    found = read(tmp_path)

    assert [one.document for one in found] == [{}, None]
    assert "has no end in 1 MiB" in (found[1].problem or "")


def test_folder_that_cannot_be_read_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def refused(name: str) -> object:
        if name.endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scan(name)

    monkeypatch.setattr(os, "scandir", refused)
    for name in ("closed", "open", "open.json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text(json.dumps(ONE))

    found = read(tmp_path)

    assert hosts(found) == [None, "n1", "n1"]
    assert found[0].problem == "Permission denied"
    with pytest.raises(WrongUseError, match="Permission denied"):
        read(tmp_path / "closed")


def test_folders_may_be_nested_deeper_than_calls(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(sys.getrecursionlimit() // 2):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "a.json").write_text(json.dumps(ONE))

    assert hosts(read(tmp_path)) == ["n1"]

    # pytest would hold each of them open while it deletes them: some systems allow 256.
    (deep / "a.json").unlink()
    while deep != tmp_path:
        deep.rmdir()
        deep = deep.parent


def test_path_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="No such file"):
        read(tmp_path / "absent")
