"""The published schemas as tests use them: as they are, and closed against undescribed fields."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).resolve().parents[2] / "gpucheck" / "data" / "schemas"


def schema(name: str) -> Any:
    """Return the schema of a document."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@cache
def validator(name: str) -> Draft202012Validator:
    """Return what a reader checks a document with: fields that it does not know are fine."""
    return Draft202012Validator(schema(name))


@cache
def closed_validator(name: str) -> Draft202012Validator:
    """Return what we check ourselves with: every field that we write is described."""
    return Draft202012Validator(_closed(schema(name)))


def _closed(value: Any) -> Any:
    if isinstance(value, list):
        return [_closed(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _closed(item) for key, item in value.items()}
    # The arms of if/then have properties without a type: they only add to what is described.
    if "properties" in found and "type" in found:
        found.setdefault("additionalProperties", False)
    return found


def places(document: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Yield the objects that hold a field, with its name: `gpus[].pcie.width` in every GPU."""
    head, _, rest = path.partition(".")
    name = head.removesuffix("[]")
    if not isinstance(document, dict) or name not in document:
        return
    if not rest:
        yield document, name
        return
    items = document[name] if head.endswith("[]") else [document[name]]
    for item in items or ():
        yield from places(item, rest)


def changed(document: Any, path: str, change: Any) -> Any:
    """Return a copy with the first field at `path` given to `change(holder, name)`, or None."""
    if next(places(document, path), None) is None:
        return None
    found = copy.deepcopy(document)
    for holder, name in places(found, path):
        change(holder, name)
        return found
    return None
