"""Every document has a JSON Schema in the package, and each of them is a valid schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.architecture.commands import COMMAND_NAMES
from tests.architecture.house import PACKAGE, name_of

SCHEMAS = PACKAGE / "data" / "schemas"

#: `claims` is what `place --claims` answers, `burn` what `bench --burn` does, `baseline` what
#: `bench --save` keeps, `error` a failure before any command is known.
DOCUMENTS = {*COMMAND_NAMES, "baseline", "burn", "claims", "error"}


def schema_files() -> list[Path]:
    return sorted(SCHEMAS.glob("*.json"))


def test_one_schema_per_document() -> None:
    assert {path.stem for path in schema_files()} == DOCUMENTS


@pytest.mark.parametrize("path", schema_files(), ids=name_of)
def test_schema_is_valid_and_names_its_document(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))

    jsonschema.Draft202012Validator.check_schema(schema)

    assert schema["properties"]["schema"]["const"] == f"gpucheck/{path.stem}/1"
