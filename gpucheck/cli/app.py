"""Typer application: the program's own options, and the command on the command line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from gpucheck.cli import output
from gpucheck.cli.commands import COMMANDS
from gpucheck.cli.examples import list_examples
from gpucheck.cli.help import HelpfulCommand, HelpfulGroup, wants_bold
from gpucheck.cli.options import (
    CONFIG_VARIABLE,
    DEFAULTS,
    Context,
    collect_shared,
    own_options,
    requests_of,
    shared_options,
)
from gpucheck.cli.terminal import write_stdout
from gpucheck.data import FOLDER
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.options import Option
from gpucheck.report.text import did_you_mean
from gpucheck.report.units import Amount, parse_amount

if TYPE_CHECKING:
    from gpucheck.drivers.host.toml_file import Table

#: Typer brings its own Click, or uses the installed one: either way this is the base
#: class of the errors that a wrong command line raises.
_UsageError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


#: Its package, of which completion needs another module.
PARSER = _UsageError.__module__.rpartition(".")[0]
#: Shells that have a script in data/completion.
SHELLS = ("bash", "zsh", "fish")


def _show_examples(value: bool) -> None:
    if value:
        write_stdout(list_examples())
        raise typer.Exit


def _show_completion(ctx: typer.Context, shell: str | None) -> None:
    if shell is None or ctx.resilient_parsing:
        return
    if shell not in SHELLS:
        known = ", ".join(SHELLS)
        suggestion = did_you_mean(shell, SHELLS)
        raise WrongUseError(
            code="usage",
            message=f"--show-completion takes {known}, not {shell[:40]!r}. {suggestion}".strip(),
        )
    write_stdout((FOLDER / "completion" / f"gpucheck.{shell}").read_text(encoding="utf-8"))
    raise typer.Exit


def _root(
    # It is shown before any parser is imported: `cli.show_version`.
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version.")] = False,
    list_examples: Annotated[
        bool,
        typer.Option(
            "--list-examples",
            callback=_show_examples,
            help="List the recorded examples for --from, to try gpucheck without a GPU.",
        ),
    ] = False,
    show_completion: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="SHELL",
            callback=_show_completion,
            help="Print the completion for bash, zsh or fish, to eval.",
        ),
    ] = None,
) -> None:
    """Diagnose and benchmark NVIDIA GPUs: usable? which one? how fast? how much memory?"""


def _never_run() -> None:
    """Represent a command in the overview; it never runs."""


def build_app(wanted: str | None = None) -> typer.Typer:
    """Return the application with one command, or with the overview of all that --help shows."""
    app = _group("gpucheck", callback=_root)
    for name, command in COMMANDS.items():
        if name == wanted and command.actions:
            actions = _group(name, help=command.summary)
            for action, function in functions_of(name).items():
                actions.command(action, cls=HelpfulCommand, help=summary_of(function))(function)
            app.add_typer(actions, name=name)
        elif name == wanted:
            function = functions_of(name)[name]
            app.command(name, cls=HelpfulCommand, help=command.summary)(function)
        elif wanted is None:
            app.command(name, help=command.summary)(_never_run)
    return app


def _group(name: str, **more: Any) -> typer.Typer:
    return typer.Typer(
        name=name,
        cls=HelpfulGroup,
        add_completion=False,
        # rich would cost half of the start-up time, also for --help.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **more,
    )


# --------------------------------------------------------------------- functions of the commands


def summary_of(function: Callable[..., int]) -> str:
    """Return what a command's function says of itself."""
    return (function.__doc__ or "").partition("\n")[0]


def functions_of(name: str) -> dict[str, Callable[..., int]]:
    """Return a command's own function under its name, or that of each of its actions."""
    command, module = COMMANDS[name], import_module(f"gpucheck.cli.{name}")
    functions = {action: f"{action}_" for action in command.actions} or {name: "command"}
    return {
        key: with_shared_options(getattr(module, function), name, command.formats)
        for key, function in functions.items()
    }


def with_shared_options(
    function: Callable[..., int], name: str, formats: Sequence[str]
) -> Callable[..., int]:
    """Return a command's function as Typer reads it: with the options that every command has."""
    options = {**own_options(function), **shared_options(name, formats)}

    @functools.wraps(function)
    def command(ctx: typer.Context, config: Path | None = None, **values: Any) -> int:
        sources = {
            key: ctx.get_parameter_source(key)
            for key, value in ctx.params.items()
            # An older parser says of arguments that may be left out, too, that they were typed.
            if value not in (None, (), [])
        }
        names = {key: source.name for key, source in sources.items() if source is not None}
        typed = {key: item for key, item in options.items() if names.get(key) == "COMMANDLINE"}
        call = {
            "typed": typed,
            "format_is_given": names.get("format_", "DEFAULT") != "DEFAULT",
            "context": ctx.obj,
        }
        for key, value in values.items():
            if Amount in (types[key], *get_args(types[key])):
                values[key] = None if value is None else parse_amount(value)
        try:
            return output.Answered(output.call_command(function, name, values, **call))
        except KeyboardInterrupt:
            # Typer would end with its code, but without a document.
            raise typer.Abort from None

    types = dict[str, Any]()
    for declaring in (function, collect_shared):
        for kind in (*requests_of(declaring).values(), declaring):
            types |= get_type_hints(kind)
    parameters = [_CONTEXT]
    parameters += [_parameter(key, item, types[key]) for key, item in options.items()]
    parameters.append(_CONFIG)
    # Typer reads both: the parameters from the signature, their types from the annotations.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    command.options = options  # type: ignore[attr-defined]
    return command


