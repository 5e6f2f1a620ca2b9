"""Every file in configs/ is one that the program takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench.ci.profiles import load_profile
from gpucheck.cli.app import read_defaults
from gpucheck.cli.commands import COMMANDS
from gpucheck.place.graph_file import read_graph
from tests.architecture.commands import COMMAND_NAMES, LEAVES, built_command, parsed
from tests.architecture.house import ROOT, name_of

#: Files of options lie at the top; graphs for `place --graph` and profiles for `bench --profile`
#: have folders of their own.
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
GRAPHS = sorted((ROOT / "configs" / "place").glob("*.toml"))
PROFILES = sorted((ROOT / "configs" / "bench").glob("*.toml"))
#: Read by CI systems, and by tests/architecture/test_ci_configs.py.
EXAMPLES = sorted((ROOT / "configs" / "ci").glob("*"))
#: Run or validated by tests/end_to_end/test_recipes.py.
RECIPES = sorted((ROOT / "configs" / "monitoring").glob("*"))
#: Run or validated by tests/fleet/test_recipes.py.
FLEETS = sorted((ROOT / "configs" / "fleet").glob("*"))
#: Said once, at the head of default.toml.
OF_EVERY_TABLE = {"config", "deadline", "from", "output"}
#: What a command needs beside its options.
ANYTHING = {"compare": ["a", "b"], "fleet report": ["out"], "fleet run": ["list"],
            "memlimit": ["30%"],
            "profile explain": ["cpu"],
            "profile lint": ["cpu"],
            "report": ["ticket"], "show": ["a.json"]}  # fmt: skip


def every_default(folder: Path) -> dict[str, dict[str, object]]:
    """Return what default.toml would set if no line of it were commented out."""
    text = (ROOT / "configs" / "default.toml").read_text(encoding="utf-8")
    whole = folder / "all.toml"
    whole.write_text(re.sub(r"^# (?=[a-z-]+ = )", "", text, flags=re.MULTILINE), encoding="utf-8")
    return read_defaults(whole)


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of a command, whose actions all have the same table."""
    first = next(iter(table.values()), None)
    return first if isinstance(first, dict) else table


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_default_configuration_lists_every_option(name: str, tmp_path: Path) -> None:
    options = {
        option.name: max(option.opts, key=len).removeprefix("--")
        for line in LEAVES
        if line.split()[0] == name
        for option in built_command(line).params
        if option.param_type_name == "option" and option.name != "help"
    }

    listed = set(flat(every_default(tmp_path)[name]))

    assert {options[name] for name in options.keys() - listed} <= OF_EVERY_TABLE


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_every_line_of_it_is_one_that_the_parser_takes(name: str, tmp_path: Path) -> None:
    defaults = flat(every_default(tmp_path)[name])
    found: set[str] = set()

    for line in (each for each in LEAVES if each.split()[0] == name):
        words = [*line.split(), *ANYTHING.get(line, ())]
        found |= set(parsed(words, default_map=defaults).params)

    assert set(defaults) <= found


def test_every_file_is_of_a_known_kind() -> None:
    files = {path for path in (ROOT / "configs").rglob("*") if path.is_file()}

    assert files == {*CONFIGS, *GRAPHS, *PROFILES, *EXAMPLES, *FLEETS, *RECIPES}


def test_the_tutorials_cases_are_there() -> None:
    names = {path.stem for path in GRAPHS}

    assert names >= {"single-gpu", "manual-cpu", "one-of-many", "towers"}


@pytest.mark.parametrize("path", GRAPHS, ids=name_of)
def test_graph_loads(path: Path) -> None:
    assert read_graph(path).ops


@pytest.mark.parametrize("path", PROFILES, ids=name_of)
def test_profile_loads(path: Path) -> None:
    assert load_profile(str(path)).name == path.stem


def test_there_is_a_default_configuration() -> None:
    assert ROOT / "configs" / "default.toml" in CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_configuration_loads(path: Path) -> None:
    defaults = read_defaults(path)

    assert set(defaults) <= set(COMMANDS)
