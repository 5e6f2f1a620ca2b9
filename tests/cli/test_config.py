"""Defaults of options from a file."""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucheck.cli.app import functions_of, read_defaults
from gpucheck.cli.commands import COMMANDS
from gpucheck.report.errors import WrongUseError

DEFAULT = Path(__file__).parents[2] / "configs" / "default.toml"
#: Not in the file: what they do is not a default to have.
OTHERS = ("format_", "json")


def tables() -> list[tuple[str, str]]:
    """Return each command with each of its actions, or itself."""
    return [(name, each) for name, entry in COMMANDS.items() for each in (entry.actions or (name,))]


def declared(command: str, action: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(functions_of(command)[action]).parameters


def stated(command: str, action: str) -> dict[str, Any]:
    """Return what the shipped file states for a command, as far as this action has it."""
    table = read_defaults(DEFAULT)[command]
    own = table[action] if COMMANDS[command].actions else table
    return {name: value for name, value in own.items() if name in declared(command, action)}


@pytest.mark.parametrize(("command", "action"), tables())
def test_the_shipped_file_states_the_true_defaults(command: str, action: str) -> None:
    parameters = declared(command, action)
    found = stated(command, action)

    assert found == {name: parameters[name].default for name in found}


@pytest.mark.parametrize(("command", "action"), tables())
def test_the_shipped_file_leaves_out_no_option(command: str, action: str) -> None:
    with_default = {
        name
        for name, item in declared(command, action).items()
        if item.default not in (item.empty, None) and name not in OTHERS
    }

    assert with_default <= set(stated(command, action))


def test_the_file_is_named_after_the_command_or_by_a_variable(
    gpucheck_command, tmp_path: Path
) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('[list]\nformat = "csv"\nselect = ["index", "name"]\n')

    named = gpucheck_command("list", "--config", str(config))
    in_variable = gpucheck_command("list", env={"GPUCHECK_CONFIG": str(config)})
    before = gpucheck_command("--config", str(config), "list")

    assert named.stdout == in_variable.stdout == "index,name\n"
    assert before.code == 2
    assert "Options stand after the command's name." in before.stderr


def test_a_table_of_profile_is_each_actions(gpucheck_command, tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('[profile]\nformat = "json"\nboard = "H100"\n')

    for line in (("list",), ("explain", "default")):
        shown = gpucheck_command("profile", *line, "--config", str(config))
        assert shown.document["result"]["action"] == line[0]
    boards = {limit["board"] for limit in shown.document["result"]["limits"]}
    assert "H100 SXM" in boards
    assert "L4" not in boards


def test_a_default_takes_effect_and_the_command_line_wins(gpucheck_command, tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('[list]\nformat = "csv"\nselect = ["index", "name"]\n')

    from_file = gpucheck_command("list", "--config", str(config))
    overruled = gpucheck_command("list", "--config", str(config), "--select", "uuid")

    assert from_file.stdout == "index,name\n"
    assert overruled.stdout == "uuid\n"


def test_one_value_serves_an_option_that_may_be_repeated(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('[detect]\nonly = "nvml"\nskip = "xid"\npython = "python3"\n')

    defaults = read_defaults(config)["detect"]

    assert defaults == {"only": ["nvml"], "skip": ["xid"], "python": "python3"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[list\n", "mine.toml:1: Expected"),
        ("[lst]\n", "mine.toml:1: there is no table 'lst' here. Did you mean 'list'?"),
        ("list = 3\n", "mine.toml:1: list must be a table. write [list]"),
        (
            "[list]\nfromat = 1\n",
            "mine.toml:2: list: there is no key 'fromat' here. Did you mean 'format'?",
        ),
        ("[list]\nuser = 1979-05-27\n", "mine.toml:2: list: user has no usable value"),
    ],
)
def test_a_mistake_is_named(text: str, says: str, tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text(text)

    with pytest.raises(WrongUseError) as caught:
        read_defaults(config)

    assert says in " ".join((caught.value.message, *caught.value.remedy))


def test_a_missing_file_is_wrong_use(gpucheck_command, tmp_path: Path) -> None:
    result = gpucheck_command("list", "--config", str(tmp_path / "none.toml"))

    assert result.code == 2
    assert "cannot be read: there is no such file" in result.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a=" + "[" * 100_000, "its lists are too deep"),
        ("size=" + "9" * 5000, "4300 digits"),
        ("a" + ".a" * 60_000 + "=1", "more than 50 parts"),
        ("#" + "x" * (1 << 20), "larger than 1 MiB"),
    ],
)
def test_what_would_take_all_memory_or_time_is_refused(
    text: str, says: str, tmp_path: Path
) -> None:
    config = tmp_path / "mine.toml"
    config.write_text(text)

    with pytest.raises(WrongUseError, match=says) as caught:
        read_defaults(config)

    assert caught.value.code == "config-unusable"


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_never_ends_is_not_opened(kind: str, tmp_path: Path) -> None:
    path = Path("/dev/zero")
    if kind == "pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)

    with pytest.raises(WrongUseError, match="it is not a regular file"):
        read_defaults(path)


def test_the_examples_in_comments_are_accepted(tmp_path: Path) -> None:
    lines = DEFAULT.read_text(encoding="utf-8").splitlines()
    live = [line.removeprefix("# ") if " = " in line else line for line in lines]
    config = tmp_path / "all.toml"
    config.write_text("\n".join(line for line in live if not line.startswith("#")))

    assert tomllib.loads(config.read_text())["list"]["user"] == "alice"
    assert read_defaults(config)["bench"]["size"] == 4096
