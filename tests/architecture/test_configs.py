"""Every file in configs/ is one that the program takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpucheck.bench.ci.profiles import load_profile
from gpucheck.cli.commands import COMMANDS
from gpucheck.cli.config import read_defaults
from gpucheck.place.graph_file import read_graph
from tests.architecture.commands import COMMAND_NAMES, built_command
from tests.architecture.house import ROOT, name_of

#: Files of options lie at the top; graphs for `place --graph` and profiles for `bench --profile`
#: have folders of their own.
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
GRAPHS = sorted((ROOT / "configs" / "place").glob("*.toml"))
PROFILES = sorted((ROOT / "configs" / "bench").glob("*.toml"))
#: Read by CI systems, and by tests/architecture/test_ci_configs.py.
EXAMPLES = sorted((ROOT / "configs" / "ci").glob("*"))
#: Said once, at the head of default.toml.
OF_EVERY_TABLE = {"config", "deadline", "from", "list-examples", "output"}
#: What a command needs beside its options.
ANYTHING = {"compare": ["a", "b"], "memlimit": ["30%"], "profile": ["list"]}


def every_default(folder: Path) -> dict[str, dict[str, object]]:
    """Return what default.toml would set if no line of it were commented out."""
    text = (ROOT / "configs" / "default.toml").read_text(encoding="utf-8")
    whole = folder / "all.toml"
    whole.write_text(re.sub(r"^# (?=[a-z-]+ = )", "", text, flags=re.MULTILINE), encoding="utf-8")
    return read_defaults(whole, COMMANDS)


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_default_configuration_lists_every_option(name: str, tmp_path: Path) -> None:
    options = {
        option.name
        for option in built_command(name).params
        if option.param_type_name == "option" and option.name != "help"
    }

    listed = set(every_default(tmp_path)[name])

    assert {each.strip("_").replace("_", "-") for each in options - listed} <= OF_EVERY_TABLE


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_every_line_of_it_is_one_that_the_parser_takes(name: str, tmp_path: Path) -> None:
    defaults = every_default(tmp_path)[name]

    context = built_command(name).make_context(
        name, list(ANYTHING.get(name, ())), default_map=defaults
    )

    assert set(defaults) <= set(context.params)


def test_every_file_is_of_a_known_kind() -> None:
    files = {path for path in (ROOT / "configs").rglob("*") if path.is_file()}

    assert files == {*CONFIGS, *GRAPHS, *PROFILES, *EXAMPLES}


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
    defaults = read_defaults(path, COMMANDS)

    assert set(defaults) <= set(COMMANDS)
