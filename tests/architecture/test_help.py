"""Help texts: every command and every option says what it is for."""

from __future__ import annotations

import shlex

import pytest

from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.numerics import FORMATS
from gpucheck.cli.commands import COMMANDS, RUNS_A_COMMAND
from gpucheck.detect.checks.frameworks import NAMES
from tests.architecture.commands import COMMAND_NAMES, built_command

#: What a command needs beside its options.
ANYTHING = {
    "compare": ("a", "b"),
    "memlimit": ("30%",),
    "place": ("--count", "1"),
    "profile": ("list",),
}


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
    finished = gpucheck_command(name, "--help", env={"COLUMNS": "80"})

    assert finished.code == 0
    assert finished.stdout.startswith(f"Usage: gpucheck {name}")
    assert max(map(len, finished.stdout.splitlines())) <= 80
    usage = finished.stdout.splitlines()[0]
    assert not set("{}") & set(usage)
    assert usage.endswith("[-- COMMAND...]") is (name in RUNS_A_COMMAND)
    assert finished.stderr == ""
    assert "\x1b" not in finished.stdout


def test_overview_cuts_no_sentence_short(gpucheck_command) -> None:
    overview = gpucheck_command("--help").stdout.partition("Commands:")[2]

    assert all(f"\n  {name} " in overview for name in COMMAND_NAMES)
    assert "..." not in overview


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_help_names_the_formats_that_the_command_has(name: str, gpucheck_command) -> None:
    shown = " ".join(gpucheck_command(name, "--help", env={"COLUMNS": "200"}).stdout.split())
    *others, last = COMMANDS[name].formats
    known = f"{', '.join(others)} or {last}" if others else last

    refused = gpucheck_command(name, *ANYTHING.get(name, ()), "--format", "no-such-format")

    assert f"--format NAME {known}. [default: {COMMANDS[name].formats[0]}]" in shown
    assert refused.code == 2
    assert all(each in refused.stderr for each in COMMANDS[name].formats)


@pytest.mark.parametrize(
    ("name", "line"),
    [(name, line) for name in COMMAND_NAMES for line, _ in COMMANDS[name].examples],
)
def test_examples_name_options_that_exist(name: str, line: str, gpucheck_command) -> None:
    own = shlex.split(line.partition(" -- ")[0])
    options = {option for item in built_command(name).params for option in item.opts}

    assert own[:2] == ["gpucheck", name]
    assert {word for word in own if word.startswith("-")} <= options
    assert f"  {line}\n" in gpucheck_command(name, "--help").stdout


@pytest.mark.parametrize("name", ["bench", "compare", "profile"])
def test_help_does_not_offer_what_is_always_refused(name: str, gpucheck_command) -> None:
    refused = gpucheck_command(name, *ANYTHING.get(name, ()), "--from", "machine.json")

    assert "--from" not in gpucheck_command(name, "--help").stdout
    assert refused.code == 2
    assert "--from" in refused.stderr


def test_help_names_every_kernel_and_format(gpucheck_command) -> None:
    shown = " ".join(gpucheck_command("bench", "--help").stdout.split())

    assert f"[KERNEL...] {', '.join(KERNELS)} [default: all]" in shown
    assert f"--dtype LIST {', '.join(FORMATS)} [default: by kernel]" in shown


def test_help_names_every_framework(gpucheck_command) -> None:
    shown = " ".join(gpucheck_command("detect", "--help").stdout.split())

    assert f"Fail if {', '.join(NAMES[:-1])} or {NAMES[-1]} cannot use a GPU." in shown
