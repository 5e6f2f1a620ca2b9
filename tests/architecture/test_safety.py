"""No shell, no network, no code from data; and the project speaks only of itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.house import imports, modules, name_of, parse, project_files

FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}

FORBIDDEN_MODULES = {
    "asyncio",
    "ftplib",
    "http",
    "marshal",
    "pickle",
    "requests",
    "shelve",
    "smtplib",
    "socket",
    "socketserver",
    "ssl",
    "telnetlib",
    "urllib",
    "xmlrpc",
}

#: Places and hosts that mean nothing to a reader elsewhere; the brackets keep this file innocent.
FOREIGN_WORDS = re.compile(
    r"(?<!\w)/(?:wor[k]|roo[t]|far[m])/|/tmp/bash_job[s]|pypi[.]org|pythonhosted[.]|npmjs[.]|debian[.]org"
)

BINARY_SUFFIXES = {".png", ".gz", ".so", ".whl", ".zip"}


def text_files() -> list[Path]:
    return [path for path in project_files() if path.suffix not in BINARY_SUFFIXES]


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_no_code_from_data_and_no_shell(path: Path) -> None:
    calls = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]

    named = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    shells = [keyword for call in calls for keyword in call.keywords if keyword.arg == "shell"]

    assert named & FORBIDDEN_CALLS == set()
    assert shells == []


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_no_network_and_no_pickle(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(parse(path))}

    assert tops & FORBIDDEN_MODULES == set()


@pytest.mark.parametrize("path", text_files(), ids=name_of)
def test_project_speaks_only_of_itself(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert FOREIGN_WORDS.findall(text) == []
