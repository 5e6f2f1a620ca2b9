"""docs/reference/checks.md says of every check what the check says of itself.

Where a change is meant, `UPDATE_SNAPSHOTS=1 pytest tests/architecture/test_checks_document.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gpucheck.data import read_table
from gpucheck.detect.checks import CHECKS, Check
from gpucheck.detect.model import About
from gpucheck.detect.run import explain_check
from tests.architecture.house import ROOT

DOCUMENT = ROOT / "docs" / "reference" / "checks.md"
BEGIN = "<!-- generated: what follows is written by tests/architecture/test_checks_document.py -->"


def question(check: Check) -> str:
    return (check.__doc__ or "").partition("\n")[0]


def lines() -> Iterator[str]:
    """Yield the generated part, line by line."""
    layer = None
    for check in CHECKS:
        if check.LAYER is not layer:
            layer = check.LAYER
            yield from ("", f"## {layer.value}")
        about = explain_check(check)
        yield from ("", f"### {check.ID}", "", question(check), "", about.why, "")
        yield from (f"- looks at: {item}" for item in about.looks_at)
        yield from (f"- judges: {item}" for item in about.rules)
        if about.causes:
            yield f"- causes: {', '.join(f'`{name}`' for name in about.causes)}"
        yield from (f"- source: {item}" for item in about.sources)
        if check.REQUIRES:
            yield f"- after: {', '.join(check.REQUIRES)}"


def test_document_is_up_to_date() -> None:
    written = DOCUMENT.read_text(encoding="utf-8")
    by_hand, mark, _ = written.partition(BEGIN)
    assert mark, "the document has lost the line that begins its generated part"

    expected = f"{by_hand}{BEGIN}\n" + "\n".join(lines()) + "\n"

    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        DOCUMENT.write_text(expected, encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == expected


def test_causes_are_named_once() -> None:
    for check in CHECKS:
        causes = explain_check(check).causes
        assert len(causes) == len(set(causes)), check.ID


def test_texts_are_of_checks_and_have_known_parts() -> None:
    texts = read_table("checks")

    assert [name for name in texts if name != "framework"] == [check.ID for check in CHECKS]
    assert not {part for text in texts.values() for part in text} - {*About._fields}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.ID)
def test_check_describes_itself(check: Check) -> None:
    assert question(check).endswith("?")
    about = explain_check(check)
    assert about.looks_at
    assert about.why.endswith((".", ":", ";")), about.why
    if check.LAYER == "health":
        assert about.rules
        assert about.sources
