"""Option defaults from a TOML file: one table per command, whose keys are the options' names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from gpucheck.cli.commands import Command, functions_of
from gpucheck.drivers.host.toml_file import parse_toml, read_text, shown
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import did_you_mean


def read_defaults(path: Path, commands: Mapping[str, Command]) -> dict[str, dict[str, Any]]:
    """Return `{command: {parameter: value}}` for the command-line parser.

    Raises:
        WrongUseError: unreadable, not TOML, or with an unknown table, key or type of value.
    """
    try:
        document = parse_toml(read_text(path, "configuration"), shown(str(path)), "configuration")
    except WrongUseError as error:
        raise WrongUseError(code="config-unusable", message=error.message) from None
    return {
        command: _table(path, command, values, commands) for command, values in document.items()
    }


def _table(
    path: Path, command: str, values: object, commands: Mapping[str, Command]
) -> dict[str, Any]:
    if command not in commands:
        known = ", ".join(commands)
        suggestion = did_you_mean(command, commands)
        raise _unusable(
            path, f"has the table [{command}], but the commands are {known}", suggestion
        )
    if not isinstance(values, dict):
        raise _unusable(path, f"has {command!r} as a value: write a table [{command}]")
    functions = functions_of(commands[command], command)
    known_options = {
        key: name for each in functions.values() for key, name in _options(each).items()
    }
    may_be_repeated = {
        name
        for each in functions.values()
        for name, kind in each.__annotations__.items()
        if _is_of_lists(kind)
    }
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        parameter = known_options.get(key)
        if parameter is None:
            options = ", ".join(known_options)
            suggestion = did_you_mean(key, known_options)
            raise _unusable(path, f"has {key!r} in [{command}], which takes {options}", suggestion)
        if not isinstance(value, str | int | float | bool | list):
            raise _unusable(path, f"has no usable value for {key!r} in [{command}]")
        several = isinstance(value, str) and parameter in may_be_repeated
        defaults[parameter] = [value] if several else value
    # The parser passes each action what it has of its command's table.
    return dict.fromkeys(functions, defaults) if commands[command].actions else defaults


def _options(command: Any) -> dict[str, str]:
    """Return `{"ask-driver": "ask_driver"}` for every option of a command."""
    never = ("return", "ctx", "config", "list_examples")
    names = (name for name in command.__annotations__ if name not in never)
    return {name.strip("_").replace("_", "-"): name for name in names}


def _is_of_lists(annotation: Any) -> bool:
    """Return whether an option may be given several times: one value in the file is a list, too."""
    kind = next(iter(get_args(annotation)), None)
    return any(get_origin(part) is list for part in (kind, *get_args(kind)))


def _unusable(path: Path, problem: str, suggestion: str = "") -> WrongUseError:
    return WrongUseError(
        code="config-unusable",
        message=f"The configuration {str(path)!r} {problem}. {suggestion}".strip(),
    )
