"""What users see of the options, in text files: help pages, completions, keys, and contradictions.

After a change that is meant, `UPDATE_SNAPSHOTS=1 pytest tests/cli/test_options_recorded.py` writes
them anew; then read the difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gpucheck.cli import completion, main
from gpucheck.cli.app import functions_of, key_of, options_of_command
from gpucheck.cli.commands import COMMANDS
from tests.architecture.commands import LEAVES, built_command

#: Typer's own words in these files are those of its newest series that pyproject.toml admits.
with_newest_parser = pytest.mark.skipif(
    tuple(map(int, version("typer").split(".")[:2])) < (0, 28), reason="an older Typer's words"
)
RECORDED = Path(__file__).parent / "recorded"
#: So many values of an option are kept: that they are offered, not which boards there are.
MOST_OFFERED = 4
#: Is refused after everything that options contradict, before anything is read or measured.
UNWRITABLE = ("--output", "/no-such-folder/file")
TAKEN = "The report cannot be written to '/no-such-folder/file'"
#: A value that each option takes, by the name of its value in the help; else "1".
VALUES = {
    "FILE": "file",
    "[KERNEL...]": "matmul",
    "LIST": "cpu",
    "NAME[=PYTHON]": "numpy",
    "NAME|FILE": "cpu",
    "[DEVICE]...": "/gpu:0",
    "SIZE": "1GiB",
    "X.Y": "8.0",
    "WHAT": "idle",
    "SPEC": "/gpu:0",
    "AMOUNT": "30%",
    "FRAMEWORK": "pytorch",
    "ID": "nvml",
    "ID,...": "nvml",
    "NAME,...": "torch",
    "NAME": "cupy",
    "PATH": "python3",
}
#: Command -> the words that ask it different questions.
QUESTIONS = {
    "bench": (("--profile", "cpu"), ("--burn", "5"), ("--peaks",), ("--board", "H100"), ()),
    "detect": (
        ("--list-checks",),
        ("--explain", "nvml"),
        ("--wheel", "torch"),
        ("--pid", "1"),
        ("--log", "no-such-log"),
    ),
    "memlimit": (("30%", "--hard"), ("30%", "--hard", "--", "true"), ("30%", "--code", "cupy")),
    "place": (("/gpu:0",), ("--count", "1"), ("--claims",), ("/gpu:0", "--", "true")),
}


def recorded(name: str, text: str) -> str:
    """Return the kept output of this name; while updating, keep `text` as it first."""
    path = RECORDED / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def help_pages(printed: Callable[[], str]) -> Iterator[str]:
    """Yield every help page below its command line."""
    for name in ["", *sorted({*LEAVES, *COMMANDS})]:
        common = name in COMMANDS and COMMANDS[name].common
        for word in ("--help", "--help-all") if common else ("--help",):
            assert main([*name.split(), word]) == 0
            yield f"$ gpucheck {f'{name} ' if name else ''}{word}\n{printed()}\n"


@with_newest_parser
def test_help_pages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    pages = "".join(help_pages(lambda: capsys.readouterr().out))

    assert pages == recorded("help", pages)


def completions() -> Iterator[str]:
    """Yield what is offered for each option, and for its value."""
    for name in LEAVES:
        words = name.split()
        for item in built_command(name).params:
            option = max(item.opts, key=len)
            takes_value = option.startswith("-") and not (item.is_flag or item.count)
            given = [*words, option] if takes_value else words
            offers = [*completion._offers(given, "" if takes_value else option)]
            shown = " | ".join(": ".join(filter(None, offer)) for offer in offers[:MOST_OFFERED])
            yield f"{' '.join(given)} -> {shown}\n"


def test_completions() -> None:
    text = "".join(completions())

    assert text == recorded("completions", text)


def test_keys_of_the_configuration() -> None:
    text = "".join(
        f"{' '.join(dict.fromkeys((name, action)))}: "
        f"{' '.join(key_of(*item) for item in options_of_command(function).items())}\n"
        for name in COMMANDS
        for action, function in functions_of(name).items()
    )

    assert text == recorded("keys", text)


def words_for(item: Any) -> list[str]:
    """Return words that give an option or an argument."""
    if item.param_type_name == "argument" or not (item.is_flag or item.count):
        choices = getattr(item.type, "choices", None)
        value = str(choices[0]) if choices else VALUES.get(item.metavar, "1")
        value = getattr(choices[0], "value", value) if choices else value
        return [value] if item.param_type_name == "argument" else [max(item.opts, key=len), value]
    return [max(item.opts, key=len)]


def contradictions(told: Callable[[], str]) -> Iterator[str]:
    """Yield what is said of each question with each other option."""
    for name, questions in QUESTIONS.items():
        for question in questions:
            for item in built_command(name).params:
                if item.name in ("help", "output", "help_all", "config", "deadline"):
                    continue
                own, dashes, child = "\0".join(question).partition("\0--\0")
                words = [*own.split("\0"), *words_for(item), *UNWRITABLE]
                words = [word for word in words if word] + ["--", *child.split("\0")] * bool(dashes)
                code = main([name, *words])
                said = re.sub(r"(/[^ ]*)?/tmp/[^ ]*", "DIR", told()).splitlines()
                result = "taken" if TAKEN in said[0] else f"{code} {' / '.join(said)}"
                line = " ".join(words).replace(f" {' '.join(UNWRITABLE)}", "")
                yield f"{name} {line} -> {result}\n"


@with_newest_parser
def test_contradictions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    # Advice repeats the command line of the process, which is pytest's here.
    monkeypatch.setattr("sys.argv", ["gpucheck", "bench"])
    text = "".join(contradictions(lambda: capsys.readouterr().err))

    assert text == recorded("contradictions", text)
