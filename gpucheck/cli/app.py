"""Typer application: the program's own options, and the command on the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from gpucheck import __version__
from gpucheck.cli import output
from gpucheck.cli.commands import COMMANDS, functions_of
from gpucheck.cli.help import HelpfulCommand, HelpfulGroup, wants_bold
from gpucheck.cli.options import show_examples
from gpucheck.cli.terminal import write_stdout
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.text import did_you_mean

#: Typer brings its own Click, or uses the installed one: either way this is the base
#: class of the errors that a wrong command line raises.
_UsageError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


#: Its package, of which completion needs another module.
PARSER = _UsageError.__module__.rpartition(".")[0]


def _show_version(ctx: typer.Context, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        write_stdout(f"gpucheck {__version__}\n")
        raise typer.Exit


def _show_completion(ctx: typer.Context, shell: str | None) -> None:
    if shell is None or ctx.resilient_parsing:
        return
    from gpucheck.cli.completion import SCRIPTS

    if shell not in SCRIPTS:
        known = ", ".join(SCRIPTS)
        suggestion = did_you_mean(shell, SCRIPTS)
        raise WrongUseError(
            code="usage",
            message=f"--show-completion takes {known}, not {shell[:40]!a}. {suggestion}".strip(),
        )
    write_stdout(SCRIPTS[shell])
    raise typer.Exit


def _root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="GPUCHECK_CONFIG",
            help="Take defaults of options from this TOML file.",
        ),
    ] = None,
    list_examples: Annotated[
        bool,
        typer.Option(
            "--list-examples",
            callback=show_examples,
            is_eager=True,
            help="List the recorded examples for --from, to try gpucheck without a GPU.",
        ),
    ] = False,
    show_completion: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="SHELL",
            callback=_show_completion,
            is_eager=True,
            help="Print the completion for bash, zsh or fish, to eval.",
        ),
    ] = None,
) -> None:
    """Diagnose and benchmark NVIDIA GPUs: usable? which one? how fast? how much memory?"""
    if config is not None:
        from gpucheck.cli.config import read_defaults

        ctx.default_map = read_defaults(config, COMMANDS)


def _never_run() -> None:
    """Represent a command in the overview; it never runs."""


def build_app(wanted: str | None = None) -> typer.Typer:
    """Return the application with one command, or with the overview of all that --help shows."""
    app = _group("gpucheck", callback=_root)
    for name, command in COMMANDS.items():
        if name == wanted and command.actions:
            actions = _group(name, help=command.summary)
            for action, function in functions_of(command, name).items():
                _add(actions, action, command.actions[action].summary, function)
            app.add_typer(actions, name=name)
        elif name == wanted:
            _add(app, name, command.summary, functions_of(command, name)[name])
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


def _add(app: typer.Typer, name: str, summary: str, function: Callable[..., int]) -> None:
    app.command(name, cls=HelpfulCommand, help=summary)(function)


def action_first(own: list[str], name: str, actions: Collection[str]) -> list[str]:
    """Return the words with the action before its options: `profile --json list` is right too.

    Raises:
        WrongUseError: there is no action.
    """
    start = own.index(name) + 1
    place = start
    while place < len(own) and own[place].startswith("-"):
        place += 2 if own[place] in _BEFORE_A_VALUE else 1
    if place < len(own):
        return [*own[:start], own[place], *own[start:place], *own[place + 1 :]]
    if {"-h", "--help"} & {*own[start:]}:
        return own
    raise WrongUseError(
        code="usage",
        message=f"{name} needs one of: {', '.join(actions)}.",
        remedy=(f"See: gpucheck {name} --help",),
    )


#: Options that have a value as their next word, of those that commands with actions have.
_BEFORE_A_VALUE = frozenset(
    (
        *("--board", "--base", "--format", "--output", "-o", "--from", "--config", "--deadline"),
        *("--expect", "--max-missing", "--baseline", "--rule", "--scheduler", "--local"),
        *("--node-timeout", "--wave", "--gpucheck", "--results", "--resume", "--html"),
    )
)


def run(own: list[str], name: str | None, context: output.Context) -> int:
    """Parse our part of the command line, run the command, and return its exit code."""
    if name is not None and COMMANDS[name].actions:
        own = action_first(own, name, COMMANDS[name].actions)
    return execute(typer.main.get_command(build_app(name)), own, context)


def execute(command: Any, own: list[str], context: output.Context) -> int:
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
