"""Options of every command, declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpucheck.cli.commands import COMMANDS
from gpucheck.cli.examples import find_recording, list_examples
from gpucheck.cli.output import Answered, Context, Shared
from gpucheck.cli.terminal import write_stdout
from gpucheck.report.errors import GpucheckError, WrongUseError

#: --log of the commands that run another one after `--`.
CommandLog = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="FILE",
        help="If the command ends badly, look for the cause in this file.",
    ),
]


def show_examples(ctx: typer.Context, value: bool) -> None:
    """Print the examples and end."""
    if not value or ctx.resilient_parsing:
        return
    if isinstance(ctx.obj, Context) and ctx.obj.document is not None:
        message = "--list-examples is for people: it has no JSON document."
        raise WrongUseError(code="no-document", message=message)
    write_stdout(list_examples())
    raise typer.Exit


def take_defaults(ctx: typer.Context, value: Path | None) -> None:
    """Take the defaults of this command's options from a file: --config after the command."""
    if value is None or ctx.resilient_parsing:
        return
    from gpucheck.cli.config import read_defaults

    defaults: Any = read_defaults(value, COMMANDS)
    for word in ctx.command_path.split()[1:] or ["detect"]:
        defaults = defaults.get(word, {})
    ctx.default_map = defaults


def _early(
    list_examples: Annotated[
        bool,
        typer.Option(
            "--list-examples",
            callback=show_examples,
            is_eager=True,
            help="List the examples for --from and exit.",
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            callback=take_defaults,
            is_eager=True,
            help="Take defaults of options from this TOML file.",
        ),
    ] = None,
) -> None:
    """Declare the options whose callbacks act before any other option is read."""


#: `--output -` is standard output, as without the option.
STDOUT = Path("-")


def _shared(
    format_: str,  # each command has its own formats: see _format_option
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the report to this file."),
    ] = None,
    from_: Annotated[
        str | None,  # a path would take the ./ off a file called ./example:NAME
        typer.Option(
            "--from",
            metavar="FILE|example:NAME",
            help="Answer from a snapshot or an example, not this machine.",
        ),
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
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write the report as a page."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.svg|png", help="Also draw a chart of the report."),
    ] = None,
    chart: str | None = None,  # each command has its own charts: see _chart_option
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
    recording, example = (None, None) if from_ is None else find_recording(from_)
    return Shared(
        format="json" if json else format_,
        output=None if output == STDOUT else output,
        recording=recording,
        example=example,
        source=from_,
        deadline_s=deadline,
        strict=strict,
        verbosity=-1 if quiet else verbose,
        html=html,
        plot=plot,
        chart=chart,
    )


_SHARED_PARAMETERS = inspect.signature(_shared, eval_str=True).parameters
_EARLY_PARAMETERS = inspect.signature(_early, eval_str=True).parameters

#: They ask no driver.
_WITHOUT_DRIVER = frozenset({"compare", "fleet", "profile", "show"})
#: They refuse --from and say why, so their --help does not offer it.
_WITHOUT_SNAPSHOT = frozenset({"bench", "compare", "fleet", "fleet_run", "profile", "show"})
_HIDDEN_FROM = _SHARED_PARAMETERS["from_"].replace(
    annotation=Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="A snapshot cannot be used here.", hidden=True),
    ]
)
#: Here it is not a driver that is waited for.
_FLEET_DEADLINE = _SHARED_PARAMETERS["deadline"].replace(
    annotation=Annotated[
        float | None,
        typer.Option(
            "--deadline",
            metavar="SECONDS",
            help="When to stop waiting for nodes [default: the waves' node timeouts, and 30].",
        ),
    ]
)
_HIDDEN_DEADLINE = _SHARED_PARAMETERS["deadline"].replace(
    annotation=Annotated[
        float | None,
        typer.Option(
            "--deadline", metavar="SECONDS", help="Has no effect: no driver is asked.", hidden=True
        ),
    ]
)


