"""Command line: parse, call the feature, write its report, exit."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise

from gpucheck import __version__
from gpucheck.cli import output
from gpucheck.cli.commands import COMMANDS, RUNS_A_COMMAND
from gpucheck.cli.terminal import closed_pipe, write_stdout
from gpucheck.report.errors import ExitCode, GpucheckError, system_refusal


def _wanted(arguments: Sequence[str]) -> str | None:
    """Return the command's name: the first word that is neither an option nor --config's file."""
    words = iter(arguments)
    for word in words:
        if word == "--config":
            next(words, None)
        elif not word.startswith("-"):
            return word if word in COMMANDS else None
    return None


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
        given = [*given[1:], "--help"]
    name = _wanted(given)
    alone = stands_alone(given)
    context = output.Context(
        command="detect" if alone else name, document=output.requested_document(given)
    )
    if sys.platform != "linux":
        return output.fail(context, output.wrong_platform())
    try:
        if name in RUNS_A_COMMAND and "--" in given:
            own, context = _split(given, name)
        else:
            own = given
        command = _overview(own, context) if alone else _command(own, name, context)
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
        return output.bug(context, error) if refusal is None else output.fail(context, refusal)


def _command(own: list[str], name: str | None, context: output.Context) -> Callable[[], int]:
    """Import what runs the command, and return it."""
    if own in (["--version"], ["-V"]):
        return show_version
    if name == "list":
        own = with_interval(own)
        from gpucheck.cli.listing import list_gpus, parse_flags

        quick = parse_flags(own)
        if quick is not None:
            shared, options = quick
            return lambda: list_gpus(shared, **options)
    from gpucheck.cli.app import run

    if name is not None:
        import_module(COMMANDS[name].module)
    return lambda: run(own, name, context)


#: Options of the short answer that `gpucheck` gives without a command, without and with a value.
_FLAGS_ALONE = re.compile(r"--(?:json|strict|verbose|quiet)|-[vq]+")
_VALUES_ALONE = re.compile(r"(--(?:format|output|from|deadline|config))(=.*)?|-o", re.S)


def stands_alone(arguments: Sequence[str]) -> bool:
    """Return whether these words are options of the short answer, and nothing else."""
    words = iter(arguments)
    for word in words:
        with_value = _VALUES_ALONE.fullmatch(word)
        if with_value is not None and with_value[2] is None:
            next(words, None)
        elif with_value is None and _FLAGS_ALONE.fullmatch(word) is None:
            return False
    return True


def _overview(own: list[str], context: output.Context) -> Callable[[], int]:
    from gpucheck.cli import overview

    file = os.environ.get("GPUCHECK_CONFIG")
    named = any(word.partition("=")[0] == "--config" for word in own)
    return lambda: overview.run(["--config", file, *own] if file and not named else own, context)


def show_version() -> int:
    """Print the version, which needs no parser."""
    write_stdout(f"gpucheck {__version__}\n")
    return int(ExitCode.OK)


def with_interval(words: list[str]) -> list[str]:
    """Give `list --watch` its default interval where it has no value: the parser wants one."""
    found = []
    for word, after in pairwise([*words, "--"]):
        found.append(word)
        if word in ("--watch", "-w") and after.startswith("-") and not _NEGATIVE.match(after):
            found.append(EVERY_S)
    return found


#: A shell asks what may come next.
COMPLETING = "_GPUCHECK_COMPLETE"
#: Seconds between two pictures of `list --watch`.
EVERY_S = "2"
_NEGATIVE = re.compile(r"-[0-9.]")


def _split(given: list[str], name: str | None) -> tuple[list[str], output.Context]:
    """Split off the command after `--`, before any option is parsed."""
    from gpucheck.drivers.child import inherited_descriptors
    from gpucheck.place.exec import split_command

    own, child = split_command(given)
    keep = inherited_descriptors()
    return own, output.Context(command=name, child=tuple(child or ()), keep=keep)
