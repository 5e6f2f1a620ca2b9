"""The Chinese documents have the headings, code and links of the English ones.

Where an English block changed: `UPDATE_SNAPSHOTS=1 pytest tests/architecture/test_translations.py`
copies the outputs; comments and sentences are translated by hand.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.architecture.house import ROOT, name_of

TRANSLATED = sorted(path for folder in (ROOT, ROOT / "docs") for path in folder.glob("*.zh-CN.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^(#+) ", re.MULTILINE)
COMMENT = re.compile(r" +# .*")
SPAN = re.compile(r"`([^`\n]+)`")
EXIT_CODE = re.compile(r"^\| (\d+) \|", re.MULTILINE)


def original(path: Path) -> Path:
    return path.with_name(path.name.replace(".zh-CN", ""))


def headings(text: str) -> list[int]:
    """Return the levels of the headings, in order."""
    return [len(marks) for marks in HEADING.findall(BLOCK.sub("", text))]


def code(text: str) -> list[str]:
    """Return the blocks of code without the comments behind commands."""
    return [COMMENT.sub("", block) for _, block in BLOCK.findall(text)]


def commands(text: str) -> set[str]:
    """Return the commands and options within sentences and tables."""
    spans = SPAN.findall(BLOCK.sub("", text))
    return {span for span in spans if span.startswith(("gpucheck", "--", "."))}


def with_outputs_of(text: str, source: str) -> str:
    """Return a text with the outputs of another, block by block."""
    outputs = [block for kind, block in BLOCK.findall(source) if kind == "console"]
    kept = iter(outputs)
    return BLOCK.sub(
        lambda found: f"```console\n{next(kept)}```" if found[1] == "console" else found[0], text
    )


def test_the_two_that_a_newcomer_reads_are_translated() -> None:
    assert [name_of(path) for path in TRANSLATED] == [
        "README.zh-CN.md",
        "docs/tutorials.zh-CN.md",
    ]


@pytest.mark.parametrize("path", TRANSLATED, ids=name_of)
def test_translation_says_what_the_english_document_says(path: Path) -> None:
    source = original(path).read_text("utf-8")
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.write_text(with_outputs_of(path.read_text("utf-8"), source), encoding="utf-8")
    text = path.read_text("utf-8")

    assert headings(text) == headings(source)
    assert code(text) == code(source), "for outputs: UPDATE_SNAPSHOTS=1, and this file"
    assert commands(text) == commands(source)
    assert EXIT_CODE.findall(text) == EXIT_CODE.findall(source)
    assert re.search("[\u4e00-\u9fff]", text)
