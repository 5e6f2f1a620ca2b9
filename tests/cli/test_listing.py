"""The quick way in understands what it takes exactly as the parser does."""

from __future__ import annotations

import inspect
import itertools

import pytest

from gpucheck.cli import output, with_interval
from gpucheck.cli.app import run
from gpucheck.cli.listing import LIST_FLAGS, SHARED_FLAGS, list_gpus, parse_flags
from gpucheck.cli.output import Shared
from gpucheck.inventory.columns import ALIASES, COLUMNS

FLAGS = (*LIST_FLAGS, *SHARED_FLAGS)


def parsed_by_typer(words: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    seen: list[object] = []

    def remember(shared: Shared, **options: object) -> int:
        given = {name: value for name, value in options.items() if value != defaults[name]}
        seen.append((shared, given))
        return 0

    parameters = inspect.signature(list_gpus).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}

    monkeypatch.setattr("gpucheck.cli.list.list_gpus", remember)
    code = run(words, "list", output.Context(command="list"))
    assert code == 0
    return seen[0]


@pytest.mark.parametrize(
    "flags", [(), *itertools.combinations(FLAGS, 1), *itertools.combinations(FLAGS, 2), FLAGS]
)
def test_both_ways_give_the_same_options(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["list", *flags]

    assert parse_flags(words) == parsed_by_typer(words, monkeypatch)


@pytest.mark.parametrize(
    "words", [["--help"], ["-pt"], ["--gpu", "0"], ["--js"], ["x"], ["--json", "--format", "csv"]]
)
def test_everything_else_is_left_to_the_parser(words: list[str]) -> None:
    assert parse_flags(["list", *words]) is None


def test_a_configuration_in_the_environment_is_left_to_the_parser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUCHECK_CONFIG", "/nowhere.toml")

    assert parse_flags(["list"]) is None


def test_the_parser_is_not_even_imported(gpucheck_command) -> None:
    finished = gpucheck_command("list", env={"PYTHONPROFILEIMPORTTIME": "1"})

    assert "gpucheck.cli.listing" in finished.stderr
    assert "typer" not in finished.stderr


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("list --watch", "list --watch 2"),
        ("list -w --json", "list -w 2 --json"),
        ("list --watch 5 --json", "list --watch 5 --json"),
        ("list --watch -1", "list --watch -1"),
        ("list --watch=3", "list --watch=3"),
        ("list --processes", "list --processes"),
        ("list --watch soon", "list --watch soon"),
    ],
)
def test_watch_alone_has_an_interval(words: str, found: str) -> None:
    assert with_interval(words.split()) == found.split()


def test_ordinary_names_are_names_of_fields() -> None:
    assert set(ALIASES.values()) <= set(COLUMNS)
    assert not set(ALIASES) & set(COLUMNS)