def _format_option(formats: Sequence[str]) -> inspect.Parameter:
    """Return --format as this command has it."""
    *others, last = formats
    known = f"{', '.join(others)} or {last}" if others else last
    option = typer.Option("--format", metavar="NAME", help=f"{known}.")
    default = formats[0]
    return _SHARED_PARAMETERS["format_"].replace(annotation=Annotated[str, option], default=default)


def _chart_option(charts: Sequence[str]) -> inspect.Parameter:
    """Return --chart as this command has it."""
    known = f"{', '.join(charts[:-1])} or {charts[-1]}" if charts[1:] else charts[0]
    text = f"What --plot draws: {known} [default: the first that the report has]."
    option = typer.Option("--chart", metavar="NAME", help=text)
    return _SHARED_PARAMETERS["chart"].replace(annotation=Annotated[str | None, option])


def with_shared_options(
    function: Callable[..., int], *, formats: Sequence[str] | None = None
) -> Callable[..., int]:
    """Add the shared options to a command, which receives them in its parameter `shared`.

    `formats` are those of a function that is no command with a name of its own.
    """
    signature = inspect.signature(function, eval_str=True)
    name = function.__module__.rpartition(".")[2]
    formats = formats or COMMANDS[name].formats
    charts = COMMANDS[name].charts if name in COMMANDS else ()
    own = [item for item in signature.parameters.values() if item.name != "shared"]

    @functools.wraps(function)
    def command(**values: Any) -> int:
        for early in _EARLY_PARAMETERS:
            values.pop(early, None)
        shared = _shared(
            **{name: values.pop(name) for name in _SHARED_PARAMETERS if name in values}
        )
        if shared.chart is not None:
            from gpucheck.cli.outlets import check_chart

            check_chart(shared, charts)
        try:
            return Answered(function(**values, shared=shared))
        except GpucheckError as error:
            if shared.html is not None and not isinstance(error, WrongUseError):
                from gpucheck.cli.outlets import write_failed_page

                write_failed_page(name, shared.html, error)
            raise
        except KeyboardInterrupt:
            # Typer would end with its code, but without a document.
            raise typer.Abort from None

    # Typer reads both: the parameters from the signature, their types from the annotations.
    shared_by_name = {**_SHARED_PARAMETERS, **_EARLY_PARAMETERS, "format_": _format_option(formats)}
    if name in _WITHOUT_SNAPSHOT:
        shared_by_name["from_"] = _HIDDEN_FROM
        del shared_by_name["list_examples"]
    if "html" not in formats:
        del shared_by_name["html"]
    if charts:
        shared_by_name["chart"] = _chart_option(charts)
    else:
        del shared_by_name["plot"], shared_by_name["chart"]
    if name in _WITHOUT_DRIVER:
        shared_by_name["deadline"] = _HIDDEN_DEADLINE
    elif name == "fleet_run":
        shared_by_name["deadline"] = _FLEET_DEADLINE
    parameters = [*own, *shared_by_name.values()]
    keyword_only = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in parameters]
    command.__signature__ = signature.replace(parameters=keyword_only)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters} | {"return": int}
    return command


def explicit_options(ctx: Any) -> frozenset[str]:
    """Return the names of the parameters that are given on the command line, not in a file."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return frozenset(
        name for name, source in sources.items() if source and source.name == "COMMANDLINE"
    )


def check_command_log(ctx: Any, log: str | None) -> None:
    """Refuse --log without a command to write it, and what cannot be a file.

    A default out of a file is for those calls that have a command.

    Raises:
        WrongUseError: with the reason.
    """
    has_command = ctx.obj.child is not None
    if log is None or not (has_command or "log" in explicit_options(ctx)):
        return
    if not has_command:
        message = "--log reads what a command writes: add one after `--`."
        raise WrongUseError(code="log-without-command", message=message)
    if log == "-" or Path(log).is_dir():
        message = f"--log takes the name of a file that the command writes, not {log!r}."
        raise WrongUseError(code="log-unreadable", message=message)
