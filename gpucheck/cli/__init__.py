"""The command line: parse, call the core, render, exit. The registry of commands is here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from gpucheck import __version__
from gpucheck.cli import output
from gpucheck.models.errors import ExitCode, GpucheckError

#: Command -> module with the function `command`. Only the one that is called is imported.
COMMANDS = MappingProxyType(
    {
        "detect": "gpucheck.cli.detect",
        "list": "gpucheck.cli.list",
        "place": "gpucheck.cli.place",
        "bench": "gpucheck.cli.bench",
        "memlimit": "gpucheck.cli.memlimit",
        "snapshot": "gpucheck.cli.snapshot",
    }
)

#: Commands that run another one given after `--`; elsewhere `--` only ends the options.
RUNS_A_COMMAND = frozenset({"place", "memlimit"})

#: Typer brings its own Click, or uses the installed one: either way this is the base of the
#: errors that a wrong command line raises.
_UsageError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def _show_version(value: bool) -> None:
    if value:
        output.write_stdout(f"gpucheck {__version__}\n")
        raise typer.Exit


def _root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
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
) -> None:
    """Diagnose and benchmark NVIDIA GPUs: usable? which one? how fast? how much memory?"""
    if config is not None:
        from gpucheck.cli.config import read_defaults

        ctx.default_map = read_defaults(config, COMMANDS)


def build_app(wanted: str | None = None) -> typer.Typer:
    """Return the application; with `wanted` only that command is imported, for a quick start."""
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
    for name in COMMANDS if wanted is None else (wanted,):
        app.command(name)(import_module(COMMANDS[name]).command)
    return app


def _wanted(arguments: Sequence[str]) -> str | None:
    """Return the command's name if it is the first word."""
    return arguments[0] if arguments and arguments[0] in COMMANDS else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run gpucheck with these arguments (default: the process's) and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = _wanted(given)
    context = output.Context(command=name, json=output.asks_for_json(given))
    if sys.platform != "linux":
        return output.fail(context, output.wrong_platform())
    try:
        if name in RUNS_A_COMMAND and "--" in given:
            own, context = _split(given, name)
        else:
            own = given
        return _run(own, name, context)
    except GpucheckError as error:
        return output.fail(context, error)
    except KeyboardInterrupt:
        return output.interrupted(context)
    except BrokenPipeError:
        return output.closed_pipe()
    except Exception as error:  # the one place that meets a bug of ours
        return output.bug(context, error)


def _split(given: list[str], name: str | None) -> tuple[list[str], output.Context]:
    """Split off the command after `--`, before any option is parsed."""
    from gpucheck.core.launch import inherited_descriptors, split_command

    own, child = split_command(given)
    keep = inherited_descriptors()
    return own, output.Context(command=name, json=False, child=tuple(child or ()), keep=keep)


def _run(own: list[str], name: str | None, context: output.Context) -> int:
    app = build_app(name)
    command: Any = typer.main.get_command(app)
    try:
        code = command.main(own, prog_name="gpucheck", standalone_mode=False, obj=context)
    except typer.Abort:
        return output.interrupted(context)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            output.write_stdout(str(getattr(error, "message", error)) + "\n")
            return int(ExitCode.OK)
        return output.fail(context, output.usage_error(error))
    return int(code or 0)
