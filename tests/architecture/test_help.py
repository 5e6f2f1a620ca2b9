"""Help texts: every command and every option says what it is for."""

from __future__ import annotations

import pytest

from gpucheck.cli import COMMANDS
from tests.architecture.commands import COMMAND_NAMES, built_command


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_command_says_what_it_answers(name: str) -> None:
    first = (built_command(name).help or "").partition("\n\n")[0].strip()

    assert first.endswith((".", "?")), f"no sentence: {first!r}"
    assert first == COMMANDS[name].summary, "the overview says something else"


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_every_option_is_explained(name: str) -> None:
    silent = [
        parameter.name
        for parameter in built_command(name).params
        if parameter.name != "help" and not getattr(parameter, "help", None)
    ]

    assert silent == []


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_help_is_printed_without_colour(name: str, gpucheck_command) -> None:
    finished = gpucheck_command(name, "--help")

    assert finished.code == 0
    assert finished.stdout.startswith(f"Usage: gpucheck {name}")
    assert finished.stderr == ""
    assert "\x1b" not in finished.stdout


def test_overview_cuts_no_sentence_short(gpucheck_command) -> None:
    overview = gpucheck_command("--help").stdout.partition("Commands:")[2]

    assert all(f"\n  {name} " in overview for name in COMMAND_NAMES)
    assert "..." not in overview
