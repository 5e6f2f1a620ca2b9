"""What holds for every document, whatever the machine: its schema, its code, reasons for nulls."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import jsonschema

from gpucheck.cli.commands import load_documents
from gpucheck.drivers.host.files import MOST_JSON_BYTES
from gpucheck.report.formats.json import document as json_document
from gpucheck.report.saved import read_document
from tests.fakes.gpus import NOTHING_TO_TELL

#: The envelope's word for each exit code (contract: `status`).
STATUSES = {0: {"ok", "warn"}, 1: {"fail"}}

#: Fields of a process that are null as its `namespace` says, or as it is in no MIG instance.
TOLD_ELSEWHERE = frozenset({"name", "user", "command", "mig_uuid"})


@functools.cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """Return the validator of `gpucheck/NAME/1`, from the schema in the package."""
    schema = files("gpucheck") / "data" / "schemas" / f"{name}.json"
    return jsonschema.Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))


def only_document(stdout: str) -> Any:
    """Return the document if there is exactly one, on one line, and nothing beside it."""
    assert stdout.endswith("\n")
    assert stdout.count("\n") == 1
    return json.loads(stdout, parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise AssertionError(word)  # NaN and Infinity are not JSON


def assert_document(document: Any, name: str, code: int) -> None:
    """Check the envelope, its schema, and that every reading that is absent has a reason."""
    errors = sorted(validator(name).iter_errors(document), key=str)
    assert not errors, "\n".join(f"{error.json_path}: {error.message}" for error in errors[:5])
    assert document["schema"] == f"gpucheck/{name}/1"
    assert document["exit_code"] == code
    assert document["status"] in STATUSES.get(code, {"unknown"})
    # An unusable GPU is an answer, and so is one of which detect cannot tell.
    answered = code == 1 or (name in ("detect", "process") and code == 3)
    assert (document["error"] is None) == (code in (0, 1)) or answered
    if name == "list" and document["result"] is not None:
        for row in document["result"]["gpus"]:
            assert_reasons(row)
    assert_can_be_read_back(document)


def assert_can_be_read_back(document: Any) -> None:
    """Check that `show` has all that the document holds, and nothing else."""
    report, _, ignored = read_document(
        json.dumps(document).encode(), MOST_JSON_BYTES, load_documents()
    )
    assert json_document(report) == document
    assert ignored == ()


def assert_reasons(row: dict[str, Any]) -> None:
    """Check that a GPU's row says why a reading is null, and of nothing else that it is."""
    absent = set(_absent(row))
    told = row["unavailable"]
    assert absent - set(told) == set(), "null without a reason"
    assert {name for name in told if not _is_absent(row, name)} == set(), "a reason without a null"
    assert all(reason.strip() for reason in told.values())
    assert (row["state"] == "ok") == (row["error"] is None)
    assert (row["visible"] is False) == (row["hidden_reason"] is not None)


def _absent(row: dict[str, Any]) -> Iterator[str]:
    for name, value in row.items():
        if name in NOTHING_TO_TELL or name == "unavailable":
            continue
        if name == "processes":
            nulls = {key for process in value for key, item in process.items() if item is None}
            yield from (f"processes.{key}" for key in nulls - TOLD_ELSEWHERE)
        elif name == "mig":
            yield from ["mig.enabled"] if value["enabled"] is None else []
            for position, instance in enumerate(value["instances"]):
                nulls = {key for key, item in instance.items() if item is None}
                yield from (f"mig.instances[{position}].{key}" for key in nulls)
        elif isinstance(value, dict):
            yield from (f"{name}.{key}" for key, item in value.items() if item is None)
        elif value is None:
            yield name


def _is_absent(row: dict[str, Any], path: str) -> bool:
    """Return whether a path leads to a null, to an empty list, or to a list with gaps."""
    if path in ("processes", "mig.instances"):
        return True  # the list may lack one kind, and hold the others
    if path.startswith("processes."):
        return True  # of a process that --user left out
    if path == "holders":
        return True  # who may not be seen is missing there
    return row[path] is None if path in NOTHING_TO_TELL else path in set(_absent(row))
