"""Every file says its duty, and no function grows past a screen without saying why."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture.house import ROOT, modules, name_of, parse

#: The ninetieth percentile of well-kept Python programs; beyond it a function does two things.
LONGEST_FUNCTION_LINES = 45


def own_scripts() -> list[Path]:
    return [*modules(), *sorted((ROOT / "benchmarks").glob("*.py"))]


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count a function's lines without its head: a command's head is its table of options."""
    return (function.end_lineno or 0) - function.body[0].lineno + 1


def has_reason(path: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    lines = path.read_text(encoding="utf-8").splitlines()
    return any("# reason:" in line for line in lines[function.lineno - 1 : function.end_lineno])


@pytest.mark.parametrize("path", own_scripts(), ids=name_of)
def test_module_docstring_is_a_sentence(path: Path) -> None:
    docstring = ast.get_docstring(parse(path)) or ""

    first = docstring.partition("\n\n")[0].rstrip()

    assert first.endswith((".", "?", ":")), f"no sentence: {first!r}"


@pytest.mark.parametrize("path", own_scripts(), ids=name_of)
def test_functions_fit_a_screen_or_say_why_not(path: Path) -> None:
    functions = [
        node
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    long = {
        function.name: body_lines(function)
        for function in functions
        if body_lines(function) > LONGEST_FUNCTION_LINES and not has_reason(path, function)
    }

    assert long == {}, "shorten it, or say why inside it: # reason: ..."


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_file_name_says_what_is_inside(path: Path) -> None:
    assert not {"utils", "helpers", "manager", "misc", "common"} & set(path.stem.split("_"))