def _parameter(name: str, declared: Option, kind: Any) -> inspect.Parameter:
    """Return a declared option as Typer has it."""
    counts = kind is int and declared.value_name is None
    stated: dict[str, Any] = {
        "metavar": declared.value_name,
        "help": declared.help,
        "rich_help_panel": declared.group,
        # A text says itself what stands for no value.
        "show_default": not counts and "[default: " not in declared.help,
    }
    if not declared.words:
        info: Any = typer.Argument(**stated)
    else:
        info = typer.Option(*declared.words, count=counts, **stated)
    default = declared.default
    if Amount in (kind, *get_args(kind)):
        kind = str if kind is Amount else str | None
    if declared.repeats:
        kind, default = (list[str], ...) if default is ... else (list[str] | None, None)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is ... else default,
        annotation=Annotated[kind, info],
    )


def _take_defaults(ctx: typer.Context, value: Path | None) -> None:
    """Take the defaults of this command's options from a file."""
    if value is None or ctx.resilient_parsing:
        return
    defaults: Any = read_defaults(value)
    for word in ctx.command_path.split()[1:] or ["detect"]:
        defaults = defaults.get(word, {})
    ctx.default_map = defaults


_CONTEXT = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar=CONFIG_VARIABLE,
            callback=_take_defaults,
            is_eager=True,
            rich_help_panel=DEFAULTS,
            help="Take defaults of options from this TOML file.",
        ),
    ],
)


# ------------------------------------------------------------------------- the file of defaults


def read_defaults(path: Path) -> dict[str, dict[str, Any]]:
    """Return `{command: {parameter: value}}` for the parser, from a TOML file.

    It has one table per command, whose keys are the long names of its options.

    Raises:
        WrongUseError: unreadable, not TOML, or with an unknown table, key or type of value.
    """
    from gpucheck.drivers.host.toml_file import read_toml

    try:
        whole = read_toml(path, "configuration")
        tables = {name: whole.table(name) for name in COMMANDS}
        whole.finish()
        return {name: _defaults(tables[name], name) for name in COMMANDS if name in whole.written}
    except WrongUseError as error:
        raise WrongUseError(
            code="config-unusable", message=error.message, remedy=error.remedy
        ) from None


def _defaults(table: Table, name: str) -> dict[str, Any]:
    functions = functions_of(name)
    defaults: dict[str, Any] = {}
    for options in map(options_of_command, functions.values()):
        for parameter, item in options.items():
            key = key_of(parameter, item)
            value = table.raw(key)
            if value is None:
                continue
            if not isinstance(value, str | int | float | bool | list):
                mend = "write a string, a number, true or false, or a list of strings"
                table.wrong(key, "wrong-type", f"{key} has no usable value", mend)
            # One value serves an option that may be given several times.
            several = isinstance(value, str) and item.repeats
            defaults[parameter] = [value] if several else value
    table.finish()
    # The parser passes each action what it has of its command's table.
    return dict.fromkeys(functions, defaults) if COMMANDS[name].actions else defaults


def options_of_command(function: Callable[..., int]) -> Mapping[str, Option]:
    """Return the options of a command's function as `functions_of` has it."""
    options: Mapping[str, Option] = function.options  # type: ignore[attr-defined]
    return options


def key_of(name: str, declared: Option) -> str:
    """Return the key of an option: its long word, or the name of an argument's parameter."""
    return declared.long.removeprefix("--") or name


# ------------------------------------------------------------------------------- the execution


def run(own: list[str], name: str | None, context: Context) -> int:
    """Parse our part of the command line, run the command, and return its exit code."""
    return execute(typer.main.get_command(build_app(name)), own, context)


def execute(command: Any, own: list[str], context: Context) -> int:
    """Run a parsed application, and return the exit code of what it ran or answered."""
    try:
        code = command.main(
            own, prog_name="gpucheck", standalone_mode=False, obj=context, color=wants_bold()
        )
    except typer.Abort:
        return output.interrupted(context)
    except _UsageError as error:
        return output.fail(context, output.usage_error(error, own))
    if code == ExitCode.INTERRUPTED and not isinstance(code, output.Answered):
        return output.interrupted(context)
    return int(code or 0)
