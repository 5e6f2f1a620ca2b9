"""A machine without an NVIDIA GPU, in the words of every command: detect's, not its library's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.conftest import Program
from tests.fakes.libraries import build_libraries
from tests.fakes.scenarios import load_scenario

ANSWER = "here is no NVIDIA GPU in this machine"
#: Every command that needs a GPU, the exit code, and which variables are set.
COMMANDS = [
    ("list", 4),
    ("list --processes", 4),
    ("place /gpu:0", 4),
    ("place --count 1", 4),
    ("place /gpu:0 -- true", 125),
    ("place /cpu:0 -- true", 0),
    ("memlimit 30%", 4),
    ("memlimit 30% --verify", 4),
    ("memlimit 30% -- true", 125),
    ("bench --require-gpu", 4),
    ("bench --profile default", 4),
    ("bench --peaks", 4),
    ("snapshot FOLDER/snapshot.json", 0),
    ("report FOLDER/ticket --yes", 0),
]
#: What the driver's library says instead, which only -v shows.
LIBRARY = "libnvidia-ml.so.1 was not found"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, c_compiler: str) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("no-gpu")
    scenario = load_scenario("no-gpu-on-bus")
    libraries = build_libraries(scenario.listed, folder / "libraries")
    return scenario.environment(libraries, scenario.write_root(folder / "root"))


@pytest.mark.parametrize(("words", "code"), COMMANDS)
def test_every_command_says_so(
    words: str, code: int, machine: dict[str, str], program: Program, tmp_path: Path
) -> None:
    ended = program(*words.replace("FOLDER", str(tmp_path)).split(), env=machine)

    assert ended.code == code
    shown = ended.text + ended.said
    # The processor is no worse for it.
    assert (ANSWER in shown) is ("/cpu:0" not in words)
    assert LIBRARY not in shown


def test_what_ci_reads_says_so(machine: dict[str, str], program: Program, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"

    ended = program(
        *("bench", "--require-gpu", "--junit", junit), env=machine | {"GITHUB_ACTIONS": "true"}
    )

    assert ended.code == 4
    annotation = next(line for line in ended.said.splitlines() if line.startswith("::error"))
    assert ANSWER in annotation
    assert ANSWER in junit.read_text()
    assert LIBRARY not in annotation + junit.read_text()


def test_the_library_s_own_words_are_for_v(machine: dict[str, str], program: Program) -> None:
    for words in ("list", "memlimit 30%", "memlimit 30% -- true", "place /cpu:0 -- true"):
        name, _, rest = words.partition(" ")
        assert LIBRARY in program(name, "-v", *rest.split(), env=machine).said
