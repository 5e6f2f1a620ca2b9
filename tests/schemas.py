"""Generator of the published JSON Schemas, from the records of each document.

The types, the fields and whether they may be null are the records'. tests/data/schemas.toml has
what a type cannot say, in a table for each record: bounds and descriptions of its fields, and
`later`, the fields that came after the document's number was published and are therefore not
required. A key ends with `[]` for the items of a list and with `{}` for the values of a mapping. A
table "DOCUMENT.RECORD" is for that document alone; "none" takes a keyword away.

After a change of a record: `UPDATE_SNAPSHOTS=1 pytest tests/architecture/test_schemas.py`.
"""

from __future__ import annotations

import json
import textwrap
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from gpucheck.bench.ci.model import SavedRun
from gpucheck.cli.commands import load_documents
from gpucheck.fleet.model import NodeAnswer
from gpucheck.report.codec import is_record
from gpucheck.report.documents import result_types
from gpucheck.report.envelope import Failure, Notice
from gpucheck.report.host import Host

NOTES = Path(__file__).parent / "data" / "schemas.toml"

#: The record of each saved document's result; detect has one of two.
RESULTS: dict[str, tuple[type, ...]] = {
    name: result_types(document)
    for name, document in load_documents().items()
    if document.results is not None
}
#: The kept file of `bench --save`, and a line of results.jsonl: they have no envelope.
WITHOUT_ENVELOPE: dict[str, type] = {"baseline": SavedRun, "fleet-node": NodeAnswer}

DIALECT = "https://json-schema.org/draft/2020-12/schema"
UTC = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"
TOOL = {
    "type": "object",
    "required": ["name", "version"],
    "properties": {"name": {"const": "gpucheck"}, "version": {"type": "string", "minLength": 1}},
}
COMPATIBLE = (
    "Fields may be added under this number: a reader ignores what it does not know, so no object "
    "forbids further properties. A field that is required here is never renamed or removed."
)
SCALARS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    float: {"type": "number", "minimum": 0},
    int: {"type": "integer", "minimum": 0},
    str: {"type": "string"},
}
WIDTH = 100
#: In schemas.toml this stands for "no such keyword".
NONE = "none"
#: Tables and fields of schemas.toml that a document has, as "TABLE.FIELD".
_used: set[str] = set()


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of `gpucheck/NAME/1`."""
    return _Generator(name).document()


def text(name: str) -> str:
    """Return a document's schema as the file holds it."""
    return "".join(_lines(schema(name), "")) + "\n"


def unused_notes() -> set[str]:
    """Return the tables and fields of schemas.toml that no generated document has used."""
    written = {
        f"{table}.{key}"
        for table, notes in _notes().items()
        if table not in ("documents", "definitions")
        for key in notes.get("fields", {"": None})
    }
    return written - _used


@cache
def _notes() -> dict[str, Any]:
    return tomllib.loads(NOTES.read_text(encoding="utf-8"))


