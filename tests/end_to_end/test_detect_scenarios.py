"""Every scenario of tests/data/scenarios, through the real command and the pretended libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Ended, Program
from tests.fakes.libraries import build_libraries
from tests.fakes.scenarios import Scenario, load_scenario, scenario_names

LEAST = 45


def run(scenario: Scenario, program: Program, folder: Path, *arguments: str) -> Ended:
    variables = build_libraries(scenario.listed, folder / "libraries")
    root = scenario.write_root(folder / "root")
    env = scenario.environment(variables, root)
    return program("detect", *scenario.arguments, *arguments, env=env)


def checks_of(document: Any) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for check in document["result"]["checks"]:
        found.setdefault(check["id"], []).append(check)
    return found


def test_there_are_enough() -> None:
    assert len(scenario_names()) >= LEAST


@pytest.mark.parametrize("name", scenario_names())
def test_scenario(name: str, program: Program, tmp_path: Path, c_compiler: str) -> None:
    scenario = load_scenario(name)
    expect = scenario.expect

    ended = run(scenario, program, tmp_path, "--json")

    document = ended.document("detect")
    result = document["result"]
    said = [result["conclusion"], *(check["summary"] for check in result["checks"])]
    steps = " ".join([*result["remedy"], *(r for c in result["checks"] for r in c["remedy"])])
    assert (ended.code, result["verdict"], result["first_failure"] or "") == (
        expect.exit_code,
        expect.verdict,
        expect.first_failure,
    ), said
    assert expect.says in " | ".join(said)
    assert expect.remedy in (" ".join(result["remedy"]) or steps)
    found = checks_of(document)
    statuses = {name: found[name][0]["status"] for name in expect.statuses}
    assert statuses == dict(expect.statuses), said
    wrong = [c for c in result["checks"] if c["status"] in ("fail", "warn")]
    assert all(check["remedy"] or "yet" in check["summary"] for check in wrong)
    assert all(check["evidence"] for check in wrong)


@pytest.mark.parametrize("name", ["healthy-h100x8", "no-gpu-on-bus", "ecc-uncorrected"])
def test_the_terminal_says_the_same(
    name: str, program: Program, tmp_path: Path, c_compiler: str
) -> None:
    scenario = load_scenario(name)

    ended = run(scenario, program, tmp_path)

    assert ended.code == scenario.expect.exit_code
    text = " ".join(ended.text.split())
    assert scenario.expect.says in text
    assert "GPU usable" in text or "GPU not usable" in text
    assert (scenario.expect.remedy == "") == ("Do: " not in text)
