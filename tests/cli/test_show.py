"""A saved document shown again: as its command showed it, whatever the file holds."""

from __future__ import annotations

import copy
import gzip
import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpucheck.cli import main
from gpucheck.report.codec import to_plain
from tests.fakes.bench_results import product, result_of
from tests.fakes.documents import CALLS, documents
from tests.fakes.verdicts import HOSTILE
from tests.sampling import sampled

#: What a saved document says first, and what only an answer from a recording says.
MARK = re.compile(r"\ASaved [a-z]+ document of .*\n")
RECORDED = re.compile(r"\A(gpucheck: )?\S+: recorded example, not this machine\n")
FROM = re.compile(r"\s+--from\s+example:[\w-]+")
#: The process tells of itself: it is not the same twice.
STEADY = sorted(set(CALLS) - {"process"})


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """Write a document to a file: `saved("list")`."""

    def write(name: str, **fields: Any) -> str:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**documents()[name], **fields}), encoding="utf-8")
        return str(path)

    return write


def words_of(text: str) -> list[str]:
    """Return the words of a screen without what tells of a recording, however it is wrapped."""
    return FROM.sub("", RECORDED.sub("", MARK.sub("", text))).split()


@pytest.mark.parametrize(
    ("name", "options"),
    sampled(
        itertools.product(STEADY, [(), ("-v",), ("-q",)]),
        18,
        always=[(name, ()) for name in STEADY],
    ),
)
def test_the_screen_is_that_of_the_command(
    name: str,
    options: tuple[str, ...],
    saved: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    more = ("--processes",) if name == "list" else ()
    main([*CALLS[name], *options, *(("--format", "table") if name == "place-count" else ())])
    expected = capsys.readouterr()

    code = main(["show", saved(name), *options, *more])

    shown = capsys.readouterr()
    assert code == 0
    assert MARK.match(shown.out)
    assert words_of(shown.out) == words_of(expected.out)
    assert words_of(shown.err) == words_of(expected.err)


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        *(
            ("detect", "line"),
            ("list", "csv"),
            ("list", "jsonl"),
            ("bench", "junit"),
            ("bench-judged", "github"),
        ),
        ("compare", "github"),
    ],
)
def test_formats_for_programs_have_no_mark_on_stdout(
    name: str, format_: str, saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", saved(name), "--format", format_]) == 0

    shown = capsys.readouterr()
    assert shown.out
    assert "Saved" not in shown.out
    assert f"Saved {documents()[name]['schema'].split('/')[1]} document of" in shown.err


def test_json_is_the_document_itself_with_what_this_version_does_not_know(
    saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = {"name": "gpucheck", "version": "0.9.0"}

    assert main(["show", saved("list", later=[1], tool=tool), "--json"]) == 0

    text = capsys.readouterr().out
    assert text.startswith('{"schema":"gpucheck/list/1",')
    assert json.loads(text) == {
        **documents()["list"],
        "later": [1],
        "tool": tool,
    }


def test_the_mark_has_machine_time_version_and_verdict(
    saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    host = {**documents()["detect"]["host"], "name": "node17", "recorded": False}
    file = saved("detect", host=host, time="2026-11-21T03:32:00Z")

    main(["show", file])

    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(
        "Saved detect document of node17, 2026-11-21 03:32:00 UTC, gpucheck 0.1.0:"
        " fail (exit code 1) node17 · "
    )


def test_a_failure_without_a_result_is_shown(
    saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", saved("failed-list")]) == 0

    shown = capsys.readouterr()
    assert "fail (exit code 1); There is no GPU '9' here" in " ".join(shown.out.split())
    assert "There is no GPU '9' here" in shown.err


def test_what_a_newer_version_wrote_is_named_with_v(
    saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved("list", **{f"new_{number}": 1 for number in range(7)})

    main(["show", file])
    assert "does not know" not in capsys.readouterr().err
    main(["show", file, "-v"])

    assert "leaves out: $.new_0, $.new_1, $.new_2, $.new_3, $.new_4 and 2 more" in (
        capsys.readouterr().err
    )


def test_a_packed_document_and_one_from_stdin(
    tmp_path: Path, gpucheck_command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "list.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(documents()["list"]).encode()))

    main(["show", str(packed)])
    piped = gpucheck_command("show", "-", stdin=json.dumps(documents()["list"]))

    assert piped.code == 0
    assert piped.stdout == capsys.readouterr().out


def test_a_list_takes_the_options_of_list(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", saved("list"), "--format", "csv", "--select", "index,name"])
    lines = capsys.readouterr().out.splitlines()

    assert lines[:2] == ["index,name", "0,NVIDIA H100 80GB HBM3"]
    assert main(["show", saved("list"), "--select", "nmae"]) == 2
    assert "Did you mean" in capsys.readouterr().err
    assert main(["show", saved("detect"), "-p"]) == 2
    assert "this is gpucheck/detect/1" in capsys.readouterr().err


def test_output_is_a_file_and_the_messages_stay(
    saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.txt"

    assert main(["show", saved("detect"), "-o", str(file)]) == 0

    assert MARK.match(file.read_text(encoding="utf-8"))
    assert capsys.readouterr().out == ""
    assert main(["show", saved("detect"), "-o", str(tmp_path / "no" / "report.txt")]) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("place", ("--format", "uuid")),
        ("memlimit", ("--format", "shell")),
        ("wheel", ("--format", "shell")),
        ("detect-checks", ("--format", "line")),
        ("peaks", ("--format", "junit")),
    ],
)
def test_a_format_that_the_document_lacks_is_refused(
    name: str, words: tuple[str, ...], saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", saved(name), *words]) == 2

    assert f"has no format '{words[1]}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty."),
        (b"PK\x03\x04 ", "is a zip archive."),
        (b'{"schema": "gpucheck/list/2"}', "is a gpucheck/list/2 document"),
        (b'{"schema": "gpucheck/baseline/1"}', "gpucheck compare FIRST SECOND"),
    ],
)
def test_what_cannot_be_shown_is_wrong_use(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "it.json"
    file.write_bytes(content)

    assert main(["show", str(file), "--json"]) == 2

    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert (answer["schema"], answer["exit_code"]) == ("gpucheck/error/1", 2)
    assert answer["error"]["code"] == "document-unusable"
    assert said in shown.err
    assert "Traceback" not in shown.err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path / "none.json")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    assert main(["show", str(tmp_path)]) == 2
    assert "it is a directory" in capsys.readouterr().err
    assert main(["show", "a.json", "--from", "example:h100x8"]) == 2


def test_a_snapshot_is_answered_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "machine.json"
    assert main(["snapshot", str(file), "--redact", "--from", "example:h100x8"]) == 0
    capsys.readouterr()

    assert main(["show", str(file)]) == 2

    assert f"gpucheck list --from {file}" in capsys.readouterr().err


def test_values_that_contradict_each_other_are_a_sentence(
    saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result = copy.deepcopy(documents()["profile-explain"]["result"])
    for limit in result["limits"]:
        limit["peak"] = 0.0
        limit["tolerance_percent"] = None

    assert main(["show", saved("profile-explain", result=result)]) == 2

    assert "is damaged: its values contradict each other" in capsys.readouterr().err


def test_a_number_without_a_form_in_json_is_not_written(
    saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(saved("list"))
    file.write_text(file.read_text(encoding="utf-8").rstrip()[:-1] + ', "later": 1e999}')

    assert main(["show", str(file), "--json"]) == 2

    assert "Infinity" not in capsys.readouterr().out


def test_names_from_a_document_control_no_terminal(
    saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = copy.deepcopy(dict(documents()["list"]))
    plain["host"]["name"] = HOSTILE
    plain["tool"]["version"] = HOSTILE
    plain["warnings"] = [{"code": "hostile", "message": HOSTILE}]
    for gpu in plain["result"]["gpus"]:
        gpu["name"] = gpu["uuid"] = HOSTILE
    plain[HOSTILE] = 1
    file = saved("list", **plain)

    for words in ((), ("--format", "csv"), ("-v",), ("--json",)):
        code = main(["show", file, *words])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        for text in (shown.out, shown.err):
            assert not {char for char in text if not char.isprintable()} - {"\n"}
            assert not re.search(r"^\s*::", text, re.MULTILINE)


def test_a_closed_pipe_ends_quietly(
    saved: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("gpucheck.cli.terminal._give_up_stdout", lambda: None)
    monkeypatch.setattr("sys.stdout", Gone())

    assert main(["show", saved("detect")]) == 0


def test_a_page_and_a_chart_of_a_saved_run(
    saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, chart = tmp_path / "run.html", tmp_path / "run.svg"
    rows = result_of(product(700.0, flops=10**12, bytes_moved=10**9))
    run = saved("bench", result=to_plain(rows))

    assert main(["show", run, "--html", str(page), "--plot", str(chart)]) == 0

    text = page.read_text(encoding="utf-8")
    assert "Saved bench document of node17" in text
    assert chart.read_text(encoding="utf-8").startswith("<?xml")
    assert MARK.match(" ".join(capsys.readouterr().out.split()) + "\n")


def test_a_chart_that_a_document_has_no_values_for(
    saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chart, page = tmp_path / "run.svg", tmp_path / "page.html"

    assert main(["show", saved("detect"), "--plot", str(chart)]) == 4
    assert main(["show", saved("error"), "--html", str(tmp_path / "run.html")]) == 2
    assert main(["show", saved("detect"), "--plot", str(chart), "--html", str(page)]) == 4

    assert "has no values for any chart" in capsys.readouterr().err
    assert [*tmp_path.glob("run.*")] == []
    assert "has no values for any chart" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("format_", ["html", "markdown"])
def test_formats_for_people_have_the_mark_themselves(
    format_: str, saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", saved("detect"), "--format", format_]) == 0

    shown = capsys.readouterr()
    assert "Saved detect document of" in shown.out
    assert "Saved" not in shown.err


def test_the_version_is_that_of_the_document(
    saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved("list", tool={"name": "gpucheck", "version": "0.0.7"})

    main(["show", file, "--format", "jsonl"])

    assert json.loads(capsys.readouterr().out.splitlines()[-1])["version"] == "0.0.7"
