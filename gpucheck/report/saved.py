"""Saved documents: what a command wrote with --json, read back into the records it came from.

A document may come from anywhere. It is read within bounds, and held to the types of the records
and to the bounds of its published schema; what fits neither is one sentence that names the field.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from gpucheck.data import FOLDER
from gpucheck.report.codec import DecodeError, from_plain
from gpucheck.report.documents import Document, result_types
from gpucheck.report.envelope import Report
from gpucheck.version import __version__

#: The number of every schema so far.
NUMBER = 1

_SCHEMA = re.compile(r"gpucheck/(?P<name>[a-z][a-z-]{0,30})/(?P<number>[1-9][0-9]{0,5})")
NEWER = "Read it with the gpucheck that wrote it, or a newer one."
_BASELINE = "is a run that bench --save kept: it has figures to compare, and no report to show"
_COMPARE = (
    "Compare it with another one: gpucheck compare FIRST SECOND",
    "For a report to show, measure with: gpucheck bench --json --output FILE",
)
_UNPACK = "Unpack it, and name the document in it."
#: How other files begin: the offset, the bytes, and what they are.
_OTHERS = ((0, b"PK\x03\x04", "is a zip archive"), (257, b"ustar", "is a tar archive"))
#: How gzip files begin.
GZIP = b"\x1f\x8b"


class DocumentError(ValueError):
    """A file that holds no document of ours: what it is instead, and what to do."""

    def __init__(self, *, problem: str, remedy: tuple[str, ...] = ()) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


#: Report that a document holds, the document itself, and the JSON paths of its fields that this
#: version does not know.
SavedDocument = tuple[Report, Mapping[str, Any], tuple[str, ...]]


def read_document(
    content: bytes, most_bytes: int, documents: Mapping[str, Document]
) -> SavedDocument:
    """Return the document that a file holds, as it is or packed by gzip.

    `most_bytes` is how large it may be unpacked, `documents` those that may be read.

    Raises:
        DocumentError: it holds none of ours, a newer one, a damaged one, or several.
    """
    plain = parse_object(unpacked(content, most_bytes))
    name = name_of(plain, documents)
    try:
        return _document(name, plain, result_types(documents[name]))
    except DecodeError as error:
        version = version_of(plain)
        other = version not in (None, __version__)
        by = f" (written by gpucheck {str(version)[:40]}; this is {__version__})" if other else ""
        problem = f"is damaged{by}: {error}"
        raise DocumentError(problem=problem, remedy=(NEWER,) if other else ()) from None


def unpacked(content: bytes, most_bytes: int) -> bytes:
    """Return a file's content, unpacked if gzip packed it.

    Raises:
        DocumentError: it is cut off, too large, or an archive.
    """
    if content.startswith(GZIP):
        packed = zlib.decompressobj(wbits=31)
        try:
            content = packed.decompress(content, most_bytes + 1)
        except zlib.error:
            raise DocumentError(problem="is packed by gzip, and damaged") from None
        if len(content) <= most_bytes and not packed.eof:
            raise DocumentError(problem="is packed by gzip, and was cut off")
    if len(content) > most_bytes:
        raise DocumentError(problem=f"is larger than {most_bytes >> 20} MiB")
    for offset, magic, kind in _OTHERS:
        if content[offset : offset + len(magic)] == magic:
            raise DocumentError(problem=kind, remedy=(_UNPACK,))
    return content


def parse_object(content: bytes) -> Mapping[str, Any]:
    """Return the JSON object that a file holds.

    Raises:
        DocumentError: it is empty, not JSON, no object, or there are several.
    """
    if not content.strip():
        raise DocumentError(problem="is empty")
    try:
        plain = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        count = _count_lines(content)
        if count > 1:
            problem = f"holds {count} documents, one on each line"
            raise DocumentError(
                problem=problem, remedy=("Show one of them: tail -n 1 FILE | gpucheck show -",)
            ) from None
        why = "too deep" if isinstance(error, RecursionError) else _without_position(error)
        raise DocumentError(problem=f"is not JSON, or was cut off: {why}") from None
    if not isinstance(plain, dict):
        raise DocumentError(problem="is JSON, but not a gpucheck document")
    return plain


def _refuse_constant(word: str) -> None:
    problem = f"{word} is not a number in JSON"
    raise ValueError(problem)


def _count_lines(content: bytes) -> int:
    """Return how many JSON objects a file has, one on each line; 0 if it has anything else."""
    lines = [line for line in content.splitlines() if line.strip()]
    return (
        len(lines) if all(line[:1] == b"{" and line.rstrip()[-1:] == b"}" for line in lines) else 0
    )


def _without_position(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} in line {error.lineno}, column {error.colno}"
    return "it is not text" if isinstance(error, UnicodeError) else str(error)


def name_of(plain: Mapping[str, Any], documents: Mapping[str, Document]) -> str:
    """Return the name of a document: "detect" of `gpucheck/detect/1`.

    Raises:
        DocumentError: it is not ours, or its schema is one that this version does not know.
    """
    schema = plain.get("schema")
    match = _SCHEMA.fullmatch(schema) if isinstance(schema, str) else None
    if match is None:
        unfit = f"its schema is {str(schema)[:60]!r}" if schema is not None else "it has no schema"
        raise DocumentError(problem=f"is not a gpucheck document: {unfit}")
    name, number = match["name"], int(match["number"])
    if name == "baseline":
        raise DocumentError(problem=_BASELINE, remedy=_COMPARE)
    if name not in documents or documents[name].results is None or number != NUMBER:
        version = version_of(plain)
        by = f", written by gpucheck {version[:40]}" if version else ""
        problem = f"is a {match[0]} document{by}, which gpucheck {__version__} does not know"
        raise DocumentError(problem=problem, remedy=(NEWER,))
    return name


def version_of(plain: Mapping[str, Any]) -> str | None:
    """Return the version of the gpucheck that wrote a document, None if it does not say."""
    tool = plain.get("tool")
    version = tool.get("version") if isinstance(tool, dict) else None
    return version if isinstance(version, str) else None


def _document(name: str, plain: Mapping[str, Any], types: tuple[type, ...]) -> SavedDocument:
    ignored: list[str] = []
    report = from_plain(Report, {**plain, "command": name}, ignored=ignored)
    if report.result is not None:
        report = report._replace(result=_result(types, report.result, ignored))
    check_bounds(name, plain)
    return report, plain, tuple(ignored)


def _result(types: tuple[type, ...], value: object, ignored: list[str]) -> object:
    """Return the record of a result: the first one whose fields it has."""
    if not types:
        where, problem = "$.result", "must be null"
        raise DecodeError(where, problem)
    for kind in types[:-1]:
        unknown: list[str] = []
        with suppress(DecodeError):
            record: object = from_plain(kind, value, where="$.result", ignored=unknown)
            ignored += unknown
            return record
    return from_plain(types[-1], value, where="$.result", ignored=ignored)


# ---------------------------------------------------------------------------------- bounds


@cache
def _schema(name: str) -> Mapping[str, Any]:
    text = (FOLDER / "schemas" / f"{name}.json").read_text(encoding="utf-8")
    schema: Mapping[str, Any] = json.loads(text)
    return schema


def check_bounds(name: str, plain: Mapping[str, Any]) -> None:
    """Check what types cannot say of a document: the range of numbers, and the forms of texts.

    Raises:
        DecodeError: with the JSON path of the first value out of bounds.
    """
    _check_bounds(plain, _schema(name), _schema(name).get("$defs", {}), "$")


def _check_bounds(
    value: object, schema: Mapping[str, Any], shared: Mapping[str, Any], where: str
) -> None:
    """Check what types cannot say: the least and largest numbers, and the forms of texts.

    Of JSON Schema it knows what tests/schemas.py writes.

    Raises:
        DecodeError: with the JSON path of the first value out of bounds.
    """
    while "$ref" in schema:
        schema = shared[schema["$ref"].rpartition("/")[2]]
    if value is None:
        return
    for arm in schema.get("anyOf", ()):
        if arm.get("type") != "null":
            _check_bounds(value, arm, shared, where)
    if isinstance(value, dict):
        if "if" in schema:  # the result of detect is one of two, told by a field
            has = all(key in value for key in schema["if"].get("required", ()))
            _check_bounds(value, schema["then" if has else "else"], shared, where)
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for key, item in value.items():
            inner = known.get(key, others)
            if inner:
                _check_bounds(item, inner, shared, f"{where}.{key}")
    elif isinstance(value, list):
        length = len(value)
        if not schema.get("minItems", 0) <= length <= schema.get("maxItems", length):
            raise DecodeError(where, f"has {length} items")
        if "items" in schema:
            for place, item in enumerate(value):
                _check_bounds(item, schema["items"], shared, f"{where}[{place}]")
    elif isinstance(value, str):
        _check_text(value, schema, where)
    elif not isinstance(value, bool):
        _check_number(value, schema, where)


def _check_text(value: str, schema: Mapping[str, Any], where: str) -> None:
    if len(value) < schema.get("minLength", 0):
        raise DecodeError(where, "is empty")
    pattern = schema.get("pattern")
    if pattern is not None and re.search(pattern, value) is None:
        raise DecodeError(where, f"must have the form {pattern}")


def _check_number(value: Any, schema: Mapping[str, Any], where: str) -> None:
    least, most = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    if least is not None and value < least:
        raise DecodeError(where, f"must be at least {least}")
    if above is not None and value <= above:
        raise DecodeError(where, f"must be above {above}")
    if most is not None and value > most:
        raise DecodeError(where, f"must be at most {most}")
