"""What holds for every document on a terminal."""

from __future__ import annotations

import re

import pytest

from gpucheck.cli.commands import COMMANDS, load_documents
from gpucheck.report.formats.table import render
from gpucheck.report.text import View
from tests.fakes.reports import list_report
from tests.report.formats.recorded import SNAPSHOTS


def test_every_command_but_the_snapshot_has_a_document() -> None:
    shown = {name for name, document in load_documents().items() if document.view is not None}
    assert shown >= set(COMMANDS) - {"show", "snapshot"}


def test_without_colour_there_is_no_escape() -> None:
    assert "\x1b" not in render(list_report(), View(color=False))


def test_the_environment_of_the_process_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    before = render(list_report(), View(width=100, color=True))
    for name, value in {"NO_COLOR": "1", "COLUMNS": "40", "TERM": "dumb", "LINES": "5"}.items():
        monkeypatch.setenv(name, value)

    assert render(list_report(), View(width=100, color=True)) == before


def test_lines_end_without_blanks_and_the_text_with_a_line_end() -> None:
    text = render(list_report(), View(width=160))

    assert text.endswith("\n")
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_no_snapshot_is_left_over() -> None:
    kept = {path.stem for path in SNAPSHOTS.iterdir()}
    sources = "".join(
        path.read_text(encoding="utf-8") for path in SNAPSHOTS.parents[2].rglob("test_*.py")
    )
    named = re.findall(r'recorded\(f?"([^"]+)"', sources)

    patterns = [re.compile(re.sub(r"\{[a-z]+\}", "[A-Za-z0-9-]+", name)) for name in named]
    assert [name for name in kept if not any(p.fullmatch(name) for p in patterns)] == []
