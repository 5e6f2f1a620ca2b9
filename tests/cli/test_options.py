"""The quick way in understands what it takes exactly as the parser does."""

from __future__ import annotations

import itertools

import pytest

from gpucheck.cli import list as list_command
from gpucheck.cli.app import run
from gpucheck.cli.options import SHARED, Context, own_options, read_flags
from gpucheck.cli.output import call_command
from gpucheck.inventory.columns import ALIASES, COLUMNS

FLAGS = [
    word
    for item in (*own_options(list_command.command).values(), *SHARED.values())
    if item.default is False
    for word in item.words
]


def test_flags_are_found() -> None:
    assert {"--visible", "-p", "--topology", "--ask-driver", "--json", "-q", "--strict"} <= {*FLAGS}


@pytest.mark.parametrize(
    "flags", [(), *itertools.combinations(FLAGS, 1), *itertools.combinations(FLAGS, 2), FLAGS]
)
def test_both_ways_give_the_same_options(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def remember(**options: object) -> int:
        seen.append(options)
        return 0

    remember.__kwdefaults__ = list_command.command.__kwdefaults__
    remember.__annotations__ = list_command.command.__annotations__
    values = read_flags(flags, list_command.command)
    assert values is not None
    call_command(remember, "list", values)
    monkeypatch.setattr(
        "gpucheck.cli.output.call_command", lambda _, *more, **call: call_command(remember, *more)
    )
    run(["list", *flags], "list", Context(command="list"))

    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "words", [["--help"], ["-pt"], ["--gpu", "0"], ["--js"], ["x"], ["--json", "--format", "csv"]]
)
def test_everything_else_is_left_to_the_parser(words: list[str]) -> None:
    assert read_flags(words, list_command.command) is None


def test_a_configuration_in_the_environment_is_left_to_the_parser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUCHECK_CONFIG", "/nowhere.toml")

    assert read_flags([], list_command.command) is None


def test_the_parser_is_not_even_imported(gpucheck_command) -> None:
    finished = gpucheck_command("list", env={"PYTHONPROFILEIMPORTTIME": "1"})

    assert "gpucheck.cli.list" in finished.stderr
    assert "typer" not in finished.stderr


def test_ordinary_names_are_names_of_fields() -> None:
    assert set(ALIASES.values()) <= set(COLUMNS)
    assert not set(ALIASES) & set(COLUMNS)
