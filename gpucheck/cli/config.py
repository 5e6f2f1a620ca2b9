"""Option defaults from a TOML file: one table per command, whose keys are the options' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from gpucheck.cli.commands import COMMANDS
from gpucheck.drivers.host.toml_file import Table, read_toml
from gpucheck.report.errors import WrongUseError

FunctionsOf = Callable[[str], Mapping[str, Callable[..., int]]]


def read_defaults(path: Path, functions_of: FunctionsOf) -> dict[str, dict[str, Any]]:
    """Return `{command: {parameter: value}}` for the command-line parser.

    `functions_of` gives the functions of a command, whose parameters are its options.

    Raises:
        WrongUseError: unreadable, not TOML, or with an unknown table, key or type of value.
    """
    try:
        whole = read_toml(path, "configuration")
        tables = {name: whole.table(name) for name in COMMANDS}
        whole.finish()
        return {
            name: _defaults(tables[name], name, functions_of(name))
            for name in COMMANDS
            if name in whole.written
        }
    except WrongUseError as error:
        raise WrongUseError(
            code="config-unusable", message=error.message, remedy=error.remedy
        ) from None


def _defaults(
    table: Table, name: str, functions: Mapping[str, Callable[..., int]]
) -> dict[str, Any]:
    known_options = {
        key: parameter for each in functions.values() for key, parameter in _options(each).items()
    }
    may_be_repeated = {
        parameter
        for each in functions.values()
        for parameter, kind in each.__annotations__.items()
        if _is_of_lists(kind)
    }
    defaults: dict[str, Any] = {}
    for key, parameter in known_options.items():
        value = table.raw(key)
        if value is None:
            continue
        if not isinstance(value, str | int | float | bool | list):
            mend = "write a string, a number, true or false, or a list of strings"
            table.wrong(key, "wrong-type", f"{key} has no usable value", mend)
        several = isinstance(value, str) and parameter in may_be_repeated
        defaults[parameter] = [value] if several else value
    table.finish()
    # The parser passes each action what it has of its command's table.
    return dict.fromkeys(functions, defaults) if COMMANDS[name].actions else defaults


def _options(command: Any) -> dict[str, str]:
    """Return `{"ask-driver": "ask_driver"}` for every option of a command."""
    never = ("ctx", "config")
    names = (name for name in command.__annotations__ if name not in never)
    return {name.strip("_").replace("_", "-"): name for name in names}


def _is_of_lists(annotation: Any) -> bool:
    """Return whether an option may be given several times: one value in the file is a list, too."""
    kind = next(iter(get_args(annotation)), None)
    return any(get_origin(part) is list for part in (kind, *get_args(kind)))
