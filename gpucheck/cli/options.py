"""Options of every command, declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpucheck.cli.commands import COMMANDS
from gpucheck.cli.output import Answered, Shared
from gpucheck.report.errors import WrongUseError


def _shared(
    format_: str,  # each command has its own formats: see _format_option
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the report to this file."),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Answer from a snapshot, not this machine."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline",
            metavar="SECONDS",
            help="How long a driver may take to answer [default: 10 + 3 per GPU].",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 on warnings and inconclusive answers.")
    ] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, show_default=False, help="Show more.")
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show less.")] = False,
) -> Shared:
    """Collect the shared options."""
    if json and format_ not in ("table", "json"):
        raise WrongUseError(
            code="two-formats",
            message=f"--json and --format {format_} contradict each other: give one of them.",
        )
    if deadline is not None and not 0 < deadline < float("inf"):
        raise WrongUseError(
            code="bad-deadline",
            message=f"--deadline takes seconds above 0, not {deadline:g}.",
        )
    return Shared(
        format="json" if json else format_,
        output=output,
        recording=from_,
        deadline_s=deadline,
        strict=strict,
        verbosity=-1 if quiet else verbose,
    )


_SHARED_PARAMETERS = inspect.signature(_shared, eval_str=True).parameters

#: They refuse --from and say why, so their --help does not offer it.
_WITHOUT_SNAPSHOT = frozenset({"bench", "compare", "profile"})
_HIDDEN_FROM = _SHARED_PARAMETERS["from_"].replace(
    annotation=Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A snapshot cannot be used here.", hidden=True),
    ]
)


def _format_option(formats: Sequence[str]) -> inspect.Parameter:
    """Return --format as this command has it."""
    *others, last = formats
    known = f"{', '.join(others)} or {last}" if others else last
    option = typer.Option("--format", metavar="NAME", help=f"{known}.")
    default = formats[0]
    return _SHARED_PARAMETERS["format_"].replace(annotation=Annotated[str, option], default=default)


def with_shared_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the shared options to a command, which receives them in its parameter `shared`."""
    signature = inspect.signature(function, eval_str=True)
    name = function.__module__.rpartition(".")[2]
    formats = COMMANDS[name].formats
    own = [item for item in signature.parameters.values() if item.name != "shared"]

    @functools.wraps(function)
    def command(**values: Any) -> int:
        shared = _shared(**{name: values.pop(name) for name in _SHARED_PARAMETERS})
        try:
            return Answered(function(**values, shared=shared))
        except KeyboardInterrupt:
            # Typer would end with its code, but without a document.
            raise typer.Abort from None

    # Typer reads both: the parameters from the signature, their types from the annotations.
    shared_by_name = dict(_SHARED_PARAMETERS) | {"format_": _format_option(formats)}
    if name in _WITHOUT_SNAPSHOT:
        shared_by_name["from_"] = _HIDDEN_FROM
    parameters = [*own, *shared_by_name.values()]
    keyword_only = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in parameters]
    command.__signature__ = signature.replace(parameters=keyword_only)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters} | {"return": int}
    return command
