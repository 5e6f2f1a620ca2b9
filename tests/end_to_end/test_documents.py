"""The outputs that README and docs/ show are what the program writes.

A block of a document that follows `<!-- machine: NAME -->` (of tests/data/machines) or
`<!-- scenario: NAME -->` (of tests/data/scenarios) is run there; `, with CuPy` adds the pretended
one, `, log: NAME` a train.log (of tests/data/logs/open; with `of 0000:2a:00` it names that GPU),
`, process: NAME` process 4711 (of tests/fakes/processes.py). `cat train.log` shows that log. Where
a change is meant: `UPDATE_SNAPSHOTS=1 pytest tests/end_to_end/test_documents.py`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.house import ROOT, name_of
from tests.end_to_end.conftest import Ended, Pretend, Program
from tests.fakes.libraries import build_libraries, cupy_environment
from tests.fakes.machine import load_machine
from tests.fakes.processes import PROGRAMS
from tests.fakes.scenarios import load_scenario
from tests.fakes.tree import write_tree

UPDATE = os.environ.get("UPDATE_SNAPSHOTS") == "1"
DOCUMENTS = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("bench", "detect", "json", "list", "place", "questions", "saved", "tutorials")
    ),
)
#: As wide as the documents' own lines may be.
WIDTH = "96"
EXAMPLE = re.compile(
    r"<!-- (?P<kind>machine|scenario): (?P<name>[\w/-]+)(?P<cupy>, with CuPy)?"
    r"(, log: (?P<log>[\w-]+)( of (?P<gpu>[\w:]+))?)?(, process: (?P<process>[\w-]+))? -->\n"
    r"```console\n(?P<shown>.*?)```",
    re.DOTALL,
)
#: A GPU in the logs of tests/data, where an example names another.
LOGGED_GPU = "0000:44:00"
LOGS = ROOT / "tests" / "data" / "logs" / "open"
HEAD = re.compile(r"(?P<command>.*?) \| head -(?P<count>\d+)")
ASSIGNMENT = re.compile(r"(?P<name>[A-Z_]+)=(?P<value>\S*)")
INDENTED = " | python3 -m json.tool"
#: What differs from run to run, and from one Python to another: times, and what is installed.
TIME = re.compile(r"first\s+launch\s+[0-9.]+\s+ms")
STAMP = re.compile(r'"(?P<key>time|python|version)": "[^"]*"')
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
FRAMEWORK = re.compile(r"^\S framework: .*\n(?:  .*\n)*", re.MULTILINE)
#: What a document shows instead of the Python that runs the tests.
NO_FRAMEWORK = "– framework: none in /usr/bin/python3 (by PATH; --python PATH selects another)\n"


class Example(NamedTuple):
    """A block of a document: where it is run, and what it shows."""

    document: Path
    line: int
    kind: str
    name: str
    cupy: bool
    shown: str
    log: str | None
    gpu: str | None
    process: str | None


def examples() -> Iterator[Example]:
    """Yield the blocks of all documents that say where they are run."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for found in EXAMPLE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield Example(
                document,
                line,
                found["kind"],
                found["name"],
                bool(found["cupy"]),
                found["shown"],
                found["log"],
                found["gpu"],
                found["process"],
            )


EXAMPLES = list(examples())


def environment(example: Example, pretend: Pretend, folder: Path) -> dict[str, str]:
    """Return the variables under which the example's machine is seen."""
    if example.kind == "machine":
        found = pretend(example.name)
    else:
        scenario = load_scenario(example.name)
        variables = build_libraries(scenario.listed, folder / "libraries")
        found = scenario.environment(variables, scenario.write_root(folder / "root"))
    if example.process:
        root = write_tree(load_machine(example.name), folder / "root")
        PROGRAMS[example.process](root)
        found |= {"GPUCHECK_ROOT": str(root)}
    if example.log:
        text = (LOGS / f"{example.log}.log").read_text(encoding="utf-8")
        own = text.replace(LOGGED_GPU, example.gpu or LOGGED_GPU)
        (folder / "train.log").write_text(own, encoding="utf-8")
    claims = {"GPUCHECK_CLAIMS_DIR": str(folder / "claims")}
    pretended = cupy_environment(time="virtual") if example.cupy else {}
    return {**found, **pretended, **claims, "COLUMNS": WIDTH}


def run(line: str, program: Program, env: dict[str, str], folder: Path) -> str:
    """Return what a terminal shows after `cat FILE`, or gpucheck with variables and a pipe."""
    cut = HEAD.fullmatch(line)
    words = shlex.split(cut["command"] if cut else line.removesuffix(INDENTED))
    if words[0] == "cat":
        return (folder / words[1]).read_text(encoding="utf-8")
    variables: dict[str, str] = {}
    while found := ASSIGNMENT.fullmatch(words[0]):
        variables[found["name"]] = found["value"]
        words.pop(0)
    assert words[0] == "gpucheck", line
    ended: Ended = program(*words[1:], env=env | variables, cwd=folder)
    if cut:
        return "".join(ended.text.splitlines(keepends=True)[: int(cut["count"])])
    if line.endswith(INDENTED):
        return json.dumps(json.loads(ended.text), indent=4) + "\n" + ended.said
    return ended.text + ended.said


def steady(text: str) -> str:
    """Return a text without what differs from run to run."""
    text = MOMENT.sub("2026-11-21 15:48:38 UTC", text)
    text = STAMP.sub(r'"\g<key>": ""', TIME.sub("first launch 0.1 ms", text))
    return FRAMEWORK.sub("", text)


def test_there_are_examples_of_each_document() -> None:
    assert {example.document for example in EXAMPLES} == set(DOCUMENTS)


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=[f"{name_of(each.document)}:{each.line}" for each in EXAMPLES]
)
def test_example(example: Example, pretend: Pretend, program: Program, tmp_path: Path) -> None:
    env = environment(example, pretend, tmp_path)
    lines = [line.removeprefix("$ ") for line in example.shown.splitlines() if line[:2] == "$ "]

    found = "".join(f"$ {line}\n{run(line, program, env, tmp_path)}" for line in lines)

    if UPDATE and steady(found) != steady(example.shown):
        text = example.document.read_text(encoding="utf-8")
        written = FRAMEWORK.sub(NO_FRAMEWORK, found)
        changed = text.replace(f"```console\n{example.shown}```", f"```console\n{written}```")
        example.document.write_text(changed, encoding="utf-8")
    else:
        assert steady(found) == steady(example.shown)
