"""Help texts: every command and every option says what it is for."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable

import pytest

from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.numerics import FORMATS
from gpucheck.cli.commands import COMMANDS, RUNS_A_COMMAND
from gpucheck.cli.help import grouped
from gpucheck.data import read_table
from gpucheck.detect.checks.frameworks import NAMES
from tests.architecture.commands import COMMAND_NAMES, LEAVES, built_command, parsed
from tests.conftest import Finished

TIME = re.compile(r'"time": ?"[^"]*"')
#: What a command needs beside its options.
ANYTHING = {
    "compare": ("a", "b"),
    "fleet report": ("out",),
    "fleet run": ("list",),
    "memlimit": ("30%",),
    "place": ("--count", "1"),
    "profile explain": ("cpu",),
    "profile lint": ("cpu",),
    "report": ("ticket.tar.gz",),
    "show": ("a.json",),
}


def whole_help(name: str) -> str:
    """Return the option that shows all options of a command."""
    return "--help-all" if COMMANDS[name.split()[0]].common else "--help"


@pytest.fixture(name="help_of", scope="module")
def _help_of(gpucheck_command) -> Callable[[str], Finished]:
    """Return what prints the whole help of a command on 80 columns, once."""

    @functools.cache
    def printed(name: str) -> Finished:
        return gpucheck_command(*name.split(), whole_help(name), env={"COLUMNS": "80"})

    return printed


@pytest.mark.parametrize("name", LEAVES)
def test_command_says_what_it_answers(name: str) -> None:
    first = (built_command(name).help or "").partition("\n\n")[0].strip()

    assert first.endswith((".", "?")), f"no sentence: {first!r}"


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_is_explained(name: str) -> None:
    silent = [
        parameter.name
        for parameter in built_command(name).params
        if parameter.name != "help" and not getattr(parameter, "help", None)
    ]

    assert silent == []


@pytest.mark.parametrize("name", [*LEAVES, "profile"])
def test_help_is_printed_without_colour(name: str, help_of) -> None:
    finished = help_of(name)

    assert finished.code == 0
    assert finished.stdout.startswith(f"Usage: gpucheck {name}")
    assert max(map(len, finished.stdout.splitlines())) <= 80
    usage = finished.stdout.splitlines()[0]
    assert not set("{}") & set(usage)
    assert usage.endswith("[-- COMMAND...]") is (name in RUNS_A_COMMAND)
    assert finished.stderr == ""
    assert "\x1b" not in finished.stdout


def test_overview_cuts_no_sentence_short(gpucheck_command) -> None:
    overview = gpucheck_command("--help").stdout.partition("Commands:")[2].partition("Options:")[0]

    assert all(f"\n  {name} " in overview for name in COMMAND_NAMES)
    assert "..." not in overview


@pytest.mark.parametrize("name", [name for name in LEAVES if name != "snapshot"])
def test_help_names_the_formats_that_the_command_has(name: str, gpucheck_command) -> None:
    words = name.split()
    page = gpucheck_command(*words, whole_help(name), env={"COLUMNS": "200"}).stdout
    shown = " ".join(page.split())
    formats = COMMANDS[words[0]].formats
    *others, last = formats
    known = f"{', '.join(others)} or {last}" if others else last

    refused = gpucheck_command(*words, *ANYTHING.get(name, ()), "--format", "no-such-format")

    assert f"--format NAME {known}. [default: {formats[0]}]" in shown
    assert refused.code == 2
    assert all(each in refused.stderr for each in formats)


@pytest.mark.parametrize("name", [*LEAVES, "profile"])
def test_examples_parse_and_stand_at_the_end(name: str, help_of) -> None:
    shown = help_of(name).stdout.partition("\nExamples:\n")[2]

    for line in read_table("command_examples")[name]:
        own = shlex.split(line.partition(" -- ")[0])
        assert own[0] == "gpucheck"
        assert parsed(own[1:]).params
        assert f"  {line}\n" in shown


@pytest.mark.parametrize("name", ["bench", "compare", "profile list", "show"])
def test_help_does_not_offer_what_is_always_refused(name: str, gpucheck_command, help_of) -> None:
    words = name.split()
    refused = gpucheck_command(*words, *ANYTHING.get(name, ()), "--from", "machine.json")

    assert "--from" not in help_of(name).stdout
    assert refused.code == 2
    assert "--from" in refused.stderr


def test_help_names_every_kernel_and_format(help_of) -> None:
    shown = " ".join(help_of("bench").stdout.split())

    assert f"[KERNEL...] {', '.join(KERNELS)} [default: all]" in shown
    assert f"--dtype LIST {', '.join(FORMATS)} [default: by kernel]" in shown


def test_help_names_every_framework(help_of) -> None:
    shown = " ".join(help_of("detect").stdout.split())

    assert f"Fail if {', '.join(NAMES[:-1])} or {NAMES[-1]} cannot use a GPU." in shown


@pytest.mark.parametrize("name", LEAVES)
def test_every_parameter_is_in_one_group(name: str) -> None:
    declared = built_command(name).params
    titles = [item.rich_help_panel for item in declared]

    groups = grouped(declared)

    assert sorted(id(item) for group in groups.values() for item in group) == sorted(
        map(id, declared)
    )
    assert None not in titles


def test_the_common_options_of_bench_come_on_the_first_screen(gpucheck_command) -> None:
    first = gpucheck_command("bench", "--help").stdout.splitlines()[:30]

    for option in ("--device", "--dtype", "--size", "--quick", "--save", "--profile", "--json"):
        assert any(f"  {option}" in line or f", {option}" in line for line in first), option


@pytest.mark.parametrize(
    ("variables", "bold"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_headings_are_bold_where_they_may_be(
    variables: dict[str, str], bold: bool, gpucheck_command
) -> None:
    shown = gpucheck_command("list", "--help", env=variables).stdout

    assert ("\x1b[1mWhich GPUs:\x1b[0m\n" in shown) is bold
    assert ("\x1b" in shown) is bold


@pytest.mark.parametrize(
    ("line", "same"),
    [
        (("help",), ("--help",)),
        (("help", "bench"), ("bench", "--help")),
        (("help", "profile", "lint"), ("profile", "lint", "--help")),
        (("-V",), ("--version",)),
    ],
)  # fmt: skip
def test_two_ways_to_say_the_same(
    line: tuple[str, ...], same: tuple[str, ...], gpucheck_command
) -> None:
    one, other = gpucheck_command(*line), gpucheck_command(*same)

    assert TIME.sub("", one.stdout) == TIME.sub("", other.stdout) != ""
    assert (one.stderr, one.code) == (other.stderr, other.code)
