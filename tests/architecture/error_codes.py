"""Codes that programs tell apart, read from the calls that make errors, failures and warnings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gpucheck.report import errors
from tests.architecture.house import ROOT, modules, parse

#: Calls whose `code` is no error or warning of a command: doubts of a row, mistakes in a profile,
#: and the readings of a snapshot, which a command puts into its own words.
_OTHERS = frozenset({"Doubt", "Problem", "LostGpu", "LimitOptions", "ProbeFailure"})
#: Calls of the same names have other texts in that place: a variable, or nothing.
_KEBAB = re.compile(r"[a-z][a-z0-9-]+")
#: Calls that take the code without its name, and where.
_PLACES = {"Notice": 0, "Failure": 0, "_notice": 0, "_wrong": 0, "_error": 0, "failure": 1}
#: A file without any of them need not be parsed, which takes long.
_MAKES_A_CODE = re.compile(rf"\bcode=|\b(?:{'|'.join(_PLACES)})\(")


class Code(NamedTuple):
    """Code that a call names, and the exit code of the call's class; None where it has none."""

    code: str
    exit_code: int | None


def codes() -> set[Code]:
    """Return every code that a call of the package writes out, or names by a constant."""
    makers = [path for path in modules() if _MAKES_A_CODE.search(path.read_text("utf-8"))]
    return {code for path in makers for code in _codes_in(path)}


def _codes_in(path: Path) -> Iterator[Code]:
    named = {**dict(_imported(path)), **_constants(path)}
    for call in ast.walk(parse(path)):
        if isinstance(call, ast.Call):
            name = _name_of(call.func)
            exit_code = getattr(getattr(errors, name, None), "exit_code", None)
            for value in () if name in _OTHERS else _values(call, name):
                for text in filter(_KEBAB.fullmatch, _texts(value, named)):
                    yield Code(text, exit_code)


def _name_of(function: ast.expr) -> str:
    match function:
        case ast.Attribute(_, name) | ast.Name(name):
            return name
    return ""


def _values(call: ast.Call, name: str) -> Iterator[ast.expr]:
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "code")
    place = _PLACES.get(name)
    if place is not None:
        yield from call.args[place : place + 1]


def _texts(value: ast.expr, named: Mapping[str, str]) -> Iterator[str]:
    """Yield the texts that an expression may be: of a condition, both."""
    match value:
        case ast.Constant(str(text)):
            yield text
        case ast.Name(name) if name in named:
            yield named[name]
        case ast.IfExp():
            yield from _texts(value.body, named)
            yield from _texts(value.orelse, named)


@cache
def _constants(path: Path) -> Mapping[str, str]:
    """Return the texts that a module gives names."""
    found = {}
    for node in parse(path).body:
        match node:
            case ast.Assign([ast.Name(name)], ast.Constant(str(text))):
                found[name] = text
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)):
                for one, value in zip(names, values, strict=True):
                    match one, value:
                        case ast.Name(name), ast.Constant(str(text)):
                            found[name] = text
    return found


def _imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the constants that a module imports from another of the package."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom):
            other = ROOT / f"{str(node.module).replace('.', '/')}.py"
            known = _constants(other) if other.is_file() else {}
            yield from ((each.name, known[each.name]) for each in node.names if each.name in known)
