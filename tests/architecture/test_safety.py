"""No shell, no network, no code from data; and the project speaks only of itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.architecture.house import modules, nodes, offenders, project_files, top_imports

FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
#: As a text, so that few files are parsed for these calls; whitespace may stand anywhere.
MAY_BREAK_IT = re.compile(rf"\b(?:{'|'.join(FORBIDDEN_CALLS)})[\s\\]*\(|\bshell[\s\\]*=")

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


def code_from_data_and_shells(path: Path) -> list[str]:
    if MAY_BREAK_IT.search(path.read_text(encoding="utf-8")) is None:
        return []
    calls = [node for node in nodes(path) if isinstance(node, ast.Call)]
    named = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    shells = [f"shell= in line {call.lineno}" for call in calls if has_shell(call)]
    return [*(named & FORBIDDEN_CALLS), *shells]


def has_shell(call: ast.Call) -> bool:
    return any(keyword.arg == "shell" for keyword in call.keywords)


def test_no_code_from_data_and_no_shell() -> None:
    assert offenders((path, code_from_data_and_shells(path)) for path in modules()) == {}


def test_no_network_and_no_pickle() -> None:
    # The child of fleet run alone talks to an engine, which has its own event loop.
    used = {path: top_imports(path) & FORBIDDEN_MODULES for path in modules()}

    assert offenders(used.items()) == {"gpucheck/fleet/dask_child.py": ["asyncio"]}


def test_project_speaks_only_of_itself() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in text_files()}

    assert len(texts) > 500
    assert offenders((path, FOREIGN_WORDS.findall(text)) for path, text in texts.items()) == {}