class _Generator:
    """The schema of one document, and the definitions that it shares."""

    def __init__(self, name: str) -> None:
        self._name = name
        written = _notes().get("definitions", {}).get(name, {})
        self._definitions = {key: json.loads(value) for key, value in written.items()}
        kept = WITHOUT_ENVELOPE.get(name)
        roots = (*RESULTS[name], Host, Failure, Notice) if kept is None else (kept,)
        self._shared = {
            record for record, count in _uses(roots).items() if count > 1 or record in roots
        }

    def document(self) -> dict[str, Any]:
        head = {
            "$schema": DIALECT,
            "$id": f"urn:gpucheck:schema:{self._name}:1",
            "title": f"gpucheck/{self._name}/1",
            "description": _notes()["documents"][self._name],
        }
        kept = WITHOUT_ENVELOPE.get(self._name)
        if kept is not None:
            body = {**self._record(kept), **head}
            found = {key: body[key] for key in (*head, "type", "required", "properties")}
        else:
            head["description"] += f" {COMPATIBLE}"
            found = {**head, **self._envelope()}
        return {**found, "$defs": self._definitions} if self._definitions else found

    def _envelope(self) -> dict[str, Any]:
        fails = self._name == "error"
        error: dict[str, Any] = self._reference(Failure)
        if not fails:
            error = {
                "description": "What went wrong and the steps to try; null where `result` says it.",
                "anyOf": [error, {"type": "null"}],
            }
        rules = [
            _rule({"exit_code": {"const": 0}}, {"status": {"enum": ["ok", "warn"]}}),
            _rule({"exit_code": {"const": 1}}, {"status": {"const": "fail"}}),
            _rule({"exit_code": {"minimum": 2}}, {"status": {"const": "unknown"}}),
        ]
        if not fails:
            rules.append(_rule({"error": {"type": "null"}}, {"result": {"type": "object"}}))
        return {
            "type": "object",
            "required": [
                "schema", "tool", "time", "host", "status", "exit_code", "error", "result",
            ],
            "properties": {
                "schema": {"const": f"gpucheck/{self._name}/1"},
                "tool": TOOL,
                "time": {
                    "description": "When it was written, in UTC.", "type": "string", "pattern": UTC,
                },
                "host": {
                    "description": "The machine that it describes: with --from the recorded one.",
                    **self._reference(Host),
                },
                "status": {
                    "description": "By the exit code: 0 is ok, or warn where there are warnings; "
                    "1 is fail; else unknown.",
                    "enum": ["ok", "warn", "fail", "unknown"],
                },
                "exit_code": {
                    "description": "The process's.", "type": "integer",
                    "minimum": 0, "maximum": 255,
                },
                "error": error,
                "warnings": {
                    "description": "What should be known although there is an answer.",
                    "type": "array",
                    "items": self._of(Notice, Notice, ""),
                },
                "result": self._result(),
            },
            "allOf": rules,
        }  # fmt: skip

    def _result(self) -> dict[str, Any]:
        records = RESULTS[self._name]
        if not records:
            return {"type": "null"}
        if len(records) == 1:
            return _or_null(self._record(records[0]))
        catalogue, detection = map(self._reference, records)
        return {
            "type": ["object", "null"],
            "if": {"type": "object"},
            "then": {"if": {"required": ["catalogue"]}, "then": catalogue, "else": detection},
        }

    def _reference(self, record: type) -> dict[str, Any]:
        name = record.__name__
        if name not in self._definitions:
            self._definitions[name] = {}  # in case that it holds itself
            self._definitions[name] = self._record(record)
        return {"$ref": f"#/$defs/{name}"}

    def _record(self, record: type) -> dict[str, Any]:
        notes = self._table(record)
        _used.update(f"{table}." for table in (record.__name__, f"{self._name}.{record.__name__}"))
        hints = typing.get_type_hints(record)
        described = notes.get("only", list(_keys(record)))
        fields = {key: name for key, name in _keys(record).items() if key in described}
        later = notes.get("later", [])
        found: dict[str, Any] = {"type": "object"}
        if "description" in notes:
            found["description"] = notes["description"]
        found["required"] = [key for key in fields if key not in later]
        found["properties"] = {
            key: self._of(hints[name], record, key) for key, name in fields.items()
        }
        if "rules" in notes:
            found["allOf"] = json.loads(notes["rules"])
        return found

    def _table(self, record: type) -> dict[str, Any]:
        mine = _notes().get(f"{self._name}.{record.__name__}", {})
        ours = _notes().get(record.__name__, {})
        return {**ours, **mine, "fields": {**ours.get("fields", {}), **mine.get("fields", {})}}

    def _of(self, hint: Any, owner: type, key: str) -> dict[str, Any]:
        """Return the schema of a value of this type, in the field `key` of a record."""
        _used.update(
            f"{table}.{key}" for table in (owner.__name__, f"{self._name}.{owner.__name__}")
        )
        notes = dict(self._table(owner)["fields"].get(key, {}))
        arms = typing.get_args(hint) if _is_union(hint) else (hint,)
        kinds = [arm for arm in arms if arm is not type(None)]
        nullable = notes.pop("null", len(kinds) < len(arms))
        if "schema" in notes:
            found = json.loads(notes.pop("schema"))
        elif len(kinds) > 1:
            found = {"type": [*dict.fromkeys(SCALARS[kind]["type"] for kind in kinds)]}
            if "integer" in found["type"] and "number" in found["type"]:
                found["type"].remove("integer")
        else:
            found = self._kind(kinds[0], owner, key)
            if kinds[0] is str and not nullable and not notes.keys() & {"pattern", "enum", "const"}:
                found["minLength"] = 1
        description = {"description": notes.pop("description")} if "description" in notes else {}
        if "exclusiveMinimum" in notes:
            found.pop("minimum", None)
        found.update(notes)
        if "enum" in notes or "const" in notes:
            found.pop("type", None)
        found = {name: value for name, value in found.items() if value != NONE}
        return {**description, **(_or_null(found) if nullable else found)}

    def _kind(self, kind: Any, owner: type, key: str) -> dict[str, Any]:
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin is tuple and inner[-1] is Ellipsis:
            return {"type": "array", "items": self._of(inner[0], owner, f"{key}[]")}
        if origin is tuple:
            count = len(inner)
            items = self._of(inner[0], owner, f"{key}[]")
            return {"type": "array", "items": items, "minItems": count, "maxItems": count}
        if origin in (dict, Mapping):
            values = self._of(inner[1], owner, f"{key}{{}}")
            return {"type": "object", "additionalProperties": values}
        if issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        if is_record(kind):
            return self._reference(kind) if kind in self._shared else self._record(kind)
        return dict(SCALARS[kind])


