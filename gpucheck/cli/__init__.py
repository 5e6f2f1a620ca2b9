"""Command line: parse, call the feature, write its report, exit."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from gpucheck.cli import output
from gpucheck.cli.commands import COMMANDS, PROGRAM_OPTIONS, RUNS_A_COMMAND
from gpucheck.cli.options import Context
from gpucheck.cli.terminal import closed_pipe, write_stdout
from gpucheck.report.documents import DOCUMENTS, Document
from gpucheck.report.errors import ExitCode, GpucheckError, system_refusal
from gpucheck.version import __version__

DOCUMENTS.update(
    {
        "overview": Document(results=None, view="gpucheck.cli.overview"),
        "report": Document(
            results=("gpucheck.cli.report:MachineReport",), view="gpucheck.cli.report"
        ),
    }
)


def main(
    arguments: Sequence[str] | None = None, *, ready: Callable[[], object] = lambda: None
) -> int:
    """Run gpucheck with these arguments (default: the process's) and return its exit code.

    `ready` is called once everything that each run of this command needs is imported.
    """
    # Not list(): once `gpucheck list` has run here, that name is its module.
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    if COMPLETING in os.environ:
        from gpucheck.cli.completion import complete

        return complete(os.environ[COMPLETING], given)
    if given[:1] == ["help"]:
        given = [*(word for word in given[1:] if word[:1] != "-"), "--help"]
    elif given[1:] == ["help"] and given[0] in COMMANDS:
        given = [given[0], "--help"]
    name = given[0] if given and given[0] in COMMANDS else None
    context = Context(
        command="detect" if stands_alone(given) else name,
        document=output.requested_document(given),
    )
    if sys.platform != "linux":
        return output.fail(context, output.wrong_platform())
    try:
        if name in RUNS_A_COMMAND and "--" in given:
            own, context = _split(given, name)
        else:
            own = given
        command = _command(own, name, context)
        ready()
        return command()
    except GpucheckError as error:
        return output.fail(context, error)
    except KeyboardInterrupt:
        return output.interrupted(context)
    except BrokenPipeError:
        return closed_pipe()
    except Exception as error:  # the one place that catches a bug of ours
        refusal = system_refusal(error)
        if refusal is None:
            return output.bug(context, error)
        error.__traceback__ = None  # its frames hold the memory that the answer needs
        return output.fail(context, refusal)


def _command(own: list[str], name: str | None, context: Context) -> Callable[[], int]:
    """Import what runs the command, and return it."""
    if own[:1] in (["--version"], ["-V"]):
        return show_version
    if name == "list":
        from gpucheck.cli.list import command
        from gpucheck.cli.options import read_flags

        values = read_flags(own[1:], command)
        if values is not None:
            return lambda: output.call_command(command, name, values)
    if stands_alone(own):
        from gpucheck.cli import overview

        return lambda: overview.run(own, context)
    from gpucheck.cli.app import run

    if name is not None:
        import_module(f"gpucheck.cli.{name}")
    return lambda: run(own, name, context)


def stands_alone(arguments: Sequence[str]) -> bool:
    """Return whether these words ask for the short answer: they begin with an option of it."""
    first = arguments[0] if arguments else "--"
    return first.startswith("-") and first.partition("=")[0] not in PROGRAM_OPTIONS


def show_version() -> int:
    """Print the version, which needs no parser."""
    write_stdout(f"gpucheck {__version__}\n")
    return int(ExitCode.OK)


#: A shell asks what may come next.
COMPLETING = "_GPUCHECK_COMPLETE"


def _split(given: list[str], name: str | None) -> tuple[list[str], Context]:
    """Split off the command after `--`, before any option is parsed."""
    from gpucheck.drivers.child import inherited_descriptors
    from gpucheck.place.exec import split_command

    own, child = split_command(given)
    keep = inherited_descriptors()
    return own, Context(command=name, child=tuple(child or ()), keep=keep)
