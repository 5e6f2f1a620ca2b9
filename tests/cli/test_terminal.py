"""What is written to the streams, whoever reads them."""

from __future__ import annotations

import json
import re
import sys
from io import StringIO

import pytest

from gpucheck.cli import terminal
from gpucheck.cli.terminal import (
    progress_bar,
    without_workflow_commands,
    write_failure,
    write_stderr,
    write_stdout,
    write_warnings,
    write_workflow_command,
)
from gpucheck.report.envelope import Failure, Notice


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


# -------------------------------------------------------------------------------- progress


LABEL = "matmul 1024x1024x1024 blas-1-thread on cpu"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def lines(screen: StringIO) -> list[str]:
    """Return what was drawn, one text for each time."""
    colourless = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", colourless)
    return [line.strip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


@pytest.mark.parametrize("width", [30, 44, 80, 200])
def test_a_terminal_shows_what_runs_and_how_long_it_takes_at_most(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")

    with progress_bar(shown=True) as report:
        report(LABEL, 0.25, 12.3)
        report(LABEL, 0.9, 400.0)
        report(LABEL, 1.0, 0.0)

    drawn = lines(screen)
    assert max(map(len, drawn)) <= width
    assert any(line.startswith("matmul") and line.endswith("at most 12 s left") for line in drawn)
    assert any(line.endswith("at most 7 min left") for line in drawn)
    assert any(line.endswith("time is up, finishing") for line in drawn)


@pytest.mark.parametrize(("screen", "shown"), [(StringIO(), True), (Terminal(), False)])
def test_nothing_is_written_where_nobody_watches(
    screen: StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", screen)

    with progress_bar(shown=shown) as report:
        report(LABEL, 0.5, 3.0)

    assert screen.getvalue() == ""


# ------------------------------------------------------------------------------- messages

FAILURE = Failure(
    code="no-cupy",
    message="No GPU can be measured: CuPy is not installed.",
    remedy=(
        "Install it: /opt/venv/bin/python -m pip install cupy-cuda13x",
        "Or measure the processor alone, with bench --device cpu.",
    ),
)


def written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, watched: bool
) -> str:
    monkeypatch.setattr(terminal, "is_watched", lambda: watched)
    monkeypatch.setenv("COLUMNS", "40")
    write_failure(FAILURE)
    write_warnings([Notice(code="x", message="short")])
    return capsys.readouterr().err


def test_a_log_gets_whole_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written(capsys, monkeypatch, watched=False).splitlines() == [
        f"gpucheck: {FAILURE.message}",
        *(f"  {step}" for step in FAILURE.remedy),
        "gpucheck: warning: short",
    ]


def test_a_terminal_gets_lines_that_fit_and_commands_to_copy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written(capsys, monkeypatch, watched=True).splitlines() == [
        "gpucheck: No GPU can be measured: CuPy",
        "  is not installed.",
        "  Install it:",
        "    /opt/venv/bin/python -m pip install cupy-cuda13x",
        "  Or measure the processor alone, with",
        "    bench --device cpu.",
        "gpucheck: warning: short",
    ]
