"""What is written to the streams, whoever reads them."""

from __future__ import annotations

import json

import pytest

from gpucheck.cli.streams import (
    without_workflow_commands,
    write_stderr,
    write_stdout,
    write_workflow_command,
)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("::error::x\n", "\\u003a:error::x\n"),
        ("host\n  ::stop-commands::x\n", "host\n  \\u003a:stop-commands::x\n"),
        ("a ##[add-mask]b ##vso[task]c", "a \\u0023#[add-mask]b \\u0023#vso[task]c"),
        ("fe80::1 a :: b : ::1", "fe80::1 a :: b : ::1"),
        ("# a\n## [b] #[c]\n:x", "# a\n## [b] #[c]\n:x"),
    ],
)
def test_no_line_is_a_runners_command(
    capsys: pytest.CaptureFixture[str], text: str, written: str
) -> None:
    write_stdout(text)
    write_stderr(text)

    assert capsys.readouterr() == (written, f"{written}\n")


def test_documents_say_the_same_with_it() -> None:
    document = {"name": "::error::a ##[add-mask]b", "list": ["::x", "##vso[y]"]}

    for indent in (None, 2):
        text = without_workflow_commands(json.dumps(document, indent=indent))
        assert "##[" not in text
        assert json.loads(text) == document


def test_our_own_commands_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    write_workflow_command("::error title=x::y")

    assert capsys.readouterr().err == "::error title=x::y\n"
