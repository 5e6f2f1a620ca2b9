"""Every file in configs/ is one that the program takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.cli import COMMANDS
from gpucheck.cli.config import read_defaults
from tests.architecture.house import ROOT, name_of

CONFIGS = sorted((ROOT / "configs").iterdir())


def test_there_is_a_default_configuration() -> None:
    assert ROOT / "configs" / "default.toml" in CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_configuration_loads(path: Path) -> None:
    defaults = read_defaults(path, COMMANDS)

    assert set(defaults) <= set(COMMANDS)
