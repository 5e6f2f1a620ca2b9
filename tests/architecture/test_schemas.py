"""Every document has a JSON Schema in the package: valid, and generated from its records."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest

from tests import schemas
from tests.architecture.commands import COMMAND_NAMES
from tests.architecture.house import PACKAGE, name_of

SCHEMAS = PACKAGE / "data" / "schemas"

#: `claims` is what `place --claims` answers, `burn` what `bench --burn` does, `peaks` what
#: `bench --peaks` answers, `wheel`, `process` and `log` what `detect --wheel`, `--pid` and `--log`
#: do, `baseline` what `bench --save` keeps, `fleet-node` a line of results.jsonl, `error` a failure
#: before any command is known; `show` shows the documents of the others.
BY_OPTIONS = {"burn", "claims", "log", "peaks", "process", "wheel"}
DOCUMENTS = {*COMMAND_NAMES, *BY_OPTIONS, "baseline", "error", "fleet-node"} - {"show"}


def schema_files() -> list[Path]:
    return sorted(SCHEMAS.glob("*.json"))


def written(name: str) -> Path:
    """Return the file of a document's schema; written anew if changes are accepted."""
    path = SCHEMAS / f"{name}.json"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.write_text(schemas.text(name), encoding="utf-8")
    return path


def test_one_schema_per_document() -> None:
    new = {written(name) for name in DOCUMENTS if not (SCHEMAS / f"{name}.json").exists()}

    assert all(path.exists() for path in new), "UPDATE_SNAPSHOTS=1 writes them"
    assert {path.stem for path in schema_files()} == DOCUMENTS
    assert {*schemas.RESULTS, *schemas.WITHOUT_ENVELOPE} == DOCUMENTS


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_schema_is_what_the_records_say(name: str) -> None:
    path = written(name)

    assert path.read_text(encoding="utf-8") == schemas.text(name)


def test_every_note_is_of_a_record_and_a_field_that_a_document_has() -> None:
    for name in sorted(DOCUMENTS):
        schemas.schema(name)

    assert schemas.unused_notes() == set()


@pytest.mark.parametrize("path", schema_files(), ids=name_of)
def test_schema_is_valid_and_names_its_document(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))

    jsonschema.Draft202012Validator.check_schema(schema)

    assert schema["properties"]["schema"]["const"] == f"gpucheck/{path.stem}/1"
