"""Options of the commands: the table of each, what every command has, and the call with values.

A line of flags alone is read here, without Typer: importing that takes longer than everything else
that `gpucheck list` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gpucheck.cli.commands import COMMANDS
from gpucheck.report.errors import WrongUseError, check_seconds
from gpucheck.report.options import (
    Option,
    flag,
    made_of_options,
    option,
    options_of,
    split_words,
)

#: The file of defaults.
CONFIG_VARIABLE = "GPUCHECK_CONFIG"
#: `--output -` is standard output, as without the option.
STDOUT = Path("-")
#: Headings in --help of what every command has; they come after a command's own.
OUTPUT, MACHINE, DEFAULTS = "Output", "Machine", "Defaults and help"
#: Formats that an option of the same name writes beside the report.
BESIDE = ("html", "junit", "github", "prometheus")
#: Questions of `detect` and `bench` that have no case, annotation or metric.
_NO_VERDICT = "--list-checks --explain --wheel --pid --log"


class Context(NamedTuple):
    """Facts about an invocation before its options are parsed.

    `document` is the format of which stdout has a document in every outcome, `json` or `jsonl`.
    `child` is a command of the user's to run, and `keep` the descriptors that our caller left
    open for it. Stdout then belongs to that command, so there is no document on it.
    """

    command: str | None
    document: str | None = None
    child: tuple[str, ...] | None = None
    keep: frozenset[int] = frozenset()


@made_of_options
class Outlets(NamedTuple):
    """What is written beside the report: a page, a chart (the first if none is named), and for CI.

    `github` writes annotations to stderr and the summary of a step.
    """

    html: Path | None = option("--html FILE", "Also write the report as a page.")
    plot: Path | None = option("--plot FILE.svg|png", "Also draw a chart of the report.")
    chart: str | None = option("--chart NAME", "")
    junit: Path | None = option(
        "--junit FILE",
        "Also write a JUnit file: a case for each GPU and check.",
        not_with=f"--peaks {_NO_VERDICT}",
    )
    github: bool | None = option(
        "--github/--no-github",
        "Annotations and a step summary [default: when GitHub Actions runs it].",
        not_with=_NO_VERDICT,
    )
    prometheus: Path | None = option(
        "--prometheus FILE",
        "Also write metrics for node-exporter's textfile collector (NAME.prom).",
        not_with=f"--peaks {_NO_VERDICT}",
    )


class Shared(NamedTuple):
    """Values of the options that every command has, and how it was called.

    `private`: only its owner may read the file of --output. `recording` is the value of --from.
    `typed` are the options that stand on the command line, which those of a file do not.
    """

    format: str = "table"
    output: Path | None = None
    verbosity: int = 0
    strict: bool = False
    private: bool = False
    recording: str | None = None
    deadline_s: float | None = None
    #: GPUs that sleep lengthen the deadline.
    wakes: bool = False
    outlets: Outlets = Outlets()
    typed: Mapping[str, Option] = MappingProxyType({})
    format_is_given: bool = False
    context: Context = Context(None)


#: --log of the commands that run another one after `--`.
COMMAND_LOG = option("--log FILE", "If the command ends badly, look for the cause in this file.")
#: Shared options that a command does not have, because they would have no effect: it measures, it
#: reads no machine or asks no driver, its exit code judges nothing, or its FILE is its one output.
LACKS: Mapping[str, Collection[str]] = {
    "bench": ("from_",),
    "compare": ("from_", "deadline"),
    "fleet": ("from_", "deadline", "junit"),
    "profile": ("from_", "deadline"),
    "show": ("from_", "deadline", "strict", "junit", "github", "prometheus"),
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
    outlets: Outlets,
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
    if from_ is not None:
        from gpucheck.cli.examples import find_recording

        find_recording(from_)  # an example that is not there is refused first
    if outlets.github is None:
        outlets = outlets._replace(github=os.environ.get("GITHUB_ACTIONS") == "true")
    return Shared(
        format="json" if json else format_,
        output=None if output == STDOUT else output,
        verbosity=-1 if quiet else verbose,
        strict=strict,
        recording=from_,
        deadline_s=deadline,
        outlets=outlets,
    )


def shared_options(command: str, formats: Sequence[str]) -> dict[str, Option]:
    """Return those of these options that a command has, with its formats and charts."""
    charts = COMMANDS[command].charts
    lacking = {*LACKS.get(command, ()), *(name for name in BESIDE if name not in formats)}
    options = {name: SHARED[name] for name in SHARED if name not in lacking}
    if "format_" in options:
        text = f"{_either(formats)}."
        options["format_"] = SHARED["format_"]._replace(help=text, default=formats[0])
    if charts:
        text = f"What --plot draws: {_either(charts)} [default: the first that the report has]."
        options["chart"] = SHARED["chart"]._replace(help=text)
    else:
        del options["plot"], options["chart"]
    return options


def _either(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


# ----------------------------------------------------------------------- the tables of commands


def requests_of(function: Callable[..., object]) -> dict[str, type]:
    """Return the requests that a command's function takes, by its parameters."""
    names = function.__annotations__.items()
    kinds = {name: function.__globals__.get(str(kind)) for name, kind in names}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type)
            and options_of(kind)}  # fmt: skip