def _uses(roots: tuple[type, ...]) -> dict[type, int]:
    """Return how often each record is a field's type below these."""
    counts: dict[type, int] = dict.fromkeys(roots, 0)
    waiting = list(roots)
    while waiting:
        for hint in typing.get_type_hints(waiting.pop()).values():
            for record in _records_in(hint):
                if record not in counts:
                    waiting.append(record)
                counts[record] = counts.get(record, 0) + 1
    return counts


def _records_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_record(hint):
        yield hint
    for inner in typing.get_args(hint):
        yield from _records_in(inner)


def _keys(record: Any) -> dict[str, str]:
    """Return each field's key in JSON and its name in Python."""
    names = getattr(record, "_fields", None) or tuple(record.__dataclass_fields__)
    return {name.rstrip("_"): name for name in names}


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def _or_null(found: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that takes null, too."""
    if "enum" in found:
        return {**found, "enum": [*found["enum"], None]}
    if "type" in found:
        kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
        return {**found, "type": [*kinds, "null"]}
    return {"anyOf": [found, {"type": "null"}]}


def _rule(when: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    return {"if": {"properties": when}, "then": {"properties": then}}


def _lines(value: Any, indent: str, *, name: str = "") -> Iterator[str]:
    """Yield JSON of which each part that fits is on one line."""
    short = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + len(name) + len(short) < WIDTH:
        yield short
        return
    deeper = indent + "  "
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    yield opening
    if all(isinstance(item, str) for item in value) and isinstance(value, list):
        words = ", ".join(json.dumps(item) for item in value)
        yield "\n" + textwrap.fill(words, WIDTH, initial_indent=deeper, subsequent_indent=deeper)
    else:
        items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
        for number, (key, item) in enumerate(items):
            name = "" if key is None else f"{json.dumps(key)}: "
            yield f"{',' if number else ''}\n{deeper}{name}"
            yield from _lines(item, deeper, name=name)
    yield f"\n{indent}{closing}"
