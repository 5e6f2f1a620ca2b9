"""Every file says its duty."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.house import ROOT, modules, offenders, parse

#: Names that say nothing of what is inside.
EMPTY_NAMES = {"utils", "helpers", "manager", "misc", "common"}


def own_scripts() -> list[Path]:
    return [*modules(), *sorted((ROOT / "benchmarks").glob("*.py"))]


def no_sentence(path: Path) -> list[str]:
    docstring = ast.get_docstring(parse(path)) or ""
    first = docstring.partition("\n\n")[0].rstrip()
    return [] if first.endswith((".", "?", ":")) else [f"no sentence: {first!r}"]


def test_module_docstring_is_a_sentence() -> None:
    assert offenders((path, no_sentence(path)) for path in own_scripts()) == {}


def test_file_name_says_what_is_inside() -> None:
    assert offenders((path, EMPTY_NAMES & set(path.stem.split("_"))) for path in modules()) == {}
