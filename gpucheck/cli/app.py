"""Typer application: the program's own options, and the command on the command line."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gpucheck import __version__
from gpucheck.cli import output
from gpucheck.cli.commands import COMMANDS, RUNS_A_COMMAND, Command
from gpucheck.cli.options import show_examples
from gpucheck.cli.terminal import write_stdout
from gpucheck.report.errors import ExitCode

#: Typer brings its own Click, or uses the installed one: either way this is the base
#: class of the errors that a wrong command line raises.
_UsageError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def _show_version(value: bool) -> None:
    if value:
        write_stdout(f"gpucheck {__version__}\n")
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
) -> None:
    """Diagnose and benchmark NVIDIA GPUs: usable? which one? how fast? how much memory?"""
    if config is not None:
        from gpucheck.cli.config import read_defaults

        ctx.default_map = read_defaults(config, COMMANDS)


def _never_run() -> None:
    """Represent a command in the overview; it never runs."""


class _Command(TyperCommand):
    """Command with a plain usage line: AMOUNT, not {AMOUNT}, and `-- COMMAND`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line after the command's name."""
        pieces = [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]
        return [*pieces, "[-- COMMAND...]"] if ctx.info_name in RUNS_A_COMMAND else pieces


def build_app(wanted: str | None = None) -> typer.Typer:
    """Return the application with one command, or with the overview of all that --help shows."""
    app = typer.Typer(
        name="gpucheck",
        callback=_root,
        no_args_is_help=True,
        add_completion=False,
        # rich would cost half of the start-up time, also for --help.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, command in COMMANDS.items():
        if name == wanted:
            function = import_module(command.module).command
            epilog = _examples(command)
            app.command(name, cls=_Command, help=command.summary, epilog=epilog)(function)
        elif wanted is None:
            app.command(name, help=command.summary)(_never_run)
    return app


def _examples(command: Command) -> str | None:
    """Return the end of --help. The leading mark keeps the parser from reflowing the lines."""
    lines = [f"  {line}\n      {purpose}" for line, purpose in command.examples]
    return "\b\nExamples:\n" + "\n".join(lines) if lines else None


def run(own: list[str], name: str | None, context: output.Context) -> int:
    """Parse our part of the command line, run the command, and return its exit code."""
    app = build_app(name)
    command: Any = typer.main.get_command(app)
    try:
        code = command.main(own, prog_name="gpucheck", standalone_mode=False, obj=context)
    except typer.Abort:
        return output.interrupted(context)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            write_stdout(str(getattr(error, "message", error)) + "\n")
            return int(ExitCode.OK)
        return output.fail(context, output.usage_error(error, own))
    if code == ExitCode.INTERRUPTED and not isinstance(code, output.Answered):
        return output.interrupted(context)
    return int(code or 0)
