"""Every file says its duty, and every function is a verb or the noun that it returns."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture.house import ROOT, modules, offenders

#: Names that say nothing of what is inside.
EMPTY_NAMES = {"utils", "helpers", "manager", "misc", "common"}
#: Read without a parser, which takes a second for all files.
DOCSTRING = re.compile(r'(#.*\n)*"""(?P<text>[^"\\]*(?:"(?!"")[^"\\]*)*)"""')


def own_scripts() -> list[Path]:
    return [*modules(), *sorted((ROOT / "benchmarks").glob("*.py"))]


def no_sentence(path: Path) -> list[str]:
    docstring = DOCSTRING.match(path.read_text(encoding="utf-8"))
    first = docstring["text"].partition("\n\n")[0].rstrip() if docstring else ""
    return [] if first.endswith((".", "?", ":")) else [f"no sentence: {first!r}"]


def test_module_docstring_is_a_sentence() -> None:
    assert offenders((path, no_sentence(path)) for path in own_scripts()) == {}


def test_file_name_says_what_is_inside() -> None:
    assert offenders((path, EMPTY_NAMES & set(path.stem.split("_"))) for path in modules()) == {}


#: `from_`, `to_`, `as_`, `with_` and `without_` are custom.
PREPOSITION = re.compile(
    r"^ *def _?(?:about|above|after|against|around|at|before|below|beside|between|beyond|by|for|in"
    r"|into|near|of|off|on|out|over|per|since|through|under|until|within)_\w*",
    re.MULTILINE,
)


def test_no_function_begins_with_a_preposition() -> None:
    assert PREPOSITION.match("    def _of_run(self)")
    assert (
        offenders((path, PREPOSITION.findall(path.read_text("utf-8"))) for path in modules()) == {}
    )
