"""Options: how a command declares its own, those of every command, and the call with their values.

A parameter's default declares one: `size: int | None = option("--size N", "Edge of the arrays.")`.
`app` turns it into Typer's. A line of flags alone is read here, without Typer: importing that takes
longer than everything else that `gpucheck list` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gpucheck.cli.commands import COMMANDS
from gpucheck.cli.shared import Drawings, Shared
from gpucheck.report.errors import GpucheckError, WrongUseError, check_seconds

#: The file of defaults.
CONFIG_VARIABLE = "GPUCHECK_CONFIG"
#: `--output -` is standard output, as without the option.
STDOUT = Path("-")
#: Headings in --help of what every command has; they come after a command's own.
OUTPUT, MACHINE, DEFAULTS = "Output", "Machine", "Defaults and help"


class Option(NamedTuple):
    """Declaration of an option or argument; one whose default is `...` must be given.

    `usage` has its words and the name of its value: "--device, -d LIST"; an argument has no words.
    `group` is its heading in --help, and that of those declared after it.
    """

    usage: str
    help: str
    default: Any = None
    group: str | None = None

    @property
    def words(self) -> list[str]:
        """Return what may be typed: "--device" and "-d"."""
        return [word.strip(",") for word in self.usage.split() if word.startswith("-")]

    @property
    def value_name(self) -> str | None:
        """Return the name of its value; None for a flag, and for a choice that names its values."""
        last = self.usage.split()[-1] if self.words else self.usage
        return None if last in self.words else last


def option(usage: str, text: str, default: Any = None, *, group: str | None = None) -> Any:
    """Declare an option or argument as the default of a parameter, which has its type."""
    return Option(usage, text, default, group)


def flag(usage: str, text: str, *, group: str | None = None) -> Any:
    """Declare an option without a value."""
    return Option(usage, text, default=False, group=group)


# ------------------------------------------------------------------------- options of commands

#: Further outputs of several commands.
JUNIT = option(
    "--junit FILE", "Also write a JUnit file: a case for each GPU and check.", group=OUTPUT
)
GITHUB = option(
    "--github/--no-github",
    "Annotations and a step summary [default: when GitHub Actions runs it].",
    group=OUTPUT,
)
PROMETHEUS = option(
    "--prometheus FILE",
    "Also write metrics for node-exporter's textfile collector (NAME.prom).",
    group=OUTPUT,
)
#: --log of the commands that run another one after `--`.
COMMAND_LOG = option("--log FILE", "If the command ends badly, look for the cause in this file.")
#: Shared options that a command does not have, because they would have no effect: it measures, it
#: reads no machine or asks no driver, its exit code judges nothing, or its FILE is its one output.
LACKS: Mapping[str, Collection[str]] = {
    "bench": ("from_",),
    "compare": ("from_", "deadline"),
    "fleet": ("from_", "deadline"),
    "profile": ("from_", "deadline"),
    "show": ("from_", "deadline", "strict"),
    "snapshot": ("format_", "output", "strict"),
}


def collect_shared(
    *,
    json: bool = flag("--json", "Short for --format json.", group=OUTPUT),
    output: Path | None = option("--output, -o FILE", "Write the report to this file."),
    format_: str = option("--format NAME", "", "table"),
    verbose: int = option("--verbose, -v", "Show more.", 0),
    quiet: bool = flag("--quiet, -q", "Show less."),
    strict: bool = flag("--strict", "Exit 1 on warnings and inconclusive answers."),
    html: Path | None = option("--html FILE", "Also write the report as a page."),
    plot: Path | None = option("--plot FILE.svg|png", "Also draw a chart of the report."),
    chart: str | None = option("--chart NAME", ""),
    # A path would take the ./ off a file called ./example:NAME.
    from_: str | None = option(
        "--from FILE|example:NAME",
        "Answer from a snapshot or an example (gpucheck --list-examples), not this machine.",
        group=MACHINE,
    ),
    deadline: float | None = option(
        "--deadline SECONDS", "How long a driver may take to answer [default: 10 + 3 per GPU]."
    ),
) -> Shared:
    """Collect the options that every command has."""
    if json and format_ not in ("table", "json"):
        raise WrongUseError(
            code="two-formats",
            message=f"--json and --format {format_} contradict each other: give one of them.",
        )
    if deadline is not None:
        check_seconds("--deadline", deadline, code="bad-deadline")
    recording = None
    if from_ is not None:
        from gpucheck.cli.examples import find_recording

        recording = find_recording(from_)
    return Shared(
        format="json" if json else format_,
        output=None if output == STDOUT else output,
        verbosity=-1 if quiet else verbose,
        strict=strict,
        recording=recording,
        deadline_s=deadline,
        drawings=Drawings(html, plot, chart),
    )


SHARED: Mapping[str, Option] = MappingProxyType(collect_shared.__kwdefaults__ or {})


def shared_options(command: str, formats: Sequence[str]) -> dict[str, Option]:
    """Return those of these options that a command has, with its formats and charts."""
    charts = COMMANDS[command].charts
    found = {name: SHARED[name] for name in SHARED if name not in LACKS.get(command, ())}
    if "format_" in found:
        text = f"{_either(formats)}."
        found["format_"] = SHARED["format_"]._replace(help=text, default=formats[0])
    if "html" not in formats:
        del found["html"]
    if charts:
        text = f"What --plot draws: {_either(charts)} [default: the first that the report has]."
        found["chart"] = SHARED["chart"]._replace(help=text)
    else:
        del found["plot"], found["chart"]
    return found


def _either(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


# ---------------------------------------------------------------------------------- the call


def read_flags(words: Sequence[str], function: Callable[..., int]) -> dict[str, Any] | None:
    """Return the values of a command's options where the words are flags alone, else None.

    Options with a value, --help, mistakes and a configuration file are for the parser.
    """
    options: dict[str, Option] = {**(function.__kwdefaults__ or {}), **SHARED}
    flags = {
        word: name for name, item in options.items() if item.default is False for word in item.words
    }
    if CONFIG_VARIABLE in os.environ or not flags.keys() >= {*words}:
        return None
    given = {flags[word]: True for word in words}
    return {name: item.default for name, item in options.items()} | given


def call_command(function: Callable[..., int], command: str, values: Mapping[str, Any]) -> int:
    """Call a command's function with the values of its options; `shared` are those of all."""
    declared = function.__kwdefaults__ or {}
    own = {name: value for name, value in values.items() if name in declared or name == "ctx"}
    given = {name: item.default for name, item in SHARED.items()}
    shared = collect_shared(**given | {name: values[name] for name in values.keys() - own.keys()})
    if shared.drawings.chart is not None:
        from gpucheck.cli.pages import check_chart

        check_chart(shared.drawings, COMMANDS[command].charts)
    try:
        return function(**own, shared=shared)
    except GpucheckError as error:
        page = shared.drawings.html
        if page is not None and not isinstance(error, WrongUseError):
            from gpucheck.cli.outlets import write_failed_page

            write_failed_page(command, page, error)
        raise


def explicit_options(ctx: Any) -> frozenset[str]:
    """Return the names of the parameters that are given on the command line, not in a file."""
    sources = {name: ctx.get_parameter_source(name) for name, value in ctx.params.items()
               # An older parser says so of arguments that may be left out, too.
               if value not in (None, (), [])}  # fmt: skip
    return frozenset(
        name for name, source in sources.items() if source and source.name == "COMMANDLINE"
    )


def typed_options(ctx: Any, names: Iterable[str]) -> list[str]:
    """Return those of these parameters that are given on the command line, as they are typed."""
    explicit = explicit_options(ctx)
    return [_typed(name) for name in names if name in explicit]


def _typed(name: str) -> str:
    return "the kernels" if name == "kernels" else f"--{name.replace('_', '-')}"


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
