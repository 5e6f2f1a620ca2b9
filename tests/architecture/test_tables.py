"""Tables of gpucheck/data: each fact has a name, a source and a date, and no text is empty."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from string import Formatter
from typing import Any

from gpucheck.bench.model import GateClass
from gpucheck.data import FOLDER, read_table
from gpucheck.detect.checks import CHECKS
from gpucheck.detect.checks.frameworks import NAMES
from gpucheck.detect.findings import explain_cause
from gpucheck.detect.machine import KERNEL_LOG
from gpucheck.detect.run import explain_check

#: Before this nobody had read a source for gpucheck.
FIRST_DATE = datetime.date(2025, 1, 1)
TABLES = {path.stem: read_table(path.stem) for path in sorted(FOLDER.glob("*.toml"))}
FACTS = {name: table["row"] for name, table in TABLES.items() if "row" in table}
TEXTS = {name: table for name, table in TABLES.items() if "row" not in table}


def test_every_row_has_an_id_a_source_a_date_and_facts() -> None:
    offenders = [
        f"{name}: {row.get('id', row)}"
        for name, rows in FACTS.items()
        for row in rows
        if not (
            isinstance(row.get("id"), str)
            and isinstance(row.get("source"), str)
            and row["source"].strip()
            and type(row.get("date")) is datetime.date
            and FIRST_DATE <= row["date"] <= datetime.date.today()
            and set(row) - {"id", "source", "date"}
        )
    ]

    assert {"peaks", "wheels"} <= FACTS.keys()
    assert not offenders


def test_no_id_stands_twice_in_a_table() -> None:
    twice = [
        f"{name}: {row_id}"
        for name, rows in FACTS.items()
        for row_id, count in Counter(row["id"] for row in rows).items()
        if count > 1
    ]

    assert not twice


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each value that is no table and no list, with its path."""
    if not isinstance(value, dict | list):
        yield path, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(inner, f"{path}.{key}")


#: Values that checks of detect fill into their texts.
VALUES = (
    "again", "capability", "condition", "counters", "cuda", "down", "driver", "dropped",
    "entry", "errors", "excluded", "folder", "gpus", "grown", "index", "kernel", "library",
    "links", "listed", "milliseconds", "mode", "most", "names", "needed", "nodes", "now",
    "offered", "on_bus", "options", "rebuild", "temperature", "them", "total", "uuid", "value",
    "version", "why", "works",
)  # fmt: skip


def test_causes_are_named_by_their_check_and_can_be_filled_in() -> None:
    named = {check.ID: {*explain_check(check).causes} for check in CHECKS}
    named["any"] = {"not-recorded"}.union(*named.values())
    named["framework"] = set().union(*(named[name] for name in NAMES))
    causes = [
        (check_id, texts.get("cause", cause), texts)
        for check_id, rows in TABLES["causes"].items()
        for cause, texts in rows.items()
    ]
    texts = [text for _, text in leaves(TABLES["causes"], "causes")]

    assert not [(check_id, cause) for check_id, cause, _ in causes if cause not in named[check_id]]
    assert not [row for _, _, row in causes if {*row} - {"cause", "sentence", "remedy"}]
    assert not [row for _, _, row in causes if not {*row} >= {"sentence", "remedy"}]
    assert {name for text in texts for _, name, *_ in Formatter().parse(text) if name} == {*VALUES}
    # WSL2 has another step in its place.
    assert {text for text in texts if "dmesg" in text} == {KERNEL_LOG}


def test_every_cause_of_every_check_can_be_explained() -> None:
    explained = [
        (check.ID, explain_cause(check.ID, check.LAYER, name))
        for check in CHECKS
        for name in explain_check(check).causes
    ]

    assert len(explained) > 200
    assert not [(check, cause.name) for check, cause in explained if not cause.sentence]
    assert not [(check, cause.name) for check, cause in explained if not cause.remedy]
    assert not [cause for _, cause in explained if "{" in cause.sentence + "".join(cause.remedy)]


GATE_KEYS = {
    "class", "demand", "direction", "key", "like", "next", "off", "sentence", "unit", "unread",
}  # fmt: skip


def test_every_gate_says_where_to_look_and_what_to_do() -> None:
    gates = TABLES["gates"]
    cases = {name: row for name, row in gates.items() if name != "class"}
    classes = {*gates["class"], *(row["class"] for row in cases.values() if "class" in row)}

    assert not [row for row in cases.values() if {*row} - GATE_KEYS]
    assert not [row for row in cases.values() if ("demand" in row) != ("key" in row)]
    assert not [row for row in cases.values() if row.get("like", "results") not in cases]
    assert classes <= {*GateClass}


def test_what_is_no_list_of_facts_is_texts_by_name() -> None:
    offenders = [
        where
        for name, table in TEXTS.items()
        for where, text in leaves(table, name)
        if not (isinstance(text, str) and text.strip() == text != "")
    ]

    assert not offenders
    assert not [
        name
        for name, table in TEXTS.items()
        if not all(isinstance(row, dict) for row in table.values())
    ]
