"""Wrong use of every command: code 2, one sentence with its steps, and nothing else happens."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from gpucheck.cli import main
from tests.end_to_end.documents import assert_document

CASES = Path(__file__).parents[1] / "data" / "wrong_use.toml"
#: The end of what is said first of an example.
RECORDED = "recorded example, not this machine"
#: The words that each command needs at least, and what none of them takes.
LEAST = {
    "detect": (),
    "list": (),
    "place": ("/gpu:0",),
    "bench": ("matmul",),
    "compare": ("a.json", "b.json"),
    "profile": ("list",),
    "memlimit": ("30%",),
    "snapshot": (),
}
NEVER = (
    ("--no-such-option",),
    ("--format", "no-such-format"),
    ("--output", "/no-such-folder/file"),
    ("--from", "/no-such-file"),
    ("--from", "example:no-such"),
    ("--config", "/no-such-file"),
)


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what stderr says of a command line that cannot be used, once all else was checked.

    Where stdout has a document, it says the same.
    """
    assert main(words) == 2, "the exit code"
    out, said = capsys.readouterr()
    first, *steps = (line for line in said.splitlines() if not line.endswith(RECORDED))
    assert first.startswith("gpucheck: ")
    assert first.endswith((".", "?")), "a sentence"
    assert "Traceback" not in said
    if not {"--json", "json", "--format=json"} & {*words}:
        assert out == ""
    else:
        document = json.loads(out)
        assert_document(document, document["schema"].split("/")[1], 2)
        assert (document["status"], document["result"]) == ("unknown", None)
        error = document["error"]
        assert [first, *steps] == [
            f"gpucheck: {error['message']}",
            *(f"  {step}" for step in error["remedy"]),
        ]
    return said


def test_a_command_line_that_cannot_be_used_is_answered_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary").write_bytes(b"\x7fELF\0")
    offenders = {}
    for command, lines in tomllib.loads(CASES.read_text(encoding="utf-8")).items():
        for line, told in lines.items():
            plain = [*([] if command == "overview" else [command]), *shlex.split(line)]
            has_format = any(word.startswith(("--format", "--json", "--show")) for word in plain)
            for words in (plain,) if has_format else (plain, [plain[0], "--json", *plain[1:]]):
                try:
                    assert told in refusal(words, capsys), "what is said"
                except (AssertionError, ValueError) as error:
                    offenders[shlex.join(words)] = str(error)

    assert offenders == {}
    # A run that cannot begin is told of, as in its JUnit file.
    assert {file.suffix for file in tmp_path.iterdir()} == {"", ".prom", ".xml"}


@pytest.mark.parametrize("command", LEAST)
def test_what_no_command_takes(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in NEVER:
        assert main([command, *LEAST[command], *wrong]) == 2, wrong
        out, said = capsys.readouterr()
        assert out == ""
        assert said.startswith("gpucheck: ")
    assert list(tmp_path.iterdir()) == []
