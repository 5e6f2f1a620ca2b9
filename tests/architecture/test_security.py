"""Threat model: each test that it names is there."""

from __future__ import annotations

import re

from tests.architecture.house import ROOT

THREATS = ROOT / "docs" / "security.md"


def test_each_named_test_exists() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", THREATS.read_text("utf-8")))

    assert len(named) > 20
    assert {name for name in named if f"def {name}(" not in sources} == set()


def test_each_way_in_has_a_section_with_its_tests() -> None:
    table, *sections = re.split(r"^## ", THREATS.read_text("utf-8"), flags=re.MULTILINE)

    assert len(re.findall(r"^\| .*\]\(#", table, flags=re.MULTILINE)) == len(sections)
    assert [one.splitlines()[0] for one in sections if "Held by" not in one] == []
