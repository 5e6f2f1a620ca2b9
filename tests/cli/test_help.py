"""Help pages, and repeated options: one value is given once, what may be repeated still may."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from gpucheck.cli import main
from tests.architecture.commands import LEAVES, built_command

#: Typer brings its own Click, or uses the installed one.
UsageError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError"
)


def refusal(name: str, words: list[str], **more: Any) -> str | None:
    """Return what the parser of a command says against these words, if it refuses them."""
    command = built_command(name)
    parser = command.make_parser(command.context_class(command, **more))
    try:
        parser.parse_args(words)
    except UsageError as error:
        return str(error)
    return None


def options() -> Iterator[tuple[str, Any]]:
    """Yield every option of every command."""
    for name in LEAVES:
        for item in built_command(name).params:
            if item.param_type_name == "option":
                yield name, item


def test_only_an_option_of_one_value_is_refused_when_it_is_given_again() -> None:
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for name, item in options():
        of_one_value = not (item.is_flag or item.count or item.multiple)
        value = [] if item.is_flag or item.count else ["1"]
        # The last name may be the short one: `--output a -o b` is twice, too.
        said = refusal(name, [item.opts[0], *value, item.opts[-1], *value])
        twice = f"{max(item.opts, key=len)} takes one value, but is given twice"
        assert said == (twice if of_one_value else None), (name, item.opts)
        found[of_one_value].add(item.opts[0])

    assert {"--size", "--output", "--from", "--config", "--log"} <= found[True]
    assert {"--dtype", "--gpu", "--select", "--framework", "--verbose", "--json"} <= found[False]


def test_it_says_how_often() -> None:
    said = refusal("list", ["--sort", "index", "--sort=index", "--user", "a", "--sort", "uuid"])

    assert said == "--sort takes one value, but is given 3 times"


def test_a_line_that_is_being_completed_is_not_judged() -> None:
    assert refusal("list", ["--sort", "a", "--sort", "b"], resilient_parsing=True) is None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("list --config a --config b", 2),
        ("-o a --output b", 2),
        ("profile list --output a --output b", 2),
        ("place /gpu:0 --log a --log b -- true", 125),
    ],
)
def test_every_way_into_the_program_refuses_it(
    line: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == code

    written = capsys.readouterr()
    assert written.out == ""
    assert "takes one value, but is given twice.\n  See: gpucheck" in written.err


def shown(page: str) -> set[str]:
    """Return the options that a help page explains."""
    return {
        word for line in page.splitlines() for word in re.findall(r"^  (?:-\w, )?(--[\w-]+)", line)
    }


def test_a_short_page_names_the_page_with_all_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    short = capsys.readouterr().out
    assert main(["help", "bench"]) == 0
    assert capsys.readouterr().out == short
    assert main(["bench", "--help-all", "--size", "none"]) == 0
    whole = capsys.readouterr().out

    every = {max(item.opts, key=len) for name, item in options() if name == "bench"}
    others = every - shown(short)
    assert shown(whole) == every | {"--help", "--help-all"}
    assert {"--quick", "--device", "--save", "--json", "--help", "--help-all"} < shown(short)
    assert {"--burn", "--seed", "--format", "--config"} < others
    assert f"Show the other {len(others)} options, too." in short


def test_a_page_that_shows_all_options_names_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--help"]) == 0
    assert "--help-all" not in capsys.readouterr().out
    assert main(["list", "--help-all"]) == 2


@pytest.mark.parametrize("name", ["", *LEAVES])
def test_examples_are_wrapped_and_their_commands_are_not(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def examples(columns: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", columns)
        assert main([*name.split(), "--help"]) == 0
        return capsys.readouterr().out.partition("\nExamples:\n")[2].splitlines()

    narrow, wide = examples("52"), examples("80")

    def is_purpose(line: str) -> bool:
        return line.startswith(6 * " ")

    assert max(len(line) for line in narrow if is_purpose(line)) <= 52
    assert [line for line in narrow if not is_purpose(line)] == [
        line for line in wide if not is_purpose(line)
    ]
