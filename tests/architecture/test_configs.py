"""Every file in configs/ is one that the program takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.cli.commands import COMMANDS
from gpucheck.cli.config import read_defaults
from gpucheck.core.bench.profiles.store import load_profile
from gpucheck.core.graph_file import read_graph
from tests.architecture.house import ROOT, name_of

#: Files of options lie at the top; graphs for `place --graph` and profiles for `bench --profile`
#: have folders of their own.
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
GRAPHS = sorted((ROOT / "configs" / "place").glob("*.toml"))
PROFILES = sorted((ROOT / "configs" / "bench").glob("*.toml"))
#: Read by CI systems, and by tests/architecture/test_ci_configs.py.
EXAMPLES = sorted((ROOT / "configs" / "ci").glob("*"))


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