def own_options(function: Callable[..., object]) -> dict[str, Option]:
    """Return the options of a command's function by their names, each with its heading."""
    requests, declared = requests_of(function), function.__kwdefaults__ or {}
    options: dict[str, Option] = {}
    for name in function.__annotations__:
        options |= options_of(requests.get(name))
        options |= {name: declared[name]} if name in declared else {}
    group = None
    for name, item in options.items():
        group = item.group or group
        options[name] = item._replace(group=group)
    return options


SHARED = own_options(collect_shared)


def refuse_beside(
    question: str, shared: Shared, *, code: str, fact: str, remedy: tuple[str, ...] = ()
) -> None:
    """Refuse what stands on the command line and contradicts an option.

    Raises:
        WrongUseError: with this fact, and what to leave out.
    """
    contradict = [item for item in shared.typed.values() if question in item.not_with.split()]
    if contradict:
        words = [item.long or f"the {item.usage.strip('[].').lower()}s" for item in contradict]
        raise WrongUseError(code=code, message=f"{fact}: omit {', '.join(words)}.", remedy=remedy)


# ---------------------------------------------------------------------------------- the call


def read_flags(words: Sequence[str], function: Callable[..., int]) -> dict[str, Any] | None:
    """Return the values of a command's options where the words are flags alone, else None.

    Options with a value, --help, mistakes and a configuration file are for the parser.
    """
    options = own_options(function) | SHARED
    flags = {
        word: name for name, item in options.items() if item.default is False for word in item.words
    }
    if CONFIG_VARIABLE in os.environ or not flags.keys() >= {*words}:
        return None
    given = {flags[word]: True for word in words}
    return {name: item.default for name, item in options.items()} | given


def arguments_of(function: Callable[..., object], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a command's function takes, from the values that its parser has found."""
    arguments = {}
    for name, item in own_options(function).items():
        value = values[name]
        if item.repeats:
            value = (
                split_words(value or ()) if item.commas else tuple(value or ())
            ) or item.default
        arguments[name] = value
    for name, kind in requests_of(function).items():
        arguments[name] = kind(**{field: arguments.pop(field) for field in options_of(kind)})
    return arguments


def check_command_log(shared: Shared, log: str | None) -> None:
    """Refuse --log without a command to write it, and what cannot be a file.

    A default out of a file is for those calls that have a command.

    Raises:
        WrongUseError: with the reason.
    """
    has_command = shared.context.child is not None
    if log is None or not (has_command or "log" in shared.typed):
        return
    if not has_command:
        message = "--log reads what a command writes: add one after `--`."
        raise WrongUseError(code="log-without-command", message=message)
    if log == "-" or Path(log).is_dir():
        message = f"--log takes the name of a file that the command writes, not {log!r}."
        raise WrongUseError(code="log-unreadable", message=message)
